/* A program that records through the core and tells on stdout what it did; the tests compare
 * that with what a plain reader finds in the files. usage: driver COMMAND [NUMBER...] */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "driver_pending.h"
#include "driver_process.h"

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

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
    (void)signal;
    record(channel_of(500, (uint64_t)handled % 50, true), 5, true);
    handled = handled + 1;
}

static bool counted; /* by the main thread: no more signals */

/* Signals as fast as another thread can send them. */
static void *job_signals(void *p)
{
    pthread_t target = *(pthread_t *)p;
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &block, NULL);
    while (!__atomic_load_n(&counted, __ATOMIC_ACQUIRE))
        pthread_kill(target, SIGUSR1);
    return NULL;
}

static void signals(long n)
{
    pthread_t self = pthread_self(), sender;
    signal(SIGUSR1, on_signal);
    pthread_create(&sender, NULL, job_signals, &self);
    count(n);
    __atomic_store_n(&counted, true, __ATOMIC_RELEASE);
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

static void aggregate(int depth_max, long n)
{
    for (long i = 0; i < n; i++) {
        struct st_channel *channel = channel_of((uint64_t)i % 2000, (uint64_t)i, false);
        if (channel)
            st_op(0, (uint64_t)i, channel->id, 0, ST_OP_SEND, call, (uint8_t)(i % depth_max),
                  i % 7 ? ST_INLINE | ST_FAILED : ST_INLINE | ST_NESTED, 0);
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
    st_object_closed("ofi_endpoint", object, st_now());
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
