/* A program that records through the core and tells on stdout what it did; the tests compare
 * that with what a plain reader finds in the files. usage: driver COMMAND [NUMBER...] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void *job_count(void *p)
{
    struct job *job = p;
    char name[16];
    snprintf(name, sizeof(name), "job %d", job->number);
    pthread_setname_np(pthread_self(), name);
    for (long i = 0; i < job->n; i++) {
        record(channel_of((uint64_t)job->number + 1, (uint64_t)i % CHANNELS, false), 1, false);
        record(channel_of(1000, 0, true), 2, true);
    }
    return NULL;
}

/* All threads meet the first library at once. */
static pthread_barrier_t together;

static void *job_race(void *p)
{
    struct job *job = p;
    struct st_object o;
    uint32_t id = st_object_id();
    pthread_barrier_wait(&together);
    st_library_seen(ST_LAYER_OFI, "libfabric", "1.2.3", "/usr/lib/libfabric.so.1", "symbol");
    st_object_begin(&o, "ofi_endpoint", id);
    st_object_u64(&o, "depth", (uint64_t)job->number);
    st_object_end(&o);
    for (long i = 0; i < job->n; i++)
        record(channel_of((uint64_t)job->number, 0, false), 1, false);
    return NULL;
}

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

/* A channel pointer kept over the fork must still be right in the child. */
static void fork_in_the_middle(long before, long after, bool raw)
{
    struct st_channel *kept = channel_of(77, 7, false);
    for (long i = 0; i < before; i++)
        record(kept, 1, false);
    pid_t pid = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (pid < 0)
        fail("fork");
    if (!pid) {
        for (long i = 0; i < after; i++)
            record(st_recording() ? kept : NULL, 3, false);
        count(after);
        exit(0);
    }
    for (long i = 0; i < after; i++)
        record(kept, 2, false);
    int status;
    if (waitpid(pid, &status, 0) != pid || status)
        fail("child");
    printf("{\"child\": %d, \"parent\": %d}\n", pid, getpid());
}

static void fork_silent_child(void)
{
    count(10);
    pid_t pid = fork();
    if (!pid)
        exit(0);
    waitpid(pid, NULL, 0);
}

/* Stores for ever; the shared page counts what was stored. Says so once, then is killed. */
static uint64_t *counters;

static void *job_forever(void *p)
{
    struct job *job = p;
    for (uint64_t i = 1;; i++) {
        record(channel_of((uint64_t)job->number, 0, false), i, false);
        __atomic_store_n(&counters[job->number * 8], i, __ATOMIC_RELEASE);
        if (i == (uint64_t)job->n && write(STDOUT_FILENO, "x", 1) != 1)
            fail("write");
        if (job->n > 0 && i == (uint64_t)job->n + 20000)
            pause(); /* a kill that comes late must not mean a huge file */
    }
    return NULL;
}

static void *map_counters(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096))
        fail(path);
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        fail("mmap");
    return p;
}

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
    (void)signal;
    record(channel_of(500, (uint64_t)handled % 50, true), 5, true);
    handled = handled + 1;
}

/* Signals as fast as another thread can send them. */
static void *job_signals(void *p)
{
    pthread_t target = *(pthread_t *)p;
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &block, NULL);
    while (!__atomic_load_n(&counters[0], __ATOMIC_ACQUIRE))
        pthread_kill(target, SIGUSR1);
    return NULL;
}

static void signals(long n)
{
    static uint64_t done;
    pthread_t self = pthread_self(), sender;
    counters = &done;
    signal(SIGUSR1, on_signal);
    pthread_create(&sender, NULL, job_signals, &self);
    count(n);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    pthread_join(sender, NULL);
    signal(SIGUSR1, SIG_IGN);
    printf("{\"handled\": %d}\n", (int)handled);
}

static void stop_start(long n)
{
    count(n);
    st_stop();
    if (st_recording() || channel_of(0, 0, false))
        fail("recording while stopped");
    for (long i = 0; i < n; i++)
        st_op(st_now(), 1, 0, 0, ST_OP_SEND, call, 0, 0, 0);
    st_start();
    count(n);
}

/* Two threads put, two take: every value comes out once. */
static uint64_t taken_sum, taken_count;
static char contexts[4096];

static void *job_put(void *p)
{
    struct job *job = p;
    for (long i = 0; i < job->n; i++) {
        struct st_pending value = {.size_bytes = (uint64_t)i + 1, .tag = ~(uint64_t)(i + 1)};
        while (!st_pending_put(&contexts[i % 64 + job->number % 2 * 64], &value))
            sched_yield();
    }
    return NULL;
}

static void *job_take(void *p)
{
    struct job *job = p;
    for (long i = 0; i < job->n; i++) {
        struct st_pending value, seen;
        const void *context = &contexts[i % 64 + job->number % 2 * 64];
        while (!st_pending_take(context, &value))
            sched_yield();
        if (value.tag != ~value.size_bytes)
            fail("torn value");
        if (st_pending_peek(context, &seen) && seen.tag != ~seen.size_bytes)
            fail("torn peek");
        __atomic_fetch_add(&taken_sum, value.size_bytes, __ATOMIC_RELAXED);
        __atomic_fetch_add(&taken_count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *job_pending(void *p)
{
    struct job *job = p;
    return job->number < 2 ? job_put(p) : job_take(p);
}

static void pending(long n)
{
    struct st_pending value = {0};
    for (int i = 0; i < 500; i++) { /* one context many times: oldest first */
        value.order = (uint32_t)i;
        if (!st_pending_put(contexts, &value))
            fail("no room");
    }
    for (int i = 0; i < 500; i++) {
        if (!st_pending_peek(contexts, &value) || value.order != (uint32_t)i)
            fail("peek out of order");
        if (!st_pending_take(contexts, &value) || value.order != (uint32_t)i)
            fail("out of order");
    }
    if (st_pending_take(contexts, &value) || st_pending_put(NULL, &value))
        fail("found nothing's value");
    run_threads(4, n, job_pending, false);
    for (long i = 0; i < n; i++) /* many contexts at once, beyond the first level */
        if (!st_pending_put((void *)(0x10000 + i * 64), &value))
            fail("no room for many");
    for (long i = 0; i < n; i++)
        if (!st_pending_take((void *)(0x10000 + i * 64), &value))
            fail("one of many is missing");
    printf("{\"sum\": %llu, \"count\": %llu}\n", (unsigned long long)taken_sum,
           (unsigned long long)taken_count);
}

static void aggregate(int depth_max, long n)
{
    for (long i = 0; i < n; i++) {
        struct st_channel *channel = channel_of((uint64_t)i % 2000, (uint64_t)i, false);
        if (channel)
            st_op(0, (uint64_t)i, channel->id, 0, ST_OP_SEND, call, (uint8_t)(i % depth_max), 0, 0);
    }
}

/* One operation of each size that a class of sizes begins or ends with, and n of unknown size. */
static void sizes(long n)
{
    uint32_t id = channel_of(1, 0, false)->id;
    for (int k = 0; k < 64; k++) {
        st_op(0, (1ull << k) - 1, id, 0, ST_OP_SEND, call, 0, 0, 0);
        st_op(0, 1ull << k, id, 0, ST_OP_PUT, call, 0, ST_INLINE, 0);
    }
    st_op(0, UINT64_MAX, id, 0, ST_OP_GET, call, 0, 0, 0);
    for (long i = 0; i < n; i++)
        st_op(0, 0, id, 0, ST_OP_SEND, call, 0, ST_SIZE_UNKNOWN | ST_NESTED, 0);
}

static void all_schemas(void)
{
    struct st_channel *channel = channel_of(1, 2, false);
    uint8_t depth = st_enter(), inner = st_enter();
    st_op(st_now(), UINT64_MAX, channel->id, 4, ST_OP_PUT, call, inner, ST_INLINE, 9);
    st_leave();
    st_leave();
    st_completion(st_now(), 3, channel->id, 4, -5, ST_OP_PUT, call, depth, ST_FAILED);
    st_target(1, 2, 3, channel->id, 4);
    st_mark(st_now(), 2.5, st_name("loss"), ST_MARK_COUNTER);
    st_mark(st_now(), 0, st_name("step"), ST_MARK_BEGIN);
    st_mark(st_now(), 0, st_name("step"), ST_MARK_END);
    st_object_closed("ofi_endpoint", object);
    st_lost("for the test", 3);
}

/* Closes every descriptor as daemons do, and opens an own file in their place. */
static void close_all(const char *path, long n)
{
    count(n);
    for (int fd = 3; fd < 2000; fd++)
        close(fd);
    for (int fd = 3; fd < 1000; fd++)
        if (dup2(open(path, O_RDWR | O_CREAT | O_APPEND, 0600), fd) < 0)
            break;
    errno = 4242; /* as main set it */
    count(n);
}

static void limit_size(void)
{
    const char *text = getenv("DRIVER_FILE_LIMIT");
    if (!text)
        return;
    struct rlimit limit = {strtoul(text, NULL, 10), RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit))
        fail("setrlimit");
}

static void layouts(void)
{
#define FIELD(label, field)                                                                        \
    printf("%s %s %zu %zu\n", label, #field, offsetof(RECORD, field), sizeof(((RECORD *)0)->field));
#define MEMBER(field, dtype, unit) FIELD(name, field)
#define PADDING(field, count) FIELD(name, field)
#define LAYOUT(number, upper, label)                                                               \
    {                                                                                              \
        typedef struct st_##label##_record RECORD;                                                 \
        const char *name = #label;                                                                 \
        printf("%s . 0 %zu\n", name, sizeof(RECORD));                                              \
        ST_FIELDS_##label(MEMBER, PADDING)                                                         \
    }
    ST_RECORDS(LAYOUT)
}

static bool run_processes(const char *command, char **argv, long a, long b)
{
    if (!strcmp(command, "fork"))
        fork_in_the_middle(a, b, false);
    else if (!strcmp(command, "rawfork"))
        fork_in_the_middle(a, b, true);
    else if (!strcmp(command, "silentchild"))
        fork_silent_child();
    else if (!strcmp(command, "exec")) {
        count(a);
        execl("/proc/self/exe", argv[0], "count", argv[3], (char *)NULL);
    } else if (!strcmp(command, "_exit")) {
        count(a);
        _exit(0);
    } else if (!strcmp(command, "abort")) {
        count(a);
        abort();
    } else if (!strcmp(command, "forever")) {
        counters = map_counters(argv[4]);
        run_threads((int)a, b, job_forever, false);
    } else if (!strcmp(command, "running")) { /* main returns while threads record */
        counters = map_counters(argv[4]);
        for (long i = 0; i < a; i++) {
            struct job *job = calloc(1, sizeof(*job));
            *job = (struct job){.n = -1, .number = (int)i};
            pthread_create(&job->thread, NULL, job_forever, job);
        }
        for (long i = 0; i < a; i++)
            while (__atomic_load_n(&counters[i * 8], __ATOMIC_ACQUIRE) < (uint64_t)b)
                sched_yield();
    } else
        return false;
    return true;
}

static bool run(const char *command, char **argv, long a, long b)
{
    if (!strcmp(command, "count"))
        count(a);
    else if (!strcmp(command, "threads"))
        run_threads((int)a, b, job_count, false);
    else if (!strcmp(command, "race")) {
        pthread_barrier_init(&together, NULL, (unsigned)a);
        run_threads((int)a, b, job_race, false);
    } else if (!strcmp(command, "reuse"))
        run_threads((int)a, b, job_count, true);
    else if (!strcmp(command, "signals"))
        signals(a);
    else if (!strcmp(command, "stopstart"))
        stop_start(a);
    else if (!strcmp(command, "stopped")) {
        count(a);
        st_stop();
    } else if (!strcmp(command, "pending"))
        pending(a);
    else if (!strcmp(command, "aggregate"))
        aggregate((int)a, b);
    else if (!strcmp(command, "sizes"))
        sizes(a);
    else if (!strcmp(command, "tags"))
        for (long i = 0; i < a; i++)
            record(channel_of(1, (uint64_t)i, false), 1, false);
    else if (!strcmp(command, "peers"))
        for (long i = 0; i < a; i++)
            record(channel_of((uint64_t)i, 0, false), 1, false);
    else if (!strcmp(command, "all"))
        all_schemas();
    else if (!strcmp(command, "closeall"))
        close_all(argv[3], a);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    long a = argc > 2 ? atol(argv[2]) : 0, b = argc > 3 ? atol(argv[3]) : 0;
    if (!strcmp(command, "layouts")) {
        layouts();
        return 0;
    }
    if (!strcmp(command, "nothing"))
        return 0;
    limit_size();
    call = st_call_register("driver_send");
    if (st_call_register("driver_send") != call)
        fail("a call has two numbers");
    errno = 4242;
    if (strcmp(command, "race"))
        begin();
    if (!run_processes(command, argv, a, b) && !run(command, argv, a, b))
        fail("unknown command");
    if (errno != 4242)
        fprintf(stderr, "driver: errno became %d\n", errno);
    fputs("done\n", stdout);
    return 0;
}
