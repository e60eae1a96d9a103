/* What the programs that cost events share: batches of every way are timed in turn, so that a
 * disturbance of the machine meets all of them. "NAME CLOCK NS NS ..." is printed for each way
 * and clock. usage: PROGRAM ROUNDS EVENTS NAME... */
#ifndef BATCHES_H
#define BATCHES_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef WITH_LTTNG
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "record_cost.h"
#endif

/* PROCESS: with all of its threads, until the program has flushed. */
enum { WALL, THREAD, PROCESS, CLOCKS };

struct bench {
    void (*begin)(void);
    void (*flush)(void); /* NULL: nothing is left to other threads, no PROCESS */
    const struct way {
        const char *name;
        void (*run)(uint64_t events);
    } *ways; /* until one without a name */
};

static volatile uint64_t sink;

static double clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* `times`: one number for each clock. */
static void batch(const struct bench *bench, const char *name, uint64_t events,
                  double times[CLOCKS])
{
    const struct way *way = bench->ways;
    while (way->name && strcmp(way->name, name))
        way++;
    if (!way->name) {
        fprintf(stderr, "no way is called %s\n", name);
        exit(2);
    }
    double process = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    double thread = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    double wall = clock_ns(CLOCK_MONOTONIC);
    way->run(events);
    times[WALL] = (clock_ns(CLOCK_MONOTONIC) - wall) / (double)events;
    times[THREAD] = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - thread) / (double)events;
    if (bench->flush)
        bench->flush();
    times[PROCESS] = (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - process) / (double)events;
}

static int run_bench(const struct bench *bench, int argc, char **argv)
{
    static const char *const clock_names[CLOCKS] = {"wall", "thread", "process"};
    int rounds = argc > 3 ? atoi(argv[1]) : 0, names = argc - 3;
    uint64_t events = argc > 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (rounds < 1 || !events)
        return 2;
    bench->begin();
    double(*times)[CLOCKS] = calloc((size_t)(rounds * names), sizeof(*times)), warm[CLOCKS];
    for (int round = -1; round < rounds; round++) /* round -1 warms up */
        for (int i = 0; i < names; i++)
            batch(bench, argv[3 + i], events, round < 0 ? warm : times[i * rounds + round]);
    for (int i = 0; i < names; i++)
        for (int clock = 0; clock < (bench->flush ? CLOCKS : PROCESS); clock++) {
            printf("%s %s", argv[3 + i], clock_names[clock]);
            for (int round = 0; round < rounds; round++)
                printf(" %.3f", times[i * rounds + round][clock]);
            printf("\n");
        }
    free(times);
    return 0;
}
#endif
