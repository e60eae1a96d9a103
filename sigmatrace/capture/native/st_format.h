/* The record layouts and constants of the trace format: docs/format.md is
 * normative, sigmatrace/trace_format.py mirrors this file and a test compares them. */
#ifndef SIGMATRACE_FORMAT_H
#define SIGMATRACE_FORMAT_H

#include <stdint.h>

#define ST_FORMAT_MAJOR 1
#define ST_FORMAT_MINOR 0
#define ST_UNKNOWN_PEER UINT64_MAX
#define ST_SIZE_BITS_UNKNOWN 255u

enum st_item { ST_ITEM_HEADER, ST_ITEM_CHUNK, ST_ITEM_OBJECT, ST_ITEM_CLOCK, ST_ITEM_END };

/* Every record layout, once: number, NAME, name. Fields: F(name, dtype, unit), dtype as numpy spells
 * it without "<"; P(name, count) is padding. Structs, sizes and the header's description follow. */
#define ST_RECORDS(X)                                                                              \
    X(1, OP, op)                                                                                   \
    X(2, CHANNEL, channel)                                                                         \
    X(3, COMPLETION, completion)                                                                   \
    X(4, MARK, mark)                                                                               \
    X(5, AGGREGATE, aggregate)                                                                     \
    X(6, TARGET, target)                                                                           \
    X(7, REQUEST, request)                                                                         \
    X(8, CQE, cqe)                                                                                 \
    X(9, DOORBELL, doorbell)                                                                       \
    X(10, WQE, wqe)                                                                                \
    X(11, KERNEL, kernel)

#define ST_FIELDS_op(F, P)                                                                         \
    F(t_tsc, u8, "tsc") F(size_bytes, u8, "bytes") F(channel, u4, "") F(ordinal, u4, "")           \
    F(op, u1, "") F(call, u1, "") F(depth, u1, "") F(flags, u1, "") F(aux, u4, "")
#define ST_FIELDS_channel(F, P)                                                                    \
    F(t_tsc, u8, "tsc") F(peer, u8, "") F(tag, u8, "") F(data, u8, "") F(id, u4, "")               \
    F(object, u4, "") F(kind, u1, "") F(dir, u1, "") F(layer, u1, "") F(flags, u1, "")             \
    F(thread_shared, u4, "")
#define ST_FIELDS_completion(F, P)                                                                 \
    F(t_tsc, u8, "tsc") F(size_bytes, u8, "bytes") F(channel, u4, "") F(ordinal, u4, "")           \
    F(status, i4, "") F(op, u1, "") F(call, u1, "") F(depth, u1, "") F(flags, u1, "")
#define ST_FIELDS_mark(F, P)                                                                       \
    F(t_tsc, u8, "tsc") F(value, f8, "") F(name, u4, "") F(kind, u1, "") P(pad, 3)
#define ST_FIELDS_aggregate(F, P)                                                                  \
    F(count, u8, "") F(size_bytes, u8, "bytes") F(channel, u4, "") F(op, u1, "")                   \
    F(size_bits, u1, "") F(depth, u1, "") F(flags, u1, "")
#define ST_FIELDS_target(F, P)                                                                     \
    F(raddr, u8, "") F(rkey, u8, "") F(context, u8, "") F(channel, u4, "") F(ordinal, u4, "")
#define ST_FIELDS_request(F, P)                                                                    \
    F(t_tsc, u8, "tsc") F(wr_id, u8, "") F(raddr, u8, "") F(size_bytes, u4, "bytes")               \
    F(rkey, u4, "") F(imm, u4, "") F(object, u4, "") F(position, u4, "") F(opcode, u1, "")         \
    F(sges, u1, "") F(flags, u1, "") F(queue, u1, "")
#define ST_FIELDS_cqe(F, P)                                                                        \
    F(t_tsc, u8, "tsc") F(posted_tsc, u8, "tsc") F(wr_id, u8, "") F(size_bytes, u4, "bytes")       \
    F(imm, u4, "") F(object, u4, "") F(position, u4, "") F(first, u4, "") F(opcode, u1, "")        \
    F(status, u1, "") F(flags, u1, "") F(queue, u1, "")
#define ST_FIELDS_doorbell(F, P)                                                                   \
    F(t_tsc, u8, "tsc") F(value, u8, "") F(index, u8, "") F(uar, u4, "") F(qp, u4, "")             \
    F(slots, u4, "") F(delay_tsc, u4, "tsc") F(flags, u4, "") P(pad, 4)
#define ST_FIELDS_wqe(F, P)                                                                        \
    F(t_tsc, u8, "tsc") F(index, u8, "") F(qp, u4, "") F(kind, u1, "") P(pad, 3) F(w0, u8, "")     \
    F(w1, u8, "") F(w2, u8, "") F(w3, u8, "") F(w4, u8, "") F(w5, u8, "") F(w6, u8, "")            \
    F(w7, u8, "")
#define ST_FIELDS_kernel(F, P)                                                                     \
    F(t_tsc, u8, "tsc") F(duration_tsc, u8, "tsc") F(name, u4, "") F(gpu, u4, "")                  \
    F(context, u4, "") F(stream, u4, "") F(correlation, u4, "") F(blocks, u4, "")                  \
    F(threads, u4, "") P(pad, 4)

enum st_schema {
#define ST_NUMBER(number, upper, label) ST_SCHEMA_##upper = number,
    ST_RECORDS(ST_NUMBER)
#undef ST_NUMBER
    ST_SCHEMA_LAST
};

typedef uint64_t st_u8;
typedef uint32_t st_u4;
typedef int32_t st_i4;
typedef double st_f8;
typedef uint8_t st_u1;

/* struct st_op_record, ... */
#define ST_MEMBER(name, dtype, unit) st_##dtype name;
#define ST_PADDING(name, count) uint8_t name[count];
#define ST_STRUCT(number, upper, label)                                                            \
    struct st_##label##_record {                                                                   \
        ST_FIELDS_##label(ST_MEMBER, ST_PADDING)                                                   \
    } __attribute__((packed));
ST_RECORDS(ST_STRUCT)
#undef ST_STRUCT
#undef ST_PADDING
#undef ST_MEMBER

enum st_op_code {
    ST_OP_SEND = 1,
    ST_OP_RECV,
    ST_OP_PUT,
    ST_OP_GET,
    ST_OP_ATOMIC,
    ST_OP_ATOMIC_FETCH,
    ST_OP_FLUSH,
    ST_OP_CANCEL,
    ST_OP_PROBE,
    ST_OP_PUT_DATA,
    ST_OP_BIND,
    ST_OP_INVALIDATE,
    ST_OP_NOP,
    ST_OP_LAST
};

enum st_op_flag {
    ST_SIZE_UNKNOWN = 1,
    ST_ORDER_UNCERTAIN = 2,
    ST_INLINE = 4,
    ST_FAILED = 8,
    ST_SYNC = 16,
    ST_NESTED = 32,
    ST_SIGNALED = 64
};

enum st_kind { ST_KIND_MSG = 1, ST_KIND_TAG, ST_KIND_RMA, ST_KIND_AM, ST_KIND_STREAM };
enum st_dir { ST_OUT = 1, ST_IN };
/* Number, NAME, the name in SIGMATRACE_LAYERS and in traces, another name that chooses it too. */
#define ST_LAYERS(X)                                                                               \
    X(1, OFI, "ofi", "libfabric")                                                                  \
    X(2, UCP, "ucp", "ucx")                                                                        \
    X(3, UCT, "uct", "ucx")                                                                        \
    X(4, VERBS, "verbs", "libibverbs")                                                             \
    X(5, MLX5DV, "mlx5dv", "gpu")                                                                  \
    X(6, CUDA, "cuda", "gpu")
enum st_layer {
#define ST_NUMBER(number, upper, name, other) ST_LAYER_##upper = number,
    ST_LAYERS(ST_NUMBER)
#undef ST_NUMBER
    ST_LAYER_LAST
};
enum st_channel_flag { ST_HAS_TAG = 1, ST_HAS_DATA = 2, ST_OVERFLOW = 4, ST_REPLY = 8, ST_TAG_UNKNOWN = 16 };
enum st_doorbell_flag {
    ST_DOORBELL_SYNTHESIZED = 1,
    ST_DOORBELL_AGAIN = 2,
    ST_DOORBELL_ALTERNATE = 4,
    ST_DOORBELL_BLUEFLAME = 8,
    ST_DOORBELL_WAITED = 16,
    ST_DOORBELL_LATE = 32,
    ST_DOORBELL_NOT_READ = 64
};
#define ST_CQE_AT_MOST 128 /* of a cqe's flags: it completed then or before */
enum st_wqe_kind { ST_WQE_FIRST = 1, ST_WQE_FURTHER, ST_WQE_INVALID };
/* Of a request or cqe; what stands for "a receive" and, of a completion, for "not known". */
#define ST_QUEUE_UNKNOWN 0 /* of an error */
enum st_queue { ST_QUEUE_SEND = 1, ST_QUEUE_RECV, ST_QUEUE_SHARED };
#define ST_NO_POSITION UINT32_MAX
#define ST_OPCODE_RECEIVE 255u
#define ST_OPCODE_UNKNOWN 127u
enum st_mark_kind { ST_MARK_BEGIN = 1, ST_MARK_END, ST_MARK_COUNTER, ST_MARK_INSTANT };

#endif
