/* A program that fills many segments, then ends in one of several ways.
 * usage: writer_probe RECORDS exit|flush|kill|look */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sigmatrace.h"

static uint32_t object;

static void count(long n)
{
    for (long i = 0; i < n; i++) {
        struct st_channel_key key = {.object = object,
                                     .kind = ST_KIND_MSG,
                                     .dir = ST_OUT,
                                     .layer = ST_LAYER_OFI,
                                     .peer = 1};
        uint64_t now = st_now();
        struct st_channel *channel = st_channel_get(&key);
        if (channel)
            st_op(now, (uint64_t)i + 1, channel->id, st_ordinal_next(channel, false), ST_OP_SEND, 1,
                  0, 0, 0);
    }
}

/* Of a file of /proc, the rest of the line that begins with `name`; all of it when name is "". */
static void read_line(const char *path, const char *name, char *to, size_t size)
{
    char line[256];
    FILE *f = fopen(path, "r");
    *to = 0;
    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, name, strlen(name))) {
            line[strcspn(line, "\n")] = 0;
            snprintf(to, size, "%s", line + strlen(name));
            break;
        }
    if (f)
        fclose(f);
}

/* Says for each thread: name, blocked signals. False: the writer is there, but
 * has not yet prepared itself. */
static bool look(char *said, size_t size)
{
    char path[300], name[64], blocked[64];
    int tasks = 0, writers = 0;
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    *said = 0;
    while (folder && (entry = readdir(folder))) {
        if (*entry->d_name == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        read_line(path, "", name, sizeof(name));
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        read_line(path, "SigBlk:\t", blocked, sizeof(blocked));
        size_t used = strlen(said);
        snprintf(said + used, size - used, "%s %s\n", name, blocked);
        tasks++;
        writers += !strcmp(name, "sigmatrace");
    }
    if (folder)
        closedir(folder);
    return tasks == 1 + writers;
}

static void look_when_ready(void)
{
    char said[1000];
    time_t until = time(NULL) + 20;
    while (!look(said, sizeof(said)) && time(NULL) < until)
        sched_yield();
    fputs(said, stdout);
}

static void said_at_exit(void)
{
    puts("ended");
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    long n = atol(argv[1]);
    if (getenv("PROBE_ONE_PROCESSOR")) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof(one), &one);
    }
    st_call_register("probe");
    st_library_seen(ST_LAYER_OFI, "libfabric", "1", "", "symbol");
    object = st_object_id();
    struct st_object endpoint;
    st_object_begin(&endpoint, "ofi_endpoint", object);
    st_object_end(&endpoint);
    errno = 4242;
    count(n);
    if (!strcmp(argv[2], "flush")) {
        st_flush();
        raise(SIGKILL);
    } else if (!strcmp(argv[2], "look"))
        look_when_ready();
    else if (!strcmp(argv[2], "kill"))
        raise(SIGKILL);
    else if (!strcmp(argv[2], "leave")) {
        atexit(said_at_exit);
        pthread_exit(NULL);
    }
    else if (errno != 4242)
        return 3;
    return 0;
}
