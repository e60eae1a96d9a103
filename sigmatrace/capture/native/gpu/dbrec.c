/* The copier's reading of doorbell records, the index that a queue pair last announced in memory.
 * Those of registers with several queue pairs are read after each of their doorbells and once a
 * millisecond, because a value may have been overwritten before the sweeper saw it; and before one
 * of them goes. */
#include <string.h>

#include "repeater.h"

#define TICK_US 1000u

uint32_t st_changed;
uint64_t st_records_rounds;

static uint64_t tick_tsc;

static uint64_t place_of(const struct st_gpu_qp *qp)
{
    return ST_SOURCE_SLOT_BYTES + 4ull * (uint64_t)(qp - st_gpu_qps);
}

static bool start(struct st_gpu_qp *qp)
{
    __atomic_store_n(&qp->reading, 1, __ATOMIC_SEQ_CST);
    bool done = __atomic_load_n(&qp->state, __ATOMIC_SEQ_CST) == ST_ACTIVE &&
                st_source_start(qp->record, place_of(qp), qp->made.dbrec, 4);
    __atomic_store_n(&qp->reading, 0, __ATOMIC_SEQ_CST);
    return done;
}

/* Tells the sweeper what the record says; what it has no room for is read once more. */
static void tell(struct st_gpu_qp *qp)
{
    uint32_t value;
    memcpy(&value, st_source_data(qp->record, place_of(qp)), sizeof(value));
    uint16_t index = (uint16_t)__builtin_bswap32(value);
    if (index != (uint16_t)qp->taken)
        st_queue_put(&st_to_sweeper, &(struct st_message){.qp = (uint32_t)(qp - st_gpu_qps),
                                                          .life = qp->life,
                                                          .kind = ST_RECORD,
                                                          .index16 = index});
}

/* Of all queue pairs whose register is another one's, too. */
static void read_shared(void)
{
    static struct st_gpu_qp *list[ST_GPU_QPS];
    uint32_t listed = 0;
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++) {
        struct st_gpu_qp *qp = &st_gpu_qps[i];
        struct st_register *at = ST_LOAD(&qp->state) == ST_ACTIVE ? ST_LOAD(&qp->at) : NULL;
        if (at && qp->record && ST_LOAD(&at->qps) > 1 && start(qp))
            list[listed++] = qp;
    }
    for (uint32_t i = 0; i < listed; i++)
        if (st_source_wait(list[i]->record))
            tell(list[i]);
    if (listed)
        st_sources_clear();
}

bool st_records_due(void)
{
    return ST_LOAD(&st_changed) || st_now() - tick_tsc > TICK_US * st_tsc_per_us;
}

void st_records_look(void)
{
    tick_tsc = st_now();
    __atomic_exchange_n(&st_changed, 0, __ATOMIC_SEQ_CST);
    read_shared();
    ST_STORE(&st_records_rounds, st_records_rounds + 1);
}
