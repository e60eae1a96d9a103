/* What the phases of ofi_pair share: the endpoint, its queues, what they print, waiting. */
#ifndef OFI_PAIR_H
#define OFI_PAIR_H
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>
#include <stdint.h>

#include "ofi_check.h"
#include "pair.h"

#define LARGE (1u << 20)
#define FLOOD 1500

struct posted {
    struct fi_context2 internal;
    bool receive;
    int order;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *tx_cq, *rx_cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static fi_addr_t peer;
static int posts;
static bool tagged_queue;
static unsigned long sent, sends_done, received, would_block;
static char *window, *data, *room;
static struct posted contexts[2 * FLOOD];
static int contexts_used;

static struct posted *new_context(bool receive)
{
    struct posted *context = &contexts[contexts_used++];
    context->receive = receive;
    context->order = receive ? posts : -1;
    return context;
}

static void print_arrival(bool tagged, uint64_t tag, size_t size, const struct posted *context)
{
    char order[16] = "-";
    if (context)
        snprintf(order, sizeof(order), "%d", context->order);
    if (tagged)
        printf("R tag %llx %zu %s\n", (unsigned long long)tag, size, order);
    else
        printf("R msg - %zu %s\n", size, order);
}

static void read_tagged(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry;
    while (fi_cq_read(cq, &entry, 1) == 1) {
        received++;
        if (entry.flags & FI_REMOTE_WRITE)
            printf("W %llx\n", (unsigned long long)entry.data);
        else
            print_arrival(entry.flags & FI_TAGGED, entry.tag, entry.len, entry.op_context);
    }
}

static void read_contexts(struct fid_cq *cq)
{
    struct fi_cq_entry entry;
    while (fi_cq_read(cq, &entry, 1) == 1) {
        const struct posted *context = entry.op_context;
        if (context < contexts || context >= contexts + contexts_used) {
            printf("W -\n"); /* a remote write with data: no context of ours */
        } else if (context->receive) {
            received++;
            printf("R any - - %d\n", context->order);
        } else {
            sends_done++;
        }
    }
}

static void turn(void)
{
    read_contexts(tx_cq);
    if (tagged_queue)
        read_tagged(rx_cq);
}

static void wait_sent(void)
{
    while (sends_done < sent)
        turn();
}

static void wait_received(unsigned long n)
{
    while (received < n)
        turn();
}

static void meet(void)
{
    fflush(stdout);
    pair_meet(turn);
}

static bool accepted(ssize_t result)
{
    if (result == -FI_EAGAIN) {
        would_block++;
        turn();
        return false;
    }
    CHECK(result);
    return true;
}

/* Calls until it is accepted; `c` is its context. `completes`: a completion is waited for. */
#define UNTIL_ACCEPTED(call, completes)                                                           \
    do {                                                                                          \
        struct posted *c = new_context(false);                                                    \
        (void)c;                                                                                  \
        while (!accepted(call))                                                                   \
            continue;                                                                             \
        sent += (completes);                                                                      \
    } while (0)

static void print_send(const char *kind, const char *tag, const char *cq_data, size_t size)
{
    printf("S %s %s %s %zu\n", kind, tag, cq_data, size);
}
#endif
