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
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE (1u << 20)
#define FLOOD 1500
#define ALL_TAGS (~0ULL >> 16)
#define NOT_TAGGED UINT64_MAX

#define CHECK(call)                                                                               \
    do {                                                                                          \
        long check_result = (call);                                                               \
        if (check_result < 0) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %ld %s\n", __FILE__, __LINE__, #call, check_result,       \
                    fi_strerror((int)-check_result));                                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

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
static int rank, wire, posts;
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

/* Both ends reach this; the library makes progress meanwhile. */
static void meet(void)
{
    char byte = 1;
    struct pollfd ready = {.fd = wire, .events = POLLIN};
    fflush(stdout);
    if (write(wire, &byte, 1) != 1)
        exit(1);
    while (poll(&ready, 1, 0) == 0)
        turn();
    if (read(wire, &byte, 1) != 1)
        exit(1);
}

static void exchange(const void *mine, void *theirs, size_t size)
{
    if (write(wire, mine, size) != (ssize_t)size || read(wire, theirs, size) != (ssize_t)size)
        exit(1);
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

/* --- set-up ----------------------------------------------------------------------------------- */

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
    exchange(mine, theirs, sizeof(mine));
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
    exchange(&mine, &to, sizeof(to));
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

static int run(const char *provider)
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
    return 0;
}

int main(int argc, char **argv)
{
    int pair[2], status = 0;
    if (argc != 3 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return 2;
    tagged_queue = !strcmp(argv[2], "tagged");
    pid_t child = fork();
    rank = child ? 0 : 1;
    wire = pair[rank];
    close(pair[!rank]);
    /* The second process prints after the first has: its lines go to a file of its own. */
    if (rank && !freopen(getenv("OFI_PAIR_SECOND"), "w", stdout))
        return 2;
    int code = run(argv[1]);
    if (rank)
        return code;
    waitpid(child, &status, 0);
    return code ? code : WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
