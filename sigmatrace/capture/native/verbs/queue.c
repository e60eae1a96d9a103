/* Completion queues and shared receive queues: created, destroyed. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "requests.h"

static struct st_verbs_pool cq_pool = {.size = sizeof(struct st_verbs_cq), .most = ST_VERBS_CQS};
static struct st_verbs_pool srq_pool = {.size = sizeof(struct st_verbs_srq),
                                        .most = ST_VERBS_SRQS};

static void describe_cq(const struct st_verbs_cq *state)
{
    struct st_object o;
    uint32_t channel = st_verbs_channel(state->handle->channel, state->context);
    st_object_begin(&o, "ib_cq", state->id);
    st_object_u64(&o, "device", state->context->device);
    st_object_u64(&o, "cqe", (unsigned)state->handle->cqe);
    if (channel)
        st_object_u64(&o, "channel", channel);
    st_object_end(&o);
}

uint32_t st_verbs_cq_id(struct st_verbs_cq *state)
{
    if (state && !st_verbs_told(&state->life)) {
        st_verbs_context_known(state->context->handle);
        describe_cq(state);
    }
    return state ? state->id : 0;
}

static struct st_verbs_cq *cq_created(struct ibv_cq *cq, struct st_verbs_context *context)
{
    int saved = errno;
    struct st_verbs_cq *state = st_verbs_state(&cq_pool);
    if (state) {
        *state = (struct st_verbs_cq){.taken = 1,
                                      .id = st_object_id(),
                                      .life = st_verbs_life,
                                      .handle = cq,
                                      .context = context,
                                      .poll_cq = context->ops.poll_cq};
        if (st_verbs_put(ST_VERBS_HOT, cq, state)) {
            describe_cq(state);
        } else {
            st_verbs_state_give(state, &cq_pool);
            state = NULL;
        }
    }
    if (!state)
        st_verbs_leave_out(cq);
    errno = saved;
    return state;
}

static uint64_t polls_of(const struct st_verbs_cq *state, enum st_verbs_poll what)
{
    return state->polls[what] + state->further[what];
}

/* `closed`: it is not there any more. What a child inherited and did not use is not its own. */
static void cq_ended(struct st_verbs_cq *state, bool closed)
{
    struct st_object o;
    bool used = polls_of(state, ST_VERBS_POLL_EMPTY) || polls_of(state, ST_VERBS_POLL_SOME) ||
                polls_of(state, ST_VERBS_POLL_FAILED);
    if (state->life != st_verbs_life && (closed || !used))
        return;
    st_verbs_cq_id(state);
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
    struct st_verbs_cq *cq;
    for (uint32_t i = 0; st_verbs_on && st_verbs_full && (cq = st_verbs_state_at(&cq_pool, i)); i++)
        if (__atomic_load_n(&cq->taken, __ATOMIC_ACQUIRE))
            cq_ended(cq, false);
}

struct st_verbs_cq *st_verbs_cq_of(struct ibv_cq *cq)
{
    struct st_verbs_cq *state = st_verbs_find(ST_VERBS_HOT, cq);
    if (ST_LIKELY(state != NULL))
        return state;
    struct st_verbs_context *context = st_verbs_context_known(cq->context);
    if (!context || st_verbs_left_out(cq) || !st_verbs_make_begin(ST_VERBS_MAKE_CQ, cq))
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
    } else if (!result) {
        st_verbs_left_out_ended(cq);
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

static void describe_srq(const struct st_verbs_srq *state)
{
    struct st_object o;
    const struct ibv_srq_init_attr_ex *attr = &state->attr;
    bool xrc = attr->srq_type == IBV_SRQT_XRC;
    uint32_t pd = st_verbs_pd(attr->pd, state->context);
    uint32_t xrcd = xrc ? st_verbs_xrcd(attr->xrcd, state->context) : 0;
    uint32_t number = xrc ? number_of(state->handle) : 0;
    st_object_begin(&o, "ib_srq", state->id);
    st_object_u64(&o, "device", state->context->device);
    st_object_u64(&o, "pd", pd);
    st_object_u64(&o, "max_wr", attr->attr.max_wr);
    st_object_str(&o, "srq_type", srq_type_name(attr->srq_type));
    if (xrcd)
        st_object_u64(&o, "xrcd", xrcd);
    if (number)
        st_object_u64(&o, "srqn", number);
    st_object_end(&o);
}

uint32_t st_verbs_srq_id(struct st_verbs_srq *state)
{
    if (state && ST_UNLIKELY(!st_verbs_told(&state->life))) {
        st_verbs_context_known(state->context->handle);
        describe_srq(state);
    }
    return state ? state->id : 0;
}

/* Kept from a former queue of this state, and empty. */
static uint64_t *nothing_seen(uint64_t *former)
{
    size_t bytes = (1u << ST_VERBS_SHARED_BITS) / 8;
    if (former)
        return memset(former, 0, bytes);
    void *p = st_verbs_full ? mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                            : MAP_FAILED;
    return p == MAP_FAILED ? NULL : p;
}

/* `attr`: its mask has been applied. */
static void srq_created(struct ibv_srq *srq, struct st_verbs_context *context,
                        const struct ibv_srq_init_attr_ex *attr)
{
    int saved = errno;
    struct st_verbs_srq *state = st_verbs_state(&srq_pool);
    if (state) {
        *state = (struct st_verbs_srq){
            .taken = 1,
            .id = st_object_id(),
            .life = st_verbs_life,
            .handle = srq,
            .context = context,
            .attr = *attr,
            .xrc_cq = attr->srq_type == IBV_SRQT_XRC && attr->cq ? st_verbs_cq_of(attr->cq) : NULL,
            .seen = nothing_seen(state->seen),
            .post_srq_recv = context->ops.post_srq_recv};
        if (st_verbs_put(ST_VERBS_HOT, srq, state)) {
            describe_srq(state);
            if (state->xrc_cq)
                completes_at(state->xrc_cq, number_of(srq));
        } else {
            st_verbs_state_give(state, &srq_pool);
        }
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
        if (state->life == st_verbs_life)
            st_object_closed("ib_srq", state->id, st_now());
        if (state->xrc_cq)
            __atomic_fetch_sub(&state->xrc_cq->xrc_srqs, 1, __ATOMIC_ACQ_REL);
        st_verbs_state_give(state, &srq_pool);
    }
    errno = saved;
    return result;
}

void st_verbs_queues_forked(void)
{
    struct st_verbs_cq *cq;
    struct st_verbs_srq *srq;
    for (uint32_t i = 0; (cq = st_verbs_state_at(&cq_pool, i)); i++) {
        cq->owner = 0;
        for (int what = 0; what < ST_VERBS_POLLS; what++)
            cq->polls[what] = cq->further[what] = 0;
    }
    for (uint32_t i = 0; (srq = st_verbs_state_at(&srq_pool, i)); i++)
        srq->posted = 0;
}
