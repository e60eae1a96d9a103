/* The rank file: every item goes out as one write(2) on an O_APPEND descriptor, so that threads
 * need no lock. What can go wrong stops the recording, never the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "msgpack.h"

#define FIRST_DESCRIPTOR 512 /* out of the way of programs that number their descriptors */

static struct st_file file = {.fd = -1};
static int writing; /* threads inside write(2) */
static int failed;

void st_size_guard_begin(struct st_size_guard *guard)
{
    struct rlimit limit;
    sigset_t block, old, pending;
    _Static_assert(sizeof(old) <= sizeof(guard->mask), "room for a signal mask");
    guard->on = !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY;
    if (!guard->on)
        return;
    sigemptyset(&block);
    sigaddset(&block, SIGXFSZ);
    sigpending(&pending);
    guard->pending = sigismember(&pending, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &block, &old);
    memcpy(guard->mask, &old, sizeof(old));
}

void st_size_guard_end(struct st_size_guard *guard)
{
    sigset_t block, old;
    if (!guard->on)
        return;
    sigemptyset(&block);
    sigaddset(&block, SIGXFSZ);
    if (!guard->pending)
        sigtimedwait(&block, NULL, &(struct timespec){0});
    memcpy(&old, guard->mask, sizeof(old));
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

bool st_file_create(struct st_file *f, const char *path, int flags)
{
    struct stat status;
    int fd = open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return false;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (fstat(fd, &status)) {
        close(fd);
        return false;
    }
    *f = (struct st_file){.fd = fd, .device = status.st_dev, .inode = status.st_ino};
    return true;
}

bool st_file_ours(const struct st_file *f)
{
    struct stat status;
    return !fstat(f->fd, &status) && status.st_dev == f->device && status.st_ino == f->inode;
}

bool st_writer_open(const char *path)
{
    __atomic_store_n(&failed, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&writing, 0, __ATOMIC_RELAXED);
    return st_file_create(&file, path, O_RDWR | O_APPEND);
}

void st_writer_forked(bool may_close)
{
    if (may_close && file.fd >= 0 && st_file_ours(&file))
        close(file.fd);
    file.fd = -1;
}

static const char *reason_of(int error)
{
    switch (error) {
    case ENOSPC:
        return "disk full";
    case EDQUOT:
        return "quota exceeded";
    case EFBIG:
        return "file size limit";
    case EBADF:
        return "file closed by the program";
    default:
        return "write error";
    }
}

/* Takes a partly written item away again, when it is still the tail and nobody else writes. */
static void take_back(const void *item, size_t written)
{
    struct stat status;
    uint8_t tail[ST_PREFIX_BYTES];
    if (__atomic_load_n(&writing, __ATOMIC_SEQ_CST) != 1 || fstat(file.fd, &status))
        return;
    off_t at = status.st_size - (off_t)written;
    size_t n = written < sizeof(tail) ? written : sizeof(tail);
    if (at < 0 || pread(file.fd, tail, n, at) != (ssize_t)n || memcmp(tail, item, n))
        return;
    if (ftruncate(file.fd, at))
        return; /* the reader skips the torn item */
}

static bool append(const void *item, size_t size)
{
    struct st_size_guard guard;
    if (!st_file_ours(&file)) {
        __atomic_store_n(&failed, 1, __ATOMIC_SEQ_CST);
        st_process_fail(reason_of(EBADF), EBADF);
        return false;
    }
    st_size_guard_begin(&guard);
    ssize_t n;
    do
        n = write(file.fd, item, size);
    while (n < 0 && errno == EINTR);
    int error = n < 0 ? errno : ENOSPC;
    if (n >= 0 && (size_t)n < size) {
        /* The rest would fail with the reason: ask for it, with nothing at stake. */
        ssize_t more = write(file.fd, (const uint8_t *)item + n, size - (size_t)n);
        error = more < 0 ? errno : EIO;
        n += more > 0 ? more : 0;
    }
    st_size_guard_end(&guard);
    if (n == (ssize_t)size)
        return true;
    __atomic_store_n(&failed, 1, __ATOMIC_SEQ_CST);
    if (n > 0)
        take_back(item, (size_t)n);
    st_process_fail(reason_of(error), error);
    return false;
}

/* Not in the middle of an item: a cancelled thread ends where it would end untraced. */
static int cancel_not_now(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

bool st_writer_append(const void *item, size_t size)
{
    int saved = errno, cancel = cancel_not_now();
    __atomic_fetch_add(&writing, 1, __ATOMIC_SEQ_CST);
    bool done = !__atomic_load_n(&failed, __ATOMIC_SEQ_CST) && append(item, size);
    __atomic_fetch_sub(&writing, 1, __ATOMIC_SEQ_CST);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return done;
}

bool st_writer_append_last(const void *item, size_t size)
{
    int saved = errno;
    __atomic_fetch_add(&writing, 1, __ATOMIC_SEQ_CST);
    bool done = append(item, size);
    __atomic_fetch_sub(&writing, 1, __ATOMIC_SEQ_CST);
    errno = saved;
    return done;
}
