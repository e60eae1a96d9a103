/* The phases of verbs_pair.c: what is posted, and how many completions must come of it. */

/* Messages that take receives, in one order with writes that take none. */
static const int mixed[] = {SEND,      WRITE_IMM, SEND_IMM, WRITE,     SEND,     WRITE_IMM,
                            WRITE_IMM, SEND,      WRITE,    SEND_IMM,  SEND_IMM, WRITE_IMM};
enum { MIXED = 12, TAKE_RECEIVES = 10 };

static void messages(const char *name, enum ibv_qp_type type)
{
    struct link l;
    phase = name;
    create(&l, type, NULL, false);
    connect_link(&l, client ? 0 : TAKE_RECEIVES);
    for (int i = 0; client && i < MIXED; i++) {
        add(&l, mixed[i], 1 + 200u * (unsigned)i, SIGNALED);
        post(&l);
    }
    collect(client ? MIXED : TAKE_RECEIVES);
    meet();
    destroy(&l);
}

/* Two queue pairs of the server share their receives, and complete on one queue. */
static void shared(void)
{
    struct link l[2];
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = SLOTS, .max_sge = 1}};
    phase = "shared";
    struct ibv_srq *srq = client ? NULL : ibv_create_srq(pd, &attr);
    check(client || srq, "ibv_create_srq");
    if (srq)
        receive_into(NULL, srq, 2 * TAKE_RECEIVES + 3);
    for (int i = 0; i < 2; i++) {
        create(&l[i], IBV_QPT_RC, srq, true);
        connect_link(&l[i], 0);
    }
    for (int i = 0; client && i < 2 * MIXED; i++) {
        add(&l[i % 2], mixed[i / 2], 1 + 100u * (unsigned)i, SIGNALED);
        post(&l[i % 2]);
    }
    collect(client ? 2 * MIXED : 2 * TAKE_RECEIVES);
    meet();
    for (int i = 0; i < 2; i++)
        destroy(&l[i]);
    check(!srq || !ibv_destroy_srq(srq), "ibv_destroy_srq");
}

/* Inline data, and lists of requests with lists of elements; these not by ibv_wr_set_sge_list(),
 * with which the driver sends as many bytes as the last element has. */
static void lists(void)
{
    struct link l;
    phase = "lists";
    create(&l, IBV_QPT_RC, NULL, true);
    connect_link(&l, client ? 0 : 8);
    for (int i = 0; client && i < 8; i++)
        add(&l, i % 2 ? WRITE : SEND, 1 + (unsigned)i, SIGNALED | IBV_SEND_INLINE);
    check(!client || post(&l) == 8, "inline");
    for (int i = 0; client && i < 4; i++) {
        struct ibv_send_wr *wr = add(&l, SEND, 10, SIGNALED);
        for (int j = 1; !extended && j <= i; j++, wr->num_sge++)
            wr->sg_list[j] = (struct ibv_sge){(uintptr_t)memory, 10u * (unsigned)(j + 1), mr->lkey};
    }
    check(!client || post(&l) == 4, "elements");
    collect(client ? 12 : 8);
    meet();
    destroy(&l);
}

/* One completion for ten requests, all of them with one wr_id; both ways. */
static void unsignaled(void)
{
    struct link l;
    phase = "unsignaled";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 10; i++)
            add(&l, WRITE, 64, i == 9 ? SIGNALED : 0)->wr_id = 5;
        check(post(&l) == 10, "unsignaled");
        collect(1);
    }
    meet();
    destroy(&l);
}

/* The third of five requests has more elements than the queue pair can take; of ibv_wr_complete()
 * this refuses all five. Then one that is accepted. */
static void refused(void)
{
    struct link l;
    int taken = extended ? 0 : 2, expected = 2 * (taken + 1);
    phase = "refused";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, client ? 0 : expected);
    for (int round = 0; client && round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            struct ibv_send_wr *wr = add(&l, SEND, 30, SIGNALED);
            for (int j = 1; i == 2 && j < MANY; j++, wr->num_sge++)
                wr->sg_list[j] = wr->sg_list[0];
        }
        check(post(&l) == taken, "refused");
        add(&l, SEND, 31, SIGNALED);
        check(post(&l) == 1, "accepted");
    }
    collect(expected);
    meet();
    destroy(&l);
}

/* Reads and atomics, all outstanding at once; unsignaled ones among them. */
static void reads(void)
{
    struct link l;
    static const int kinds[] = {READ, ADD, READ, SWAP, READ, ADD, SWAP, READ};
    phase = "reads";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, 0);
    for (int i = 0; i < 8; i++) {
        int flags = i == 2 || i == 3 ? 0 : SIGNALED;
        add(&l, kinds[i], kinds[i] == READ ? 700u * (unsigned)(i + 1) : 8, flags);
    }
    check(post(&l) == 8, "reads");
    collect(6);
    meet();
    destroy(&l);
}

/* Three queue pairs on one completion queue, both ways. */
static void several(void)
{
    struct link l[3];
    phase = "several";
    for (int i = 0; i < 3; i++) {
        create(&l[i], IBV_QPT_RC, NULL, false);
        connect_link(&l[i], 6);
    }
    for (int i = 0; i < 15; i++) {
        add(&l[i % 3], SEND, 50u * (unsigned)(i + 1), SIGNALED)->wr_id = (unsigned)i / 3;
        post(&l[i % 3]);
    }
    collect(2 * 15);
    meet();
    for (int i = 0; i < 3; i++)
        destroy(&l[i]);
}

/* A queue pair that is connected a second time; receives of the client's are left each time. */
static void again(void)
{
    struct link l;
    phase = "again";
    create(&l, IBV_QPT_RC, NULL, false);
    for (; l.life < 2; l.life++) {
        int count = l.life ? 7 : 4;
        connect_link(&l, client ? 2 : count);
        for (int i = 0; client && i < count; i++) {
            add(&l, SEND_IMM, 20u + (unsigned)i, SIGNALED);
            post(&l);
        }
        collect(count);
        meet();
        modify(&l, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, 0);
    }
    destroy(&l);
}

/* Two senders of datagrams to one queue pair; the server's second one gets nothing. */
static void datagrams(void)
{
    struct link l[2];
    phase = "datagrams";
    for (int i = 0; i < 2; i++) {
        create(&l[i], IBV_QPT_UD, NULL, false);
        connect_link(&l[i], client || i ? 0 : 10);
    }
    l[1].other = l[0].other;
    for (int i = 0; client && i < 10; i++) {
        add(&l[i % 2], i % 3 ? SEND : SEND_IMM, 90u + (unsigned)i, SIGNALED);
        post(&l[i % 2]);
    }
    collect(10);
    meet();
    for (int i = 0; i < 2; i++)
        destroy(&l[i]);
}

/* Memory that is registered twice, then given back and registered again. */
static void registrations(void)
{
    struct link l;
    struct ibv_mr *more[2];
    uint32_t mine[2], keys[2];
    phase = "registrations";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            more[i] = ibv_reg_mr(pd, memory, MEMORY / 2, ACCESS);
            check(more[i], "ibv_reg_mr");
            mine[i] = more[i]->rkey;
        }
        exchange(mine, keys, sizeof(keys));
        for (int i = 0; client && i < 4; i++)
            add(&l, WRITE, 256, SIGNALED)->wr.rdma.rkey = i == 3 ? l.other.rkey : keys[i % 2];
        if (client)
            check(post(&l) == 4, "writes");
        collect(client ? 4 : 0);
        meet();
        for (int i = 0; i < 2; i++)
            check(!ibv_dereg_mr(more[i]), "ibv_dereg_mr");
    }
    destroy(&l);
}

#include "verbs_batches.h"
#include "verbs_errors.h"
#include "verbs_sizes.h"
#include "verbs_threads.h"
#include "verbs_windows.h"

static bool run_group(const char *group)
{
    if (!strcmp(group, "operations") || extended) {
        messages("rc", IBV_QPT_RC);
        messages("uc", IBV_QPT_UC);
        shared();
        lists();
        unsignaled();
        refused();
        reads();
        several();
        again();
        datagrams();
        registrations();
        windows();
        sizes();
        if (extended)
            batches();
    } else if (!strcmp(group, "threads")) {
        threads();
    } else if (!strcmp(group, "errors")) {
        bad_rkey("bad_rkey_write", WRITE, false);
        bad_rkey("bad_rkey_read", READ, true);
        bad_lkey("bad_lkey_send", SEND);
        bad_lkey("bad_lkey_read", READ);
        too_long();
        not_ready();
        recovered();
        destroyed();
        invalidated();
        not_offered();
    } else if (!strcmp(group, "killed")) {
        killed();
    } else {
        return false;
    }
    return true;
}
