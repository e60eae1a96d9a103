/* What one event costs, in ns: batches of every way are timed in turn, so that a disturbance
 * of the machine meets all of them. Prints "NAME CLOCK NS NS ..." for each way and clock.
 * usage: record_cost ROUNDS EVENTS NAME... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sigmatrace.h"

#ifdef WITH_LTTNG
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "record_cost.h"
#endif

static uint32_t object;
static volatile uint64_t sink;

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

static const struct {
    const char *name;
    void (*run)(uint64_t n);
} ways[] = {{"tsc", tsc},         {"op", op},
            {"op_channel", op_channel}, {"op_shared", op_shared},
            {"op_full", op_full}, {"add", add},
            {"add_channel", add_channel}, {"pending", pending},
#ifdef WITH_LTTNG
            {"lttng", lttng},     {"lttng_bare", lttng_bare},
#endif
};

static int find(const char *name)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        if (!strcmp(ways[i].name, name))
            return (int)i;
    fprintf(stderr, "record_cost: no way is called %s\n", name);
    exit(2);
}

enum { WALL, THREAD, PROCESS, CLOCKS }; /* PROCESS: with the writer, until all is in the file */

static const char *const clock_names[CLOCKS] = {"wall", "thread", "process"};

static double clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* `times`: one number for each clock. */
static void batch(int way, uint64_t events, double times[CLOCKS])
{
    double process = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    double thread = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    double wall = clock_ns(CLOCK_MONOTONIC);
    ways[way].run(events);
    times[WALL] = (clock_ns(CLOCK_MONOTONIC) - wall) / (double)events;
    times[THREAD] = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - thread) / (double)events;
    st_flush();
    times[PROCESS] = (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - process) / (double)events;
}

int main(int argc, char **argv)
{
    int rounds = argc > 3 ? atoi(argv[1]) : 0, names = argc - 3;
    uint64_t events = argc > 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (rounds < 1 || !events)
        return 2;
    st_library_seen(ST_LAYER_OFI, "bench", "1", "", "symbol");
    object = st_object_id();
    struct st_object endpoint; /* as a layer does it */
    st_object_begin(&endpoint, "ofi_endpoint", object);
    st_object_end(&endpoint);
    double(*times)[CLOCKS] = calloc((size_t)(rounds * names), sizeof(*times)), warm[CLOCKS];
    for (int round = -1; round < rounds; round++) /* round -1 warms up */
        for (int i = 0; i < names; i++)
            batch(find(argv[3 + i]), events, round < 0 ? warm : times[i * rounds + round]);
    for (int i = 0; i < names; i++)
        for (int clock = 0; clock < CLOCKS; clock++) {
            printf("%s %s", argv[3 + i], clock_names[clock]);
            for (int round = 0; round < rounds; round++)
                printf(" %.3f", times[i * rounds + round][clock]);
            printf("\n");
        }
    free(times);
    return 0;
}
