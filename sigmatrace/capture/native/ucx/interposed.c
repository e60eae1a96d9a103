/* UCP's functions for programs and plugins that look them up by name (dlopen, dlsym). */
#define _GNU_SOURCE
#include "interpose.h"
#include "ucx.h"

static const struct st_interposed wrappers[] = {
#define UCX_ROW(name) {#name, NULL, (void *)name},
    UCX_UCP_WRAPPED(UCX_ROW)
#undef UCX_ROW
    {NULL, NULL, NULL}};

__attribute__((constructor)) static void interposed_start(void)
{
    if (st_layer_on(ST_LAYER_UCP) || st_layer_on(ST_LAYER_UCT))
        st_interpose("libucp", wrappers);
}
