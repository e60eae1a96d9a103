/* gpu_pair: posts RDMA from a GPU's kernels, in the manner of several libraries, verifies all
 * memory and prints as JSON what it posted. Options, NAME=VALUE:
 *   kernel=FILE      pair_kernel.cubin, or pair_kernel.so for the stand-in
 *   ops=N            of each thread            bytes=N        of a WRITE, READ or SEND
 *   mix=A,B,...      write read inline long add cas swap8 xor8 add4 swap4 imm send dump
 *   dialect=         nvshmem doca rdma rocshmem blueflame proxy
 *   uar=             own shared plain bf       memory=        gpu dmabuf host (of the rings)
 *   qps=N blocks=N threads=N slots=N group=N   (group: operations behind one doorbell)
 *   dci=1 av=long    address vectors           make=verbs     queue pairs of libibverbs
 *   mode=            run time pingpong         warmup=N       operations left out of the times
 *   fault=           remote_key local_key bounds index number opcode: every WQE is wrong
 *   receives=1       the senders have receive queues, too, which come first in their memory
 *   lives=N          queue pairs are reset and connected again   rounds=N   all is made anew
 *   rank=R size=N folder=PATH                  several processes; folder: where they meet */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pair_host.h"

struct options options = {.kernel = "pair_kernel.so",
                          .size = 1,
                          .lives = 1,
                          .rounds = 1,
                          .qps = 1,
                          .blocks = 1,
                          .threads = 1,
                          .slots = 256,
                          .args = {.operations = 100, .bytes = 256, .group = 1, .kinds = 1}};
static const char *const kinds[] = {"write", "read",  "inline", "long", "add",  "cas", "swap8",
                                    "xor8",  "add4", "swap4",  "imm",  "send", "dump"};
static const char *const dialects[] = {"nvshmem", "doca", "rdma", "rocshmem", "blueflame", "proxy"};
static const char *const uars[] = {"own", "shared", "plain", "bf"};
static const char *const memories[] = {"gpu", "dmabuf", "host"};
static const char *const faults[] = {"none",   "remote_key", "local_key", "bounds",
                                     "index", "number",     "opcode"};
static const char *const modes[] = {"run", "time", "pingpong"};
static atomic_bool proxy_ends;

void fail(const char *what, long code)
{
    fprintf(stderr, "gpu_pair: %s failed (%ld)\n", what, code);
    exit(2);
}

void need(const char *what, long code)
{
    if (code)
        fail(what, code);
}

bool has_kind(enum pair_kind kind)
{
    for (uint32_t i = 0; i < options.args.kinds; i++)
        if (options.args.kind[i] == kind)
            return true;
    return false;
}

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
static uint32_t choice(const char *value, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(value, names[i]))
            return (uint32_t)i;
    fail(value, 0);
}

static void mix_read(char *value)
{
    options.args.kinds = 0;
    for (char *name = strtok(value, ","); name; name = strtok(NULL, ",")) {
        need("mix", options.args.kinds == PAIR_MOST_MIX);
        options.args.kind[options.args.kinds++] = (uint8_t)choice(name, kinds, COUNT(kinds));
    }
}

static bool number_read(const char *name, const char *value)
{
    const struct {
        const char *name;
        uint32_t *at;
    } numbers[] = {{"ops", &options.args.operations}, {"bytes", &options.args.bytes},
                   {"qps", &options.qps},             {"blocks", &options.blocks},
                   {"threads", &options.threads},     {"slots", &options.slots},
                   {"group", &options.args.group},    {"rank", &options.rank},
                   {"lives", &options.lives},         {"rounds", &options.rounds},
                   {"size", &options.size},           {"warmup", &options.warmup}};
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (!strcmp(name, numbers[i].name)) {
            *numbers[i].at = (uint32_t)strtoul(value, NULL, 10);
            return true;
        }
    return false;
}

static void option_read(const char *name, char *value)
{
    if (number_read(name, value))
        return;
    if (!strcmp(name, "kernel"))
        options.kernel = value;
    else if (!strcmp(name, "folder"))
        options.folder = value;
    else if (!strcmp(name, "mix"))
        mix_read(value);
    else if (!strcmp(name, "dialect"))
        options.args.dialect = choice(value, dialects, COUNT(dialects));
    else if (!strcmp(name, "uar"))
        options.uar = choice(value, uars, COUNT(uars));
    else if (!strcmp(name, "memory"))
        options.memory = choice(value, memories, COUNT(memories));
    else if (!strcmp(name, "mode"))
        options.mode = choice(value, modes, COUNT(modes));
    else if (!strcmp(name, "dci"))
        options.dci = !strcmp(value, "1");
    else if (!strcmp(name, "av"))
        options.long_av = !strcmp(value, "long");
    else if (!strcmp(name, "make"))
        options.verbs = !strcmp(value, "verbs");
    else if (!strcmp(name, "fault"))
        options.args.fault = choice(value, faults, COUNT(faults));
    else if (!strcmp(name, "receives"))
        options.receives = !strcmp(value, "1");
    else
        fail(name, 0);
}

void options_read(int count, char **texts)
{
    for (int i = 1; i < count; i++) {
        char *equals = strchr(texts[i], '=');
        need(texts[i], !equals);
        *equals = 0;
        option_read(texts[i], equals + 1);
    }
    need("qps", options.qps == 0 || options.qps > MOST_QPS || options.blocks % options.qps);
    need("slots", options.slots & (options.slots - 1) || options.slots < 16);
    need("size", options.size == 0 || options.size > MOST_RANKS);
    need("bytes", options.args.bytes < 8 && has_kind(PAIR_SEND));
    need("dci", options.dci && (has_kind(PAIR_SEND) || has_kind(PAIR_IMM)));
    need("mix", options.mode == TIME && options.args.kinds != 1);
    need("group", options.args.group == 0);
    need("lives", options.lives > 1 && (has_kind(PAIR_SEND) || has_kind(PAIR_IMM)));
    need("lives", options.lives > 1 && options.verbs);
    options.args.rank = options.rank;
    options.args.qp_count = options.qps;
}

/* Rings for the GPU, as NVSHMEM's CPU handler does: the index's bits 16-23 in the first byte. */
static void proxy_ring(const struct pair_qp *qp, uint64_t next)
{
    uint32_t record = htobe32((uint32_t)next & 0xffff);
    uint32_t value[2] = {htobe32((uint32_t)(next << 8)), htobe32(qp->qpn << 8)};
    uint64_t both;
    memcpy(&both, value, sizeof(both));
    cuda_put(qp->record, &record, sizeof(record));
    atomic_thread_fence(memory_order_seq_cst);
    atomic_store((_Atomic uint64_t *)(uintptr_t)qp->db, both);
}

static void *proxy_run(void *argument)
{
    struct pair_qp *qps = argument;
    uint64_t rung[MOST_QPS] = {0};
    cuda_enter();
    while (!atomic_load(&proxy_ends)) {
        bool worked = false;
        for (uint32_t k = 0; k < options.qps; k++) {
            uint64_t next = atomic_load((_Atomic uint64_t *)(uintptr_t)qps[k].proxy);
            if (next == rung[k])
                continue;
            proxy_ring(&qps[k], next);
            rung[k] = next;
            worked = true;
        }
        if (!worked)
            sched_yield();
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void times_print(void)
{
    uint32_t count = options.args.operations, from = options.warmup < count ? options.warmup : 0;
    uint64_t *times = malloc(count * sizeof(*times));
    need("memory", !times);
    cuda_get(times, options.args.times, count * sizeof(*times));
    qsort(times + from, count - from, sizeof(*times), by_value);
    printf(", \"ns\": {");
    static const unsigned shares[] = {50, 90, 99};
    for (size_t i = 0; i < COUNT(shares); i++)
        printf("%s\"p%u\": %" PRIu64, i ? ", " : "", shares[i],
               times[from + (uint64_t)(count - from - 1) * shares[i] / 100]);
    printf("}");
    free(times);
}

static void report(const struct pair_qp *qps, uint64_t wrong, uint64_t run_ns)
{
    printf("{\"rank\": %u, \"lid\": %u, \"remote_lid\": %u, \"wrong\": %" PRIu64
           ", \"run_ns\": %" PRIu64,
           options.rank, setup.mine.lid, setup.next.lid, wrong, run_ns);
    if (options.mode != RUN)
        times_print();
    printf(", \"qps\": [");
    for (uint32_t k = 0; k < options.qps; k++) {
        printf("%s{\"qpn\": %u, \"remote_qpn\": %u, \"rings\": %" PRIu64 ", \"slots\": %" PRIu64
               ", \"error\": %u, \"operations\": {",
               k ? ", " : "", qps[k].qpn, options.dci ? setup.next.dct : setup.next.target[k],
               qps[k].rings, qps[k].slots_before + qps[k].reserved, qps[k].error);
        const char *comma = "";
        for (uint32_t i = 0; i < PAIR_OPCODES; i++)
            if (qps[k].operations[i]) {
                printf("%s\"%u\": {\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", comma, i,
                       qps[k].operations[i], qps[k].bytes[i]);
                comma = ", ";
            }
        printf("}}");
    }
    printf("]}\n");
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t kernels_run(struct pair_qp *qps)
{
    static const char *const names[] = {"pair_run", "pair_time", "pair_pingpong"};
    bool has_proxy = options.args.dialect == PAIR_PROXY;
    pthread_t proxy;
    options.args.qps = setup.qps;
    options.args.times = cuda_memory((uint64_t)options.args.operations * 8, IN_GPU);
    if (has_proxy)
        need("pthread_create", pthread_create(&proxy, NULL, proxy_run, qps));
    uint64_t begin = now_ns();
    bool many = options.mode == RUN;
    cuda_run(names[options.mode], &options.args, many ? options.blocks : 1,
             many ? options.threads : 1);
    uint64_t took = now_ns() - begin;
    if (has_proxy) {
        atomic_store(&proxy_ends, true);
        pthread_join(proxy, NULL);
    }
    return took;
}

/* One life of the queue pairs: all operations, and what came of them. */
static uint64_t life_run(struct pair_qp *qps, uint64_t *took)
{
    char byte = 0, next, previous;
    cuda_get(qps, setup.qps, options.qps * sizeof(*qps));
    *took += kernels_run(qps);
    exchange("done", &byte, 1, &next, &previous);
    cuda_get(qps, setup.qps, options.qps * sizeof(*qps));
    uint64_t wrong = options.mode == PINGPONG ? 0 : heap_verify(qps);
    /* The other end may still be asked. */
    exchange("verified", &byte, 1, &next, &previous);
    return wrong;
}

static uint64_t round_run(void)
{
    static struct pair_qp qps[MOST_QPS];
    uint64_t wrong, took = 0;
    setup_open();
    setup_queues();
    setup_connect();
    wrong = life_run(qps, &took);
    for (uint32_t i = 1; i < options.lives; i++) {
        setup_again();
        wrong += life_run(qps, &took);
    }
    report(qps, wrong, took);
    setup_close();
    return wrong;
}

int main(int count, char **texts)
{
    uint64_t wrong = 0;
    options_read(count, texts);
    cuda_start();
    for (uint32_t i = 0; i < options.rounds; i++)
        wrong += round_run();
    return wrong ? 1 : 0;
}
