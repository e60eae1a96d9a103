/* What the commands of the driver share: recording, threads that record. */
#ifndef DRIVER_H
#define DRIVER_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "sigmatrace.h"

#define CHANNELS 10

static uint8_t call;
static uint32_t object;

static void fail(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    exit(1);
}

static struct st_channel *channel_of(uint64_t peer, uint64_t tag, bool shared)
{
    struct st_channel_key key = {.object = object,
                                 .kind = ST_KIND_TAG,
                                 .dir = ST_OUT,
                                 .layer = ST_LAYER_OFI,
                                 .flags = ST_HAS_TAG,
                                 .peer = peer,
                                 .tag = tag,
                                 .shared = shared};
    return st_channel_get(&key);
}

static bool record(struct st_channel *channel, uint64_t size, bool shared)
{
    if (!channel)
        return false;
    uint32_t ordinal = st_ordinal_next(channel, shared);
    st_op(st_now(), size, channel->id, ordinal, ST_OP_SEND, call, 0, 0, 0);
    return true;
}

static void begin(void)
{
    st_library_seen(ST_LAYER_OFI, "libfabric", "1.2.3", "/usr/lib/libfabric.so.1", "symbol");
    object = st_object_id();
    struct st_object o;
    st_object_begin(&o, "ofi_endpoint", object);
    st_object_str(&o, "prov", "tcp\xff\xc3\xa4"); /* one bad byte, then an umlaut */
    st_object_bin(&o, "local", "\1\0\2", 3);
    st_object_u64(&o, "caps", 1ull << 63);
    st_object_end(&o);
}

/* Sizes are 1, 2, ... n: the sum tells whether all are there. */
static void count(long n)
{
    for (long i = 0; i < n; i++)
        record(channel_of(0, (uint64_t)i % CHANNELS, false), (uint64_t)i + 1, false);
}

struct job {
    long n;
    int number;
    pthread_t thread;
};

static void run_threads(int threads, long n, void *(*body)(void *), bool one_by_one)
{
    struct job *jobs = calloc((size_t)threads, sizeof(*jobs));
    for (int i = 0; i < threads; i++) {
        jobs[i] = (struct job){.n = n, .number = i};
        if (pthread_create(&jobs[i].thread, NULL, body, &jobs[i]))
            fail("pthread_create");
        if (one_by_one)
            pthread_join(jobs[i].thread, NULL);
    }
    for (int i = 0; i < threads && !one_by_one; i++)
        pthread_join(jobs[i].thread, NULL);
    free(jobs);
}
#endif
