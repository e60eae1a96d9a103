/* What the files of the core share. Nothing here is visible outside the library.
 *
 * Two rules explain most of the shape: no lock is ever held (threads may be killed, stopped or
 * forked at any instruction), and no malloc is called (a raw clone may have copied its lock in
 * the locked state). */
#ifndef ST_CORE_H
#define ST_CORE_H

#include "sigmatrace.h"

#define ST_LIKELY(x) __builtin_expect(!!(x), 1)
#define ST_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define ST_HIDDEN __attribute__((visibility("hidden")))
/* Orders stores against a signal or a kill in this thread; x86 keeps stores in order. */
#define ST_BARRIER() __asm__ volatile("" ::: "memory")
#define ST_PAGE 4096u

/* --- config.c -------------------------------------------------------------------------- */

struct st_config {
    enum st_mode mode;
    bool layers[ST_LAYER_LAST];
    char out[1024], run_id[128], clock[128], rank_source[32];
    uint32_t segment_bytes, max_channels;
    bool write_inline;
    int rank, world;
};
ST_HIDDEN const struct st_config *st_config(void);
extern ST_HIDDEN const char *const st_layer_names[ST_LAYER_LAST];
extern ST_HIDDEN const char *const st_mode_names[];

/* --- memory.c: anonymous memory, zeroed; small pieces are never given back -------------- */

ST_HIDDEN void *st_map(size_t size);
ST_HIDDEN void st_unmap(void *p, size_t size);
ST_HIDDEN void *st_alloc(size_t size);

/* --- symbol.c: NULL when the address lies in one of SigmaTrace's own libraries ------------ */

ST_HIDDEN void *st_foreign(void *address);

/* --- process.c ------------------------------------------------------------------------------ */

/* One private page that the kernel wipes in a forked child (also by a raw clone): the hot path
 * compares its generation with the thread's. 0 = not recording. */
struct st_page {
    uint64_t generation;
    uint64_t deadline; /* TSC at which the next clock pair is due; 0 sends records the slow way */
    uint32_t alive;    /* 0: this is a child that has not noticed */
};
extern ST_HIDDEN struct st_page *st_page;
static inline uint64_t st_generation(void)
{
    return __atomic_load_n(&st_page->generation, __ATOMIC_RELAXED);
}

enum st_state { ST_STATE_IDLE, ST_STATE_OPENING, ST_STATE_OPEN, ST_STATE_FAILED, ST_STATE_ENDED };
struct st_process {
    int state;
    bool stopped, reopen, aggregates;
    uint32_t pid;
    uint64_t generation, start_ns;
    uint64_t keep_tags; /* all ones; 0 in mode aggregate, whose channels leave tag and data out */
    const char *reason; /* of the failure */
    int error;
    char path[1400], ring_path[1400], host[65];
};
extern ST_HIDDEN struct st_process st_process;

/* Recording now? Notices a fork, opens a child's files. The slow half of every entry. */
ST_HIDDEN bool st_process_ready(void);
/* Are the files open (also while stopped)? */
ST_HIDDEN bool st_process_open(void);
/* Stops the recording for good; `reason` is static. */
ST_HIDDEN void st_process_fail(const char *reason, int error);
/* The one line on stderr, unless it was said. */
ST_HIDDEN void st_process_say_failure(void);
/* Counts what is refused because the recording failed (not what st_stop keeps out). */
ST_HIDDEN void st_process_refuse(const char *reason);
/* Opens the files of this process, unless that was done or tried. */
ST_HIDDEN void st_process_files_begin(void);

/* --- header.c -------------------------------------------------------------------------------- */

ST_HIDDEN bool st_header_write(void);
ST_HIDDEN void st_end_write(const char *reason);

/* --- library.c: libraries seen, names of calls, counts of what was lost ------------------- */

ST_HIDDEN void st_libraries_emit(void);
ST_HIDDEN void st_libraries_forked(void);
ST_HIDDEN uint32_t st_call_count(void);
ST_HIDDEN const char *st_call_name(uint32_t call);
struct st_loss {
    const char *reason;
    uint64_t n;
};
#define ST_LOSSES 32u
extern ST_HIDDEN struct st_loss st_losses[ST_LOSSES];

/* --- writer.c ----------------------------------------------------------------------------------- */

struct st_file {
    int fd;
    uint64_t device, inode;
};
ST_HIDDEN bool st_file_create(struct st_file *file, const char *path, int flags);
/* Is the descriptor still ours? Programs close descriptors that they did not open. */
ST_HIDDEN bool st_file_ours(const struct st_file *file);
/* Blocks SIGXFSZ while a file size limit is set, and takes back the one that we caused. */
struct st_size_guard {
    bool on, pending;
    unsigned long mask[16];
};
ST_HIDDEN void st_size_guard_begin(struct st_size_guard *guard);
ST_HIDDEN void st_size_guard_end(struct st_size_guard *guard);
ST_HIDDEN bool st_writer_open(const char *path);
/* Gives the calling thread a descriptor table of its own, with the rank file alone in it. */
ST_HIDDEN void st_writer_forked(bool may_close);
/* One item, one write. False: not written, and the recording has stopped. */
ST_HIDDEN bool st_writer_append(const void *item, size_t size);
/* The end item is tried even after a failure. */
ST_HIDDEN bool st_writer_append_last(const void *item, size_t size);

/* --- clock.c -------------------------------------------------------------------------------------- */

ST_HIDDEN uint64_t st_clock_wall_ns(void); /* CLOCK_REALTIME */
ST_HIDDEN const char *st_clock_name(void);
ST_HIDDEN uint64_t st_tsc_hz(const char **source);
ST_HIDDEN void st_clock_emit(void);
/* Emits a pair when one is due, and sets the next deadline. */
ST_HIDDEN void st_clock_check(void);

/* --- ring.c ----------------------------------------------------------------------------------------- */

struct st_control {
    uint64_t state, size;
    uint32_t schema, thread;
    uint64_t seq, count, dropped, record_size, capacity, offset;
};
struct st_thread;
struct st_area {
    struct st_area *next;
    uint8_t *base;
    uint64_t size;
    int taken;
    struct st_thread *owner;
    uint64_t claimed; /* seq of the next chunk that nobody has begun to write */
};
#define ST_FRAME_BYTES 135u                        /* of a chunk, before its records */
#define ST_RECORDS_AT (ST_PAGE + 192u) /* first record in an area, on a cache line */
ST_HIDDEN bool st_ring_open(const char *path);
ST_HIDDEN void st_ring_forked(bool may_close);
/* An area for `capacity` records, its control block filled in, in use. A spare one is no
 * reason to stop the recording when it cannot be had. */
ST_HIDDEN struct st_area *st_area_take(struct st_thread *owner, uint32_t schema, uint64_t seq,
                                       uint64_t capacity, bool spare);
ST_HIDDEN void st_area_give(struct st_area *area);
static inline struct st_control *st_area_control(const struct st_area *area)
{
    return (struct st_control *)area->base;
}

/* --- symbol.c -------------------------------------------------------------------------------------- */

/* As st_next_symbol, but only where code at this address may see it. */
ST_HIDDEN void *st_scope_symbol(const char *name, const void *return_address);

/* --- chunk.c --------------------------------------------------------------------------------------- */

extern ST_HIDDEN const uint8_t st_record_size[ST_SCHEMA_LAST];
struct st_chunk {
    uint32_t schema, thread, count;
    uint64_t seq, dropped;
};
/* Writes the framing into the ST_FRAME_BYTES before `records`, and all of it to the file. */
ST_HIDDEN bool st_chunk_write(const struct st_chunk *chunk, uint8_t *records);
/* Writes what is in an area, and empties it. Of those who try at the same time, one does. */
ST_HIDDEN bool st_area_write(struct st_area *area);
/* Up to ST_DIRECT_RECORDS records that belong to no segment: thread 0, counted over the process. */
#define ST_DIRECT_RECORDS 64u
ST_HIDDEN bool st_chunk_write_direct(uint32_t schema, const void *records, uint32_t count);
ST_HIDDEN void st_chunk_forked(void);
ST_HIDDEN uint64_t st_chunk_direct_written(uint32_t schema);

/* --- thread.c ---------------------------------------------------------------------------------------- */

struct st_segment {
    struct st_control *control; /* never NULL: see st_no_control */
    uint8_t *records;
    uint64_t capacity;    /* 0 while there is no area */
    struct st_area *area; /* NULL: none yet */
};
#define ST_AGGREGATE_LEVELS 16
struct st_rows {
    struct st_aggregate_record *rows;
    uint64_t mask;
    struct st_area *area;
};
/* Of a thread id; never freed, taken over when the kernel gives the id to a later thread. */
struct st_thread {
    uint32_t busy; /* a record is being stored: a signal handler must not store one */
    uint32_t tid, object;
    struct st_segment segments[ST_SCHEMA_LAST];
    uint64_t seq[ST_SCHEMA_LAST], written[ST_SCHEMA_LAST], dropped[ST_SCHEMA_LAST];
    struct st_rows levels[ST_AGGREGATE_LEVELS];
    uint32_t level_count;
    uint32_t handed; /* full segments that the writer has, or that lie ready for it */
    char name[16];
    struct st_thread *next, *all;
};
struct st_local {
    uint64_t generation; /* of the process in which this thread is attached */
    struct st_thread *thread;
    uint8_t depth;
    bool attaching; /* or opening the files, or ending: a signal handler must not begin that */
};
extern ST_HIDDEN __thread struct st_local st_local;

/* The calling thread, attached; NULL when not recording. */
ST_HIDDEN struct st_thread *st_thread_self(void);
/* The calling thread if it ever attached in this process, also while not recording. */
ST_HIDDEN struct st_thread *st_thread_known(void);
ST_HIDDEN bool st_segment_make(struct st_thread *thread, uint32_t schema);
/* Leaves a full segment to the writer and goes on in another, or writes it when there is no slot;
 * false when neither could be. */
ST_HIDDEN bool st_segment_hand_over(struct st_thread *thread, uint32_t schema);
ST_HIDDEN bool st_segment_flush(struct st_thread *thread, uint32_t schema);
ST_HIDDEN bool st_thread_flush(struct st_thread *thread);
ST_HIDDEN struct st_thread *st_thread_first(void);
ST_HIDDEN void st_threads_init(void);
ST_HIDDEN void st_threads_forked(void);
/* Notes a changed thread name. */
ST_HIDDEN void st_thread_describe(struct st_thread *thread);

/* --- background.c: the thread that writes full segments ------------------------------------------------- */

/* Starts it, unless that was tried. Calls pthread_create, which allocates: never from the path of
 * a record, which may be in a signal handler. */
ST_HIDDEN void st_background_start(void);
ST_HIDDEN bool st_background_runs(void);
/* False when there is no slot; its owner has counted it as handed. */
ST_HIDDEN bool st_background_put(struct st_area *area);
/* Until all that this thread handed over is written; false when something could not be. */
ST_HIDDEN bool st_background_wait(struct st_thread *thread, int *naps);
ST_HIDDEN void st_background_end(void);
ST_HIDDEN void st_background_forked(bool may_start);

/* --- aggregate.c ---------------------------------------------------------------------------------------- */

/* `channel` and `what` as in st_op_store. */
ST_HIDDEN void st_aggregate_add(uint64_t size_bytes, uint32_t channel, uint64_t what);
ST_HIDDEN bool st_aggregate_flush(struct st_thread *thread);

/* --- record.c -------------------------------------------------------------------------------------------- */

ST_HIDDEN bool st_channel_store(const struct st_channel_record *record);

/* --- channel.c, pending.c, name.c: what a fork means to them -------------------------------------------- */

ST_HIDDEN void st_channels_forked(void);
ST_HIDDEN void st_channels_emit(void);
ST_HIDDEN void st_pending_forked(void);
ST_HIDDEN void st_names_forked(void);

/* --- helpers ---------------------------------------------------------------------------------------------- */

static inline uint64_t st_fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Publishes 16 bytes at once where there were zeros. */
static inline bool st_publish16(void *slot, uint64_t low, uint64_t high)
{
    uint64_t old_low = 0, old_high = 0;
    bool done;
    __asm__ volatile("lock cmpxchg16b %1"
                     : "=@ccz"(done), "+m"(*(__int128 *)slot), "+a"(old_low), "+d"(old_high)
                     : "b"(low), "c"(high)
                     : "memory");
    return done;
}

#endif
