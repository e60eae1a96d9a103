/* What the in-process libibverbs has beside the interface: ways around the shim, and refusals. */
#ifndef FAKE_CONTROL_H
#define FAKE_CONTROL_H

#include <infiniband/verbs.h>

struct ibv_context *fake_open(struct ibv_device *device);
struct ibv_pd *fake_alloc_pd(struct ibv_context *context);
struct ibv_cq *fake_create_cq(struct ibv_context *context);
struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

/* Called while a queue pair or a completion queue is being destroyed; what it returns, unless 0, is
 * the answer, and the object stays. */
extern int (*fake_refusal)(void);

/* A bit of ibv_cq_init_attr_ex.comp_mask that headers of today do not know, and the value that its
 * member has. */
#define FAKE_NEWER_BIT (1u << 20)
#define FAKE_NEWER_VALUE 0x4e657721u

#endif
