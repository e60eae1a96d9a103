/* Set-up and tear-down: contexts, workers, endpoints, memory. Low rate, so each call looks its
 * library up anew. */
#include "ucx.h"

#include <stdlib.h>
#include <sys/socket.h>

#define QUERY_TRIES 64 /* a client's own port is known once it is connected */

ST_API ucs_status_t ucp_init_version(unsigned api_major, unsigned api_minor,
                                     const ucp_params_t *params, const ucp_config_t *config,
                                     ucp_context_h *context_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    if (!library)
        return UCS_ERR_UNSUPPORTED;
    if (ucx_ucp_on)
        st_library_seen(ST_LAYER_UCP, "ucp", library->ucp_get_version_string(), library->path,
                        "symbol");
    return library->ucp_init_version(api_major, api_minor, params, config, context_p);
}

/* --- workers ------------------------------------------------------------------------------------------ */

static bool address_uid(struct ucx_library *library, const ucp_address_t *address,
                        uint64_t *uid)
{
    ucp_worker_address_attr_t attr = {.field_mask = UCP_WORKER_ADDRESS_ATTR_FIELD_UID};
    if (!library->ucp_worker_address_query ||
        library->ucp_worker_address_query((ucp_address_t *)address, &attr) != UCS_OK)
        return false;
    *uid = attr.worker_uid;
    return true;
}

static void worker_seen(struct ucx_library *library, ucp_context_h context,
                        ucp_worker_h worker)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE};
    struct ucx_slot *slot = ucx_slot_claim(worker, UCX_SLOT_WORKER);
    if (!slot)
        return;
    ucs_status_t status = library->ucp_worker_query(worker, &attr);
    slot->id = st_object_id();
    slot->library = library;
    slot->shared = status != UCS_OK || attr.thread_mode == UCS_THREAD_MODE_MULTI;
    struct st_object object;
    st_object_begin(&object, "ucp_worker", slot->id);
    st_object_u64(&object, "context", (uintptr_t)context);
    if (status == UCS_OK)
        st_object_u64(&object, "thread_mode", attr.thread_mode);
    ucp_address_t *address;
    size_t length;
    uint64_t uid;
    if (library->ucp_worker_get_address(worker, &address, &length) == UCS_OK) {
        if (address_uid(library, address, &uid))
            st_object_u64(&object, "uid", uid);
        library->ucp_worker_release_address(worker, address);
    }
    st_object_end(&object);
    ucx_slot_publish(slot);
}

ST_API ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                                      ucp_worker_h *worker_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ucs_status_t status = library->ucp_worker_create(context, params, worker_p);
    if (ucx_ucp_on && status == UCS_OK)
        worker_seen(library, context, *worker_p);
    return status;
}

static void handle_gone(const void *handle, const char *type)
{
    struct ucx_slot *slot = ucx_ucp_on ? ucx_slot_find(handle) : NULL;
    if (!slot)
        return;
    st_object_closed(type, slot->id);
    ucx_slot_remove(slot);
}

ST_API void ucp_worker_destroy(ucp_worker_h worker)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    library->ucp_worker_destroy(worker);
    handle_gone(worker, "ucp_worker");
}

/* --- endpoints ---------------------------------------------------------------------------------------- */

static size_t sockaddr_bytes(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET    ? 16
           : address->ss_family == AF_INET6 ? 28
                                            : sizeof(*address);
}

void ucx_ep_addresses(ucp_ep_h ep, struct ucx_slot *slot)
{
    ucp_ep_attr_t attr = {.field_mask = UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR |
                                        UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR};
    slot->query--;
    if (!slot->library->ucp_ep_query || slot->library->ucp_ep_query(ep, &attr) != UCS_OK)
        return;
    slot->query = 0;
    struct st_object object;
    st_object_begin(&object, "ucp_ep", slot->id);
    st_object_bin(&object, "local_sockaddr", &attr.local_sockaddr,
                  sockaddr_bytes(&attr.local_sockaddr));
    st_object_bin(&object, "remote_sockaddr", &attr.remote_sockaddr,
                  sockaddr_bytes(&attr.remote_sockaddr));
    st_object_end(&object);
}

/* `remote_uid` NULL: not known. */
static struct ucx_slot *ep_seen(ucp_ep_h ep, struct ucx_slot *worker, const char *origin,
                               const uint64_t *remote_uid, struct ucx_library *library)
{
    struct ucx_slot *slot = ucx_slot_claim(ep, UCX_SLOT_EP);
    if (!slot)
        return NULL;
    slot->id = st_object_id();
    slot->library = library;
    slot->parent = worker;
    slot->shared = worker ? worker->shared : true;
    struct st_object object;
    st_object_begin(&object, "ucp_ep", slot->id);
    if (worker)
        st_object_u64(&object, "worker", worker->id);
    if (origin)
        st_object_str(&object, "origin", origin);
    if (remote_uid)
        st_object_u64(&object, "remote_uid", *remote_uid);
    st_object_end(&object);
    ucx_slot_publish(slot);
    return slot;
}

struct ucx_slot *ucx_ep_slot(ucp_ep_h ep, struct ucx_slot *worker, const char *origin,
                               struct ucx_library *library)
{
    struct ucx_slot *slot = ucx_slot_find(ep);
    return slot ? slot : ep_seen(ep, worker, origin, NULL, library);
}

ST_API ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                  ucp_ep_h *ep_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    uint64_t mask = params->field_mask, uid;
    bool by_address = ucx_ucp_on && (mask & UCP_EP_PARAM_FIELD_REMOTE_ADDRESS) &&
                      address_uid(library, params->address, &uid);
    ucs_status_t status = library->ucp_ep_create(worker, params, ep_p);
    if (!ucx_ucp_on || status != UCS_OK)
        return status;
    struct ucx_slot *slot =
        ep_seen(*ep_p, ucx_slot_find(worker), "created", by_address ? &uid : NULL, library);
    if (slot && (mask & (UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_CONN_REQUEST))) {
        slot->query = QUERY_TRIES;
        ucx_ep_addresses(*ep_p, slot);
    }
    return status;
}

/* The slot goes before the call: once closed, the library may give the address out again. */
static void ep_gone(ucp_ep_h ep)
{
    struct ucx_slot *slot = ucx_ucp_on ? ucx_slot_find(ep) : NULL;
    if (slot && slot->query)
        ucx_ep_addresses(ep, slot);
    handle_gone(ep, "ucp_ep");
}

ST_API ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ep_gone(ep);
    return library->ucp_ep_close_nbx(ep, param);
}

ST_API ucs_status_ptr_t ucp_ep_close_nb(ucp_ep_h ep, unsigned mode)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ep_gone(ep);
    return library->ucp_ep_close_nb(ep, mode);
}

ST_API ucs_status_ptr_t ucp_disconnect_nb(ucp_ep_h ep)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ep_gone(ep);
    return library->ucp_disconnect_nb(ep);
}

ST_API void ucp_ep_destroy(ucp_ep_h ep)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ep_gone(ep);
    library->ucp_ep_destroy(ep);
}

/* --- memory and keys ----------------------------------------------------------------------------------- */

ST_API ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer, ucp_rkey_h *rkey_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ucs_status_t status = library->ucp_ep_rkey_unpack(ep, buffer, rkey_p);
    if (!ucx_ucp_on || ucx_mode != ST_MODE_FULL || status != UCS_OK)
        return status;
    struct ucx_slot *slot = ucx_slot_claim(*rkey_p, UCX_SLOT_RKEY), *owner = ucx_slot_find(ep);
    if (!slot)
        return status;
    slot->id = st_object_id();
    struct st_object object;
    st_object_begin(&object, "ucp_rkey", slot->id);
    if (owner)
        st_object_u64(&object, "ep", owner->id);
    st_object_end(&object);
    ucx_slot_publish(slot);
    return status;
}

ST_API void ucp_rkey_destroy(ucp_rkey_h rkey)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    handle_gone(rkey, "ucp_rkey");
    library->ucp_rkey_destroy(rkey);
}

ST_API ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memh_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ucs_status_t status = library->ucp_mem_map(context, params, memh_p);
    if (!ucx_ucp_on || ucx_mode == ST_MODE_AGGREGATE || status != UCS_OK)
        return status;
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    struct ucx_slot *slot = ucx_slot_claim(*memh_p, UCX_SLOT_MEMORY);
    if (!slot)
        return status;
    slot->id = st_object_id();
    struct st_object object;
    st_object_begin(&object, "memory", slot->id);
    st_object_str(&object, "layer", "ucp");
    st_object_u64(&object, "context", (uintptr_t)context);
    if (library->ucp_mem_query(*memh_p, &attr) == UCS_OK) {
        st_object_u64(&object, "address", (uintptr_t)attr.address);
        st_object_u64(&object, "length_bytes", attr.length);
    }
    st_object_end(&object);
    ucx_slot_publish(slot);
    return status;
}

ST_API ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    handle_gone(memh, "memory");
    return library->ucp_mem_unmap(context, memh);
}
