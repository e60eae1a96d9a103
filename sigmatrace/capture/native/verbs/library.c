/* Start of the layer, and which copy of libibverbs a call belongs to. Look-ups name the version
 * node, as the default of a name may be another one some day. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>

#include "interpose.h"
#include "verbs.h"

bool st_verbs_on, st_verbs_full, st_verbs_timed;
uint32_t st_verbs_life;
uint8_t st_verbs_calls[ST_CALLS];
__thread uint32_t st_verbs_inside;
__thread char st_verbs_self;

static struct st_copy *libraries;

static const struct st_interposed wrappers[] = {
#define ST_ROW(name, version) {#name, version, name},
    ST_VERBS_WRAPPED(ST_ROW)
#undef ST_ROW
    {NULL, NULL, NULL}};

static void forked(void)
{
    st_verbs_life++;
    st_verbs_makings_forked();
    st_verbs_devices_forked();
    st_verbs_qps_forked();
    st_verbs_queues_forked();
}

__attribute__((constructor)) static void start(void)
{
    static const char *const names[ST_CALLS] = {
        [ST_CALL_POST_SEND] = "ibv_post_send",   [ST_CALL_WR_COMPLETE] = "ibv_wr_complete",
        [ST_CALL_BIND_MW] = "ibv_bind_mw",       [ST_CALL_POLL_CQ] = "ibv_poll_cq",
        [ST_CALL_START_POLL] = "ibv_start_poll", [ST_CALL_NEXT_POLL] = "ibv_next_poll"};
    st_verbs_on = st_layer_on(ST_LAYER_VERBS);
    if (!st_verbs_on)
        return;
    st_verbs_full = st_mode() == ST_MODE_FULL;
    st_verbs_timed = st_mode() != ST_MODE_AGGREGATE;
    for (int i = 0; i < ST_CALLS; i++)
        st_verbs_calls[i] = st_call_register(names[i]);
    st_interpose("libibverbs", wrappers);
    st_on_child(forked);
}

static void fill(struct st_copy *copy, void *handle)
{
    struct st_verbs_library *library = (void *)copy;
#define ST_LOAD(name, version)                                                                     \
    library->name = (__typeof__(library->name))st_copy_symbol(handle, #name, version);
    ST_VERBS_WRAPPED(ST_LOAD)
    ST_VERBS_CALLED(ST_LOAD)
#undef ST_LOAD
}

static struct st_verbs_library *resolve(const void *caller)
{
    void *open = st_copy_look_up(caller, "libibverbs.so.1", "ibv_open_device", "IBVERBS_1.1");
    return (void *)st_copy_of(&libraries, open, sizeof(struct st_verbs_library), fill);
}

/* What was found for the callers of one object, by its place and name: another may come to lie where
 * it lay. Rows are only added. */
#define CALLERS 256u
static struct {
    uint64_t key; /* stored last */
    struct st_verbs_library *library;
} callers[CALLERS];
static uint32_t caller_count;

static uint64_t key_of(const void *caller)
{
    Dl_info info;
    if (!caller || !dladdr(caller, &info) || !info.dli_fname)
        return 0;
    uint64_t key = (uintptr_t)info.dli_fbase;
    for (const char *p = info.dli_fname; *p; p++)
        key = (key ^ (uint8_t)*p) * 0x100000001b3ull;
    return key;
}

static struct st_verbs_library *library_of(const void *caller)
{
    uint64_t key = key_of(caller);
    uint32_t n = __atomic_load_n(&caller_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; key && i < n && i < CALLERS; i++)
        if (__atomic_load_n(&callers[i].key, __ATOMIC_ACQUIRE) == key)
            return callers[i].library;
    struct st_verbs_library *library = resolve(caller);
    if (key && library && n < CALLERS) {
        uint32_t at = __atomic_fetch_add(&caller_count, 1, __ATOMIC_ACQ_REL);
        if (at < CALLERS) {
            callers[at].library = library;
            __atomic_store_n(&callers[at].key, key, __ATOMIC_RELEASE);
        }
    }
    return library;
}

struct st_verbs_library *st_verbs_library(const void *caller)
{
    int saved = errno;
    struct st_verbs_library *library = library_of(caller);
    if (!library)
        library = (void *)__atomic_load_n(&libraries, __ATOMIC_ACQUIRE);
    errno = saved;
    return library;
}
