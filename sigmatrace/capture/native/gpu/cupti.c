/* The timeline of kernels, by CUPTI's activity records. Loaded at run time; without it the rest
 * goes on. Only the fields that have lain in the same place since CUPTI 9 are read.
 *
 * Its times are of a clock of its own: pairs of it and the TSC are taken once a second, and times
 * between two pairs interpolated. Our own streams launch no kernels. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define BUFFER_BYTES (1u << 20)
#define PAIRS (1u << 14) /* beyond, the oldest go: 4 hours */
#define TRIES 5
#define FIRST_MS 50u
#define PERIOD_MS 1000u

enum { CONCURRENT_KERNEL = 10, FLUSH_FORCED = 1 };

/* The beginning of CUpti_ActivityKernel4 and its successors. */
struct kernel {
    uint32_t kind;
    uint8_t cache, shared_config;
    uint16_t registers;
    uint32_t partition_requested, partition_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
} __attribute__((packed, aligned(8)));
_Static_assert(offsetof(struct kernel, start) == 16 && offsetof(struct kernel, device) == 40 &&
                   offsetof(struct kernel, correlation) == 92 &&
                   offsetof(struct kernel, name) == 104,
               "as cupti_activity.h has it");

typedef void (*request_function)(uint8_t **, size_t *, size_t *);
typedef void (*complete_function)(void *, uint32_t, uint8_t *, size_t, size_t);

static struct {
    int (*cuptiActivityRegisterCallbacks)(request_function, complete_function);
    int (*cuptiActivityEnable)(int);
    int (*cuptiActivityGetNextRecord)(uint8_t *, size_t, void **);
    int (*cuptiActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
    int (*cuptiActivityFlushAll)(uint32_t);
    int (*cuptiGetTimestamp)(uint64_t *);
    int (*cuptiGetResultString)(int, const char **);
} cupti;

static pid_t home;
static uint32_t ended;

/* --- clock ------------------------------------------------------------------------------------------------ */

static struct {
    uint64_t ns, tsc;
} pairs[PAIRS];
static uint64_t pair_count;

static void take_pair(void)
{
    uint64_t best = UINT64_MAX, ns = 0, tsc = 0;
    for (int i = 0; i < TRIES; i++) {
        uint64_t now, before = st_now();
        if (cupti.cuptiGetTimestamp(&now))
            return;
        uint64_t width = st_now() - before;
        if (width >= best)
            continue;
        best = width;
        ns = now;
        tsc = before + width / 2;
    }
    uint64_t at = __atomic_load_n(&pair_count, __ATOMIC_RELAXED);
    if (at && ns <= pairs[(at - 1) % PAIRS].ns)
        return;
    pairs[at % PAIRS].ns = ns;
    pairs[at % PAIRS].tsc = tsc;
    __atomic_store_n(&pair_count, at + 1, __ATOMIC_RELEASE);
}

/* By the two pairs around it; beyond them by the first and the last. False: too few. */
static bool to_tsc(uint64_t ns, uint64_t *tsc)
{
    uint64_t count = __atomic_load_n(&pair_count, __ATOMIC_ACQUIRE);
    uint64_t low = count > PAIRS - 1 ? count - (PAIRS - 1) : 0, high = count - 1;
    if (count < 2)
        return false;
    bool inside = ns >= pairs[low % PAIRS].ns && ns < pairs[high % PAIRS].ns;
    while (inside && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (pairs[middle % PAIRS].ns <= ns)
            low = middle;
        else
            high = middle;
    }
    double slope = (double)(pairs[high % PAIRS].tsc - pairs[low % PAIRS].tsc) /
                   (double)(pairs[high % PAIRS].ns - pairs[low % PAIRS].ns);
    uint64_t from = !inside && ns >= pairs[high % PAIRS].ns ? high : low;
    *tsc = pairs[from % PAIRS].tsc +
           (uint64_t)(int64_t)((double)(int64_t)(ns - pairs[from % PAIRS].ns) * slope);
    return true;
}

/* --- records --------------------------------------------------------------------------------------------- */

static uint32_t product(const int32_t *n)
{
    uint64_t all = (uint64_t)(uint32_t)n[0] * (uint32_t)n[1];
    all = all > UINT32_MAX ? UINT32_MAX : all * (uint32_t)n[2];
    return all > UINT32_MAX ? UINT32_MAX : (uint32_t)all;
}

static void record(const struct kernel *kernel)
{
    uint64_t start, end;
    if (!kernel->start || kernel->end < kernel->start || !to_tsc(kernel->start, &start) ||
        !to_tsc(kernel->end, &end)) {
        st_lost("gpu: kernel without times", 1);
        return;
    }
    st_kernel(&(struct st_kernel_record){
        .t_tsc = start,
        .duration_tsc = end - start,
        .name = st_name(kernel->name ? kernel->name : ""),
        .gpu = st_cuda_gpu((int)kernel->device, true),
        .context = kernel->context,
        .stream = kernel->stream,
        .correlation = kernel->correlation,
        .blocks = product(kernel->grid),
        .threads = product(kernel->block)});
}

static void request(uint8_t **buffer, size_t *size, size_t *records)
{
    void *p = NULL;
    *buffer = posix_memalign(&p, 64, BUFFER_BYTES) ? NULL : p;
    *size = *buffer ? BUFFER_BYTES : 0;
    *records = 0; /* as many as fit */
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    void *next = NULL;
    size_t dropped = 0;
    int saved = errno;
    (void)size;
    while (buffer && valid && !cupti.cuptiActivityGetNextRecord(buffer, valid, &next))
        if (*(const uint32_t *)next == CONCURRENT_KERNEL && st_recording())
            record(next);
    if (!cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) && dropped)
        st_lost("gpu: kernels that CUPTI dropped", dropped);
    free(buffer);
    errno = saved;
}

/* --- life --------------------------------------------------------------------------------------------------- */

static void *run(void *nothing)
{
    st_own_thread();
    for (uint32_t ms = FIRST_MS; !__atomic_load_n(&ended, __ATOMIC_ACQUIRE); ms = PERIOD_MS) {
        nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
        if (__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
            break;
        take_pair();
        cupti.cuptiActivityFlushAll(0);
    }
    return nothing;
}

static void finish(void)
{
    if (getpid() != home || __atomic_exchange_n(&ended, 1, __ATOMIC_ACQ_REL))
        return;
    take_pair();
    cupti.cuptiActivityFlushAll(FLUSH_FORCED);
}

static bool load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bool whole = library != NULL;
#define ST_LOAD(name)                                                                              \
    if (whole)                                                                                     \
        whole = (cupti.name = (__typeof__(cupti.name))st_dlsym(library, #name)) != NULL;
    ST_LOAD(cuptiActivityRegisterCallbacks)
    ST_LOAD(cuptiActivityEnable)
    ST_LOAD(cuptiActivityGetNextRecord)
    ST_LOAD(cuptiActivityGetNumDroppedRecords)
    ST_LOAD(cuptiActivityFlushAll)
    ST_LOAD(cuptiGetTimestamp)
    ST_LOAD(cuptiGetResultString)
#undef ST_LOAD
    return whole;
}

static int device_count(void)
{
    const struct st_driver *d = st_driver();
    int count = 0;
    return d && d->cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

/* Devices are described here, as CUPTI's callbacks must not call the driver. */
static void describe_devices(void)
{
    for (int i = 0, count = device_count(); i < count; i++)
        st_cuda_gpu(i, false);
}

/* Whatever libcuda.so.1 says of its devices, CUPTI finds none without the kernel's. */
static bool has_gpu(void)
{
    return device_count() && (!access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK));
}

static void refused(const char *reason, const char *advice)
{
    static bool said;
    struct st_object o;
    st_object_begin(&o, "gpu_kernels", st_object_id());
    st_object_str(&o, "not_recorded", reason);
    st_object_end(&o);
    if (advice)
        st_warn_once(&said, "kernels are not recorded: %s%s", reason, advice);
}

static void start(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    const char *path = getenv("SIGMATRACE_CUPTI"), *text = NULL;
    char reason[512];
    bool named = path && *path;
    if (named && !strcmp(path, "off")) {
        refused("SIGMATRACE_CUPTI=off", NULL);
        return;
    }
    if (!(named ? load(path) : load(names[0]) || load(names[1]))) {
        snprintf(reason, sizeof(reason), "%s cannot be loaded", named ? path : names[0]);
        refused(reason, " (SIGMATRACE_CUPTI names another one, or \"off\")");
        return;
    }
    int error = cupti.cuptiActivityRegisterCallbacks(request, complete);
    if (!error)
        error = cupti.cuptiActivityEnable(CONCURRENT_KERNEL);
    if (error) {
        bool known = !cupti.cuptiGetResultString(error, &text) && text;
        snprintf(reason, sizeof(reason), "CUPTI refuses, error %d (%s)%s", error,
                 known ? text : "unknown", has_gpu() ? "" : ": there is no GPU here");
        refused(reason, has_gpu() ? "; another tool may be using it" : "");
        return;
    }
    home = getpid();
    describe_devices();
    take_pair();
    unsigned long thread;
    if (!st_own_thread_make(run, &thread))
        st_lost("gpu: thread that reads kernels could not be started", 1);
    atexit(finish); /* before the driver's own, which was registered earlier */
}

void st_timeline_start(void)
{
    static uint32_t once;
    if (st_mode() < ST_MODE_SIMPLE || !st_recording() ||
        __atomic_exchange_n(&once, 1, __ATOMIC_ACQ_REL))
        return;
    int saved = errno;
    start();
    errno = saved;
}
