/* What the programs over the in-process libibverbs share: one opened device, and short ways to
 * queue pairs and requests. */
#ifndef VERBS_DRIVER_H
#define VERBS_DRIVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "driver: %s:%d: %s\n", __FILE__, __LINE__, #condition);                \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)
#define SENDS 128u
#define MEMORY 8192u

extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;
extern struct ibv_mr *mr; /* all of `memory` */
extern char memory[MEMORY];

void open_all(void);
void close_all(void);
struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *srq, int signal_all);
struct ibv_qp *make_extended(enum ibv_qp_type type); /* asked for its functions of ibv_wr_* */
void to_init(struct ibv_qp *qp);
void to_state(struct ibv_qp *qp, enum ibv_qp_state state);
void connect_to(struct ibv_qp *qp, uint32_t number);
void pair(struct ibv_qp *a, struct ibv_qp *b);
void receives(struct ibv_qp *qp, uint64_t first, int count);
/* One request with `sges` elements of `bytes` each. */
int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t wr_id, int sges, uint32_t bytes,
         unsigned int flags);
/* How many completions there were. */
int drain(struct ibv_cq *from);

/* The programs: name, function. */
#define PROGRAMS(X)                                                                                \
    X("traffic", traffic)                                                                          \
    X("srq", shared)                                                                               \
    X("unsignaled", unsignaled)                                                                    \
    X("errors", errors)                                                                            \
    X("refused", refused)                                                                          \
    X("again", again)                                                                              \
    X("threads", threads)                                                                          \
    X("fork", forked)                                                                              \
    X("extended", extended)                                                                        \
    X("extended_polling", extended_polling)                                                        \
    X("extended_threads", extended_threads)                                                        \
    X("datagrams", datagrams)                                                                      \
    X("regions", regions)                                                                          \
    X("domains", domains)                                                                          \
    X("negotiated", negotiated)                                                                    \
    X("binding", binding)                                                                          \
    X("windows", windows)                                                                          \
    X("xrc", xrc)                                                                                  \
    X("behind", behind)                                                                            \
    X("late", late)                                                                                \
    X("refusals", refusals)                                                                        \
    X("structures", structures)                                                                    \
    X("unknown_ops", unknown_ops)                                                                  \
    X("ambiguous", ambiguous)                                                                      \
    X("failing_polls", failing_polls)                                                              \
    X("paused", paused)                                                                            \
    X("polls", polls)                                                                              \
    X("reopen", reopen)
void opened_at_once(void);
#define DECLARE(name, function) void function(int n);
PROGRAMS(DECLARE)
#undef DECLARE

#endif
