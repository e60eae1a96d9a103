/* Two processes that use every kind of UCP operation a known number of times.
 *
 * usage: ucx_pair PHASE...   (all phases when none is named)
 *
 * The program forks before it touches UCX; the two exchange addresses over a socket pair.
 * Each prints, for every (operation, kind, tag), how many operations of which sum of bytes
 * it did or saw complete: "RANK OP KIND DIR TAG COUNT BYTES". That is what a trace is held
 * against. */
#include "ucx_pair_am.h"
#include "ucx_pair_rma.h"
#include "ucx_pair_tag.h"

static void start(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 |
                                       UCP_FEATURE_AMO64 | UCP_FEATURE_STREAM | UCP_FEATURE_AM};
    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    CHECK(ucp_context_query(context, &attr) == UCS_OK);
    request_bytes = attr.request_size;
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = getenv("UCX_PAIR_MULTI")
                                                            ? UCS_THREAD_MODE_MULTI
                                                            : UCS_THREAD_MODE_SINGLE};
    CHECK(ucp_worker_create(context, &worker_params, &worker) == UCS_OK);
    ucp_address_t *address;
    size_t length;
    static char mine[4096], theirs[4096];
    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK && length <= sizeof(mine));
    memcpy(mine, address, length);
    ucp_worker_release_address(worker, address);
    pair_exchange(mine, theirs, sizeof(mine));
    ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                 .address = (ucp_address_t *)theirs};
    CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
    buffer = calloc(1, BIG);
    window = aligned_alloc(4096, BIG);
    memset(window, 0, BIG);
    meet();
}

static void stop(void)
{
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &plain);
    CHECK(!UCS_PTR_IS_ERR(request));
    finish(request);
    meet();
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    for (int i = 0; did_table[i].op; i++)
        printf("%d %s %s %s %lu %lu %lu\n", rank, did_table[i].op, did_table[i].kind,
               did_table[i].dir, did_table[i].tag, did_table[i].count, did_table[i].bytes);
    printf("%d pid %d\n", rank, (int)getpid());
    fflush(stdout);
}

static const struct {
    const char *name;
    void (*run)(void);
} phases[] = {{"posted", posted},       {"unexpected", unexpected}, {"wildcard", wildcard},
              {"inversion", inversion}, {"sync", sync_send},        {"probe", probe},
              {"old", old_calls},       {"nbr", nbr},               {"cancel", cancel},
              {"free", early_free},     {"truncated", truncated},   {"am", active},
              {"stream", stream},       {"rma", one_sided}};

int main(int argc, char **argv)
{
    pair_begin();
    start();
    for (size_t p = 0; p < sizeof(phases) / sizeof(*phases); p++) {
        int wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= !strcmp(argv[i], phases[p].name);
        if (wanted)
            phases[p].run();
    }
    stop();
    return pair_end();
}
