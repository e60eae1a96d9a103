/* Completion queues and shared receive queues: created, destroyed. */
#include "verbs.h"

static struct st_verbs_cq cqs[ST_VERBS_CQS];
static struct st_verbs_srq srqs[ST_VERBS_SRQS];
static struct st_verbs_pool cq_pool, srq_pool;

static struct st_verbs_cq *cq_created(struct ibv_cq *cq, struct st_verbs_context *context)
{
    int saved = errno;
    struct st_object o;
    uint32_t channel = st_verbs_channel(cq->channel, context);
    struct st_verbs_cq *state = st_verbs_state(cqs, &cq_pool, ST_VERBS_CQS, sizeof(cqs[0]));
    if (state) {
        *state = (struct st_verbs_cq){.taken = 1,
                                      .id = st_object_id(),
                                      .context = context,
                                      .poll_cq = context->ops.poll_cq};
        if (!st_verbs_put(ST_VERBS_HOT, cq, state)) {
            st_verbs_state_give(state, &cq_pool);
            errno = saved;
            return NULL;
        }
        st_object_begin(&o, "ib_cq", state->id);
        st_object_u64(&o, "device", context->device);
        st_object_u64(&o, "cqe", (unsigned)cq->cqe);
        if (channel)
            st_object_u64(&o, "channel", channel);
        st_object_end(&o);
    }
    errno = saved;
    return state;
}

static uint64_t polls_of(const struct st_verbs_cq *state, enum st_verbs_poll what)
{
    return state->polls[what] + state->further[what];
}

static void cq_ended(struct st_verbs_cq *state, bool closed)
{
    struct st_object o;
    uint64_t empty = polls_of(state, ST_VERBS_POLL_EMPTY);
    uint64_t failed = polls_of(state, ST_VERBS_POLL_FAILED);
    st_object_begin(&o, "ib_cq", state->id);
    if (st_verbs_full) {
        st_object_u64(&o, "polls", empty + failed + polls_of(state, ST_VERBS_POLL_SOME));
        st_object_u64(&o, "empty_polls", empty);
        if (failed)
            st_object_u64(&o, "failed_polls", failed);
    }
    if (closed)
        st_object_u64(&o, "closed_tsc", st_now());
    st_object_end(&o);
}

/* Of the queues that the program leaves to the system. Runs before the core's own end. */
__attribute__((destructor)) static void end(void)
{
    for (uint32_t i = 0; st_verbs_on && st_verbs_full && i < ST_VERBS_CQS && i < cq_pool.turn; i++)
        if (__atomic_load_n(&cqs[i].taken, __ATOMIC_ACQUIRE))
            cq_ended(&cqs[i], false);
}

struct st_verbs_cq *st_verbs_cq_of(struct ibv_cq *cq)
{
    struct st_verbs_cq *state = st_verbs_find(ST_VERBS_HOT, cq);
    if (ST_LIKELY(state != NULL))
        return state;
    struct st_verbs_context *context = st_verbs_find(ST_VERBS_HOT, cq->context);
    if (!context || !st_verbs_make_begin(ST_VERBS_MAKE_CQ, cq))
        return NULL;
    state = st_verbs_find(ST_VERBS_HOT, cq);
    if (!state)
        state = cq_created(cq, context);
    st_verbs_make_end(ST_VERBS_MAKE_CQ, cq);
    return state;
}

ST_API struct ibv_cq *ibv_create_cq(struct ibv_context *handle, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector)
{
    ST_VERBS_ENTER(handle, ibv_create_cq, NULL)
    struct ibv_cq *cq =
        ST_VERBS_INSIDE(library->ibv_create_cq(handle, cqe, cq_context, channel, comp_vector));
    if (cq && context)
        cq_created(cq, context);
    return cq;
}

/* What a completion is attributed by must be readable, whether the program wants it or not: asks for
 * it, too. The program's structure ends where its own header says; `comp_mask` tells. False: it has
 * members that are not known here. */
static bool ask_for_more(const struct ibv_cq_init_attr_ex *attr, struct ibv_cq_init_attr_ex *more)
{
    *more = (struct ibv_cq_init_attr_ex){.cqe = attr->cqe,
                                         .cq_context = attr->cq_context,
                                         .channel = attr->channel,
                                         .comp_vector = attr->comp_vector,
                                         .wc_flags = attr->wc_flags,
                                         .comp_mask = attr->comp_mask};
    if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS)
        more->flags = attr->flags;
    if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
        more->parent_domain = attr->parent_domain;
    more->wc_flags |= IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                      IBV_WC_EX_WITH_SRC_QP;
    return !(attr->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD));
}

struct ibv_cq_ex *st_verbs_create_cq_ex(struct ibv_context *handle,
                                        struct ibv_cq_init_attr_ex *attr)
{
    ST_VERBS_ENTER_TABLE(handle, NULL)
    struct ibv_cq_init_attr_ex more;
    struct ibv_cq_ex *cq = NULL;
    if (ask_for_more(attr, &more))
        cq = ST_VERBS_INSIDE(context->create_cq_ex(handle, &more));
    if (!cq)
        cq = ST_VERBS_INSIDE(context->create_cq_ex(handle, attr));
    if (cq) {
        struct st_verbs_cq *made = cq_created(ibv_cq_ex_to_cq(cq), context);
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
    struct st_verbs_cq *state = st_verbs_find(ST_VERBS_HOT, cq);
    int result = library->ibv_destroy_cq(cq);
    int saved = errno;
    if (state && !result) {
        st_verbs_remove(ST_VERBS_HOT, cq, state);
        cq_ended(state, true);
        st_verbs_state_give(state, &cq_pool);
    }
    errno = saved;
    return result;
}

static const char *srq_type_name(enum ibv_srq_type type)
{
    static const char *const names[] = {"basic", "xrc", "tm"};
    return (unsigned)type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown";
}

/* The number that senders name an XRC receive queue by; 0 when it cannot be told. */
static uint32_t number_of(struct ibv_srq *srq)
{
    uint32_t number = 0;
    return ibv_get_srq_num(srq, &number) ? 0 : number;
}

/* Completions of its receives do not name it: where it alone completes, they are known to be its. */
static void completes_at(struct st_verbs_cq *cq, uint32_t number)
{
    bool alone = !__atomic_fetch_add(&cq->xrc_srqs, 1, __ATOMIC_ACQ_REL);
    cq->xrc_mixed = !alone || !number;
    if (alone)
        cq->srqn = number;
}

static void describe_srq(const struct st_verbs_srq *state, struct ibv_srq *srq,
                         const struct ibv_srq_init_attr_ex *attr, struct st_verbs_context *context)
{
    struct st_object o;
    uint32_t pd = st_verbs_pd(attr->pd, context);
    uint32_t xrcd = attr->srq_type == IBV_SRQT_XRC ? st_verbs_xrcd(attr->xrcd, context) : 0;
    uint32_t number = xrcd ? number_of(srq) : 0;
    st_object_begin(&o, "ib_srq", state->id);
    st_object_u64(&o, "device", context->device);
    st_object_u64(&o, "pd", pd);
    st_object_u64(&o, "max_wr", attr->attr.max_wr);
    st_object_str(&o, "srq_type", srq_type_name(attr->srq_type));
    if (xrcd)
        st_object_u64(&o, "xrcd", xrcd);
    if (number)
        st_object_u64(&o, "srqn", number);
    st_object_end(&o);
    if (state->xrc_cq)
        completes_at(state->xrc_cq, number);
}

/* `attr`: its mask has been applied. */
static void srq_created(struct ibv_srq *srq, struct st_verbs_context *context,
                        const struct ibv_srq_init_attr_ex *attr)
{
    int saved = errno;
    struct st_verbs_srq *state = st_verbs_state(srqs, &srq_pool, ST_VERBS_SRQS, sizeof(srqs[0]));
    if (state) {
        *state = (struct st_verbs_srq){
            .taken = 1,
            .id = st_object_id(),
            .xrc_cq = attr->srq_type == IBV_SRQT_XRC && attr->cq ? st_verbs_cq_of(attr->cq) : NULL,
            .post_srq_recv = context->ops.post_srq_recv};
        if (st_verbs_put(ST_VERBS_HOT, srq, state))
            describe_srq(state, srq, attr, context);
        else
            st_verbs_state_give(state, &srq_pool);
    }
    errno = saved;
}

ST_API struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    ST_VERBS_ENTER(pd->context, ibv_create_srq, NULL)
    struct ibv_srq *srq = ST_VERBS_INSIDE(library->ibv_create_srq(pd, attr));
    if (srq && context)
        srq_created(srq, context,
                    &(struct ibv_srq_init_attr_ex){
                        .pd = pd, .srq_type = IBV_SRQT_BASIC, .attr = attr->attr});
    return srq;
}

struct ibv_srq *st_verbs_create_srq_ex(struct ibv_context *handle,
                                       struct ibv_srq_init_attr_ex *attr)
{
    ST_VERBS_ENTER_TABLE(handle, NULL)
    struct ibv_srq *srq = ST_VERBS_INSIDE(context->create_srq_ex(handle, attr));
    struct ibv_srq_init_attr_ex told = {.attr = attr->attr};
#define ST_TOLD(bit, member)                                                                       \
    if (attr->comp_mask & IBV_SRQ_INIT_ATTR_##bit)                                                 \
        told.member = attr->member;
    ST_TOLD(TYPE, srq_type)
    ST_TOLD(PD, pd)
    ST_TOLD(XRCD, xrcd)
    ST_TOLD(CQ, cq)
#undef ST_TOLD
    if (srq)
        srq_created(srq, context, &told);
    return srq;
}

ST_API int ibv_destroy_srq(struct ibv_srq *srq)
{
    struct st_verbs_library *library = st_verbs_library_of(srq->context, ST_CALLER);
    if (!library)
        return ENOSYS;
    struct st_verbs_srq *state = st_verbs_find(ST_VERBS_HOT, srq);
    int result = library->ibv_destroy_srq(srq);
    int saved = errno;
    if (state && !result) {
        st_verbs_remove(ST_VERBS_HOT, srq, state);
        st_object_closed("ib_srq", state->id);
        if (state->xrc_cq)
            __atomic_fetch_sub(&state->xrc_cq->xrc_srqs, 1, __ATOMIC_ACQ_REL);
        st_verbs_state_give(state, &srq_pool);
    }
    errno = saved;
    return result;
}

void st_verbs_queues_forked(void)
{
    for (uint32_t i = 0; i < ST_VERBS_CQS && i < cq_pool.turn; i++) {
        cqs[i].owner = 0;
        for (int what = 0; what < ST_VERBS_POLLS; what++)
            cqs[i].polls[what] = cqs[i].further[what] = 0;
    }
    for (uint32_t i = 0; i < ST_VERBS_SRQS && i < srq_pool.turn; i++)
        srqs[i].posted = 0;
}
