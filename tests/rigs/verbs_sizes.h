/* The phase of verbs_pair.c with messages of many sizes. */

enum { EXPONENTS = 17, MULTIPLES = 3, AT_ONCE = 8 };
static const uint32_t of_packets[MULTIPLES] = {3, 10, 63};

/* 2^k - 1, 2^k, 2^k + 1; then the same around multiples of the path MTU. */
static uint32_t size_of(int number)
{
    int k = number / 3;
    uint32_t middle = k < EXPONENTS ? 1u << k : 1024u * of_packets[k - EXPONENTS];
    return middle + (unsigned)(number % 3) - 1;
}

static void receive_long(struct link *l, int count)
{
    struct ibv_sge sge = {(uintptr_t)memory + MEMORY / 2, MEMORY / 2, mr->lkey};
    struct ibv_recv_wr *bad;
    for (int i = 0; i < count; i++) {
        struct ibv_recv_wr wr = {.wr_id = (unsigned)(RECEIVE | i), .sg_list = &sge, .num_sge = 1};
        check(!ibv_post_recv(l->qp, &wr, &bad), "receive");
    }
    printf("receives %s %u %d %d\n", phase, l->mine.qpn, l->life, count);
}

static void sizes(void)
{
    static const int kinds[] = {WRITE, SEND, READ, WRITE_IMM};
    struct link l;
    phase = "sizes";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, 0);
    for (int number = 0; number < 3 * (EXPONENTS + MULTIPLES);) {
        int end = number + AT_ONCE, most = 3 * (EXPONENTS + MULTIPLES);
        int count = (end < most ? end : most) - number;
        if (!client)
            receive_long(&l, 2 * count);
        meet();
        for (int i = 0; client && i < 4 * count; i++)
            add(&l, kinds[i % 4], size_of(number + i / 4), SIGNALED);
        check(!client || post(&l) == 4 * count, "post");
        collect(client ? 4 * count : 2 * count);
        number += count;
    }
    meet();
    destroy(&l);
}
