/* Start of the layers: which are chosen, and how doorbells are to be repeated. */
#define _GNU_SOURCE
#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define DEFAULT_BATCH 128u
#define BATCH_MAX 32768u

bool st_mlx5dv_on, st_cuda_on;
struct st_gpu_config st_gpu_config = {
    .order = ST_FORWARD_FIRST, .batch = DEFAULT_BATCH, .cpus = {ST_ANY_CPU, ST_ANY_CPU}};

static enum st_doorbell_order order_of(const char *text)
{
    static const char *const names[] = {[ST_FORWARD_FIRST] = "forward-first",
                                        [ST_COPY_FIRST] = "copy-first",
                                        [ST_COPY_SYNC] = "sync",
                                        [ST_COPY_OFF] = "off"};
    static bool said;
    for (size_t i = 0; text && i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(text, names[i]))
            return (enum st_doorbell_order)i;
    if (text && *text)
        st_warn_once(&said,
                     "SIGMATRACE_DOORBELL=%s: choose from forward-first, copy-first, sync, off; "
                     "forward-first is used",
                     text);
    return ST_FORWARD_FIRST;
}

static uint32_t batch_of(const char *text)
{
    static bool said;
    char *end;
    if (!text || !*text)
        return DEFAULT_BATCH;
    unsigned long slots = strtoul(text, &end, 10);
    if (isdigit((unsigned char)*text) && !*end && slots > 0 && slots <= BATCH_MAX)
        return (uint32_t)slots;
    st_warn_once(&said, "SIGMATRACE_DOORBELL_BATCH=%s is not a number from 1 to %u; %u is used",
                 text, BATCH_MAX, DEFAULT_BATCH);
    return DEFAULT_BATCH;
}

/* Takes the first range of a list of CPUs; what follows, or NULL: it is none. */
static const char *take_range(const char *text, int *count)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return NULL;
    unsigned long first = strtoul(text, &end, 10), last = first;
    if (*end == '-') {
        if (!isdigit((unsigned char)end[1]))
            return NULL;
        last = strtoul(end + 1, &end, 10);
    }
    if (last < first || last >= CPU_SETSIZE)
        return NULL;
    for (; first <= last && *count < ST_POLLING; first++)
        st_gpu_config.cpus[(*count)++] = (int)first;
    return end;
}

static void read_cpus(const char *text)
{
    static bool said;
    int count = 0;
    if (!text || !*text)
        return;
    const char *at = take_range(text, &count);
    while (at && *at == ',')
        at = take_range(at + 1, &count);
    if (at && !*at)
        return;
    for (int i = 0; i < ST_POLLING; i++)
        st_gpu_config.cpus[i] = ST_ANY_CPU;
    st_warn_once(&said, "SIGMATRACE_POLL_CPUS=%s is not a list of CPUs like 2-3 or 2,8; threads are "
                        "not bound", text);
}

__attribute__((constructor)) static void start(void)
{
    st_mlx5dv_on = st_layer_on(ST_LAYER_MLX5DV);
    st_cuda_on = st_layer_on(ST_LAYER_CUDA);
    if (!st_mlx5dv_on && !st_cuda_on)
        return;
    st_gpu_config.batch = batch_of(getenv("SIGMATRACE_DOORBELL_BATCH"));
    st_gpu_config.order = order_of(getenv("SIGMATRACE_DOORBELL"));
    read_cpus(getenv("SIGMATRACE_POLL_CPUS"));
}
