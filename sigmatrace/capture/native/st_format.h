/* The record layouts and constants of the trace format: docs/format.md is
 * normative, sigmatrace/schema.py mirrors this file and a test compares them. */
#ifndef SIGMATRACE_FORMAT_H
#define SIGMATRACE_FORMAT_H

#include <stdint.h>

#define ST_FORMAT_MAJOR 1
#define ST_FORMAT_MINOR 0
#define ST_UNKNOWN_PEER UINT64_MAX

enum st_item { ST_ITEM_HEADER, ST_ITEM_CHUNK, ST_ITEM_OBJECT, ST_ITEM_CLOCK, ST_ITEM_END };

enum st_schema {
    ST_SCHEMA_OP = 1,
    ST_SCHEMA_CHANNEL,
    ST_SCHEMA_COMPLETION,
    ST_SCHEMA_MARK,
    ST_SCHEMA_AGGREGATE,
    ST_SCHEMA_TARGET,
    ST_SCHEMA_LAST
};

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
    ST_OP_LAST
};

enum st_op_flag {
    ST_SIZE_UNKNOWN = 1,
    ST_ORDER_UNCERTAIN = 2,
    ST_INLINE = 4,
    ST_FAILED = 8,
    ST_SYNC = 16,
    ST_NESTED = 32
};

enum st_kind { ST_KIND_MSG = 1, ST_KIND_TAG, ST_KIND_RMA, ST_KIND_AM, ST_KIND_STREAM };
enum st_dir { ST_OUT = 1, ST_IN };
enum st_layer { ST_LAYER_OFI = 1, ST_LAYER_UCP, ST_LAYER_UCT, ST_LAYER_LAST };
enum st_channel_flag { ST_HAS_TAG = 1, ST_HAS_DATA = 2, ST_OVERFLOW = 4, ST_REPLY = 8, ST_TAG_UNKNOWN = 16 };
enum st_mark_kind { ST_MARK_BEGIN = 1, ST_MARK_END, ST_MARK_COUNTER, ST_MARK_INSTANT };

struct st_op_record {
    uint64_t t_tsc, size_bytes;
    uint32_t channel, ordinal;
    uint8_t op, call, depth, flags;
    uint32_t aux;
} __attribute__((packed));

struct st_channel_record {
    uint64_t t_tsc, peer, tag, data;
    uint32_t id, object;
    uint8_t kind, dir, layer, flags;
    uint32_t thread_shared;
} __attribute__((packed));

struct st_completion_record {
    uint64_t t_tsc, size_bytes;
    uint32_t channel, ordinal;
    int32_t status;
    uint8_t op, call, depth, flags;
} __attribute__((packed));

struct st_mark_record {
    uint64_t t_tsc;
    double value;
    uint32_t name;
    uint8_t kind, pad[3];
} __attribute__((packed));

struct st_aggregate_record {
    uint64_t count, size_bytes;
    uint32_t channel;
    uint8_t op, depth, pad[2];
    uint8_t size_log2_max, size_log2_min, pad2[6];
} __attribute__((packed));

struct st_target_record {
    uint64_t raddr, rkey, context;
    uint32_t channel, ordinal;
} __attribute__((packed));

#endif
