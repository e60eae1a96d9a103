/* A plugin that links with libibverbs and is loaded RTLD_LOCAL, as UCX's transports are. */
#include <infiniband/verbs.h>

int plugin_run(void);
int plugin_run(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_cq *cq = context ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL;
    struct ibv_wc wc;
    if (!cq || ibv_poll_cq(cq, 1, &wc))
        return 1;
    return ibv_destroy_cq(cq) || ibv_close_device(context);
}
