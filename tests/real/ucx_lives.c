/* Endpoints that are made again, are open at once, or are left open.
 *
 * usage: ucx_lives again   ROUNDS endpoints to each of PEERS workers, one after the other
 *        ucx_lives at_once two endpoints to one worker, used in turn
 *        ucx_lives force   as `again`, but closed by force
 *        ucx_lives refused an endpoint that is not closed, as UCX refuses to do it by force
 *        ucx_lives many    one endpoint, MANY messages
 *        ucx_lives workers THREADS threads make workers, exchange messages, destroy the workers
 *                          and leave their endpoints open, ROUNDS times
 *        ucx_lives reply   ROUNDS endpoints that send active messages with reply endpoint
 *        ucx_lives left    a server leaves an endpoint to its first client open when it destroys
 *                          its worker, and serves a second client with a new one
 *
 * Says "pid messages", for each process that sends. */
#include "ucx_small.h"

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEERS = 5, ROUNDS = 3, MESSAGES = 4, MANY = 20000, THREADS = 4, TAG = 5, AM = 3 };

static long got;

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data,
                          size_t length, const ucp_am_recv_param_t *param)
{
    (void)arg, (void)header, (void)header_length, (void)data, (void)length, (void)param;
    got++;
    return UCS_OK;
}

static void exchange(ucp_ep_h ep, ucp_worker_h from, ucp_worker_h to, size_t size)
{
    char out[64] = {0}, in[64];
    ucs_status_ptr_t receive = ucp_tag_recv_nbx(to, in, sizeof(in), TAG, ~0ull, &plain);
    finish(ucp_tag_send_nbx(ep, out, size, TAG, &plain), from, to);
    finish(receive, from, to);
}

static void close_ep(ucp_ep_h ep, ucp_worker_h from, ucp_worker_h to, bool force)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0};
    finish(ucp_ep_close_nbx(ep, &param), from, to);
}

static void lives(bool force)
{
    ucp_worker_h from = worker_new(), to[PEERS];
    long sent = 0;
    for (int i = 0; i < PEERS; i++)
        to[i] = worker_new();
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < PEERS; i++) {
            ucp_ep_h ep = ep_new(from, to[i]);
            for (int k = 0; k < MESSAGES; k++)
                exchange(ep, from, to[i], (size_t)sent++ % 64);
            close_ep(ep, from, to[i], force);
        }
    printf("%d %ld\n", getpid(), sent);
}

static void again(void)
{
    lives(false);
}

static void force(void)
{
    error_mode = UCP_ERR_HANDLING_MODE_PEER; /* else UCX refuses */
    lives(true);
}

static void at_once(void)
{
    ucp_worker_h from = worker_new(), to = worker_new();
    ucp_ep_h one = ep_new(from, to);
    exchange(one, from, to, 1);
    ucp_ep_h two = ep_new(from, to);
    for (int k = 0; k < MESSAGES; k++)
        exchange(k % 2 ? one : two, from, to, 2);
    close_ep(one, from, to, false);
    close_ep(two, from, to, false);
    printf("%d %d\n", getpid(), 1 + MESSAGES);
}

static void refused(void)
{
    ucp_worker_h from = worker_new(), to = worker_new();
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucp_ep_h ep = ep_new(from, to);
    exchange(ep, from, to, 1);
    CHECK(UCS_PTR_IS_ERR(ucp_ep_close_nbx(ep, &force)));
    for (int k = 0; k < MESSAGES; k++)
        exchange(ep, from, to, 2);
    close_ep(ep, from, to, false);
    printf("%d %d\n", getpid(), 1 + MESSAGES);
}

static void many(void)
{
    ucp_worker_h worker = worker_new();
    ucp_ep_h ep = ep_new(worker, worker);
    for (int k = 0; k < MANY; k++)
        exchange(ep, worker, worker, 5);
    printf("%d %d\n", getpid(), MANY);
}

static void *live(void *unused)
{
    for (int round = 0; round < ROUNDS; round++) {
        ucp_worker_h worker = worker_new();
        ucp_ep_h ep = ep_new(worker, worker);
        for (int k = 0; k < MESSAGES; k++)
            exchange(ep, worker, worker, 5);
        ucp_worker_destroy(worker);
    }
    return unused;
}

static void workers(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, live, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    printf("%d %d\n", getpid(), THREADS * ROUNDS * MESSAGES);
}

static void listen_am(ucp_worker_h worker)
{
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                  UCP_AM_HANDLER_PARAM_FIELD_CB,
                                    .id = AM,
                                    .cb = on_am};
    CHECK(!ucp_worker_set_am_recv_handler(worker, &param));
}

/* `to` NULL: it is another process's worker. */
static void send_am(ucp_ep_h ep, ucp_worker_h from, ucp_worker_h to, int count)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_REPLY};
    for (int i = 0; i < count; i++)
        finish(ucp_am_send_nbx(ep, AM, NULL, 0, "abcd", 4, &param), from, to);
}

static void reply(void)
{
    ucp_worker_h from = worker_new(), to = worker_new();
    listen_am(to);
    for (int round = 0; round < ROUNDS; round++) {
        ucp_ep_h ep = ep_new(from, to);
        send_am(ep, from, to, MESSAGES);
        while (got < (long)(round + 1) * MESSAGES) {
            ucp_worker_progress(to);
            ucp_worker_progress(from);
        }
        close_ep(ep, from, to, false);
    }
    printf("%d %d\n", getpid(), ROUNDS * MESSAGES);
}

/* --- left open -------------------------------------------------------------------------- */

struct channel {
    int up[2], down[2];
};

static void put_address(int fd, ucp_worker_h worker)
{
    ucp_address_t *address;
    size_t length;
    CHECK(!ucp_worker_get_address(worker, &address, &length));
    CHECK(write(fd, &length, sizeof(length)) == sizeof(length));
    CHECK(write(fd, address, length) == (ssize_t)length);
    ucp_worker_release_address(worker, address);
}

static void take_address(int fd, char address[4096])
{
    size_t length;
    CHECK(read(fd, &length, sizeof(length)) == sizeof(length) && length <= 4096);
    CHECK(read(fd, address, length) == (ssize_t)length);
}

static void client(struct channel *channel, int count)
{
    char address[4096];
    int end;
    begin();
    ucp_worker_h worker = worker_new();
    put_address(channel->up[1], worker);
    take_address(channel->down[0], address);
    ucp_ep_h ep = ep_to_address(worker, (ucp_address_t *)address);
    send_am(ep, worker, NULL, count);
    finish(ucp_ep_flush_nbx(ep, &plain), worker, NULL);
    CHECK(write(channel->up[1], &count, sizeof(count)) == sizeof(count));
    CHECK(read(channel->down[0], &end, sizeof(end)) == sizeof(end));
    printf("%d %d\n", getpid(), count);
    exit(0);
}

static bool written(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) > 0;
}

static void serve(struct channel *channel, bool own_ep, int count)
{
    char address[4096];
    int end;
    got = 0;
    ucp_worker_h worker = worker_new();
    listen_am(worker);
    take_address(channel->up[0], address);
    if (own_ep)
        ep_to_address(worker, (ucp_address_t *)address);
    put_address(channel->down[1], worker);
    while (got < count || !written(channel->up[0])) /* until the client has flushed */
        ucp_worker_progress(worker);
    CHECK(read(channel->up[0], &end, sizeof(end)) == sizeof(end));
    CHECK(write(channel->down[1], &end, sizeof(end)) == sizeof(end));
    ucp_worker_destroy(worker);
}

static void left(void)
{
    struct channel channels[2];
    pid_t pids[2];
    int counts[2] = {5, 7}, status;
    for (int i = 0; i < 2; i++) {
        CHECK(!pipe(channels[i].up) && !pipe(channels[i].down));
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (!pids[i])
            client(&channels[i], counts[i]);
    }
    begin();
    /* So that the first server worker lies where the second will. */
    ucp_worker_destroy(worker_new());
    for (int i = 0; i < 2; i++) {
        serve(&channels[i], i == 0, counts[i]);
        CHECK(waitpid(pids[i], &status, 0) == pids[i] && !status);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } plans[] = {{"again", again}, {"at_once", at_once}, {"force", force},     {"refused", refused},
                 {"many", many},   {"reply", reply},     {"workers", workers}, {"left", left}};
    CHECK(argc == 2);
    for (size_t i = 0; i < sizeof(plans) / sizeof(*plans); i++)
        if (!strcmp(argv[1], plans[i].name)) {
            if (plans[i].run != left) /* which begins in each process */
                begin();
            plans[i].run();
            return 0;
        }
    return 2;
}
