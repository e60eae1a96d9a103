/* Two reliable datagram endpoints of one process: what the provider does below is of interest.
 *
 *   ofi_self PROVIDER
 *
 * The first sends tagged and untagged messages to the second, in turns; then to itself, so that
 * a provider with connections has several of them on its queue; then the second sends back. */
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <string.h>
#include <unistd.h>

#include "ofi_check.h"

#define UNTIL_ACCEPTED(call)                                                                      \
    do {                                                                                          \
        long result_;                                                                             \
        while ((result_ = (call)) == -FI_EAGAIN)                                                  \
            turn();                                                                               \
        CHECK(result_);                                                                           \
    } while (0)

struct end {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t to[2];
    char name[64];
    unsigned long received;
};

static struct fi_info *info;
static struct end ends[2];
static struct fi_context2 contexts[256];
static int used;
static char out[256], in[256];

static void open_end(struct end *end)
{
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 256};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    size_t size = sizeof(end->name);
    CHECK(fi_fabric(info->fabric_attr, &end->fabric, NULL));
    CHECK(fi_domain(end->fabric, info, &end->domain, NULL));
    CHECK(fi_cq_open(end->domain, &cq_attr, &end->cq, NULL));
    CHECK(fi_av_open(end->domain, &av_attr, &end->av, NULL));
    CHECK(fi_endpoint(end->domain, info, &end->ep, NULL));
    CHECK(fi_ep_bind(end->ep, &end->av->fid, 0));
    CHECK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(end->ep));
    CHECK(fi_getname(&end->ep->fid, end->name, &size));
}

static void turn(void)
{
    struct fi_cq_tagged_entry entry;
    for (int i = 0; i < 2; i++)
        while (fi_cq_read(ends[i].cq, &entry, 1) == 1)
            ends[i].received += !!(entry.flags & FI_RECV);
}

static void message(int from, int to, int tag, size_t size)
{
    unsigned long before = ends[to].received;
    struct fid_ep *source = ends[from].ep, *target = ends[to].ep;
    fi_addr_t there = ends[from].to[to];
    void *send = &contexts[used++], *receive = &contexts[used++];
    if (tag) {
        CHECK(fi_trecv(target, in, sizeof(in), NULL, FI_ADDR_UNSPEC, (uint64_t)tag, 0, receive));
        UNTIL_ACCEPTED(fi_tsend(source, out, size, NULL, there, (uint64_t)tag, send));
    } else {
        CHECK(fi_recv(target, in, sizeof(in), NULL, FI_ADDR_UNSPEC, receive));
        UNTIL_ACCEPTED(fi_send(source, out, size, NULL, there, send));
    }
    while (ends[to].received == before)
        turn();
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo();
    alarm(60);
    if (argc != 2)
        return 2;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    for (int i = 0; i < 2; i++)
        open_end(&ends[i]);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (fi_av_insert(ends[i].av, ends[j].name, 1, &ends[i].to[j], 0, NULL) != 1)
                return 1;
    for (int i = 0; i < 12; i++)
        message(0, 1, i % 3, (size_t)(1 + i));
    for (int i = 0; i < 4; i++)
        message(0, 0, 3, (size_t)(50 + i));
    for (int i = 0; i < 4; i++)
        message(1, 0, 4, (size_t)(70 + i));
    return 0;
}
