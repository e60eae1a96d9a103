/* A worker for several threads that sends to itself, used by one thread and then by two.
 *
 * usage: ucx_threads (one|two)
 *
 * The main thread exchanges ROUNDS messages of tag 1. Then a second thread starts. `two`: it
 * exchanges messages of tag 3, its first before the main thread goes on, the others while the main
 * thread exchanges messages of tag 2. `one`: it only progresses the worker meanwhile. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "ucx_check.h"

#define ROUNDS 50

static ucp_worker_h worker;
static ucp_ep_h ep;
static const ucp_request_param_t plain = {.op_attr_mask = 0};
static pthread_barrier_t both;
static atomic_bool done;

static void finish(ucs_status_ptr_t request)
{
    ucs_status_t status = UCS_PTR_STATUS(request);
    if (UCS_PTR_IS_PTR(request)) {
        while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
            ucp_worker_progress(worker);
        ucp_request_free(request);
    }
    CHECK(status == UCS_OK);
}

static void exchange(ucp_tag_t tag)
{
    char out[8] = {0}, in[8];
    ucs_status_ptr_t receive = ucp_tag_recv_nbx(worker, in, sizeof(in), tag, ~0ull, &plain);
    finish(ucp_tag_send_nbx(ep, out, sizeof(out), tag, &plain));
    finish(receive);
}

static void *second(void *two)
{
    if (two)
        exchange(3);
    pthread_barrier_wait(&both);
    for (int i = 1; two && i < ROUNDS; i++)
        exchange(3);
    while (!two && !atomic_load(&done))
        ucp_worker_progress(worker);
    return NULL;
}

int main(int argc, char **argv)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_MULTI};
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE};
    ucp_context_h context;
    ucp_address_t *address;
    size_t length;
    pthread_t thread;
    CHECK(argc == 2 && !ucp_init(&params, NULL, &context));
    CHECK(!ucp_worker_create(context, &worker_params, &worker));
    CHECK(!ucp_worker_query(worker, &attr) && attr.thread_mode == UCS_THREAD_MODE_MULTI);
    CHECK(!ucp_worker_get_address(worker, &address, &length));
    ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                 .address = address};
    CHECK(!ucp_ep_create(worker, &ep_params, &ep));
    for (int i = 0; i < ROUNDS; i++)
        exchange(1);
    pthread_barrier_init(&both, NULL, 2);
    CHECK(!pthread_create(&thread, NULL, second, strcmp(argv[1], "two") ? NULL : &thread));
    pthread_barrier_wait(&both);
    for (int i = 0; i < ROUNDS; i++)
        exchange(2);
    atomic_store(&done, true);
    CHECK(!pthread_join(thread, NULL));
    ucp_worker_release_address(worker, address);
    finish(ucp_ep_close_nbx(ep, &plain));
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
