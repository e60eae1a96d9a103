/* Endpoints: made, met, closed.
 *
 * All endpoints of a worker to one remote worker are one route: the messages that they carry are
 * one stream for whoever receives them. The first endpoint's object id is the peer of the
 * channels of all, so a later one goes on with the ordinals. UCX keeps no order between two of
 * them: from the moment at which a second is open beside the first, the route is marked. */
#include "ucx.h"

#include <sys/socket.h>

#define QUERY_TRIES 64 /* a client's own port is known once it is connected */
#define NO_ADDRESS ((uintptr_t)1 << 63) /* nothing that a library gives out */

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

/* The handle under which a route is found: the table keeps addresses, and this is none. */
static const void *route_key(const struct ucx_slot *worker, uint64_t uid)
{
    uint64_t key = (uid ^ (uint64_t)worker->id << 32) * 0x9E3779B97F4A7C15ull;
    return (const void *)(NO_ADDRESS | ((key ^ key >> 32) + worker->id));
}

/* The endpoint `id` opens on its route; NULL when there is no room for one. */
static struct ucx_slot *route_open(struct ucx_slot *worker, uint64_t uid, uint32_t id)
{
    const void *key = route_key(worker, uid);
    struct ucx_slot *route = ucx_slot_find(key);
    if (!route) {
        route = ucx_slot_new(UCX_SLOT_ROUTE);
        if (!route)
            return NULL;
        route->parent = worker;
        route->uid = uid;
        route->peer = id;
        if (!ucx_slot_publish(route, key))
            return NULL;
    }
    if (route->parent != worker || route->uid != uid) /* two have one key */
        return NULL;
    if (__atomic_fetch_add(&route->open, 1, __ATOMIC_RELAXED))
        __atomic_store_n(&route->several, true, __ATOMIC_RELAXED);
    return route;
}

/* `remote_uid` NULL: not known. */
static struct ucx_slot *ep_seen(ucp_ep_h ep, struct ucx_slot *worker, const char *origin,
                                const uint64_t *remote_uid, struct ucx_library *library)
{
    struct ucx_slot *slot = ucx_slot_new(UCX_SLOT_EP);
    if (!slot)
        return NULL;
    slot->id = st_object_id();
    slot->library = library;
    slot->parent = worker;
    slot->shared = worker ? worker->shared : true;
    if (worker && remote_uid)
        slot->route = route_open(worker, *remote_uid, slot->id);
    slot->peer = slot->route ? slot->route->peer : slot->id;
    struct st_object object;
    st_object_begin(&object, "ucp_ep", slot->id);
    if (worker)
        st_object_u64(&object, "worker", worker->id);
    if (origin)
        st_object_str(&object, "origin", origin);
    if (remote_uid)
        st_object_u64(&object, "remote_uid", *remote_uid);
    st_object_end(&object);
    return ucx_slot_publish(slot, ep) ? slot : NULL;
}

/* One that another worker left behind is not this one. */
struct ucx_slot *ucx_ep_slot(ucp_ep_h ep, struct ucx_slot *worker, const char *origin,
                             struct ucx_library *library)
{
    struct ucx_slot *slot = ucx_slot_find(ep);
    if (slot && (!worker || !slot->parent || slot->parent == worker))
        return slot;
    slot = ep_seen(ep, worker, origin, NULL, library);
    if (slot)
        slot->met = true;
    return slot;
}

ST_API ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                  ucp_ep_h *ep_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    uint64_t mask = params->field_mask, uid;
    bool by_address = ucx_ucp_on && (mask & UCP_EP_PARAM_FIELD_REMOTE_ADDRESS) &&
                      ucx_address_uid(library, params->address, &uid);
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

/* --- close --------------------------------------------------------------------------------- */

static void route_left(struct ucx_slot *route)
{
    __atomic_fetch_sub(&route->open, 1, __ATOMIC_RELAXED);
}

/* Takes the endpoint's slot: before the library is told, see ucx_slot_take. */
static struct ucx_slot *ep_take(ucp_ep_h ep)
{
    struct ucx_slot *slot = ucx_ucp_on ? ucx_slot_take(ep) : NULL;
    if (slot && slot->query)
        ucx_ep_addresses(ep, slot);
    return slot;
}

static void ep_gone(struct ucx_slot *slot)
{
    st_object_closed("ucp_ep", slot->id, st_now());
    ucx_slot_free(slot);
}

static void on_closed(void *handle, ucs_status_t status, void *user_data)
{
    struct ucx_request *request = user_data;
    ucp_send_nbx_callback_t callback = request->muted ? NULL : request->callback.send;
    void *data = request->user_data;
    route_left(request->slot);
    ucx_request_done(request, status);
    if (callback)
        callback(handle, status, data);
}

/* What was sent is at its place when an orderly close has completed; so the route counts on
 * that. After a close by force nothing is known: the endpoint stays on its route for good. */
static ucs_status_ptr_t ep_close(struct ucx_library *library, ucp_ep_h ep,
                                 const ucp_request_param_t *param)
{
    struct ucx_slot *slot = ep_take(ep), *route = slot ? slot->route : NULL;
    struct ucx_request *request = NULL;
    bool force = (param->op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS) &&
                 (param->flags & UCP_EP_CLOSE_FLAG_FORCE);
    if (route && !force)
        request = ucx_request_new(param, slot->shared);
    if (request) {
        request->slot = route;
        request->param.base.cb.send = on_closed;
        param = &request->param.base;
    }
    ucs_status_ptr_t result = library->ucp_ep_close_nbx(ep, param);
    if (slot && UCS_PTR_IS_ERR(result) && UCS_PTR_STATUS(result) == UCS_ERR_INVALID_PARAM) {
        ucx_slot_publish(slot, ep); /* refused: it stays open */
    } else if (slot) {
        ep_gone(slot);
        if (request && !UCS_PTR_IS_PTR(result))
            route_left(route);
    }
    return ucx_request_posted(request, result);
}

ST_API ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    return ep_close(ucx_library_resolve(UCX_CALLER), ep, param);
}

/* The old calls: as in the library itself. */
ST_API ucs_status_ptr_t ucp_ep_close_nb(ucp_ep_h ep, unsigned mode)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = mode == UCP_EP_CLOSE_MODE_FORCE ? UCP_EP_CLOSE_FLAG_FORCE : 0};
    return ucx_ucp_on ? ep_close(library, ep, &param) : library->ucp_ep_close_nb(ep, mode);
}

ST_API ucs_status_ptr_t ucp_disconnect_nb(ucp_ep_h ep)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS};
    return ucx_ucp_on ? ep_close(library, ep, &param) : library->ucp_disconnect_nb(ep);
}

ST_API void ucp_ep_destroy(ucp_ep_h ep)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    struct ucx_slot *slot = ep_take(ep);
    library->ucp_ep_destroy(ep);
    if (!slot)
        return;
    if (slot->route)
        route_left(slot->route);
    ep_gone(slot);
}
