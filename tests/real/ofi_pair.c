/* Two processes that talk over a reliable datagram endpoint and print what they did: one line
 * for every operation that libfabric accepted and for every completion of a receive.
 *
 *   ofi_pair PROVIDER (tagged|context)
 *
 *   S KIND TAG DATA BYTES    a send; TAG and DATA in hex, "-" for none
 *   P|G|A|F BYTES ADDR KEY   put, get, atomic, fetching atomic
 *   D BYTES ADDR KEY DATA    put with data
 *   R KIND TAG BYTES ORDER   an arrival; ORDER: which posted receive it is, "-" when that is
 *                            not known (contexts that are all NULL)
 *   E N                      sends that would have blocked
 *
 * `tagged`: one queue for sends, one for receives, which tells everything. `context`: one queue
 * for both, which tells contexts alone, all of them different. */
#include <rdma/fi_cm.h>
#include <string.h>

#include "ofi_pair_phases.h"

static void get_info(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_ATOMIC;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
                                  FI_MR_PROV_KEY;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    if (fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info)) {
        hints->caps &= ~FI_ATOMIC;
        CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    }
    fi_freeinfo(hints);
}

static void open_endpoint(void)
{
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr tagged = {.format = FI_CQ_FORMAT_TAGGED, .size = 2 * FLOOD};
    struct fi_cq_attr plain = {.format = FI_CQ_FORMAT_CONTEXT, .size = 2 * FLOOD};
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_cq_open(domain, &plain, &tx_cq, NULL));
    if (tagged_queue)
        CHECK(fi_cq_open(domain, &tagged, &rx_cq, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    CHECK(fi_ep_bind(ep, &tx_cq->fid, FI_TRANSMIT | (tagged_queue ? 0 : FI_RECV)));
    if (tagged_queue)
        CHECK(fi_ep_bind(ep, &rx_cq->fid, FI_RECV));
    CHECK(fi_enable(ep));
}

static void connect_peer(void)
{
    char mine[64] = {0}, theirs[64];
    size_t size = sizeof(mine);
    CHECK(fi_getname(&ep->fid, mine, &size));
    pair_exchange(mine, theirs, sizeof(mine));
    if (fi_av_insert(av, theirs, 1, &peer, 0, NULL) != 1)
        exit(1);
    data = calloc(1, LARGE);
    room = calloc(16, LARGE);
    window = calloc(1, 4096);
    CHECK(fi_mr_reg(domain, window, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 17, 0, &mr, NULL));
}

static void shut(void)
{
    CHECK(fi_close(&mr->fid));
    CHECK(fi_close(&ep->fid));
    CHECK(fi_close(&tx_cq->fid));
    if (tagged_queue)
        CHECK(fi_close(&rx_cq->fid));
    CHECK(fi_close(&av->fid));
    CHECK(fi_close(&domain->fid));
    CHECK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

static void run(const char *provider)
{
    alarm(60); /* the other process may have ended */
    get_info(provider);
    open_endpoint();
    connect_peer();
    (rank ? tagged_receive : tagged_send)();
    (rank ? untagged_receive : untagged_send)();
    if (rank)
        cancel_one();
    meet();
    one_sided();
    (rank ? flood_receive : flood_send)();
    if (rank == 0)
        printf("E %lu\n", would_block);
    shut();
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    tagged_queue = !strcmp(argv[2], "tagged");
    pair_begin();
    /* The second process prints after the first has: its lines go to a file of its own. */
    if (rank && !freopen(getenv("OFI_PAIR_SECOND"), "w", stdout))
        return 2;
    run(argv[1]);
    return pair_end();
}
