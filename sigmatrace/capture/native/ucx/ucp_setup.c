/* Set-up and tear-down: contexts, workers, memory. Low rate, so each call looks its
 * library up anew. */
#include "ucx.h"

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

bool ucx_address_uid(struct ucx_library *library, const ucp_address_t *address,
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
    struct ucx_slot *slot = ucx_slot_new(UCX_SLOT_WORKER);
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
        if (ucx_address_uid(library, address, &uid))
            st_object_u64(&object, "uid", uid);
        library->ucp_worker_release_address(worker, address);
    }
    st_object_end(&object);
    ucx_slot_publish(slot, worker);
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

/* Callbacks that run in the call still use the slot. What the program left open goes with it. */
ST_API void ucp_worker_destroy(ucp_worker_h worker)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    struct ucx_slot *slot = ucx_ucp_on ? ucx_slot_take(worker) : NULL;
    library->ucp_worker_destroy(worker);
    if (!slot)
        return;
    ucx_slot_orphans(slot, "ucp_ep");
    st_object_closed("ucp_worker", slot->id, st_now());
    ucx_slot_free(slot);
}

/* --- memory and keys ----------------------------------------------------------------------------------- */

ST_API ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer, ucp_rkey_h *rkey_p)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    ucs_status_t status = library->ucp_ep_rkey_unpack(ep, buffer, rkey_p);
    if (!ucx_ucp_on || ucx_mode != ST_MODE_FULL || status != UCS_OK)
        return status;
    struct ucx_slot *slot = ucx_slot_new(UCX_SLOT_RKEY), *owner = ucx_slot_find(ep);
    if (!slot)
        return status;
    slot->id = st_object_id();
    struct st_object object;
    st_object_begin(&object, "ucp_rkey", slot->id);
    if (owner)
        st_object_u64(&object, "ep", owner->id);
    st_object_end(&object);
    ucx_slot_publish(slot, *rkey_p);
    return status;
}

ST_API void ucp_rkey_destroy(ucp_rkey_h rkey)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    if (ucx_ucp_on)
        ucx_slot_close(rkey, "ucp_rkey");
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
    struct ucx_slot *slot = ucx_slot_new(UCX_SLOT_MEMORY);
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
    ucx_slot_publish(slot, *memh_p);
    return status;
}

ST_API ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
    struct ucx_library *library = ucx_library_resolve(UCX_CALLER);
    if (ucx_ucp_on)
        ucx_slot_close(memh, "memory");
    return library->ucp_mem_unmap(context, memh);
}
