/* One doorbell: stored into the real register, recorded, and told to the copier. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>

#include "repeater.h"

#define VAIN_MOST 10u /* waits for a copier that does not go round in the meantime */

uint32_t st_hurry;
uint32_t st_patience_us = 1000;

static bool behind; /* the copier: there was no room to tell it of some QP */
static uint64_t late_beat; /* its round in which it was waited for in vain, */
static uint32_t vain;      /* and how often */

static bool tell_copier(struct st_gpu_qp *qp, uint64_t index, uint64_t t_tsc)
{
    return st_queue_put(&st_to_copier,
                        &(struct st_message){.qp = (uint32_t)(qp - st_gpu_qps),
                                             .life = qp->life,
                                             .kind = ST_RUNG,
                                             .index = index,
                                             .t_tsc = t_tsc});
}

static void publish(struct st_gpu_qp *qp, uint64_t index, uint64_t t_tsc)
{
    if (!qp->behind && tell_copier(qp, index, t_tsc))
        return;
    if (qp->behind)
        st_lost("gpu: time of a doorbell: its slots have that of a later one", 1);
    qp->behind = behind = true;
}

void st_forward_catch_up(void)
{
    if (__builtin_expect(!behind, 1))
        return;
    behind = false;
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++) {
        struct st_gpu_qp *qp = &st_gpu_qps[i];
        if (!qp->behind || qp->left)
            continue;
        qp->behind = !tell_copier(qp, qp->forwarded, qp->t_tsc);
        behind |= qp->behind;
    }
}

/* Until the copier is so far. One that stands still is not waited for again and again. */
static uint32_t await(const uint64_t *mark, uint64_t wanted)
{
    uint64_t until = st_now() + st_patience_us * st_tsc_per_us, beat = ST_LOAD(&st_copier_beat);
    if (beat != late_beat)
        vain = 0;
    if (vain == VAIN_MOST)
        return ST_DOORBELL_LATE;
    ST_ADD(&st_hurry, 1);
    for (uint32_t rounds = 1; ST_LOAD(mark) < wanted; rounds++) {
        if (st_now() > until) {
            late_beat = ST_LOAD(&st_copier_beat);
            vain++;
            return ST_DOORBELL_WAITED | ST_DOORBELL_LATE;
        }
        if (rounds % 256)
            _mm_pause();
        else
            sched_yield();
    }
    return ST_DOORBELL_WAITED;
}

/* What has to be done before this index may be forwarded; the copier knows of it by then. */
static uint32_t wait_for_copier(struct st_gpu_qp *qp, uint64_t index, uint64_t t_tsc)
{
    uint64_t half = qp->made.sq_slots / 2, wanted = index > half ? index - half : 0;
    const uint64_t *mark = &qp->copied;
    if (st_gpu_config.order != ST_FORWARD_FIRST) {
        mark = st_gpu_config.order == ST_COPY_FIRST ? &qp->started : &qp->copied;
        wanted = index;
    }
    if (ST_LOAD(mark) >= wanted)
        return 0;
    publish(qp, index, t_tsc);
    return await(mark, wanted);
}

/* Nonzero bytes after the first eight: a store of 64. They are nobody else's. */
static uint32_t take_blueflame(volatile uint64_t *word)
{
    uint64_t any = 0;
    for (uint32_t i = 1; i < 8; i++)
        any |= word[i];
    for (uint32_t i = 1; any && i < 8; i++)
        word[i] = 0;
    return any ? ST_DOORBELL_BLUEFLAME : 0;
}

static void record(const struct st_register *at, const struct st_gpu_qp *qp, uint64_t value,
                   uint32_t slots, uint32_t flags, uint64_t t_tsc, uint64_t done_tsc)
{
    if (st_mode() < ST_MODE_SIMPLE)
        return;
    st_doorbell(&(struct st_doorbell_record){.t_tsc = t_tsc,
                                             .value = value,
                                             .index = qp ? qp->forwarded : 0,
                                             .uar = at->uar,
                                             .qp = qp ? qp->stream.object : 0,
                                             .slots = slots,
                                             .delay_tsc = st_span(t_tsc, done_tsc),
                                             .flags = flags});
}

static void store(struct st_register *at, uint32_t half, uint64_t value)
{
    *st_half(at->real, half) = value;
    _mm_sfence(); /* the real one may be write-combining */
}

void st_forward(struct st_gpu_qp *qp, struct st_register *at, uint32_t half, uint64_t value,
                uint32_t slots, uint32_t flags, uint64_t t_tsc)
{
    uint64_t index = qp->forwarded + slots;
    uint32_t waited = slots && qp->ring ? wait_for_copier(qp, index, t_tsc) : 0;
    store(at, half, value);
    uint64_t done_tsc = st_now();
    flags |= waited | (half ? ST_DOORBELL_ALTERNATE : 0);
    if (slots && !qp->ring)
        flags |= ST_DOORBELL_NOT_READ;
    qp->value = value;
    qp->t_tsc = t_tsc;
    qp->synthesized = flags & ST_DOORBELL_SYNTHESIZED;
    ST_STORE(&qp->doorbells, qp->doorbells + 1);
    ST_STORE(&qp->forwarded, index);
    if (slots && !waited)
        publish(qp, index, t_tsc);
    if (!(flags & ST_DOORBELL_SYNTHESIZED))
        flags |= take_blueflame(st_half(at->shadow, half));
    record(at, qp, value, slots, flags, t_tsc, done_tsc);
}

void st_forward_unknown(struct st_register *at, uint32_t half, uint64_t value, uint64_t t_tsc)
{
    store(at, half, value);
    record(at, NULL, value, 0, ST_DOORBELL_NOT_READ | (half ? ST_DOORBELL_ALTERNATE : 0), t_tsc,
           st_now());
}
