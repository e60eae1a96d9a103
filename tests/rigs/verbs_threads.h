/* The phase of verbs_pair.c in which several threads post to one queue pair. */
#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 4, OWN = 64 };
static sem_t room; /* of the send queue */
static pthread_barrier_t all_ready;
static struct link *posted_to;

/* The thread and the number of a request are its wr_id. One of four is a message, and one of four
 * is unsignaled: the next one of the thread tells of it. */
static void post_own(int thread, int number, int count)
{
    struct ibv_sge sge[2];
    struct ibv_send_wr wr[2], *bad;
    for (int i = 0; i < count; i++, number++) {
        sge[i] = (struct ibv_sge){(uintptr_t)memory, 100u * (unsigned)thread + (unsigned)number + 1,
                                  mr->lkey};
        wr[i] = (struct ibv_send_wr){.wr_id = (unsigned)(thread << 8 | number),
                                     .sg_list = &sge[i], .num_sge = 1,
                                     .opcode = number % 4 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
                                     .send_flags = number % 4 == 1 ? 0 : IBV_SEND_SIGNALED,
                                     .next = i + 1 < count ? &wr[i + 1] : NULL};
        if (number % 4) {
            wr[i].wr.rdma.remote_addr = posted_to->other.address + 4096u * (unsigned)thread;
            wr[i].wr.rdma.rkey = posted_to->other.rkey;
        }
        sem_wait(&room);
    }
    check(!ibv_post_send(posted_to->qp, wr, &bad), "ibv_post_send");
    for (int i = 0; i < count; i++)
        print_sent(posted_to, &wr[i]);
}

/* One request, then a list of two, and so on. */
static void *post_all(void *argument)
{
    int thread = (int)(intptr_t)argument, number = 0;
    pthread_barrier_wait(&all_ready);
    for (int count = 1; number < OWN; count = 3 - count) {
        if (count > OWN - number)
            count = OWN - number;
        post_own(thread, number, count);
        number += count;
        sched_yield();
    }
    return NULL;
}

static void collect_all(void)
{
    struct ibv_wc wc[MOST_POLLED];
    time_t end = time(NULL) + DEADLINE_S;
    for (int left = THREADS * OWN; left;) {
        int got = poll_some(cqs[0], wc);
        check(time(NULL) < end, "completions");
        for (int i = 0; i < got; i++)
            for (int done = wc[i].wr_id % 4 == 2 ? 2 : 1; done; done--, left--)
                sem_post(&room);
    }
}

static void threads(void)
{
    struct link l;
    pthread_t all[THREADS];
    phase = "threads";
    posted_to = &l;
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, client ? 0 : THREADS * OWN / 4);
    if (client) {
        sem_init(&room, 0, SLOTS - 2 * THREADS);
        pthread_barrier_init(&all_ready, NULL, THREADS);
        for (intptr_t i = 0; i < THREADS; i++)
            check(!pthread_create(&all[i], NULL, post_all, (void *)i), "pthread_create");
        collect_all();
        for (int i = 0; i < THREADS; i++)
            pthread_join(all[i], NULL);
    } else {
        collect(THREADS * OWN / 4);
    }
    meet();
    destroy(&l);
}
