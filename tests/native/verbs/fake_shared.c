/* Shared receive queues and XRC domains. */
#include <stdlib.h>

#include "fake_ibverbs.h"

#define SRQS 64u

static struct fake_srq *srqs[SRQS];
static uint32_t next_srq = 0x21;

struct fake_srq *fake_srq_of(uint32_t number)
{
    return srqs[number % SRQS];
}

static struct fake_srq *made(struct ibv_context *context, struct ibv_pd *pd)
{
    struct fake_srq *srq = calloc(1, sizeof(*srq));
    srq->base.context = context;
    srq->base.pd = pd;
    return srq;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    (void)attr;
    return &made(pd->context, pd)->base;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context,
                                     struct ibv_srq_init_attr_ex *attr)
{
    struct fake_srq *srq = made(context, attr->pd);
    if (attr->srq_type == IBV_SRQT_XRC) {
        srq->cq = attr->cq;
        srq->number = next_srq++;
        srqs[srq->number % SRQS] = srq;
    }
    return &srq->base;
}

static int get_srq_num(struct ibv_srq *srq, uint32_t *number)
{
    *number = ((struct fake_srq *)srq)->number;
    return 0;
}

int ibv_destroy_srq(struct ibv_srq *base)
{
    struct fake_srq *srq = (struct fake_srq *)base;
    if (srq->number)
        srqs[srq->number % SRQS] = NULL;
    free(srq);
    return 0;
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
    struct ibv_xrcd *xrcd = calloc(1, sizeof(*xrcd));
    (void)attr;
    xrcd->context = context;
    return xrcd;
}

static int close_xrcd(struct ibv_xrcd *xrcd)
{
    free(xrcd);
    return 0;
}

void fake_extend_shared(struct verbs_context *context)
{
    context->create_srq_ex = create_srq_ex;
    context->get_srq_num = get_srq_num;
    context->open_xrcd = open_xrcd;
    context->close_xrcd = close_xrcd;
}
