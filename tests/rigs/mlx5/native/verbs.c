/* libibverbs.so.1 of the emulated device: what programs of GPU-initiated RDMA call. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nic.h"
#include "verbs_objects.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

enum { GUID = 0x0002c903 };

static bool is_ethernet(void)
{
    const char *link = getenv("MLX5EMU_LINK");
    return link && !strcmp(link, "ethernet");
}

NIC_API struct ibv_device **ibv_get_device_list(int *count)
{
    static struct ibv_device device = {.node_type = IBV_NODE_CA,
                                       .transport_type = IBV_TRANSPORT_IB,
                                       .name = "mlx5_0",
                                       .dev_name = "uverbs0",
                                       .dev_path = "/sys/class/infiniband_verbs/uverbs0",
                                       .ibdev_path = "/sys/class/infiniband/mlx5_0"};
    struct ibv_device **list = calloc(2, sizeof(*list));
    if (list)
        list[0] = &device;
    if (count)
        *count = list ? 1 : 0;
    return list;
}

NIC_API void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

NIC_API const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

NIC_API __be64 ibv_get_device_guid(struct ibv_device *device)
{
    (void)device;
    nic_start();
    return htobe64((uint64_t)GUID << 32 | nic.lid);
}

NIC_API int ibv_fork_init(void)
{
    return 0;
}

static void port_fill(struct ibv_port_attr *port)
{
    *port = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
                                   .max_mtu = IBV_MTU_4096,
                                   .active_mtu = IBV_MTU_4096,
                                   .gid_tbl_len = 1,
                                   .port_cap_flags = 0x2250e84a,
                                   .max_msg_sz = 1u << 30,
                                   .pkey_tbl_len = 1,
                                   .lid = is_ethernet() ? 0 : (uint16_t)nic.lid,
                                   .sm_lid = 1,
                                   .active_width = 2,
                                   .active_speed = 128,
                                   .phys_state = 5,
                                   .link_layer = is_ethernet() ? IBV_LINK_LAYER_ETHERNET
                                                               : IBV_LINK_LAYER_INFINIBAND};
}

static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *port,
                      size_t size)
{
    struct ibv_port_attr whole;
    (void)context;
    if (number != 1)
        return EINVAL;
    port_fill(&whole);
    memset(port, 0, size);
    memcpy(port, &whole, size < sizeof(whole) ? size : sizeof(whole));
    return 0;
}

/* The exported function fills the structure as it was of old, without what came after `flags`. */
NIC_API int ibv_query_port(struct ibv_context *context, uint8_t number,
                           struct _compat_ibv_port_attr *port)
{
    return query_port(context, number, (struct ibv_port_attr *)(void *)port,
                      offsetof(struct ibv_port_attr, port_cap_flags2));
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *in,
                           struct ibv_device_attr_ex *attr, size_t size)
{
    (void)in;
    memset(attr, 0, size);
    return ibv_query_device(context, &attr->orig_attr);
}

static struct ibv_pd *parent_domain(struct ibv_context *context,
                                    struct ibv_parent_domain_init_attr *attr)
{
    (void)attr;
    return ibv_alloc_pd(context);
}

NIC_API struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct verbs_context *whole = calloc(1, sizeof(*whole));
    if (!whole)
        return NULL;
    nic_start();
    whole->sz = sizeof(*whole);
    whole->query_port = query_port;
    whole->query_device_ex = query_device_ex;
    whole->alloc_parent_domain = parent_domain;
    whole->context.abi_compat = (void *)UINTPTR_MAX;
    whole->context.device = device;
    whole->context.cmd_fd = whole->context.async_fd = -1;
    whole->context.num_comp_vectors = 1;
    return &whole->context;
}

NIC_API int ibv_close_device(struct ibv_context *context)
{
    free((uint8_t *)context - offsetof(struct verbs_context, context));
    return 0;
}

NIC_API int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    *attr = (struct ibv_device_attr){.fw_ver = "emulated",
                                     .node_guid = ibv_get_device_guid(NULL),
                                     .sys_image_guid = ibv_get_device_guid(NULL),
                                     .max_mr_size = UINT64_MAX,
                                     .page_size_cap = ~(uint64_t)(NIC_PAGE - 1),
                                     .vendor_id = 0x02c9,
                                     .vendor_part_id = 4129,
                                     .max_qp = NIC_QPS,
                                     .max_qp_wr = 32768,
                                     .max_sge = 30,
                                     .max_cq = NIC_CQS,
                                     .max_cqe = 1 << 22,
                                     .max_mr = NIC_MKEYS,
                                     .max_pd = 1 << 16,
                                     .max_qp_rd_atom = 16,
                                     .max_qp_init_rd_atom = 16,
                                     .atomic_cap = IBV_ATOMIC_HCA,
                                     .max_ah = 1 << 16,
                                     .max_srq = 1 << 16,
                                     .max_srq_wr = 32767,
                                     .max_pkeys = 1,
                                     .phys_port_cnt = 1};
    return 0;
}

NIC_API int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void)context;
    if (port != 1 || index) {
        errno = EINVAL;
        return -1;
    }
    /* The end of a GID is the node's number, which address vectors are understood by. */
    gid->global.subnet_prefix = htobe64(0xfe80000000000000u);
    gid->global.interface_id = ibv_get_device_guid(NULL);
    return 0;
}

NIC_API int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
    (void)context;
    *pkey = htobe16(0xffff);
    return port == 1 && !index ? 0 : -1;
}

NIC_API struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    static atomic_uint handles = 1;
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    if (pd)
        *pd = (struct ibv_pd){.context = context, .handle = atomic_fetch_add(&handles, 1)};
    return pd;
}

NIC_API int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

static struct ibv_mr *mr_make(struct ibv_pd *pd, void *at, size_t size, uint64_t iova, int access,
                              int fd)
{
    struct ibv_mr *mr = calloc(1, sizeof(*mr));
    uint32_t key = mr ? nic_mkey_add(at, size, iova, (uint32_t)access, fd) : 0;
    if (!key) {
        free(mr);
        return NULL;
    }
    *mr = (struct ibv_mr){.context = pd->context,
                          .pd = pd,
                          .addr = fd < 0 ? at : NULL,
                          .length = size,
                          .handle = key,
                          .lkey = key,
                          .rkey = key};
    return mr;
}

NIC_API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t size, int access)
{
    return mr_make(pd, at, size, (uintptr_t)at, access, -1);
}

NIC_API struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *at, size_t size, uint64_t iova,
                                       int access)
{
    return mr_make(pd, at, size, iova, access, -1);
}

NIC_API struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t size, uint64_t iova,
                                        unsigned access)
{
    return mr_make(pd, at, size, iova, (int)access, -1);
}

NIC_API struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t size,
                                         uint64_t iova, int fd, int access)
{
    return mr_make(pd, (void *)(uintptr_t)offset, size, iova, access, fd);
}

NIC_API int ibv_dereg_mr(struct ibv_mr *mr)
{
    nic_mkey_remove(mr->lkey);
    free(mr);
    return 0;
}

NIC_API struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct nic_ah *ah = calloc(1, sizeof(*ah));
    if (!ah)
        return NULL;
    ah->ah.context = pd->context;
    ah->ah.pd = pd;
    ah->attr = *attr;
    return &ah->ah;
}

NIC_API int ibv_destroy_ah(struct ibv_ah *ah)
{
    free((struct nic_ah *)(void *)ah);
    return 0;
}
