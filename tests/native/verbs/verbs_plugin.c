/* A plugin that links with libibverbs and is loaded RTLD_LOCAL, as UCX's transports are. */
#include "verbs_client.h"

int plugin_run(void);
int plugin_run(void)
{
    static const struct client client = {
#define ROW(name) .name = name,
        CLIENT_FUNCTIONS(ROW)
#undef ROW
    };
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    return !context || client_write(&client, context) || ibv_close_device(context);
}
