/* What the small UCX programs share: a context, workers that send to each other, one exchange. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "ucx_check.h"

static ucp_context_h context;
static ucp_err_handling_mode_t error_mode = UCP_ERR_HANDLING_MODE_NONE;
static const ucp_request_param_t plain = {.op_attr_mask = 0};

static inline void begin(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES |
                                         UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_AM,
                           .mt_workers_shared = 1};
    CHECK(!ucp_init(&params, NULL, &context));
}

static inline ucp_worker_h worker_new(void)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_worker_h worker;
    CHECK(!ucp_worker_create(context, &params, &worker));
    return worker;
}

static inline ucp_ep_h ep_to_address(ucp_worker_h from, ucp_address_t *address)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                              .address = address,
                              .err_mode = error_mode};
    ucp_ep_h ep;
    CHECK(!ucp_ep_create(from, &params, &ep));
    return ep;
}

static inline ucp_ep_h ep_new(ucp_worker_h from, ucp_worker_h to)
{
    ucp_address_t *address;
    size_t length;
    CHECK(!ucp_worker_get_address(to, &address, &length));
    ucp_ep_h ep = ep_to_address(from, address);
    ucp_worker_release_address(to, address);
    return ep;
}

/* Progresses both workers (`b` may be NULL) until the request has ended well. */
static inline void finish(ucs_status_ptr_t request, ucp_worker_h a, ucp_worker_h b)
{
    ucs_status_t status = UCS_PTR_STATUS(request);
    if (UCS_PTR_IS_PTR(request)) {
        while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
            ucp_worker_progress(a);
            if (b)
                ucp_worker_progress(b);
        }
        ucp_request_free(request);
    }
    CHECK(status == UCS_OK);
}
