/* What the NIC says of a port: how others name the queue pairs behind it. */
#define _GNU_SOURCE
#include <string.h>

#include "hooks.h"

bool st_port_attr(const struct st_port *port, struct ibv_port_attr *attr)
{
    struct verbs_context *extended = verbs_get_ctx_op(port->context, query_port);
    memset(attr, 0, sizeof(*attr));
    if (extended)
        return !extended->query_port(port->context, port->number, attr, sizeof(*attr));
    return port->library->ibv_query_port &&
           !port->library->ibv_query_port(port->context, port->number, (void *)attr);
}

bool st_port_gid(const struct st_port *port, int index, union ibv_gid *gid)
{
    return port->library->ibv_query_gid &&
           !port->library->ibv_query_gid(port->context, port->number, index, gid);
}

bool st_port_prefix(const struct st_port *port, uint8_t prefix[ST_PREFIX_BYTES])
{
    struct ibv_port_attr attr;
    union ibv_gid gid;
    if (!port->number || !st_port_attr(port, &attr) ||
        attr.link_layer == IBV_LINK_LAYER_ETHERNET || !st_port_gid(port, 0, &gid))
        return false;
    memcpy(prefix, gid.raw, ST_PREFIX_BYTES);
    return true;
}

void st_port_put(struct st_object *o, const struct st_port *port)
{
    struct ibv_port_attr attr;
    union ibv_gid gid;
    uint8_t prefix[ST_PREFIX_BYTES];
    if (!port->number)
        return;
    bool told = st_port_attr(port, &attr);
    if (told && attr.link_layer != IBV_LINK_LAYER_ETHERNET && attr.lid) {
        st_object_u64(o, "slid", attr.lid);
        if (st_port_prefix(port, prefix))
            st_object_bin(o, "prefix", prefix, sizeof(prefix));
    } else if (st_port_gid(port, 0, &gid)) {
        st_object_bin(o, "sgid", gid.raw, sizeof(gid.raw));
    }
}

struct st_port st_port_only(struct ibv_context *context, struct st_mlx5_library *library)
{
    struct ibv_device_attr attr;
    bool told = library->ibv_query_device && !library->ibv_query_device(context, &attr);
    return (struct st_port){context, library, told && attr.phys_port_cnt == 1};
}
