/* One doorbell: stored into the real register, and told to the copier, which records it: whoever
 * records may have to write to a file, and the next doorbell would wait for that. */
#define _GNU_SOURCE
#include <immintrin.h>

#include "repeater.h"

#define VAIN_MOST 10u /* waits for a copier that does not go round in the meantime */

uint32_t st_hurry;
uint32_t st_patience_us = 1000;

static bool behind; /* the copier: there was no room to tell it of some QP */
static uint64_t late_beat; /* its round in which it was waited for in vain, */
static uint32_t vain;      /* and how often */

static bool tell_copier(const struct st_gpu_qp *qp, uint32_t kind,
                        const struct st_doorbell_record *doorbell)
{
    return st_queue_put(&st_to_copier, &(struct st_message){.qp = (uint32_t)(qp - st_gpu_qps),
                                                            .life = qp->life,
                                                            .kind = kind,
                                                            .doorbell = *doorbell});
}

static void not_recorded(void)
{
    if (st_mode() >= ST_MODE_SIMPLE)
        st_lost("gpu: doorbell that was forwarded, but of which the copier could not be told", 1);
}

/* Of a forwarded doorbell; where there is no room, of its slots later. */
static void publish(struct st_gpu_qp *qp, const struct st_doorbell_record *doorbell)
{
    bool told = tell_copier(qp, ST_RUNG, doorbell);
    if (qp->behind)
        st_lost("gpu: time of a doorbell: its slots have that of a later one", 1);
    if (!told)
        not_recorded();
    qp->behind = !told && (qp->behind || doorbell->slots);
    behind |= qp->behind;
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
        qp->behind = !tell_copier(qp, ST_AHEAD,
                                  &(struct st_doorbell_record){.index = qp->forwarded,
                                                               .t_tsc = qp->t_tsc});
        behind |= qp->behind;
    }
}

/* What has to be done before this index may be forwarded. */
static bool is_copied(const struct st_gpu_qp *qp, uint64_t index)
{
    uint64_t half = qp->made.sq_slots / 2;
    switch (st_gpu_config.order) {
    case ST_COPY_FIRST:
        return ST_LOAD(&qp->started) >= index;
    case ST_COPY_SYNC:
        return ST_LOAD(&qp->copied) >= index;
    default:
        return index <= half || ST_LOAD(&qp->copied) >= index - half;
    }
}

/* False: wait. A copier that stands still is not waited for again and again. */
static bool may_pass(struct st_gpu_qp *qp, struct st_register *at, uint64_t index, uint64_t t_tsc,
                     uint32_t *flags)
{
    uint64_t beat = ST_LOAD(&st_copier_beat.rounds);
    if (is_copied(qp, index)) {
        *flags |= at->until_tsc ? ST_DOORBELL_WAITED : 0;
        return true;
    }
    if (at->until_tsc) {
        if (st_now() < at->until_tsc)
            return false;
        vain = beat == late_beat ? vain + 1 : 1;
        late_beat = beat;
        *flags |= ST_DOORBELL_WAITED | ST_DOORBELL_LATE;
        return true;
    }
    /* Where there is no room to tell, the doorbell itself will. */
    tell_copier(qp, ST_AHEAD, &(struct st_doorbell_record){.index = index, .t_tsc = t_tsc});
    if (vain >= VAIN_MOST && beat == late_beat) {
        *flags |= ST_DOORBELL_LATE;
        return true;
    }
    at->until_tsc = st_now() + st_patience_us * st_tsc_per_us;
    ST_ADD(&st_hurry, 1);
    return false;
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

static void store(struct st_register *at, uint32_t half, uint64_t value)
{
    *st_half(at->real, half) = value;
    _mm_sfence(); /* the real one may be write-combining */
}

bool st_forward(struct st_gpu_qp *qp, struct st_register *at, const struct st_seen *seen,
                uint32_t slots, uint32_t flags)
{
    uint64_t index = qp->forwarded + slots;
    if (slots && qp->ring && !may_pass(qp, at, index, seen->t_tsc, &flags))
        return false;
    store(at, seen->half, seen->value);
    uint64_t done_tsc = st_now();
    flags |= seen->half ? ST_DOORBELL_ALTERNATE : 0;
    if (slots && !qp->ring)
        flags |= ST_DOORBELL_NOT_READ;
    qp->t_tsc = seen->t_tsc;
    qp->synthesized = flags & ST_DOORBELL_SYNTHESIZED;
    ST_STORE(&qp->doorbells, qp->doorbells + 1);
    ST_STORE(&qp->forwarded, index);
    if (!(flags & ST_DOORBELL_SYNTHESIZED))
        flags |= take_blueflame(st_half(at->shadow, seen->half));
    publish(qp, &(struct st_doorbell_record){.t_tsc = seen->t_tsc,
                                             .value = seen->value,
                                             .index = index,
                                             .uar = at->uar,
                                             .qp = qp->stream.object,
                                             .slots = slots,
                                             .delay_tsc = st_span(seen->t_tsc, done_tsc),
                                             .flags = flags});
    return true;
}

void st_forward_unknown(struct st_register *at, const struct st_seen *seen)
{
    store(at, seen->half, seen->value);
    struct st_message message = {
        .kind = ST_STRANGER,
        .doorbell = {.t_tsc = seen->t_tsc,
                     .value = seen->value,
                     .uar = at->uar,
                     .delay_tsc = st_span(seen->t_tsc, st_now()),
                     .flags = ST_DOORBELL_NOT_READ | (seen->half ? ST_DOORBELL_ALTERNATE : 0)}};
    if (!st_queue_put(&st_to_copier, &message))
        not_recorded();
}
