/* The engine: one thread that polls all registers and works off what they announce. */
#define _GNU_SOURCE
#include "nic.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { IDLE_SPINS = 2000, IDLE_YIELDS = 4000, IDLE_SLEEP_NS = 50000, RECOVER_EACH_NS = 1000000 };
enum { WORDS = 4 };

static struct {
    uint64_t recover_ns; /* how long a record of a shared register may be ahead; 0: for ever */
    uint64_t delay_ns;   /* before each round that finds work */
    uint64_t stall_ns, stall_each_ns; /* the engine stands still, so long and so often */
    bool rereads;        /* a repeated doorbell makes the engine look at the record */
    bool spins;
} tuning;

uint64_t nic_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint16_t record_read(const struct nic_qp *qp)
{
    uint8_t record[4]; /* the second word is that of the send queue */
    nic_memory_read(qp->record, qp->record_at + 4, record, sizeof(record));
    return (uint16_t)(record[2] << 8 | record[3]);
}

/* How far an index is ahead of what is known; 0: not at all, or by more than a ring can hold. */
static uint16_t ahead(const struct nic_qp *qp, uint16_t next)
{
    uint16_t distance = (uint16_t)(next - (uint16_t)qp->tail);
    return distance <= qp->sq_slots - (qp->tail - qp->head) ? distance : 0;
}

static void ring(uint32_t uar, uint64_t value)
{
    struct nic_doorbell doorbell = nic_doorbell_decode(value);
    struct nic_qp *qp = nic_qp_find(doorbell.qpn);
    if (!qp || qp->is_dct || qp->uar != uar || qp->state < NIC_RTS) {
        nic_journal_bad_doorbell();
        return;
    }
    qp->counts.doorbells++;
    uint16_t distance = ahead(qp, doorbell.next);
    if (!distance && doorbell.next != (uint16_t)qp->tail)
        qp->counts.stale++;
    if (!distance && doorbell.next == (uint16_t)qp->tail) {
        /* Nothing new: a NIC that missed something looks at the record. */
        qp->counts.repeated++;
        distance = tuning.rereads ? ahead(qp, record_read(qp)) : 0;
        qp->counts.from_record += distance;
    }
    qp->tail += distance;
}

/* A register is write-only, and takes each value once: what was taken is replaced by 0. */
bool nic_registers_poll(void)
{
    bool worked = false;
    for (uint32_t i = 0; i < nic.uars_end; i++) {
        uint8_t *page = nic.uars[i].page;
        for (int at = 0; page && at < WORDS; at++) {
            _Atomic uint64_t *word =
                (void *)(page + NIC_REGISTER_AT + at * NIC_REGISTER_STRIDE);
            if (!atomic_load_explicit(word, memory_order_relaxed))
                continue;
            ring(i + NIC_UAR_BASE, atomic_exchange(word, 0));
            worked = true;
        }
    }
    return worked;
}

/* Two queue pairs of one register may overwrite each other's value before this thread looks, what
 * a real register cannot lose. Pages with more queue pairs than registers are looked after. */
static void records_recover(uint64_t now)
{
    static uint16_t users[NIC_UARS];
    memset(users, 0, sizeof(users));
    for (uint32_t i = 0; i < nic.qps_end; i++)
        if (nic.qps[i].used && !nic.qps[i].is_dct)
            users[nic.qps[i].uar - NIC_UAR_BASE]++;
    for (uint32_t i = 0; i < nic.qps_end; i++) {
        struct nic_qp *qp = &nic.qps[i];
        if (!qp->used || qp->state != NIC_RTS || qp->is_dct)
            continue;
        uint32_t uar = qp->uar - NIC_UAR_BASE;
        if (users[uar] <= (uint32_t)__builtin_popcount(nic.uars[uar].taken))
            continue;
        uint16_t distance = ahead(qp, record_read(qp));
        if (!distance)
            qp->behind_since_ns = 0;
        else if (!qp->behind_since_ns)
            qp->behind_since_ns = now;
        else if (now - qp->behind_since_ns >= tuning.recover_ns) {
            qp->counts.from_record += distance;
            qp->tail += distance;
            qp->behind_since_ns = 0;
        }
    }
}

static bool round_do(void)
{
    static uint64_t recovered_ns;
    bool worked = nic_registers_poll();
    for (uint32_t i = 0; i < nic.qps_end; i++) {
        struct nic_qp *qp = &nic.qps[i];
        if (qp->used && qp->state >= NIC_RTS && (qp->busy || qp->head != qp->tail)) {
            if (tuning.delay_ns && !qp->asked)
                for (uint64_t until = nic_now_ns() + tuning.delay_ns; nic_now_ns() < until;)
                    ;
            worked |= nic_qp_step(qp);
        }
    }
    worked |= nic_fabric_poll();
    uint64_t now = tuning.recover_ns ? nic_now_ns() : 0;
    if (tuning.recover_ns && now - recovered_ns >= RECOVER_EACH_NS) {
        records_recover(now);
        recovered_ns = now;
    }
    return worked;
}

static void rest(unsigned idle)
{
    if (tuning.spins || idle < IDLE_SPINS)
        __builtin_ia32_pause();
    else if (idle < IDLE_YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = IDLE_SLEEP_NS}, NULL);
}

static void stall(void)
{
    static uint64_t last_ns;
    uint64_t now = tuning.stall_ns ? nic_now_ns() : 0;
    if (!tuning.stall_ns || now - last_ns < tuning.stall_each_ns)
        return;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(tuning.stall_ns / 1000000000u),
                                 .tv_nsec = (long)(tuning.stall_ns % 1000000000u)},
              NULL);
    last_ns = nic_now_ns();
}

static void *engine_run(void *unused)
{
    unsigned idle = 0;
    for (;;) {
        while (atomic_load(&nic.impatient))
            sched_yield();
        stall();
        pthread_mutex_lock(&nic.lock);
        bool worked = round_do();
        pthread_mutex_unlock(&nic.lock);
        idle = worked ? 0 : idle + 1;
        rest(idle);
    }
    return unused;
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

void nic_engine_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    tuning.recover_ns = number_of("MLX5EMU_RECOVER_US", 20000) * 1000;
    tuning.delay_ns = number_of("MLX5EMU_DELAY_NS", 0);
    tuning.stall_ns = number_of("MLX5EMU_STALL_US", 0) * 1000;
    tuning.stall_each_ns = number_of("MLX5EMU_STALL_EACH_US", 1000) * 1000;
    tuning.rereads = number_of("MLX5EMU_REREAD", 1);
    tuning.spins = number_of("MLX5EMU_SPIN", 0);
    uint64_t cpu = number_of("MLX5EMU_CPU", UINT64_MAX);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, engine_run, NULL)) {
        fputs("mlx5emu: no thread\n", stderr);
        _exit(3);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (cpu < CPU_SETSIZE) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_setaffinity_np(thread, sizeof(set), &set);
    }
    pthread_detach(thread);
}
