/* Pairs of (TSC, clock): the best of several tries, with the width of the reading. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "msgpack.h"

#define TRIES 8
#define MEASURE_NS 1000000 /* of the frequency, where the processor does not tell */

static int opened; /* 0 not chosen, 1 being chosen, 2 chosen */
static clockid_t clock_id = CLOCK_REALTIME;
static char clock_name[128] = "realtime";
static uint64_t frequency;
static const char *frequency_source;

static uint64_t read_ns(clockid_t id)
{
    struct timespec t;
    return clock_gettime(id, &t) ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t st_clock_wall_ns(void)
{
    return read_ns(CLOCK_REALTIME);
}

/* The kernel's clock id of an open PTP device (FD_TO_CLOCKID of linux/posix-timers). */
static clockid_t clock_of(int fd)
{
    return (clockid_t)((~(unsigned)fd << 3) | 3);
}

static void choose(void)
{
    static bool warned;
    const char *wanted = st_config()->clock;
    int idle = 0;
    if (!__atomic_compare_exchange_n(&opened, &idle, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    clockid_t id = CLOCK_REALTIME;
    bool known = !*wanted || !strcmp(wanted, "realtime");
    if (!strcmp(wanted, "tai")) {
        id = CLOCK_TAI;
        known = true;
    } else if (!strncmp(wanted, "/dev/ptp", 8)) {
        int fd = open(wanted, O_RDONLY | O_CLOEXEC);
        id = fd < 0 ? -1 : clock_of(fd);
        known = fd >= 0 && read_ns(id);
    }
    if (known) {
        clock_id = id;
        if (*wanted)
            memcpy(clock_name, wanted, sizeof(clock_name));
    } else {
        st_warn_once(&warned, "SIGMATRACE_CLOCK=%s cannot be read; realtime is used", wanted);
    }
    __atomic_store_n(&opened, 2, __ATOMIC_RELEASE);
}

const char *st_clock_name(void)
{
    choose();
    return clock_name;
}

static bool narrowest(clockid_t id, uint64_t *tsc, uint64_t *wall_ns, uint64_t *width_tsc)
{
    *width_tsc = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = __rdtsc();
        __builtin_ia32_lfence();
        uint64_t ns = read_ns(id);
        __builtin_ia32_lfence();
        uint64_t width = __rdtsc() - before;
        if (ns && width < *width_tsc) {
            *width_tsc = width;
            *wall_ns = ns;
            *tsc = before + width / 2;
        }
    }
    return *width_tsc != UINT64_MAX;
}

bool st_clock_pair(uint64_t *tsc, uint64_t *wall_ns, uint64_t *width_tsc)
{
    int saved = errno;
    choose();
    bool done = narrowest(clock_id, tsc, wall_ns, width_tsc);
    errno = saved;
    return done;
}

uint64_t st_tsc(void)
{
    return __rdtsc();
}

static uint64_t from_cpuid(const char **source)
{
    unsigned a, b, c, d;
    if (__get_cpuid_max(0, NULL) >= 0x15) {
        __cpuid(0x15, a, b, c, d);
        *source = "cpuid";
        if (a && b && c)
            return (uint64_t)c * b / a;
    }
    __cpuid(1, a, b, c, d);
    if (c >> 31 & 1) { /* in a virtual machine: the hypervisor's timing leaf, in kHz */
        __cpuid(0x40000000, a, b, c, d);
        if (a >= 0x40000010 && a < 0x40010000) {
            __cpuid(0x40000010, a, b, c, d);
            *source = "hypervisor";
            if (a > 100000 && a < 20000000) /* 0.1 to 20 GHz */
                return (uint64_t)a * 1000;
        }
    }
    return 0;
}

/* Between pairs: what interrupts a single reading would count as time that one of both missed. */
static uint64_t measure(void)
{
    uint64_t begin, begin_ns, end, end_ns, width;
    if (!narrowest(CLOCK_MONOTONIC_RAW, &begin, &begin_ns, &width))
        return 0;
    do
        if (!narrowest(CLOCK_MONOTONIC_RAW, &end, &end_ns, &width))
            return 0;
    while (end_ns - begin_ns < MEASURE_NS);
    return (uint64_t)((double)(end - begin) * 1e9 / (double)(end_ns - begin_ns));
}

uint64_t st_tsc_hz(const char **source)
{
    if (!frequency) {
        frequency = from_cpuid(&frequency_source);
        if (!frequency) {
            frequency_source = "measured";
            frequency = measure();
        }
    }
    *source = frequency_source;
    return frequency;
}

void st_clock_emit(void)
{
    uint64_t tsc, ns, width;
    struct st_object o;
    if (!st_clock_pair(&tsc, &ns, &width)) {
        st_lost("clock reading", 1);
        return;
    }
    if (!st_item_begin(&o))
        return;
    st_put_map(&o, 4);
    st_put_str(&o, "tsc");
    st_put_u64(&o, tsc);
    st_put_str(&o, "wall_ns");
    st_put_u64(&o, ns);
    st_put_str(&o, "width_tsc");
    st_put_u64(&o, width);
    st_put_str(&o, "source");
    st_put_str(&o, clock_name);
    if (st_item_seal(&o, ST_ITEM_CLOCK))
        st_writer_append(o.buffer, o.used);
    st_item_free(&o);
}

void st_clock_check(void)
{
    uint64_t now = __rdtsc(), due = __atomic_load_n(&st_page->deadline, __ATOMIC_RELAXED);
    if (!due || now < due)
        return;
    /* One thread takes the turn. */
    if (__atomic_compare_exchange_n(&st_page->deadline, &due, now + frequency, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        st_clock_emit();
}
