/* The phase of verbs_pair.c in which one ibv_start_poll() reads several completions. */

enum { BATCH = 7, ARRIVALS = 5, MARK = 60 * SLOT };

/* So many completions, which come together. `last`: there are no more, and will be none: what the
 * driver's ibv_next_poll() skips then is nothing. */
static void poll_batch(struct ibv_cq *queue, int count, bool last)
{
    struct ibv_cq_ex *cq = (struct ibv_cq_ex *)queue;
    struct ibv_poll_cq_attr attr = {0};
    time_t end = time(NULL) + DEADLINE_S;
    while (counted(ibv_start_poll(cq, &attr)) == ENOENT) {
        check(time(NULL) < end, "completions");
        sched_yield();
    }
    for (int i = 1;; i++) {
        struct ibv_wc wc = read_wc(cq);
        print_wc(&wc);
        if (i == count)
            break;
        check(!ibv_next_poll(cq), "ibv_next_poll");
    }
    if (last)
        check(ibv_next_poll(cq) == ENOENT, "ibv_next_poll behind the last one");
    ibv_end_poll(cq);
}

/* What a read brings shows that all requests before it are completed. */
static void await_mark(void)
{
    volatile uint64_t *mark = (volatile uint64_t *)(memory + MARK);
    time_t end = time(NULL) + DEADLINE_S;
    while (!*mark) {
        check(time(NULL) < end, "the mark");
        sched_yield();
    }
    *mark = 0;
}

static void batch(struct link *l, bool last)
{
    static const int kinds[] = {SEND, WRITE, SEND_IMM, WRITE_IMM, SEND, WRITE_IMM};
    for (int i = 0; client && i < BATCH - 1; i++)
        add(l, kinds[i], 500u * (unsigned)i + 1, SIGNALED);
    if (client) {
        struct ibv_send_wr *wr = add(l, READ, 8, SIGNALED);
        wr->sg_list->addr += MARK;
        wr->wr.rdma.remote_addr = l->other.address + MARK;
        check(post(l) == BATCH, "batch");
        await_mark();
        poll_batch(cqs[0], BATCH - 1, false);
        poll_batch(cqs[0], 1, last);
    }
    meet(); /* the client's requests are acknowledged: the server's completions have come */
    if (!client)
        poll_batch(cqs[0], ARRIVALS, last);
}

static void batches(void)
{
    struct link l;
    struct ibv_cq *before = cqs[0];
    phase = "batches";
    cqs[0] = open_queue();
    create(&l, IBV_QPT_RC, NULL, false);
    *(uint64_t *)(memory + MARK) = !client;
    connect_link(&l, client ? 0 : 3 * ARRIVALS);
    for (int round = 0; round < 3; round++)
        batch(&l, round == 2);
    destroy(&l);
    check(!ibv_destroy_cq(cqs[0]), "ibv_destroy_cq");
    cqs[0] = before;
}
