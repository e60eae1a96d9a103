/* A timer interrupts exchanges at any place; its handler makes exchanges on a worker of its own.
 *
 * usage: ucx_signals ROUNDS
 *
 * Every receive has a callback that knows its own exchange. Says how many exchanges the main
 * program and the handler made, and how many callbacks came for another exchange or not at all. */
#include "ucx_small.h"

#include <signal.h>
#include <sys/time.h>

enum { MAIN = 5, HANDLER = 6 };
struct exchange {
    ucp_tag_t tag;
    int called;
};

static ucp_worker_h workers[2];
static ucp_ep_h eps[2];
static volatile long made[2], wrong;
static volatile bool running;

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *data)
{
    struct exchange *exchange = data;
    (void)request;
    if (status != UCS_OK || info->sender_tag != exchange->tag || exchange->called++)
        wrong++;
}

static void exchange(ucp_tag_t tag)
{
    int who = tag == HANDLER;
    char out[8] = {0}, in[8];
    struct exchange own = {tag, 0};
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv = on_received,
                                 .user_data = &own};
    ucs_status_ptr_t receive = ucp_tag_recv_nbx(workers[who], in, sizeof(in), tag, ~0ull, &param);
    finish(ucp_tag_send_nbx(eps[who], out, sizeof(out), tag, &plain), workers[who], NULL);
    finish(receive, workers[who], NULL);
    wrong += own.called != 1;
    made[who]++;
}

static void on_timer(int number)
{
    (void)number;
    if (running)
        return;
    running = true;
    exchange(HANDLER);
    running = false;
}

int main(int argc, char **argv)
{
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    CHECK(argc == 2);
    begin();
    for (int who = 0; who < 2; who++) {
        workers[who] = worker_new();
        eps[who] = ep_new(workers[who], workers[who]);
        exchange(who ? HANDLER : MAIN);
    }
    signal(SIGALRM, on_timer);
    setitimer(ITIMER_REAL, &often, NULL);
    for (long i = 0; i < atol(argv[1]); i++)
        exchange(MAIN);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%ld %ld %ld\n", made[0], made[1], wrong);
    return 0;
}
