/* Phases of ofi_pair: rank 0 sends, rank 1 receives. */
#ifndef OFI_PAIR_PHASES_H
#define OFI_PAIR_PHASES_H
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "ofi_pair.h"

/* --- tagged messages: exact, wild, directed ------------------------------------------------------ */

static void tagged_send(void)
{
    const struct iovec two[] = {{data, 40}, {data + 40, 24}};
    meet(); /* all receives are posted */
    UNTIL_ACCEPTED(fi_tsend(ep, data, LARGE, NULL, peer, 7, c), 1);
    print_send("tag", "7", "-", LARGE);
    UNTIL_ACCEPTED(fi_tsend(ep, data, 8, NULL, peer, 7, c), 1);
    print_send("tag", "7", "-", 8);
    UNTIL_ACCEPTED(fi_tsendv(ep, two, NULL, 2, peer, 7, c), 1);
    print_send("tag", "7", "-", 64);
    UNTIL_ACCEPTED(fi_tinject(ep, data, 5, peer, 0x100), 0);
    print_send("tag", "100", "-", 5);
    UNTIL_ACCEPTED(fi_tsenddata(ep, data, 300, NULL, 0xabcd, peer, 0x101, c), 1);
    print_send("tag", "101", "abcd", 300);
    UNTIL_ACCEPTED(fi_tsend(ep, NULL, 0, NULL, peer, 9, c), 1);
    print_send("tag", "9", "-", 0);
    wait_sent();
    meet();
}

static void post_tagged(size_t at, size_t size, fi_addr_t source, uint64_t tag, uint64_t ignore)
{
    CHECK(fi_trecv(ep, room + at * LARGE, size, NULL, source, tag, ignore, new_context(true)));
    posts++;
}

static void tagged_receive(void)
{
    for (size_t i = 0; i < 3; i++)
        post_tagged(i, LARGE, FI_ADDR_UNSPEC, 7, 0);
    post_tagged(3, 4096, FI_ADDR_UNSPEC, 0x100, 0xff);
    post_tagged(4, 4096, FI_ADDR_UNSPEC, 0x100, 0xff);
    post_tagged(5, 4096, peer, 9, 0);
    meet();
    wait_received(6);
    meet();
}

/* --- untagged messages, all of one context --------------------------------------------------------- */

static void untagged_send(void)
{
    const struct iovec two[] = {{data, 10}, {data + 10, 6}};
    const struct fi_msg msg = {.msg_iov = two, .iov_count = 2, .addr = peer,
                               .context = new_context(false), .data = 0x55};
    meet();
    UNTIL_ACCEPTED(fi_send(ep, data, 100, NULL, peer, c), 1);
    print_send("msg", "-", "-", 100);
    UNTIL_ACCEPTED(fi_sendv(ep, two, NULL, 2, peer, c), 1);
    print_send("msg", "-", "-", 16);
    UNTIL_ACCEPTED(fi_inject(ep, data, 3, peer), 0);
    print_send("msg", "-", "-", 3);
    UNTIL_ACCEPTED(fi_senddata(ep, data, 77, NULL, 0x55, peer, c), 1);
    print_send("msg", "-", "55", 77);
    UNTIL_ACCEPTED(fi_sendmsg(ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA), 1);
    print_send("msg", "-", "55", 16);
    UNTIL_ACCEPTED(fi_injectdata(ep, data, 1, 0x56, peer), 0);
    print_send("msg", "-", "56", 1);
    wait_sent();
    meet();
}

static void untagged_receive(void)
{
    for (size_t i = 0; i < 6; i++) {
        void *context = tagged_queue ? NULL : new_context(true);
        CHECK(fi_recv(ep, room + i * LARGE, LARGE, NULL, FI_ADDR_UNSPEC, context));
        posts++;
    }
    meet();
    wait_received(12);
    meet();
}

/* --- a receive that is taken back ------------------------------------------------------------------ */

static void cancel_one(void)
{
    struct posted *context = new_context(true);
    struct fid_cq *cq = tagged_queue ? rx_cq : tx_cq;
    struct fi_cq_err_entry error = {0};
    CHECK(fi_trecv(ep, room, 8, NULL, FI_ADDR_UNSPEC, 0x999, 0, context));
    posts++;
    CHECK(fi_cancel(&ep->fid, context));
    for (;;) { /* the entry of the cancelled receive is the only one to come */
        turn();
        ssize_t result = fi_cq_readerr(cq, &error, 0);
        if (result == 1)
            break;
        if (result != -FI_EAGAIN)
            CHECK(result);
    }
    if (error.err != FI_ECANCELED || error.op_context != context)
        exit(1);
}

/* --- one-sided -------------------------------------------------------------------------------------- */

struct target {
    uint64_t address, key;
};

static void print_rma(char op, size_t size, const struct target *to)
{
    printf("%c %zu %llx %llx\n", op, size, (unsigned long long)to->address,
           (unsigned long long)to->key);
}

static void atomics(const struct target *to)
{
    static uint64_t operands[2] = {1, 2}, old;
    UNTIL_ACCEPTED(fi_atomic(ep, operands, 2, NULL, peer, to->address, to->key, FI_UINT64, FI_SUM,
                             c), 1);
    print_rma('A', 16, to);
    UNTIL_ACCEPTED(fi_fetch_atomic(ep, operands, 1, NULL, &old, NULL, peer, to->address, to->key,
                                   FI_UINT64, FI_SUM, c), 1);
    print_rma('F', 8, to);
}

static void print_put_data(size_t size, const struct target *to, const char *data_text)
{
    printf("D %zu %llx %llx %s\n", size, (unsigned long long)to->address,
           (unsigned long long)to->key, data_text);
}

static void puts_with_data(const struct target *to)
{
    const struct iovec iov = {data, 24};
    const struct fi_rma_iov there = {to->address, 24, to->key};
    struct fi_msg_rma msg = {.msg_iov = &iov, .iov_count = 1, .addr = peer, .rma_iov = &there,
                             .rma_iov_count = 1, .data = 0x77};
    UNTIL_ACCEPTED(fi_writedata(ep, data, 32, NULL, 0x77, peer, to->address, to->key, c), 1);
    print_put_data(32, to, "77");
    UNTIL_ACCEPTED(fi_inject_writedata(ep, data, 16, 0x78, peer, to->address, to->key), 0);
    print_put_data(16, to, "78");
    UNTIL_ACCEPTED((msg.context = c, fi_writemsg(ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA)), 1);
    print_put_data(24, to, "77");
}

static void one_sided(void)
{
    bool virtual = info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC);
    struct target mine = {virtual ? (uintptr_t)window : 0, fi_mr_key(mr)}, to;
    pair_exchange(&mine, &to, sizeof(to));
    if (rank == 0) {
        UNTIL_ACCEPTED(fi_write(ep, data, 256, NULL, peer, to.address, to.key,
                                c), 1);
        print_rma('P', 256, &to);
        UNTIL_ACCEPTED(fi_inject_write(ep, data, 8, peer, to.address, to.key), 0);
        print_rma('P', 8, &to);
        puts_with_data(&to);
        UNTIL_ACCEPTED(fi_read(ep, room, 512, NULL, peer, to.address, to.key,
                               c), 1);
        print_rma('G', 512, &to);
        if (info->caps & FI_ATOMIC)
            atomics(&to);
        wait_sent();
    } else if (tagged_queue) {
        wait_received(15); /* the writes that carried data */
    }
    meet();
}

/* --- more than fit ------------------------------------------------------------------------------------ */

static void flood_send(void)
{
    meet();
    for (int i = 0; i < FLOOD; i++) {
        size_t size = (size_t)(i % 97);
        UNTIL_ACCEPTED(fi_tsend(ep, data, size, NULL, peer, 0x200, c), 1);
        print_send("tag", "200", "-", size);
    }
    wait_sent();
    meet();
}

static void flood_receive(void)
{
    unsigned long base = received;
    meet();
    for (int i = 0; i < FLOOD; i++) {
        struct posted *context = new_context(true);
        while (!accepted(fi_trecv(ep, room, 128, NULL, peer, 0x200, 0, context)))
            continue;
        posts++;
    }
    wait_received(base + FLOOD);
    meet();
}
#endif
