/* The copier's reading of rings: slots to record them, and to see whether they are what a doorbell
 * record says. Only what the ring proves becomes a doorbell: a record may be of an earlier life,
 * never written (where the NIC needs none), or memory that is another's by now. */
#include "repeater.h"

/* The program may have ended the QP without us: `reading`, then the state, here; the state, then
 * `reading`, there. */
bool st_ring_start(struct st_gpu_qp *qp, struct st_source *source, uint64_t at, uint64_t index,
                   uint32_t count)
{
    uint64_t size = (uint64_t)count * ST_GPU_SLOT_BYTES;
    uint32_t from = (uint32_t)index & (qp->made.sq_slots - 1);
    uint64_t ahead = (uint64_t)(qp->made.sq_slots - from) * ST_GPU_SLOT_BYTES;
    uint64_t first = size < ahead ? size : ahead;
    __atomic_store_n(&qp->reading, 1, __ATOMIC_SEQ_CST);
    uint64_t address = qp->made.sq + (uint64_t)from * ST_GPU_SLOT_BYTES;
    bool done = __atomic_load_n(&qp->state, __ATOMIC_SEQ_CST) < ST_ABANDONED &&
                st_source_start(source, at, address, first);
    if (done && size > first)
        done = st_source_start(source, at + first, qp->made.sq, size - first);
    __atomic_store_n(&qp->reading, 0, __ATOMIC_SEQ_CST);
    return done;
}

bool st_ring_holds(struct st_gpu_qp *qp, uint64_t index, uint32_t count)
{
    if (!qp->proof) /* its memory is not known: nothing else tells of what was overwritten */
        return true;
    if (!st_ring_start(qp, qp->proof, 0, index, count) || !st_source_wait(qp->proof))
        return false;
    const uint8_t *slots = st_source_data(qp->proof, 0);
    for (uint32_t at = 0, taken; at < count; at += taken) {
        taken = st_wqe_slots(slots + (uint64_t)at * ST_GPU_SLOT_BYTES, (uint16_t)(index + at),
                             qp->made.qpn);
        if (!taken || taken > count - at)
            return false;
    }
    return true;
}
