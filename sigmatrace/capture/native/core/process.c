/* Life cycle of a process: files opened on first use, fork, stop and start, failure, exit. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

static struct st_page idle_page = {.alive = 1};
struct st_page *st_page = &idle_page;
struct st_process st_process;

#define LAYERS_AT_MOST 8u
static void (*child_begins[LAYERS_AT_MOST])(void);
static uint32_t child_begin_count;

/* glibc's strerror may translate, and so allocate. */
static const char *error_text(int error)
{
#if __GLIBC_PREREQ(2, 32)
    const char *text = strerrordesc_np(error);
    return text ? text : "unknown error";
#else
    static char text[32];
    snprintf(text, sizeof(text), "error %d", error);
    return text;
#endif
}

static void quiet(void)
{
    __atomic_store_n(&st_page->generation, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&st_page->deadline, 0, __ATOMIC_SEQ_CST);
}

void st_process_say_failure(void)
{
    static bool warned;
    const char *reason = __atomic_load_n(&st_process.reason, __ATOMIC_ACQUIRE);
    if (!reason)
        return;
    st_warn_once(&warned, "recording stopped: %s: %s (%s); the program goes on", st_process.path,
                 reason, error_text(__atomic_load_n(&st_process.error, __ATOMIC_RELAXED)));
}

void st_process_fail(const char *reason, int error)
{
    const char *none = NULL;
    int saved = errno, no_error = 0;
    __atomic_compare_exchange_n(&st_process.error, &no_error, error, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(&st_process.reason, &none, reason, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_RELAXED);
    int state = __atomic_load_n(&st_process.state, __ATOMIC_RELAXED);
    while (state != ST_STATE_ENDED &&
           !__atomic_compare_exchange_n(&st_process.state, &state, ST_STATE_FAILED, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
    quiet();
    st_process_say_failure();
    errno = saved;
}

/* The page whose wiping tells a child from its parent. */
static bool make_page(void)
{
    if (st_page != &idle_page)
        return true;
    struct st_page *page = st_map(ST_PAGE);
    if (!page)
        return false;
    madvise(page, ST_PAGE, MADV_WIPEONFORK); /* where it fails, the fork handler does it */
    page->alive = 1;
    st_page = page;
    return true;
}

static bool make_folder(const char *path)
{
    char part[sizeof(st_process.path)];
    snprintf(part, sizeof(part), "%s", path);
    for (char *p = part + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(part, 0777);
            *p = '/';
        }
    if (!mkdir(part, 0777) || errno == EEXIST)
        return true;
    return false;
}

static void name_files(void)
{
    const char *out = st_config()->out;
    if (gethostname(st_process.host, sizeof(st_process.host) - 1))
        snprintf(st_process.host, sizeof(st_process.host), "localhost");
    for (char *p = st_process.host; *p; p++)
        if (*p == '/')
            *p = '_';
    st_process.pid = (uint32_t)getpid();
    st_process.start_ns = st_clock_wall_ns();
    snprintf(st_process.path, sizeof(st_process.path), "%s/%s-%u-%llu.msgpack", out,
             st_process.host, st_process.pid, (unsigned long long)st_process.start_ns);
    snprintf(st_process.ring_path, sizeof(st_process.ring_path), "%s/%s-%u-%llu.ring", out,
             st_process.host, st_process.pid, (unsigned long long)st_process.start_ns);
}

/* A launcher may remove the folder, empty as it is, before the file is in it. */
static bool make_file(void)
{
    for (int tries = 0; tries < 4; tries++) {
        if (st_writer_open(st_process.path))
            return true;
        if (errno != ENOENT || !make_folder(st_config()->out))
            return false;
    }
    return false;
}

static bool open_files(void)
{
    name_files();
    if (!make_page()) {
        st_process_fail("out of memory", ENOMEM);
        return false;
    }
    if (!make_file()) {
        st_process_fail(errno == ENOSPC ? "disk full" : "cannot create the file", errno);
        return false;
    }
    if (!st_ring_open(st_process.ring_path)) {
        st_process_fail(errno == ENOSPC ? "disk full" : "cannot create the ring file", errno);
        st_process.ring_path[0] = 0;
    }
    /* Also after a failure of the ring: the file then says what happened. */
    return st_header_write() && st_process.ring_path[0];
}

static void listen_again(void)
{
    const char *source;
    uint64_t hz = st_tsc_hz(&source);
    if (st_config()->mode != ST_MODE_AGGREGATE)
        __atomic_store_n(&st_page->deadline, st_now() + hz, __ATOMIC_RELAXED);
    __atomic_store_n(&st_page->generation, st_process.generation, __ATOMIC_SEQ_CST);
}

void st_process_files_begin(void)
{
    int idle = ST_STATE_IDLE, opening = ST_STATE_OPENING;
    if (!st_page->alive)
        st_process_ready();
    if (!__atomic_compare_exchange_n(&st_process.state, &idle, ST_STATE_OPENING, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    int saved = errno;
    st_local.attaching = true; /* what a signal handler does meanwhile cannot be kept */
    st_process.reopen = false;
    st_process.generation++;
    st_process.aggregates = st_config()->mode == ST_MODE_AGGREGATE;
    st_process.keep_tags = st_process.aggregates ? 0 : UINT64_MAX;
    if (open_files()) {
        st_clock_emit();
        st_channels_emit(); /* of the parent: pointers to them may be kept in layers */
        if (__atomic_compare_exchange_n(&st_process.state, &opening, ST_STATE_OPEN, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            if (!__atomic_load_n(&st_process.stopped, __ATOMIC_ACQUIRE))
                listen_again();
            st_libraries_emit();
        }
    }
    st_local.attaching = false;
    errno = saved;
}

void st_on_child(void (*begin)(void))
{
    uint32_t at = __atomic_fetch_add(&child_begin_count, 1, __ATOMIC_RELAXED);
    if (at < LAYERS_AT_MOST)
        __atomic_store_n(&child_begins[at], begin, __ATOMIC_RELEASE);
    else
        st_lost("numbers of a layer in a child", 1);
}

static void layers_forked(void)
{
    for (uint32_t i = 0; i < LAYERS_AT_MOST; i++)
        if (child_begins[i])
            child_begins[i]();
}

/* In a child: forget what belongs to the parent's files. Its records are in its own memory,
 * which the child never touches again. */
static bool revive(bool may_close)
{
    uint32_t dead = 0;
    if (!__atomic_compare_exchange_n(&st_page->alive, &dead, 2, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return dead == 1;
    bool was_open = st_process.state == ST_STATE_OPEN || st_process.state == ST_STATE_OPENING;
    st_writer_forked(may_close);
    st_ring_forked(may_close);
    st_background_forked(may_close); /* a raw clone's child may not create threads */
    st_threads_forked();
    st_chunk_forked();
    st_channels_forked();
    st_pending_forked();
    st_names_forked();
    st_libraries_forked();
    layers_forked();
    if (was_open) {
        st_process.state = ST_STATE_IDLE;
        st_process.reopen = true;
    }
    __atomic_store_n(&st_page->alive, 1, __ATOMIC_RELEASE);
    return true;
}

static void forked(void)
{
    int saved = errno;
    if (st_page != &idle_page) {
        memset(st_page, 0, sizeof(*st_page)); /* where the kernel did not wipe it */
        revive(true);
    } else if (st_process.state == ST_STATE_OPENING) {
        st_process.state = ST_STATE_IDLE; /* another thread of the parent was about to begin */
        st_process.reopen = true;
    }
    errno = saved;
}

static bool revived(void)
{
    if (ST_LIKELY(__atomic_load_n(&st_page->alive, __ATOMIC_ACQUIRE) == 1))
        return true;
    return revive(false);
}

/* A thread that comes while another opens the files gets a short while of patience: an object
 * refused now would be missing for the whole run. */
static int state_when_opened(void)
{
    int state = __atomic_load_n(&st_process.state, __ATOMIC_ACQUIRE);
    for (int i = 0; state == ST_STATE_OPENING && !st_local.attaching && i < 1000; i++) {
        int saved = errno;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        errno = saved;
        state = __atomic_load_n(&st_process.state, __ATOMIC_ACQUIRE);
    }
    return state;
}

bool st_process_open(void)
{
    if (!revived())
        return false;
    if (st_process.reopen)
        st_process_files_begin();
    return state_when_opened() == ST_STATE_OPEN;
}

bool st_process_ready(void)
{
    if (ST_LIKELY(__atomic_load_n(&st_page->generation, __ATOMIC_ACQUIRE)))
        return true;
    return st_process_open() && __atomic_load_n(&st_page->generation, __ATOMIC_ACQUIRE);
}

void st_process_refuse(const char *reason)
{
    if (__atomic_load_n(&st_process.state, __ATOMIC_RELAXED) != ST_STATE_FAILED)
        return;
    st_process_say_failure();
    st_lost(reason, 1);
}

void st_refused(void)
{
    st_process_refuse("operation after the recording had stopped");
}

bool st_recording(void)
{
    return ST_LIKELY(st_generation()) || st_process_ready();
}

void st_flush(void)
{
    struct st_thread *thread = st_thread_known();
    if (!thread || !st_process_open())
        return;
    if (__atomic_exchange_n(&thread->busy, 1, __ATOMIC_ACQ_REL))
        return; /* a signal handler inside a record */
    st_thread_flush(thread);
    int naps = 0;
    st_background_wait(thread, &naps);
    __atomic_store_n(&thread->busy, 0, __ATOMIC_RELEASE);
}

void st_stop(void)
{
    if (st_mode() == ST_MODE_OFF || !revived())
        return;
    __atomic_store_n(&st_process.stopped, true, __ATOMIC_SEQ_CST);
    quiet();
    st_flush();
}

void st_start(void)
{
    if (st_mode() == ST_MODE_OFF || !revived())
        return;
    __atomic_store_n(&st_process.stopped, false, __ATOMIC_SEQ_CST);
    if (st_process_open())
        listen_again();
}

static void __attribute__((constructor(101))) begin(void)
{
    if (st_config()->mode == ST_MODE_OFF)
        return;
    st_threads_init();
    pthread_atfork(NULL, NULL, forked);
}

/* A thread that is storing a record now gets a moment to end it; it is not waited for. */
static void let_end(const struct st_thread *thread)
{
    for (int i = 0; i < 2000 && __atomic_load_n(&thread->busy, __ATOMIC_ACQUIRE); i++)
        __builtin_ia32_pause();
}

static void __attribute__((destructor)) end(void)
{
    if (__atomic_load_n(&st_page->alive, __ATOMIC_ACQUIRE) != 1)
        return; /* a child that recorded nothing */
    int saved = errno;
    int state = __atomic_exchange_n(&st_process.state, ST_STATE_ENDED, __ATOMIC_ACQ_REL);
    quiet();
    if (state != ST_STATE_OPEN && (state != ST_STATE_FAILED || !st_process.path[0]))
        return;
    struct st_thread *self = st_thread_known();
    bool whole = true;
    int naps = 0; /* of all threads together: one may have been interrupted for good in the midst */
    st_background_end();
    for (struct st_thread *thread = st_thread_first(); thread; thread = thread->all) {
        if (thread != self)
            let_end(thread);
        whole &= st_thread_flush(thread);
        whole &= st_aggregate_flush(thread);
        whole &= st_background_wait(thread, &naps);
    }
    st_clock_emit();
    st_process_say_failure();
    const char *reason = __atomic_load_n(&st_process.reason, __ATOMIC_ACQUIRE);
    st_end_write(reason ? reason : st_process.stopped ? "stop" : "exit");
    if (whole && st_process.ring_path[0])
        unlink(st_process.ring_path);
    errno = saved;
}
