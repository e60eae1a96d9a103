/* libsigmatrace_core: what a layer (shim or hook provider) calls.
 *
 * Rules for every function here: it never blocks on another thread of the
 * application, never fails loudly, never changes errno, and does nothing when
 * recording is off. See docs/capture.md for the design. */
#ifndef SIGMATRACE_H
#define SIGMATRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <x86intrin.h>

#include "st_format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ST_API __attribute__((visibility("default")))

enum st_mode { ST_MODE_OFF, ST_MODE_AGGREGATE, ST_MODE_SIMPLE, ST_MODE_FULL };

/* --- configuration and life cycle ------------------------------------------------ */

/* Mode chosen by SIGMATRACE_MODE; ST_MODE_OFF when SIGMATRACE_OUT is not set. */
ST_API enum st_mode st_mode(void);
/* Is this layer in SIGMATRACE_LAYERS? A layer that is not must not wrap anything. */
ST_API bool st_layer_on(enum st_layer layer);
/* First sight of a library: opens the files of this process if they are not open,
 * and records a `library` object. Returns false when recording is off. */
ST_API bool st_library_seen(enum st_layer layer, const char *name, const char *version,
                            const char *path, const char *how);
/* Is recording running now (files open, not stopped, not failed)? Cheap. */
ST_API bool st_recording(void);
/* Stop and start by the program; flush returns when what this thread recorded is in the file. */
ST_API void st_stop(void);
ST_API void st_start(void);
ST_API void st_flush(void);
/* Register the name of an API function once; the number goes into `call`. Numbers are the
 * same in all processes of a build only by accident: the header lists them, so layers
 * register all their names in a constructor, before the header is written. */
ST_API uint8_t st_call_register(const char *name);
/* One message on stderr, prefixed, at most once per `once` flag. */
ST_API void st_warn_once(bool *once, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Count something that could not be recorded, by reason (static string). */
ST_API void st_lost(const char *reason, uint64_t n);
/* An operation passes by because st_recording() said no: counted as lost where the recording has
 * failed, not where the program has stopped it. (st_channel_get counts by itself.) */
ST_API void st_refused(void);
/* `begin` runs in each child of a fork, before anything is recorded there: a layer sets back what it
 * counts. (In the child of a raw clone, which nothing announces, with the first call that comes to
 * the core.) */
ST_API void st_on_child(void (*begin)(void));

/* --- for the Python side ------------------------------------------------------------- */

ST_API uint32_t st_crc32c(uint32_t crc, const void *data, size_t size); /* crc: 0 to begin */
ST_API uint64_t st_tsc(void);
/* A reading of the TSC and of the clock that SIGMATRACE_CLOCK names; false when it cannot. */
ST_API bool st_clock_pair(uint64_t *tsc, uint64_t *wall_ns, uint64_t *width_tsc);

/* --- objects (low rate) ----------------------------------------------------------- */

ST_API uint32_t st_object_id(void); /* a new id, from 1 */
struct st_object {
    uint8_t *buffer; /* owned by the core, grows */
    size_t used, size, count_at;
    uint16_t fields;
    bool failed;
};
/* begin writes type, id and the time; end appends the item to the rank file. */
ST_API void st_object_begin(struct st_object *object, const char *type, uint32_t id);
ST_API void st_object_u64(struct st_object *object, const char *key, uint64_t value);
ST_API void st_object_str(struct st_object *object, const char *key, const char *value);
ST_API void st_object_bin(struct st_object *object, const char *key, const void *data, size_t size);
ST_API void st_object_end(struct st_object *object);
/* Shorthand: {"type", "id", "closed_tsc"}. */
ST_API void st_object_closed(const char *type, uint32_t id, uint64_t t_tsc);

/* --- channels and ordinals ----------------------------------------------------------- */

struct st_channel_key {
    uint32_t object;
    uint8_t kind, dir, layer, flags;
    uint64_t peer, tag, data;
    bool shared; /* several threads may use the channel at once: ordinals are atomic */
};
/* Finds or makes the channel; lock-free, never NULL while recording (an overflow channel
 * when there is no room); NULL when recording is off. */
struct st_channel {
    uint64_t hash;    /* of the key; 0: free */
    uint32_t id;
    uint32_t ordinal; /* of the next operation */
};
ST_API struct st_channel *st_channel_find(uint64_t kind, uint64_t peer, uint64_t tag,
                                          uint64_t data, bool shared);

/* Inline, so that the key stays in registers: no stores that are read again at once. */
static inline struct st_channel *st_channel_get(const struct st_channel_key *key)
{
    uint64_t kind = key->object | (uint64_t)key->kind << 32 | (uint64_t)key->dir << 40 |
                    (uint64_t)key->layer << 48 | (uint64_t)key->flags << 56;
    return st_channel_find(kind, key->peer, key->tag, key->data, key->shared);
}

static inline uint32_t st_ordinal_next(struct st_channel *channel, bool shared)
{
    if (shared)
        return __atomic_fetch_add(&channel->ordinal, 1, __ATOMIC_RELAXED);
    uint32_t k = channel->ordinal;
    __atomic_store_n(&channel->ordinal, k + 1, __ATOMIC_RELAXED);
    return k;
}

/* --- who uses a stream of operations -------------------------------------------------------- */

/* One word for each stream in which order is kept (an endpoint's sends, the receives posted on
 * it): 0, the one thread that has used it so far, or ST_SEVERAL, which stays. Claimed before the
 * library is called, asked after the ordinal is taken, it tells every operation that may have
 * changed places with another's: for that, the later of the two must have been accepted before
 * the earlier one's ordinal was taken, so both threads had claimed by then, and both see it. What
 * the first thread recorded before the second came was in order and is not marked. What remains
 * is caution alone: threads that take turns, ordered by the program's own locks, count as several.
 * A thread is known by the address of a variable of its own; one that gets the address of an ended
 * thread comes after it, in order, and counts as the same. */
#define ST_SEVERAL ((uintptr_t)1)

static inline void st_owner_claim(uintptr_t *owner, const void *self)
{
    uintptr_t now = __atomic_load_n(owner, __ATOMIC_RELAXED), none = 0;
    if (now != (uintptr_t)self && now != ST_SEVERAL &&
        !__atomic_compare_exchange_n(owner, &none, (uintptr_t)self, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        __atomic_store_n(owner, ST_SEVERAL, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* before the ordinal, which another takes after */
}

static inline bool st_owner_several(const uintptr_t *owner)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(owner, __ATOMIC_RELAXED) == ST_SEVERAL;
}

/* --- records (hot) ---------------------------------------------------------------------- */

static inline uint64_t st_now(void) { return __rdtsc(); }

/* Each stores one record in the calling thread's segment (or, in mode aggregate, adds st_op
 * to the thread's counters). `aux`: format.md 2.1;
 * the span of a call comes from st_span. */
ST_API void st_op_store(uint64_t t_tsc, uint64_t size_bytes, uint64_t where, uint64_t what);

/* Inline, so that the fields, many of them constants, go as four words in registers. */
static inline void st_op(uint64_t t_tsc, uint64_t size_bytes, uint32_t channel, uint32_t ordinal,
                         uint8_t op, uint8_t call, uint8_t depth, uint8_t flags, uint32_t aux)
{
    st_op_store(t_tsc, size_bytes, channel | (uint64_t)ordinal << 32,
                op | (uint64_t)call << 8 | (uint64_t)depth << 16 | (uint64_t)flags << 24 |
                    (uint64_t)aux << 32);
}
ST_API void st_completion(uint64_t t_tsc, uint64_t size_bytes, uint32_t channel, uint32_t ordinal,
                          int32_t status, uint8_t op, uint8_t call, uint8_t depth, uint8_t flags);
ST_API void st_target(uint64_t raddr, uint64_t rkey, uint64_t context, uint32_t channel,
                      uint32_t ordinal);
/* Layer verbs, mode full: a work request and a completion (format.md 2.7, 2.8), as the words that
 * lie in memory. */
ST_API void st_request_store(uint64_t t_tsc, uint64_t wr_id, uint64_t raddr, uint64_t size_rkey,
                             uint64_t imm_object, uint64_t what);
ST_API void st_cqe_store(uint64_t t_tsc, uint64_t posted_tsc, uint64_t wr_id, uint64_t size_imm,
                         uint64_t object_position, uint64_t what);

static inline uint64_t st_pair(uint32_t low, uint32_t high)
{
    return low | (uint64_t)high << 32;
}

static inline void st_request(const struct st_request_record *r)
{
    st_request_store(r->t_tsc, r->wr_id, r->raddr, st_pair(r->size_bytes, r->rkey),
                     st_pair(r->imm, r->object),
                     r->position | (uint64_t)r->opcode << 32 | (uint64_t)r->sges << 40 |
                         (uint64_t)r->flags << 48 | (uint64_t)r->queue << 56);
}

static inline void st_cqe(const struct st_cqe_record *r)
{
    st_cqe_store(r->t_tsc, r->posted_tsc, r->wr_id, st_pair(r->size_bytes, r->imm),
                 st_pair(r->object, r->position),
                 r->first | (uint64_t)r->opcode << 32 | (uint64_t)r->status << 40 |
                     (uint64_t)r->flags << 48 | (uint64_t)r->queue << 56);
}

/* Layers mlx5dv and cuda (format.md 2.9 to 2.11). */
ST_API void st_doorbell(const struct st_doorbell_record *record);
ST_API void st_kernel(const struct st_kernel_record *record);
/* Slots of one WQE, at most 64 (one WQE has 16): all of them go into one chunk, or none. */
ST_API void st_wqe_store(const struct st_wqe_record *records, uint32_t count);
ST_API void st_mark(uint64_t t_tsc, double value, uint32_t name, uint8_t kind);
/* Id of the `name` object of this text (made on first use). */
ST_API uint32_t st_name(const char *text);

static inline uint32_t st_span(uint64_t begin, uint64_t end)
{
    uint64_t d = end - begin;
    return d > UINT32_MAX ? UINT32_MAX : (uint32_t)d;
}

/* Nesting of recorded calls in this thread: depth = st_enter(); ...; st_leave(). What encloses no
 * other recorded call just looks: st_nesting. */
extern ST_API __thread uint8_t st_nesting __attribute__((tls_model("initial-exec")));

static inline uint8_t st_enter(void)
{
    uint8_t depth = st_nesting;
    if (depth < UINT8_MAX)
        st_nesting = (uint8_t)(depth + 1);
    return depth;
}

static inline void st_leave(void)
{
    if (st_nesting)
        st_nesting--;
}

/* --- threads of a shim ----------------------------------------------------------------------- */

/* Makes a detached one, which takes no signals and does not inherit the program's real-time
 * priority. `thread`: its pthread_t. False: it could not be made. */
ST_API bool st_own_thread_make(void *(*run)(void *), unsigned long *thread);
/* Called once by a thread of ours that runs until the process ends, */
ST_API void st_own_thread(void);
/* and about once a second by at least one of a shim's: where the program ended its first thread by
 * pthread_exit, and only own threads are left, this ends the process. */
ST_API void st_own_thread_ends(void);

/* --- pending operations: from an application's context pointer to what was posted -------- */

/* What a posted operation was. For a receive: object, peer (directed source), tag (with ST_TAG_UNKNOWN in flags
 * when the receive is wild), order. For a send in mode full: channel and ordinal. */
struct st_pending {
    uint64_t size_bytes, tag, peer;
    uint32_t object, order, channel, ordinal;
    uint8_t op, call, kind, flags;
};
/* Lock-free map of bounded size. put: false when there is no room (counted as lost by the
 * core). take removes; peek does not (multi-receive buffers). */
ST_API bool st_pending_put(const void *context, const struct st_pending *value);
ST_API bool st_pending_take(const void *context, struct st_pending *value);
ST_API bool st_pending_peek(const void *context, struct st_pending *value);
/* Takes the newest instead: the library refused what was put just before. */
ST_API bool st_pending_undo(const void *context, struct st_pending *value);
/* Drops all of an endpoint or worker that is closed: its contexts may come again. */
ST_API void st_pending_forget(uint32_t object);

/* --- symbols -------------------------------------------------------------------------------- */

/* The next definition of `name` after the shim's: dlsym(RTLD_NEXT), and when that fails
 * (the library was loaded RTLD_LOCAL) the caller's own scope, found from its return address. */
ST_API void *st_next_symbol(const char *name, const void *return_address);
/* libc's own dlsym and dlvsym. A shim's own look-ups go here: plain dlsym may be wrapped, and
 * would answer with a wrapper. */
typedef void *(*st_dlsym_function)(void *, const char *);
typedef void *(*st_dlvsym_function)(void *, const char *, const char *);
ST_API st_dlsym_function st_real_dlsym(void);
ST_API st_dlvsym_function st_real_dlvsym(void);
/* The same, with errno kept. */
ST_API void *st_dlsym(void *handle, const char *name);
ST_API void *st_dlvsym(void *handle, const char *name, const char *version);

/* --- copies of a library ----------------------------------------------------------------------- */

/* A function by a handle; without `version` the default one. Definitions of a shim are none. */
ST_API void *st_copy_symbol(void *handle, const char *name, const char *version);
/* The function that the code at this return address would get by this name: in its own scope, else
 * from `file` where that is loaded, else wherever it is; NULL: there is none. errno is kept. */
ST_API void *st_copy_look_up(const void *caller, const char *file, const char *name,
                             const char *version);
/* How what a shim knows of one copy begins. It is made once and stays. */
struct st_copy {
    struct st_copy *next;
    const void *probe; /* a function that each copy has, by whose address it is known */
};
typedef void (*st_copy_fill)(struct st_copy *copy, void *handle);
/* The copy with this probe, of `size` bytes, which `fill` completes before it is in the list. */
ST_API struct st_copy *st_copy_of(struct st_copy **copies, void *probe, size_t size,
                                  st_copy_fill fill);

/* What dlsym and dlvsym shall answer in the place of a library's own function. */
struct st_interposed {
    const char *name;
    const char *version; /* of the function that is wrapped; NULL: the default one */
    void *wrapper;
};
/* Adds a shim's table; it stays, and ends with a NULL name. A look-up by handle that leads to
 * such a function in an object whose file name begins with `library` ("libibverbs") is answered
 * with the wrapper; other versions, other objects and RTLD_NEXT are left alone. Calls come here
 * only in a process with a shim that defines dlsym and dlvsym: interpose.h. */
ST_API void st_interpose(const char *library, const struct st_interposed *table);
/* The function of this name in this handle's scope that is wrapped, and the wrapper; NULLs when
 * there is none. */
struct st_interposition {
    void *original, *wrapper;
};
ST_API struct st_interposition st_interpose_find(void *handle, const char *name);
/* Is this the name of a wrapper whose function the code at this address would not find, were the
 * wrapper not there? */
ST_API bool st_interpose_absent(const char *name, const void *caller);

#ifdef __cplusplus
}
#endif
#endif
