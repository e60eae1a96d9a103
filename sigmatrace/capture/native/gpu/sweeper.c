/* The sweeper: takes a doorbell out of its shadow, stores it into the real register, tells the
 * copier. It is the only writer of real registers, and waits for nobody: a doorbell that has to wait
 * for the copier is tried again in the next round. Only what ends is waited for, within limits. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <sys/prctl.h>

#include "repeater.h"

#define BUSY_US 20u       /* after a doorbell, the CPU is not given to others */
#define LOOK_US 2u        /* longest wait for a store: there is other work as well */
#define YIELD_ROUNDS 32u

struct st_beat st_sweeper_beat;
uint32_t st_sweeper_waits;

static struct st_register *active[ST_REGISTERS];
static uint32_t active_count;
static uint64_t last_ring;

static struct st_gpu_qp *find(struct st_register *at, uint32_t qpn)
{
    struct st_gpu_qp *qp = at->recent;
    if (qp && qp->stream.qpn == qpn)
        return qp;
    return at->recent = st_gpu_qp_find(at, qpn);
}

/* Its own store came to this register: until then that was a guess. */
static void prove(struct st_gpu_qp *qp, struct st_register *at)
{
    bool moved = qp->at != at;
    if (__builtin_expect(!moved && qp->binding != ST_GUESSED, 1))
        return;
    if (moved) {
        if (qp->at)
            ST_ADD(&qp->at->qps, -1u);
        ST_ADD(&at->qps, 1);
        ST_STORE(&qp->at, at);
    }
    if (qp->binding == ST_GUESSED) {
        qp->binding = ST_PROVEN;
        ST_ADD(&qp->page->unproven, -1u);
    } else if (qp->binding == ST_PROVEN) {
        qp->binding = ST_ROAMING;
        ST_ADD(&qp->page->unproven, 1);
    }
}

static void ring_unknown(struct st_register *at, const struct st_seen *seen)
{
    st_forward_unknown(at, seen);
    st_lost("gpu: doorbell of a queue pair that is not known", 1);
    if (!at->strangers) {
        at->strangers = true;
        ST_ADD(&at->qps, 1);
        ST_ADD(&at->of->qps, 1);
    }
    ST_STORE(&st_changed, 1);
}

/* False: it has to wait. */
static bool ring(struct st_register *at, const struct st_seen *seen)
{
    struct st_doorbell_value said = st_doorbell_decode(seen->value);
    struct st_gpu_qp *qp = find(at, said.qpn);
    uint32_t flags = seen->flags;
    if (!qp) {
        ring_unknown(at, seen);
        return true;
    }
    if (!(flags & ST_DOORBELL_SYNTHESIZED))
        prove(qp, at);
    uint16_t slots = (uint16_t)(said.index - (uint16_t)qp->forwarded);
    if (slots > ST_RING_SLOTS_MAX && qp->synthesized) {
        st_lost("gpu: doorbell not forwarded: one made of a newer doorbell record came before", 1);
        return true;
    }
    if (slots > ST_RING_SLOTS_MAX) {
        st_lost("gpu: doorbell whose index went back", 1);
        slots = 0;
    } else if (!slots) {
        flags |= ST_DOORBELL_AGAIN;
    }
    if (!st_forward(qp, at, seen, slots, flags))
        return false;
    if (st_gpu_qp_shares(qp, at))
        ST_STORE(&st_changed, 1);
    return true;
}

/* Forwards what was taken, in order; what must wait for the copier is tried again by the next sweep,
 * and keeps back what came to this register after it, but no other register. */
static void pass(struct st_register *at)
{
    while (at->seen_first < at->seen_count && ring(at, &at->seen[at->seen_first])) {
        at->seen_first++;
        at->until_tsc = 0;
    }
    if (at->seen_first == at->seen_count)
        at->seen_first = at->seen_count = 0;
}

static void put(struct st_register *at, uint32_t half, uint64_t value, uint32_t flags)
{
    at->seen[at->seen_count++] =
        (struct st_seen){.value = value, .t_tsc = last_ring = st_now(), .half = half, .flags = flags};
    at->alternates |= half;
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
static void take_both(struct st_register *at)
{
    uint64_t first = take(at->shadow), second = take(st_half(at->shadow, 1)), late;
    if (__builtin_expect(!first && !second, 1))
        return;
    if (precedes(second, first)) {
        put(at, 1, second, 0);
        second = 0;
    }
    if (first)
        put(at, 0, first, 0);
    if (!second)
        return;
    late = *at->shadow;
    if (precedes(late, second) && __atomic_compare_exchange_n(at->shadow, &late, 0, false,
                                                              __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        put(at, 0, late, 0);
    put(at, 1, second, 0);
}

/* True: a doorbell waits. */
static bool sweep(struct st_register *at)
{
    if (!at->seen_count)
        take_both(at);
    if (__builtin_expect(at->seen_count, 0))
        pass(at);
    return at->seen_count;
}

/* Does not return before nothing waits: after as long as one waits at most. */
static void drain(struct st_register *at)
{
    for (uint32_t rounds = 1; at->seen_count; rounds++) {
        pass(at);
        if (rounds % 256)
            _mm_pause();
        else
            sched_yield();
    }
}

/* A last look. */
static void sweep_all(struct st_register *at)
{
    drain(at);
    sweep(at);
    drain(at);
}

/* --- what others ask for ---------------------------------------------------------------------------- */

/* The next free index, as a doorbell of the dialect that needs no more. */
static uint64_t doorbell_of(uint32_t qpn, uint16_t index)
{
    return __builtin_bswap32((uint32_t)index << 8) |
           (uint64_t)__builtin_bswap32(qpn << 8) << 32;
}

/* A doorbell of what the record told, unless its own has come. */
static void synthesize(struct st_gpu_qp *qp)
{
    if (qp->told <= qp->forwarded)
        return;
    if (!qp->proof)
        st_lost("gpu: doorbell made of a record which no ring could prove", 1);
    put(qp->at, 0, doorbell_of(qp->made.qpn, (uint16_t)qp->told), ST_DOORBELL_SYNTHESIZED);
    pass(qp->at);
}

/* The copier has read a doorbell record. Where another doorbell waits, it will read it again, or this
 * is the last of this QP. */
static void answer(const struct st_message *message)
{
    struct st_gpu_qp *qp = &st_gpu_qps[message->qp];
    uint32_t state = ST_LOAD(&qp->state);
    if (qp->life != message->life || (state != ST_ACTIVE && state != ST_ENDING) || !qp->at ||
        ST_LOAD(&qp->at->state) != ST_ACTIVE || qp->at->of != qp->page)
        return;
    bool waits = sweep(qp->at); /* its own may have come before the record was read */
    uint16_t ahead = (uint16_t)(message->index16 - (uint16_t)qp->forwarded);
    if (!ahead || ahead > ST_RING_SLOTS_MAX || !st_gpu_qp_shares(qp, qp->at))
        return;
    qp->told = qp->forwarded + ahead;
    if (!waits)
        synthesize(qp);
}

static void answer_all(void)
{
    struct st_message message;
    while (st_queue_take(&st_to_sweeper, &message))
        answer(&message);
}

/* A last look; from now on its doorbells are nobody's. */
static void part(struct st_gpu_qp *qp)
{
    answer_all(); /* its record was read before it was to end */
    if (qp->at) {
        sweep_all(qp->at);
        synthesize(qp);
        drain(qp->at);
    }
    st_gpu_qp_hide(qp);
    for (uint32_t i = 0; i < active_count; i++)
        if (active[i]->recent == qp)
            active[i]->recent = NULL;
    if (qp->at)
        ST_ADD(&qp->at->qps, -1u);
    ST_STORE(&qp->at, NULL);
    if (qp->binding != ST_PROVEN)
        ST_ADD(&qp->page->unproven, -1u);
    ST_ADD(&qp->page->qps, -1u);
    qp->parted = true;
}

/* False: the copier could not be told, and will be. */
static bool leave(struct st_gpu_qp *qp)
{
    if (!qp->parted)
        part(qp);
    struct st_message message = {.qp = (uint32_t)(qp - st_gpu_qps),
                                 .life = qp->life,
                                 .kind = ST_LEFT,
                                 .doorbell = {.index = qp->forwarded, .t_tsc = qp->t_tsc}};
    bool told = st_queue_put(&st_to_copier, &message);
    ST_STORE(&qp->left, told);
    return told;
}

/* Its register goes: it may ring on another one of the page, now or later. */
static void move(struct st_gpu_qp *qp, struct st_register *to)
{
    if (to)
        ST_ADD(&to->qps, 1);
    ST_STORE(&qp->at, to);
    if (qp->binding == ST_PROVEN)
        ST_ADD(&qp->page->unproven, 1);
    if (qp->binding == ST_PROVEN)
        qp->binding = ST_GUESSED;
}

static void end_register(struct st_register *at)
{
    sweep_all(at);
    struct st_register *other = st_register_beside((void *)(uintptr_t)at->real);
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++)
        if (st_gpu_qps[i].at == at)
            move(&st_gpu_qps[i], other);
    if (at->strangers)
        ST_ADD(&at->of->qps, -1u);
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
    else if (active_count == 1 && !active[0]->alternates && !active[0]->seen_count)
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
        bool waits = false;
        for (uint32_t i = 0; i < active_count; i++)
            waits |= sweep(active[i]);
        ST_STORE(&st_sweeper_waits, waits);
        answer_all();
        st_forward_catch_up();
        ST_STORE(&st_sweeper_beat.rounds, round);
        if (before == last_ring)
            rest(round);
    }
    return nothing;
}
