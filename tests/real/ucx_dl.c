/* Sends to itself by functions that it looks up in a library of its own scope: dlopen, dlsym.
 *   ucx_dl LIBRARY FLAGS MESSAGES    FLAGS: local, deepbind */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, dlerror());                         \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)
#define LOAD(name) __typeof__(&name) call_##name = (__typeof__(&name))dlsym(ucp, #name)

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    int flags = strcmp(argv[2], "deepbind") ? RTLD_LOCAL : RTLD_LOCAL | RTLD_DEEPBIND;
    void *ucp = dlopen(argv[1], RTLD_NOW | flags);
    CHECK(ucp);
    LOAD(ucp_init_version);
    LOAD(ucp_worker_create);
    LOAD(ucp_worker_get_address);
    LOAD(ucp_ep_create);
    LOAD(ucp_worker_progress);
    LOAD(ucp_tag_send_nbx);
    LOAD(ucp_tag_recv_nbx);
    LOAD(ucp_request_check_status);
    LOAD(ucp_request_free);
    CHECK(!dlsym(ucp, "ucp_no_such_function") && strstr(dlerror(), "ucp_no_such_function"));
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_context_h context;
    CHECK(!call_ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, NULL, &context));
    ucp_worker_params_t how = {.field_mask = 0};
    ucp_worker_h worker;
    CHECK(!call_ucp_worker_create(context, &how, &worker));
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    size_t length;
    CHECK(!call_ucp_worker_get_address(worker, (ucp_address_t **)&to.address, &length));
    ucp_ep_h ep;
    CHECK(!call_ucp_ep_create(worker, &to, &ep));
    ucp_request_param_t plain = {.op_attr_mask = 0};
    for (int i = 0; i < atoi(argv[3]); i++) {
        char in[8], out[8] = "message";
        ucs_status_ptr_t got = call_ucp_tag_recv_nbx(worker, in, 8, 7, ~0ul, &plain);
        ucs_status_ptr_t sent = call_ucp_tag_send_nbx(ep, out, 8, 7, &plain);
        while (UCS_PTR_IS_PTR(got) && call_ucp_request_check_status(got) == UCS_INPROGRESS)
            call_ucp_worker_progress(worker);
        if (UCS_PTR_IS_PTR(got))
            call_ucp_request_free(got);
        while (UCS_PTR_IS_PTR(sent) && call_ucp_request_check_status(sent) == UCS_INPROGRESS)
            call_ucp_worker_progress(worker);
        if (UCS_PTR_IS_PTR(sent))
            call_ucp_request_free(sent);
        CHECK(!memcmp(in, out, 8));
    }
    return 0;
}
