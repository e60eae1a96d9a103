/* What the two files about completions share: cqe.c, elements; cq_read.c, reading them. */
#ifndef ST_CQE_H
#define ST_CQE_H

#include "repeater.h"

#define ST_CQE_BYTES 64u
#define ST_CQE_WORD 56u /* the last eight bytes, which are written last */
#define ST_CQE_OWN 63u  /* its kind, and the bit of its lap */
enum { ST_CQE_REQUESTER_ERROR = 13, ST_CQE_INVALID = 15 };

/* Queue pairs of which something may be outstanding. */
extern struct st_gpu_qp *st_cqes_list[ST_GPU_QPS];
/* Is it? And can it be seen? */
bool st_cqes_open(const struct st_gpu_qp *qp);
/* Those of which all has completed are no longer listed. */
void st_cqes_drop_closed(void);

/* OLD: nothing new in it. WAITS: ahead of what was forwarded. STRAY: of no known queue pair. */
enum st_verdict { ST_CQE_OLD, ST_CQE_NEW, ST_CQE_WAITS, ST_CQE_STRAY };
struct st_completed {
    struct st_gpu_qp *qp;
    uint64_t index;
};
/* Which request an element tells of: of OLD and NEW ones of a known queue pair. */
enum st_verdict st_cqe_judge(const struct st_gpu_cq *cq, const uint8_t *cqe,
                             struct st_completed *completed);
/* Of a NEW one. */
void st_cqe_record(const struct st_completed *completed, const uint8_t *cqe, uint64_t t_tsc);

#endif
