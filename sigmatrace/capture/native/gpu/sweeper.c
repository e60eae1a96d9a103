/* The sweeper: takes a doorbell out of its shadow, stores it into the real register, tells the
 * copier. It is the only writer of real registers, and waits for nobody but, within limits, the copier. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <sys/prctl.h>

#include "repeater.h"

#define BUSY_US 20u       /* after a doorbell, the CPU is not given to others */
#define LOOK_US 2u        /* longest wait for a store: there is other work as well */
#define YIELD_ROUNDS 32u

uint64_t st_sweeper_beat;

static struct st_register *active[ST_REGISTERS];
static uint32_t active_count;
static uint64_t last_ring;

static struct st_gpu_qp *find(struct st_register *at, uint32_t qpn)
{
    struct st_gpu_qp *qp = at->recent;
    if (qp && qp->stream.qpn == qpn && qp->at == at)
        return qp;
    qp = st_gpu_qp_find(at, qpn);
    if (qp && qp->at != at) { /* of a register on the same page: now it is known better */
        if (qp->at)
            __atomic_sub_fetch(&qp->at->qps, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&at->qps, 1, __ATOMIC_RELAXED);
        ST_STORE(&qp->at, at);
    }
    return at->recent = qp;
}

static void ring(struct st_register *at, uint32_t half, uint64_t value)
{
    uint64_t t_tsc = last_ring = st_now();
    struct st_doorbell_value said = st_doorbell_decode(value);
    struct st_gpu_qp *qp = find(at, said.qpn);
    at->alternates |= half;
    if (!qp) {
        st_forward_unknown(at, half, value, t_tsc);
        return;
    }
    if (ST_LOAD(&at->qps) > 1)
        ST_STORE(&st_changed, 1);
    uint16_t slots = (uint16_t)(said.index - (uint16_t)qp->forwarded);
    if (slots > ST_RING_SLOTS_MAX) {
        if (qp->synthesized) /* a newer one was forwarded from the doorbell record */
            return;
        st_lost("gpu: doorbell whose index went back", 1);
        slots = 0;
    }
    bool again = !slots && value == qp->value;
    st_forward(qp, at, half, value, slots, again ? ST_DOORBELL_AGAIN : 0, t_tsc);
}

/* A doorbell, and 0 (which none is) in its place: so one that comes later is seen, even if it is
 * equal, and none is lost. A line that nobody stores to stays shared. */
static uint64_t take(volatile uint64_t *word)
{
    return *word ? __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL) : 0;
}

/* Are both of one queue pair, the first one before the other? */
static bool precedes(uint64_t value, uint64_t other)
{
    struct st_doorbell_value a = st_doorbell_decode(value), b = st_doorbell_decode(other);
    return value && other && a.qpn == b.qpn && (int16_t)(uint16_t)(a.index - b.index) < 0;
}

/* Both halves may have been used between two looks: the older index first. A store to the first
 * half that came before one seen in the second is there by then. */
static void sweep(struct st_register *at)
{
    uint64_t first = take(at->shadow), second = take(st_half(at->shadow, 1));
    if (__builtin_expect(!first && !second, 1))
        return;
    if (precedes(second, first)) {
        ring(at, 1, second);
        second = 0;
    }
    if (first)
        ring(at, 0, first);
    if (!second)
        return;
    uint64_t late = *at->shadow;
    if (precedes(late, second) && __atomic_compare_exchange_n(at->shadow, &late, 0, false,
                                                              __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ring(at, 0, late);
    ring(at, 1, second);
}

/* --- what others ask for ---------------------------------------------------------------------------- */

/* The next free index, as a doorbell of the dialect that needs no more. */
static uint64_t doorbell_of(uint32_t qpn, uint16_t index)
{
    return __builtin_bswap32((uint32_t)index << 8) |
           (uint64_t)__builtin_bswap32(qpn << 8) << 32;
}

/* The copier has read a doorbell record. */
static void answer(const struct st_message *message)
{
    struct st_gpu_qp *qp = &st_gpu_qps[message->qp];
    uint32_t state = ST_LOAD(&qp->state);
    if (qp->life != message->life || (state != ST_ACTIVE && state != ST_ENDING) || !qp->at ||
        ST_LOAD(&qp->at->state) != ST_ACTIVE)
        return;
    uint16_t ahead = (uint16_t)(message->index16 - (uint16_t)qp->forwarded);
    uint32_t most = qp->made.sq_slots ? qp->made.sq_slots : ST_RING_SLOTS_MAX;
    if (ahead && ahead <= most && ST_LOAD(&qp->at->qps) > 1)
        st_forward(qp, qp->at, 0, doorbell_of(qp->made.qpn, (uint16_t)message->index16),
                   ahead, ST_DOORBELL_SYNTHESIZED, st_now());
}

static void answer_all(void)
{
    struct st_message message;
    while (st_queue_take(&st_to_sweeper, &message))
        answer(&message);
}

/* After a last look; false: the copier could not be told, and will be. */
static bool leave(struct st_gpu_qp *qp)
{
    struct st_register *at = qp->at;
    answer_all(); /* its record was read before it was to end */
    if (at)
        sweep(at);
    struct st_message message = {.qp = (uint32_t)(qp - st_gpu_qps),
                                 .life = qp->life,
                                 .kind = ST_LEFT,
                                 .index = qp->forwarded,
                                 .t_tsc = qp->t_tsc};
    st_gpu_qp_hide(qp);
    for (uint32_t i = 0; i < active_count; i++)
        if (active[i]->recent == qp)
            active[i]->recent = NULL;
    if (at)
        __atomic_sub_fetch(&at->qps, 1, __ATOMIC_RELAXED);
    ST_STORE(&qp->at, NULL);
    bool told = st_queue_put(&st_to_copier, &message);
    ST_STORE(&qp->left, told);
    return told;
}

static void end_register(struct st_register *at)
{
    sweep(at);
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++)
        if (st_gpu_qps[i].at == at)
            ST_STORE(&st_gpu_qps[i].at, NULL);
    if (!st_swap_state(&at->state, ST_ENDING, ST_ENDED))
        ST_STORE(&at->state, ST_FREE);
}

/* False: not all could be done, look again. */
static bool attend(void)
{
    bool all = true;
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++) {
        uint32_t state = ST_LOAD(&st_gpu_qps[i].state);
        if ((state == ST_ENDING || state >= ST_ABANDONED) && !st_gpu_qps[i].left)
            all &= leave(&st_gpu_qps[i]);
    }
    active_count = 0;
    for (uint32_t i = 0; i < ST_LOAD(&st_registers_used); i++) {
        uint32_t state = ST_LOAD(&st_registers[i].state);
        if (state == ST_ENDING || state == ST_ABANDONED)
            end_register(&st_registers[i]);
        else if (state == ST_ACTIVE)
            active[active_count++] = &st_registers[i];
    }
    return all;
}

/* --- the thread ------------------------------------------------------------------------------------- */

/* Nothing has changed. One word alone can be waited for; others are looked at again and again. */
static void rest(uint64_t round)
{
    uint64_t now = st_now();
    if (!active_count)
        st_nap(50);
    else if (now - last_ring > BUSY_US * st_tsc_per_us && round % YIELD_ROUNDS == 0)
        sched_yield();
    else if (active_count == 1 && !active[0]->alternates)
        st_monitor_wait(active[0]->shadow, 0, now + LOOK_US * st_tsc_per_us);
    else
        _mm_pause();
}

void *st_sweeper_run(void *nothing)
{
    uint32_t attended = UINT32_MAX;
    st_own_thread();
    prctl(PR_SET_NAME, "st-doorbell");
    for (uint64_t round = 1;; round++) {
        uint64_t before = last_ring;
        uint32_t attention = ST_LOAD(&st_attention);
        if (__builtin_expect(attention != attended, 0))
            attended = attend() ? attention : attended;
        for (uint32_t i = 0; i < active_count; i++)
            sweep(active[i]);
        answer_all();
        st_forward_catch_up();
        ST_STORE(&st_sweeper_beat, round);
        if (before == last_ring)
            rest(round);
    }
    return nothing;
}
