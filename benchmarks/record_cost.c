/* What one event costs, in ns. usage: record_cost ROUNDS EVENTS NAME... */
#include "batches.h"
#include "sigmatrace.h"

static uint32_t object;

static void begin(void)
{
    st_library_seen(ST_LAYER_OFI, "bench", "1", "", "symbol");
    object = st_object_id();
    struct st_object endpoint; /* as a layer does it */
    st_object_begin(&endpoint, "ofi_endpoint", object);
    st_object_end(&endpoint);
}

static struct st_channel *channel_of(uint64_t i, bool shared)
{
    struct st_channel_key key = {.object = object,
                                 .kind = ST_KIND_TAG,
                                 .dir = ST_OUT,
                                 .layer = ST_LAYER_OFI,
                                 .flags = ST_HAS_TAG,
                                 .peer = i & 7,
                                 .tag = 42,
                                 .shared = shared};
    return st_channel_get(&key);
}

static void tsc(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sink = st_now();
}

static void op(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        st_op(st_now(), i, 0, (uint32_t)i, ST_OP_SEND, 1, 0, 0, 0);
}

/* As a layer does it: channel, ordinal, record. */
static void op_channel(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t t = st_now();
        struct st_channel *channel = channel_of(i, false);
        if (channel)
            st_op(t, i, channel->id, st_ordinal_next(channel, false), ST_OP_SEND, 1, 0, 0, 0);
    }
}

static void op_shared(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t t = st_now();
        struct st_channel *channel = channel_of(i, true);
        if (channel)
            st_op(t, i, channel->id, st_ordinal_next(channel, true), ST_OP_SEND, 1, 0, 0, 0);
    }
}

/* An operation and its completion, with the span of the call: two records, three time stamps. */
static void op_full(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t t = st_now();
        struct st_channel *channel = channel_of(i, false);
        if (!channel)
            continue;
        uint32_t k = st_ordinal_next(channel, false);
        st_op(t, i, channel->id, k, ST_OP_SEND, 1, 0, 0, st_span(t, st_now()));
        st_completion(st_now(), i, channel->id, k, 0, ST_OP_SEND, 1, 0, 0);
    }
}

/* No time stamp: mode aggregate. */
static void add(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        st_op(0, i, (uint32_t)i & 7, 0, ST_OP_SEND, 1, 0, 0, 0);
}

static void add_channel(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        struct st_channel *channel = channel_of(i, false);
        if (channel)
            st_op(0, i, channel->id, 0, ST_OP_SEND, 1, 0, 0, 0);
    }
}

static void pending(uint64_t n)
{
    static char contexts[64][64];
    struct st_pending value = {0};
    for (uint64_t i = 0; i < n; i++) {
        st_pending_put(contexts[i & 63], &value);
        st_pending_take(contexts[i & 63], &value);
    }
}

#ifdef WITH_LTTNG
static void lttng(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        lttng_ust_tracepoint(sigmatrace_bench, op, st_now(), i, 0, (uint32_t)i, 1, 0);
}

/* The time stamp is taken only inside the tracepoint. */
static void lttng_bare(uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        lttng_ust_tracepoint(sigmatrace_bench, op, i, i, 0, (uint32_t)i, 1, 0);
}
#endif

static const struct way ways[] = {
    {"tsc", tsc},
    {"op", op},
    {"op_channel", op_channel},
    {"op_shared", op_shared},
    {"op_full", op_full},
    {"add", add},
    {"add_channel", add_channel},
    {"pending", pending},
#ifdef WITH_LTTNG
    {"lttng", lttng},
    {"lttng_bare", lttng_bare},
#endif
    {NULL, NULL}};

int main(int argc, char **argv)
{
    const struct bench bench = {begin, st_flush, ways};
    return run_bench(&bench, argc, argv);
}
