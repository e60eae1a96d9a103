/* What is said of a device, once in a process: its ports and their GIDs. */
#define _GNU_SOURCE
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define DEVICES 128u

static struct {
    char name[IBV_SYSFS_NAME_MAX];
    uint32_t id; /* stored last */
} devices[DEVICES];
static uint32_t device_count;

static bool read_text(const char *path, char *to, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool done = fgets(to, (int)size, file) != NULL;
    fclose(file);
    if (done)
        to[strcspn(to, "\n")] = 0;
    return done;
}

static const char *gid_type_of(const char *device, uint32_t port, uint32_t index, bool ethernet)
{
    char path[256], text[64];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%u", device,
             port, index);
    if (!read_text(path, text, sizeof(text)))
        return ethernet ? "" : "ib";
    return strstr(text, "v2") ? "roce2" : ethernet ? "roce1" : "ib";
}

static void describe_gids(struct ibv_context *context, struct st_verbs_library *library,
                          const struct ibv_port_attr *attr, uint32_t port, uint32_t port_id)
{
    static const union ibv_gid none;
    bool ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET;
    for (int i = 0; i < attr->gid_tbl_len; i++) {
        union ibv_gid gid;
        struct st_object o;
        if (library->ibv_query_gid(context, (uint8_t)port, i, &gid) ||
            !memcmp(&gid, &none, sizeof(gid)))
            continue;
        st_object_begin(&o, "ib_gid", st_object_id());
        st_object_u64(&o, "port", port_id);
        st_object_u64(&o, "index", (uint64_t)i);
        st_object_bin(&o, "gid", gid.raw, sizeof(gid.raw));
        st_object_str(&o, "gid_type",
                      gid_type_of(context->device->name, port, (uint32_t)i, ethernet));
        st_object_end(&o);
    }
}

static uint64_t rate_mbps(const struct ibv_port_attr *attr)
{
    static const uint32_t lanes[] = {1, 4, 8, 12, 2}; /* by the bit of active_width */
    static const uint32_t lane_mbps[] = {2500, 5000, 10000, 10312, 14062, 25781, 50000, 100000};
    uint32_t width = 0, speed = 0;
    for (uint32_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++)
        if (attr->active_width == 1u << i)
            width = lanes[i];
    for (uint32_t i = 0; i < sizeof(lane_mbps) / sizeof(lane_mbps[0]); i++)
        if (attr->active_speed == 1u << i)
            speed = lane_mbps[i];
    return (uint64_t)width * speed;
}

static const char *state_of(const struct ibv_port_attr *attr)
{
    static const char *const names[] = {"nop", "down", "init", "armed", "active", "active_defer"};
    return attr->state < sizeof(names) / sizeof(names[0]) ? names[attr->state] : "";
}

static bool query_port(struct ibv_context *context, struct st_verbs_library *library,
                       uint32_t port, struct ibv_port_attr *attr)
{
    memset(attr, 0, sizeof(*attr));
    struct verbs_context *extended = verbs_get_ctx_op(context, query_port);
    if (extended)
        return !extended->query_port(context, (uint8_t)port, attr, sizeof(*attr));
    return library->ibv_query_port &&
           !library->ibv_query_port(context, (uint8_t)port, (void *)attr);
}

static void describe_port(struct ibv_context *context, struct st_verbs_library *library,
                          uint32_t device, uint32_t port)
{
    struct ibv_port_attr attr;
    struct st_object o;
    char path[256], netdev[64] = "";
    if (!query_port(context, library, port, &attr))
        return;
    uint32_t id = st_object_id();
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/ndevs/0",
             context->device->name, port);
    read_text(path, netdev, sizeof(netdev));
    st_object_begin(&o, "ib_port", id);
    st_object_u64(&o, "device", device);
    st_object_u64(&o, "port", port);
    st_object_u64(&o, "lid", attr.lid);
    st_object_str(&o, "link_layer",
                  attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "ethernet" : "infiniband");
    st_object_str(&o, "state", state_of(&attr));
    st_object_u64(&o, "mtu_bytes", attr.active_mtu ? 128u << attr.active_mtu : 0);
    st_object_u64(&o, "rate_mbps", rate_mbps(&attr));
    st_object_str(&o, "netdev", netdev);
    st_object_end(&o);
    describe_gids(context, library, &attr, port, id);
}

static void describe(struct ibv_context *context, struct st_verbs_library *library, uint32_t id)
{
    struct ibv_device_attr attr = {.phys_port_cnt = 0};
    struct st_object o;
    char path[256], numa[32] = "";
    library->ibv_query_device(context, &attr);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/numa_node",
             context->device->name);
    st_object_begin(&o, "ib_device", id);
    st_object_str(&o, "name", context->device->name);
    st_object_u64(&o, "node_guid", be64toh(library->ibv_get_device_guid(context->device)));
    st_object_u64(&o, "vendor_id", attr.vendor_id);
    st_object_u64(&o, "vendor_part_id", attr.vendor_part_id);
    if (read_text(path, numa, sizeof(numa)) && numa[0] != '-')
        st_object_u64(&o, "numa", strtoul(numa, NULL, 10));
    st_object_end(&o);
    for (uint32_t port = 1; port <= attr.phys_port_cnt; port++)
        describe_port(context, library, id, port);
}

static uint32_t known(const struct ibv_context *context)
{
    uint32_t n = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n && i < DEVICES; i++)
        if (__atomic_load_n(&devices[i].id, __ATOMIC_ACQUIRE) &&
            !strcmp(devices[i].name, context->device->name))
            return devices[i].id;
    return 0;
}

static uint32_t make(struct ibv_context *context, struct st_verbs_library *library)
{
    uint32_t id = st_object_id(), at = __atomic_fetch_add(&device_count, 1, __ATOMIC_ACQ_REL);
    if (at < DEVICES) {
        snprintf(devices[at].name, sizeof(devices[at].name), "%s", context->device->name);
        __atomic_store_n(&devices[at].id, id, __ATOMIC_RELEASE);
    }
    st_verbs_inside++;
    describe(context, library, id);
    st_verbs_inside--;
    return id;
}

uint32_t st_verbs_device(struct ibv_context *context, struct st_verbs_library *library)
{
    uint32_t id = known(context);
    if (id)
        return id;
    bool mine = st_verbs_make_begin(ST_VERBS_MAKE_DEVICE, devices);
    id = known(context);
    if (!id)
        id = make(context, library);
    if (mine)
        st_verbs_make_end(ST_VERBS_MAKE_DEVICE, devices);
    return id;
}

uint32_t st_verbs_lid(struct st_verbs_context *context, uint32_t port)
{
    struct ibv_port_attr attr;
    return query_port(context->handle, context->library, port, &attr) ? attr.lid : 0;
}
