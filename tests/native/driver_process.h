/* Commands of the driver: processes that fork, are replaced, or end in another way than main. */
#ifndef DRIVER_PROCESS_H
#define DRIVER_PROCESS_H
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

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
#endif
