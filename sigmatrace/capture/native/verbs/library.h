/* The real functions of libibverbs: which are wrapped, which are called, and the copies of the
 * library that a process has. */
#ifndef ST_VERBS_LIBRARY_H
#define ST_VERBS_LIBRARY_H

#include "sigmatrace.h"

#include <infiniband/verbs.h>

/* Numbers for the `call` field. */
enum st_verbs_call {
    ST_CALL_POST_SEND,
    ST_CALL_WR_COMPLETE,
    ST_CALL_BIND_MW,
    ST_CALL_POLL_CQ,
    ST_CALL_START_POLL,
    ST_CALL_NEXT_POLL,
    ST_CALLS
};
extern uint8_t st_verbs_calls[ST_CALLS];

/* Wrapped functions of libibverbs, with the version node that the wrapper stands in for. */
#define ST_VERBS_WRAPPED(X)                                                                        \
    X(ibv_open_device, "IBVERBS_1.1") X(ibv_close_device, "IBVERBS_1.1")                           \
    X(ibv_import_device, "IBVERBS_1.10") X(ibv_alloc_pd, "IBVERBS_1.1")                            \
    X(ibv_dealloc_pd, "IBVERBS_1.1") X(ibv_unimport_pd, "IBVERBS_1.10")                            \
    X(ibv_create_comp_channel, "IBVERBS_1.0") X(ibv_destroy_comp_channel, "IBVERBS_1.0")           \
    X(ibv_create_cq, "IBVERBS_1.1")                                                                \
    X(ibv_destroy_cq, "IBVERBS_1.1") X(ibv_create_srq, "IBVERBS_1.1")                              \
    X(ibv_destroy_srq, "IBVERBS_1.1") X(ibv_create_qp, "IBVERBS_1.1")                              \
    X(ibv_modify_qp, "IBVERBS_1.1") X(ibv_query_qp, "IBVERBS_1.1")                                 \
    X(ibv_set_ece, "IBVERBS_1.10") X(ibv_query_ece, "IBVERBS_1.10")                                \
    X(ibv_destroy_qp, "IBVERBS_1.1")                                                               \
    X(ibv_qp_to_qp_ex, "IBVERBS_1.6") X(ibv_create_ah, "IBVERBS_1.1")                              \
    X(ibv_destroy_ah, "IBVERBS_1.1") X(ibv_reg_mr, "IBVERBS_1.1")                                  \
    X(ibv_reg_mr_iova, "IBVERBS_1.7") X(ibv_reg_mr_iova2, "IBVERBS_1.8")                           \
    X(ibv_reg_dmabuf_mr, "IBVERBS_1.12") X(ibv_rereg_mr, "IBVERBS_1.1")                            \
    X(ibv_dereg_mr, "IBVERBS_1.1")
#define ST_VERBS_CALLED(X)                                                                         \
    X(ibv_query_device, "IBVERBS_1.1") X(ibv_query_port, "IBVERBS_1.1")                            \
    X(ibv_query_gid, "IBVERBS_1.1") X(ibv_get_device_guid, "IBVERBS_1.1")

/* These are macros of the header as well. */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/* One copy of libibverbs in the process. */
struct st_verbs_library {
    struct st_copy copy;
#define ST_FIELD(name, version) __typeof__(&name) name;
    ST_VERBS_WRAPPED(ST_FIELD)
    ST_VERBS_CALLED(ST_FIELD)
#undef ST_FIELD
};
/* The copy that the code at this return address uses; NULL when there is none. */
struct st_verbs_library *st_verbs_library(const void *caller);

#endif
