/* The copier: takes what the sweeper forwarded, copies the slots of many doorbells at a time, and
 * records them. It is the one thread that makes operations, so their ordinals are in order. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>

#include "repeater.h"

#define JOBS 1024u
#define GATHER_SHARE 4u /* of a ring: so much is gathered */
#define GATHER_US 1000u
#define BUSY_US 20u /* after a doorbell, the CPU is not given to others, */
#define AWAKE_US 100u /* and it does not sleep */
#define NAP_US 40u
#define LAST_US 1000000u /* between two looks for threads of the program */

struct st_beat st_copier_beat;
uint64_t st_copier_done;

/* The slots of one doorbell. */
struct job {
    struct st_gpu_qp *qp;
    uint64_t first, t_tsc, at; /* at: in the source's buffer */
    uint32_t count;
    uint32_t missing; /* of them, the first ones are not in the buffer */
};
static struct job jobs[JOBS];
static uint32_t job_count, started_count, gathered; /* gathered: slots */
static bool enough;                                 /* of some ring */
static uint64_t gathered_tsc;                       /* the first of them */
static uint32_t part_round;

static void beat(void)
{
    ST_STORE(&st_copier_beat.rounds, st_copier_beat.rounds + 1);
}

/* --- copying ----------------------------------------------------------------------------------------- */

/* Copies the QP's part of this round. */
static bool copy_part(struct st_gpu_qp *qp)
{
    qp->part_at = st_source_room(qp->ring, (uint64_t)qp->part_count * ST_GPU_SLOT_BYTES);
    return qp->part_at != UINT64_MAX &&
           st_ring_start(qp, qp->ring, qp->part_at, qp->part_first, qp->part_count);
}

/* What all jobs of a QP take from its ring, in a row. */
static void gather_parts(void)
{
    part_round++;
    for (uint32_t i = started_count; i < job_count; i++) {
        struct st_gpu_qp *qp = jobs[i].qp;
        if (qp->part_round != part_round)
            qp->part_first = jobs[i].first;
        qp->part_round = part_round;
        qp->part_count = (uint32_t)(jobs[i].first + jobs[i].count - qp->part_first);
        if (qp->part_count > qp->made.sq_slots) {
            qp->part_first += qp->part_count - qp->made.sq_slots;
            qp->part_count = qp->made.sq_slots;
        }
        qp->part_at = UINT64_MAX;
    }
}

/* Starts to copy what was gathered since the last start. */
static void start(void)
{
    gather_parts();
    for (uint32_t i = started_count; i < job_count; i++) {
        struct job *job = &jobs[i];
        struct st_gpu_qp *qp = job->qp;
        uint64_t end = qp->part_first + qp->part_count;
        if (qp->started < end) {
            if (!copy_part(qp))
                qp->part_count = 0;
            ST_STORE(&qp->started, end);
        }
        end = job->first + job->count;
        job->missing = !qp->part_count              ? job->count
                       : job->first >= qp->part_first ? 0
                       : end <= qp->part_first        ? job->count
                                                : (uint32_t)(qp->part_first - job->first);
        job->at = qp->part_at + (job->first + job->missing - qp->part_first) *
                                      ST_GPU_SLOT_BYTES;
    }
    started_count = job_count;
}

static void count_missing(struct st_gpu_qp *qp, uint64_t count)
{
    ST_STORE(&qp->missing, qp->missing + count);
    if (count)
        st_lost("gpu: slots not copied in time, or whose copy failed", count);
}

/* What the program was told of as not read is not recorded any more: `reading`, then the state,
 * here; the state, then `reading`, there. */
static void record(const struct job *job)
{
    struct st_gpu_qp *qp = job->qp;
    uint32_t count = job->count - job->missing;
    if (count && !st_source_wait(qp->ring))
        count = 0;
    __atomic_store_n(&qp->reading, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&qp->state, __ATOMIC_SEQ_CST) >= ST_ABANDONED)
        count = 0;
    struct st_gpu_walked walked = {0};
    if (count)
        walked = st_gpu_record(&qp->stream, st_source_data(qp->ring, job->at),
                               job->first + job->missing, count, job->t_tsc);
    ST_STORE(&qp->invalid, qp->invalid + walked.invalid);
    ST_STORE(&qp->recorded, qp->recorded + count);
    __atomic_store_n(&qp->reading, 0, __ATOMIC_SEQ_CST);
    uint64_t end = job->first + job->count;
    st_cqes_expect(qp, end, walked.invalid || count < job->count ? end : walked.signaled);
    count_missing(qp, job->count - count);
    if (walked.invalid)
        st_lost("gpu: slots overwritten before the copy, or never written", walked.invalid);
}

/* Copies and records all that was gathered. */
static void close_batch(void)
{
    if (started_count < job_count)
        start();
    for (uint32_t i = 0; i < job_count; i++) {
        st_source_wait(jobs[i].qp->ring);
        beat(); /* it does not stand still any more */
        ST_STORE(&jobs[i].qp->copied, jobs[i].first + jobs[i].count);
    }
    for (uint32_t i = 0; i < job_count; i++)
        record(&jobs[i]);
    st_sources_clear();
    job_count = started_count = gathered = 0;
    enough = false;
}

/* --- taking ------------------------------------------------------------------------------------------- */

/* A copy costs the same for one slot as for many, so many are gathered, as long as the ring has room. */
static bool is_enough(const struct st_gpu_qp *qp)
{
    return st_gpu_config.order == ST_COPY_FIRST
               ? gathered >= st_gpu_config.batch
               : qp->taken - qp->copied >= qp->made.sq_slots / GATHER_SHARE;
}

static void add_job(struct st_gpu_qp *qp, uint64_t first, uint32_t count, uint64_t t_tsc)
{
    if (job_count == JOBS || gathered + count > ST_RING_SLOTS_MAX)
        close_batch();
    if (!job_count)
        gathered_tsc = st_now();
    jobs[job_count++] = (struct job){.qp = qp, .first = first, .count = count, .t_tsc = t_tsc};
    gathered += count;
    enough |= is_enough(qp);
}

/* Those that this doorbell announces and none before. (One that waited on another register may have
 * told of more than the one that passed it there.) */
static void take_slots(struct st_gpu_qp *qp, const struct st_doorbell_record *doorbell)
{
    uint64_t count = doorbell->index > qp->taken ? doorbell->index - qp->taken : 0;
    qp->taken += count;
    st_cqes_rung(qp, qp->taken, doorbell->t_tsc);
    if (!qp->ring) {
        ST_STORE(&qp->copied, qp->taken);
        return;
    }
    if (count > qp->made.sq_slots) { /* more than the ring holds: the first ones are gone */
        count_missing(qp, count - qp->made.sq_slots);
        count = qp->made.sq_slots;
    }
    if (count)
        add_job(qp, qp->taken - count, (uint32_t)count, doorbell->t_tsc);
}

static void end(struct st_gpu_qp *qp)
{
    close_batch();
    st_cqes_look_last(qp);
    if (!st_swap_state(&qp->state, ST_ENDING, ST_ENDED) &&
        !st_swap_state(&qp->state, ST_ABANDONED, ST_ENDED))
        ST_STORE(&qp->state, ST_FREE);
}

static void take(const struct st_message *message)
{
    struct st_gpu_qp *qp = &st_gpu_qps[message->qp];
    bool forwarded = message->kind == ST_RUNG || message->kind == ST_STRANGER;
    if (forwarded && st_mode() >= ST_MODE_SIMPLE)
        st_doorbell(&message->doorbell);
    if (message->kind != ST_STRANGER)
        take_slots(qp, &message->doorbell);
    if (message->kind == ST_LEFT)
        end(qp);
}

/* --- the thread ----------------------------------------------------------------------------------------- */

/* Is it time to copy, or to record what was copied? */
static bool due(uint32_t *hurried)
{
    uint32_t hurry = ST_LOAD(&st_hurry);
    bool asked = hurry != *hurried && st_gpu_config.order != ST_COPY_FIRST;
    if (!job_count)
        return false; /* what is asked for is still in the queue */
    *hurried = hurry;
    return asked || enough || st_gpu_config.order == ST_COPY_SYNC ||
           st_now() - gathered_tsc > GATHER_US * st_tsc_per_us;
}

static void rest(uint64_t last_tsc)
{
    bool waited_for = st_gpu_config.order == ST_COPY_FIRST || st_gpu_config.order == ST_COPY_SYNC;
    uint64_t idle_tsc = st_now() - last_tsc;
    if (idle_tsc < BUSY_US * st_tsc_per_us)
        _mm_pause();
    else if (waited_for || idle_tsc < AWAKE_US * st_tsc_per_us)
        sched_yield();
    else
        st_nap(NAP_US);
}

void *st_copier_run(void *nothing)
{
    uint64_t done = 0, last_tsc = 0, looked_tsc = st_now();
    uint32_t hurried = 0;
    struct st_message message;
    st_own_thread();
    prctl(PR_SET_NAME, "st-copy");
    prctl(PR_SET_TIMERSLACK, 1ul);
    for (;;) {
        bool any = st_queue_take(&st_to_copier, &message);
        beat();
        if (any) {
            take(&message);
            done++;
            last_tsc = st_now();
            if (st_gpu_config.order == ST_COPY_FIRST && started_count < job_count)
                start();
        }
        if (due(&hurried) || (started_count && st_records_due()))
            close_batch();
        if (!job_count)
            ST_STORE(&st_copier_done, done);
        if (!started_count && st_records_due()) {
            last_tsc = ST_LOAD(&st_asked) ? st_now() : last_tsc;
            st_records_look();
        }
        if (any)
            continue;
        if (!started_count && st_cqes_due())
            st_cqes_look();
        if (!job_count && st_now() - looked_tsc > LAST_US * st_tsc_per_us) {
            looked_tsc = st_now();
            st_own_thread_ends();
        }
        if (!st_records_due())
            rest(last_tsc);
    }
    return nothing;
}
