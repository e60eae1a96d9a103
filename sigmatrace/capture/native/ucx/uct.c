/* UCT: interfaces, endpoints, arrivals. The operations are inline functions that go through
 * `iface->ops`, a table embedded by value; an interface gets its entries replaced once it is
 * open, and back before it closes. */
#define _GNU_SOURCE
#include "uct.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Declares `real`, the library's own function; the wrapper returns `failed` where there is none. */
#define REAL(name, failed)                                                                         \
    __typeof__(&name) real = (__typeof__(&name))ucx_symbol(#name, UCX_CALLER);                     \
    if (!real)                                                                                     \
    return failed

uint8_t ucx_uct_nesting(const void *caller)
{
    return !st_nesting && ucx_ucp_on && ucx_internal(caller) ? 1 : st_nesting;
}

/* --- interfaces --------------------------------------------------------------------------------------- */

#define ADDRESS_MAX 256

static void iface_addresses(uct_iface_h iface, struct ucx_uct_iface *own, struct st_object *object)
{
    union {
        uct_iface_attr_t attr;
        uint8_t room[4096]; /* the structure grows from version to version */
    } query;
    uint8_t address[ADDRESS_MAX];
    memset(&query, 0, sizeof(query));
    if (own->ops.iface_query(iface, &query.attr) != UCS_OK)
        return;
    own->device_bytes = query.attr.device_addr_len;
    own->iface_bytes = query.attr.iface_addr_len;
    own->ep_bytes = query.attr.ep_addr_len;
    if (own->device_bytes <= sizeof(address) &&
        own->ops.iface_get_device_address(iface, (uct_device_addr_t *)address) == UCS_OK)
        st_object_bin(object, "device_address", address, own->device_bytes);
    if ((query.attr.cap.flags & UCT_IFACE_FLAG_CONNECT_TO_IFACE) &&
        own->iface_bytes <= sizeof(address) &&
        own->ops.iface_get_address(iface, (uct_iface_addr_t *)address) == UCS_OK)
        st_object_bin(object, "iface_address", address, own->iface_bytes);
}

static void iface_seen(uct_iface_h iface, const uct_iface_params_t *params)
{
    struct ucx_slot *slot = ucx_slot_new(UCX_SLOT_IFACE);
    struct ucx_uct_iface *own = slot ? calloc(1, sizeof(*own)) : NULL;
    if (!own) {
        if (slot)
            ucx_slot_free(slot);
        return;
    }
    own->ops = iface->ops;
    slot->data = own;
    slot->id = st_object_id();
    slot->shared = false; /* UCT is not thread-safe: its user serializes */
    struct st_object object;
    st_object_begin(&object, "uct_iface", slot->id);
    st_object_str(&object, "tl", params->mode.device.tl_name);
    st_object_str(&object, "device", params->mode.device.dev_name);
    iface_addresses(iface, own, &object);
    st_object_end(&object);
    if (ucx_slot_publish(slot, iface))
        ucx_uct_wrap(&iface->ops);
    else
        free(own);
}

static void library_seen(const void *real)
{
    static bool seen;
    Dl_info info;
    if (__atomic_exchange_n(&seen, true, __ATOMIC_RELAXED))
        return;
    /* libuct does not tell its version; the only libucp of the process comes with it. */
    struct ucx_library *ucp = __atomic_load_n(&ucx_libraries, __ATOMIC_ACQUIRE);
    st_library_seen(ST_LAYER_UCT, "uct", ucp && !ucp->next ? ucp->ucp_get_version_string() : "",
                    dladdr(real, &info) ? info.dli_fname : "", "symbol");
}

ST_API ucs_status_t uct_iface_open(uct_md_h md, uct_worker_h worker,
                                   const uct_iface_params_t *params,
                                   const uct_iface_config_t *config, uct_iface_h *iface_p)
{
    REAL(uct_iface_open, UCS_ERR_UNSUPPORTED);
    ucs_status_t status = real(md, worker, params, config, iface_p);
    /* UCP opens others too, stubs without a transport behind them (since 1.20). */
    bool device = (params->field_mask & UCT_IFACE_PARAM_FIELD_OPEN_MODE) &&
                  (params->open_mode & UCT_IFACE_OPEN_MODE_DEVICE);
    if (!ucx_uct_on || status != UCS_OK || !device)
        return status;
    library_seen((const void *)real);
    iface_seen(*iface_p, params);
    return status;
}

ST_API void uct_iface_close(uct_iface_h iface)
{
    REAL(uct_iface_close, );
    struct ucx_slot *slot = ucx_uct_on ? ucx_slot_take(iface) : NULL;
    if (!slot) {
        real(iface);
        return;
    }
    struct ucx_uct_iface *own = slot->data;
    iface->ops = own->ops;
    st_object_closed("uct_iface", slot->id, st_now());
    real(iface);
    ucx_slot_orphans(slot, "uct_ep");
    ucx_slot_free(slot);
    free(own);
}

/* --- endpoints ---------------------------------------------------------------------------------------- */

static struct ucx_slot *ep_begin(uct_ep_h ep, struct st_object *object)
{
    struct ucx_slot *iface = ucx_slot_find(ep->iface);
    struct ucx_slot *slot = iface ? ucx_slot_new(UCX_SLOT_UCT_EP) : NULL;
    if (!slot)
        return NULL;
    slot->id = st_object_id();
    slot->parent = iface;
    st_object_begin(object, "uct_ep", slot->id);
    st_object_u64(object, "iface", iface->id);
    return slot;
}

struct ucx_slot *ucx_uct_ep_slot(uct_ep_h ep)
{
    struct ucx_slot *slot = ucx_slot_find(ep);
    struct st_object object;
    if (slot || !(slot = ep_begin(ep, &object)))
        return slot;
    st_object_end(&object);
    return ucx_slot_publish(slot, ep) ? slot : NULL;
}

static void local_ep_address(uct_ep_h ep, const struct ucx_uct_iface *own,
                             struct st_object *object)
{
    uint8_t address[ADDRESS_MAX];
    if (own->ep_bytes && own->ep_bytes <= sizeof(address) && own->ops.ep_get_address &&
        own->ops.ep_get_address(ep, (uct_ep_addr_t *)address) == UCS_OK)
        st_object_bin(object, "local_ep_address", address, own->ep_bytes);
}

ST_API ucs_status_t uct_ep_create(const uct_ep_params_t *params, uct_ep_h *ep_p)
{
    REAL(uct_ep_create, UCS_ERR_UNSUPPORTED);
    ucs_status_t status = real(params, ep_p);
    struct st_object object;
    struct ucx_slot *slot;
    if (!ucx_uct_on || status != UCS_OK || !(slot = ep_begin(*ep_p, &object)))
        return status;
    const struct ucx_uct_iface *own = slot->parent->data;
    if (params->field_mask & UCT_EP_PARAM_FIELD_DEV_ADDR)
        st_object_bin(&object, "device_address", params->dev_addr, own->device_bytes);
    if (params->field_mask & UCT_EP_PARAM_FIELD_IFACE_ADDR)
        st_object_bin(&object, "iface_address", params->iface_addr, own->iface_bytes);
    st_object_end(&object);
    ucx_slot_publish(slot, *ep_p);
    return status;
}

static void connected(uct_ep_h ep, const uct_device_addr_t *device_address,
                      const uct_ep_addr_t *ep_address)
{
    struct ucx_slot *slot = ucx_uct_on ? ucx_uct_ep_slot(ep) : NULL;
    if (!slot)
        return;
    const struct ucx_uct_iface *own = slot->parent->data;
    struct st_object object;
    st_object_begin(&object, "uct_ep", slot->id);
    st_object_bin(&object, "device_address", device_address, own->device_bytes);
    st_object_bin(&object, "ep_address", ep_address, own->ep_bytes);
    local_ep_address(ep, own, &object);
    st_object_end(&object);
}

ST_API ucs_status_t uct_ep_connect_to_ep(uct_ep_h ep, const uct_device_addr_t *device_address,
                                         const uct_ep_addr_t *ep_address)
{
    REAL(uct_ep_connect_to_ep, UCS_ERR_UNSUPPORTED);
    ucs_status_t status = real(ep, device_address, ep_address);
    if (status == UCS_OK)
        connected(ep, device_address, ep_address);
    return status;
}

/* Since 1.14; not in the headers of older versions. */
ST_API ucs_status_t uct_ep_connect_to_ep_v2(uct_ep_h ep, const uct_device_addr_t *device_address,
                                            const uct_ep_addr_t *ep_address, const void *params)
{
    REAL(uct_ep_connect_to_ep_v2, UCS_ERR_UNSUPPORTED);
    ucs_status_t status = real(ep, device_address, ep_address, params);
    if (status == UCS_OK)
        connected(ep, device_address, ep_address);
    return status;
}

ST_API void uct_ep_destroy(uct_ep_h ep)
{
    REAL(uct_ep_destroy, );
    if (ucx_uct_on)
        ucx_slot_close(ep, "uct_ep");
    real(ep);
}

/* --- arrivals ----------------------------------------------------------------------------------------- */

static ucs_status_t on_uct_am(void *arg, void *data, size_t length, unsigned flags)
{
    const struct ucx_uct_handler *handler = arg;
    struct ucx_slot *iface = handler->iface;
    struct st_channel_key key = {.object = iface->id,
                                 .kind = ST_KIND_AM,
                                 .dir = ST_IN,
                                 .layer = ST_LAYER_UCT,
                                 .flags = ST_HAS_TAG,
                                 .peer = ST_UNKNOWN_PEER,
                                 .tag = handler->id};
    uint64_t t_tsc = ucx_now();
    uint32_t channel, ordinal;
    if (ucx_channel(&key, &channel, &ordinal))
        st_op(t_tsc, length, channel, ordinal, ST_OP_RECV, ucx_calls[UCX_CALL_uct_am_handler],
              ucx_uct_nesting((const void *)handler->callback), 0, iface->arrived++);
    return handler->callback(handler->arg, data, length, flags);
}

ST_API ucs_status_t uct_iface_set_am_handler(uct_iface_h iface, uint8_t id, uct_am_callback_t cb,
                                             void *arg, uint32_t flags)
{
    REAL(uct_iface_set_am_handler, UCS_ERR_UNSUPPORTED);
    struct ucx_slot *slot = ucx_uct_on && cb ? ucx_slot_find(iface) : NULL;
    if (!slot || id >= UCX_UCT_HANDLERS)
        return real(iface, id, cb, arg, flags);
    struct ucx_uct_iface *own = slot->data;
    struct ucx_uct_handler *handler = &own->handlers[id];
    *handler = (struct ucx_uct_handler){.iface = slot, .callback = cb, .arg = arg, .id = id};
    return real(iface, id, on_uct_am, handler, flags);
}
