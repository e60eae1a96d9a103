/* Preloaded: the first FAULTS calls that fault pages in for writing fail, as they do behind the end of
 * a file whose size another writer has just set back. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POPULATE_WRITE 23

int madvise(void *address, size_t size, int advice)
{
    static int faults;
    const char *wanted = getenv("FAULTS");
    if (advice == POPULATE_WRITE && wanted && faults < atoi(wanted)) {
        faults++;
        errno = EFAULT;
        return -1;
    }
    return (int)syscall(SYS_madvise, address, size, advice);
}
