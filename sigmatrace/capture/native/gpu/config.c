/* Start of the layers: which are chosen, and how doorbells are to be repeated. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define DEFAULT_BATCH 128u

bool st_mlx5dv_on, st_cuda_on;
struct st_gpu_config st_gpu_config = {.order = ST_FORWARD_FIRST, .batch = DEFAULT_BATCH};

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

__attribute__((constructor)) static void start(void)
{
    st_mlx5dv_on = st_layer_on(ST_LAYER_MLX5DV);
    st_cuda_on = st_layer_on(ST_LAYER_CUDA);
    if (!st_mlx5dv_on && !st_cuda_on)
        return;
    const char *batch = getenv("SIGMATRACE_DOORBELL_BATCH");
    unsigned long slots = batch ? strtoul(batch, NULL, 10) : 0;
    if (slots > 0 && slots <= 32768)
        st_gpu_config.batch = (uint32_t)slots;
    st_gpu_config.order = order_of(getenv("SIGMATRACE_DOORBELL"));
    st_gpu_config.poll_cpus = getenv("SIGMATRACE_POLL_CPUS");
}
