/* Completion queues and shared receive queues: created, destroyed. */
#include <errno.h>

#include "verbs.h"

#define CQS (1u << 14)
#define SRQS (1u << 12)

static struct st_verbs_cq cqs[CQS];
static struct st_verbs_srq srqs[SRQS];
static uint32_t cq_turn, srq_turn;

static struct st_verbs_cq *cq_created(struct ibv_cq *cq, struct st_verbs_context *context)
{
    int saved = errno;
    struct st_object o;
    struct st_verbs_cq *state = st_verbs_state(cqs, &cq_turn, CQS, sizeof(cqs[0]));
    if (state) {
        *state = (struct st_verbs_cq){.taken = 1,
                                      .id = st_object_id(),
                                      .context = context,
                                      .poll_cq = context->ops.poll_cq};
        st_object_begin(&o, "ib_cq", state->id);
        st_object_u64(&o, "device", context->device);
        st_object_u64(&o, "cqe", (unsigned)cq->cqe);
        st_object_end(&o);
        st_verbs_put(ST_VERBS_HOT, cq, state);
    }
    errno = saved;
    return state;
}

static void cq_ended(struct st_verbs_cq *state, bool closed)
{
    struct st_object o;
    uint64_t empty = state->polls[0] + state->further[0];
    st_object_begin(&o, "ib_cq", state->id);
    if (st_verbs_full) {
        st_object_u64(&o, "polls", empty + state->polls[1] + state->further[1]);
        st_object_u64(&o, "empty_polls", empty);
    }
    if (closed)
        st_object_u64(&o, "closed_tsc", st_now());
    st_object_end(&o);
}

/* Of the queues that the program leaves to the system. Runs before the core's own end. */
__attribute__((destructor)) static void end(void)
{
    for (uint32_t i = 0; st_verbs_on && st_verbs_full && i < CQS && i < cq_turn; i++)
        if (__atomic_load_n(&cqs[i].taken, __ATOMIC_ACQUIRE))
            cq_ended(&cqs[i], false);
}

struct st_verbs_cq *st_verbs_cq_of(struct ibv_cq *cq)
{
    struct st_verbs_cq *state = st_verbs_find(ST_VERBS_HOT, cq);
    if (ST_LIKELY(state != NULL))
        return state;
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, cq->context);
    return context ? cq_created(cq, context) : NULL;
}

ST_API struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector)
{
    struct st_verbs_context *state = st_verbs_context_of(context, ST_CALLER);
    struct st_verbs_library *library = state ? state->library : st_verbs_library(ST_CALLER);
    if (!library) {
        errno = ENOSYS;
        return NULL;
    }
    st_verbs_inside++;
    struct ibv_cq *cq = library->ibv_create_cq(context, cqe, cq_context, channel, comp_vector);
    st_verbs_inside--;
    if (cq && state && !st_verbs_inside)
        cq_created(cq, state);
    return cq;
}

struct ibv_cq_ex *st_verbs_create_cq_ex(struct ibv_context *context,
                                        struct ibv_cq_init_attr_ex *attr)
{
    struct st_verbs_context *state = st_verbs_find(ST_VERBS_HOT, context);
    if (!state) {
        errno = ENOSYS;
        return NULL;
    }
    /* What a completion is attributed by must be readable, whether the program wants it or not. */
    struct ibv_cq_init_attr_ex more = *attr;
    more.wc_flags |= IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                     IBV_WC_EX_WITH_SRC_QP;
    st_verbs_inside++;
    struct ibv_cq_ex *cq = state->create_cq_ex(context, &more);
    if (!cq)
        cq = state->create_cq_ex(context, attr);
    st_verbs_inside--;
    if (cq && !st_verbs_inside) {
        struct st_verbs_cq *made = cq_created(ibv_cq_ex_to_cq(cq), state);
        if (made)
            st_verbs_cq_extend(cq, made);
    }
    return cq;
}

ST_API int ibv_destroy_cq(struct ibv_cq *cq)
{
    struct st_verbs_library *library = st_verbs_library_of(cq->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_cq *state = st_verbs_take(ST_VERBS_HOT, cq);
    int result = library->ibv_destroy_cq(cq);
    int saved = errno;
    if (state && result) {
        st_verbs_put(ST_VERBS_HOT, cq, state);
    } else if (state) {
        cq_ended(state, true);
        __atomic_store_n(&state->taken, 0, __ATOMIC_RELEASE);
    }
    errno = saved;
    return result;
}

static void srq_created(struct ibv_srq *srq, struct st_verbs_context *context, uint32_t max_wr)
{
    int saved = errno;
    struct st_object o;
    struct st_verbs_srq *state = st_verbs_state(srqs, &srq_turn, SRQS, sizeof(srqs[0]));
    if (state) {
        *state = (struct st_verbs_srq){.taken = 1,
                                       .id = st_object_id(),
                                       .post_srq_recv = context->ops.post_srq_recv};
        st_object_begin(&o, "ib_srq", state->id);
        st_object_u64(&o, "device", context->device);
        st_object_u64(&o, "max_wr", max_wr);
        st_object_end(&o);
        st_verbs_put(ST_VERBS_HOT, srq, state);
    }
    errno = saved;
}

ST_API struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct st_verbs_context *context = st_verbs_context_of(pd->context, ST_CALLER);
    struct st_verbs_library *library = context ? context->library : st_verbs_library(ST_CALLER);
    if (!library) {
        errno = ENOSYS;
        return NULL;
    }
    st_verbs_inside++;
    struct ibv_srq *srq = library->ibv_create_srq(pd, attr);
    st_verbs_inside--;
    if (srq && context && !st_verbs_inside)
        srq_created(srq, context, attr->attr.max_wr);
    return srq;
}

struct ibv_srq *st_verbs_create_srq_ex(struct ibv_context *context,
                                       struct ibv_srq_init_attr_ex *attr)
{
    struct st_verbs_context *state = st_verbs_find(ST_VERBS_HOT, context);
    if (!state) {
        errno = ENOSYS;
        return NULL;
    }
    st_verbs_inside++;
    struct ibv_srq *srq = state->create_srq_ex(context, attr);
    st_verbs_inside--;
    if (srq && !st_verbs_inside)
        srq_created(srq, state, attr->attr.max_wr);
    return srq;
}

ST_API int ibv_destroy_srq(struct ibv_srq *srq)
{
    struct st_verbs_library *library = st_verbs_library_of(srq->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_srq *state = st_verbs_take(ST_VERBS_HOT, srq);
    int result = library->ibv_destroy_srq(srq);
    int saved = errno;
    if (state && result) {
        st_verbs_put(ST_VERBS_HOT, srq, state);
    } else if (state) {
        st_object_closed("ib_srq", state->id);
        __atomic_store_n(&state->taken, 0, __ATOMIC_RELEASE);
    }
    errno = saved;
    return result;
}
