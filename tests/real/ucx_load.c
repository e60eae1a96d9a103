/* What a plugin looks like: built as a library that links UCX, and loaded RTLD_LOCAL by a
 * program that does not. With MAIN it is that program: ucx_load LIBRARY. */
#include <stdio.h>

#ifdef MAIN
#include <dlfcn.h>

int main(int argc, char **argv)
{
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*work)(void) = plugin ? (int (*)(void))dlsym(plugin, "work") : NULL;
    if (!work) {
        fprintf(stderr, "ucx_load: %s\n", dlerror());
        return 2;
    }
    return work();
}
#else
#include <ucp/api/ucp.h>

static int ended(ucp_worker_h worker, ucs_status_ptr_t request)
{
    ucs_status_t status = UCS_PTR_STATUS(request);
    if (UCS_PTR_IS_PTR(request)) {
        while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
            ucp_worker_progress(worker);
        ucp_request_free(request);
    }
    return status == UCS_OK;
}

/* Sends seven messages to itself. */
int work(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t worker_params = {.field_mask = 0};
    ucp_request_param_t plain = {.op_attr_mask = 0};
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t length;
    ucp_ep_h ep;
    char out[64] = {0}, in[64];
    if (ucp_init(&params, NULL, &context) || ucp_worker_create(context, &worker_params, &worker) ||
        ucp_worker_get_address(worker, &address, &length))
        return 3;
    ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                 .address = address};
    if (ucp_ep_create(worker, &ep_params, &ep))
        return 4;
    for (int i = 0; i < 7; i++)
        if (!ended(worker, ucp_tag_send_nbx(ep, out, 10 + i, 3, &plain)) ||
            !ended(worker, ucp_tag_recv_nbx(worker, in, sizeof(in), 3, ~0ull, &plain)))
            return 5;
    ucp_worker_release_address(worker, address);
    ended(worker, ucp_ep_close_nbx(ep, &plain));
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 7; /* the exit code that must come through */
}
#endif
