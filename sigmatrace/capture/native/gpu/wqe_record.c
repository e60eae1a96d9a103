/* From the slots of a send queue to records. Called by one thread alone: the ordinals of its
 * channels need no lock, and the address vectors are in a table of its own. */
#include <string.h>

#include "gpu.h"

#define VECTORS 8192u /* a power of two; at most half of them are used */
#define VECTOR_PROBES 64u
#define LEAST_FENCE 2u /* mode 1 is a small fence, which libibverbs does not know */

enum send_flag { FENCE = 1, SIGNALED = 2, SOLICITED = 4 }; /* enum ibv_send_flags */

static uint8_t call;

__attribute__((constructor)) static void name_call(void)
{
    if (st_layer_on(ST_LAYER_MLX5DV))
        call = st_call_register("gpu_post");
}

/* --- address vectors ---------------------------------------------------------------------------- */

static struct vector {
    uint8_t name[24]; /* GID; or LID and the port's subnet */
    uint32_t has_gid, object; /* object 0: free */
} vectors[VECTORS];
static uint32_t vector_count;

static void describe(const struct vector *vector, const struct st_wqe *wqe,
                     const struct st_gpu_stream *stream)
{
    static const uint8_t none[sizeof(stream->prefix)];
    struct st_object o;
    st_object_begin(&o, "mlx5_av", vector->object);
    if (wqe->has_gid)
        st_object_bin(&o, "dgid", wqe->dgid, sizeof(wqe->dgid));
    else
        st_object_u64(&o, "dlid", wqe->dlid);
    if (!wqe->has_gid && memcmp(stream->prefix, none, sizeof(none)))
        st_object_bin(&o, "prefix", stream->prefix, sizeof(stream->prefix));
    st_object_end(&o);
}

/* The `mlx5_av` object of where a WQE goes; 0 when there are too many. */
static uint32_t vector_of(const struct st_wqe *wqe, const struct st_gpu_stream *stream)
{
    struct vector wanted = {.has_gid = wqe->has_gid};
    if (wqe->has_gid) {
        memcpy(wanted.name, wqe->dgid, sizeof(wqe->dgid));
    } else {
        memcpy(wanted.name, &wqe->dlid, sizeof(wqe->dlid));
        memcpy(wanted.name + 16, stream->prefix, sizeof(stream->prefix));
    }
    uint32_t home = st_crc32c(0, wanted.name, sizeof(wanted.name));
    for (uint32_t i = 0; i < VECTOR_PROBES; i++) {
        struct vector *there = &vectors[(home + i) % VECTORS];
        if (!there->object) {
            if (vector_count == VECTORS / 2)
                break;
            vector_count++;
            *there = wanted;
            there->object = st_object_id();
            describe(there, wqe, stream);
            return there->object;
        }
        if (there->has_gid == wanted.has_gid &&
            !memcmp(there->name, wanted.name, sizeof(wanted.name)))
            return there->object;
    }
    st_lost("gpu: peer of an operation: too many address vectors", 1);
    return 0;
}

/* --- records ------------------------------------------------------------------------------------- */

/* The channel's `peer`: the queue pair itself, unless each WQE says where it goes. */
static uint64_t peer_of(const struct st_gpu_stream *stream, const struct st_wqe *wqe)
{
    if (!wqe->has_av)
        return stream->object;
    uint32_t vector = vector_of(wqe, stream);
    return vector ? st_pair(vector, wqe->remote_qpn) : ST_UNKNOWN_PEER;
}

static void record_request(const struct st_gpu_stream *stream, const struct st_wqe *wqe,
                           uint64_t peer, uint64_t index, uint64_t t_tsc)
{
    if (wqe->wr_opcode == ST_WQE_NO_REQUEST)
        return;
    uint8_t flags = (wqe->signaled ? SIGNALED : 0) | (wqe->solicited ? SOLICITED : 0) |
                    (wqe->fence >= LEAST_FENCE ? FENCE : 0);
    st_request(&(struct st_request_record){.t_tsc = t_tsc,
                                           .wr_id = wqe->has_av ? peer : 0,
                                           .raddr = wqe->raddr,
                                           .size_bytes = (uint32_t)wqe->size_bytes,
                                           .rkey = wqe->rkey,
                                           .imm = wqe->imm,
                                           .object = stream->object,
                                           .position = (uint32_t)index,
                                           .opcode = wqe->wr_opcode,
                                           .sges = wqe->sges,
                                           .flags = flags,
                                           .queue = 1});
}

static void record_op(const struct st_gpu_stream *stream, const struct st_wqe *wqe, uint64_t peer,
                      uint64_t index, uint64_t t_tsc)
{
    bool message = wqe->op == ST_OP_SEND || wqe->op == ST_OP_PUT_DATA;
    struct st_channel_key key = {.object = stream->object,
                                 .kind = message ? ST_KIND_MSG : ST_KIND_RMA,
                                 .dir = ST_OUT,
                                 .layer = ST_LAYER_MLX5DV,
                                 .peer = peer};
    struct st_channel *channel = st_channel_get(&key);
    if (channel)
        st_op(t_tsc, wqe->size_bytes, channel->id, st_ordinal_next(channel, false), wqe->op, call,
              0, wqe->signaled ? ST_SIGNALED : 0, (uint32_t)index);
}

static void record_slots(const struct st_gpu_stream *stream, const uint8_t *slots, uint64_t index,
                         uint32_t count, bool valid, uint64_t t_tsc)
{
    struct st_wqe_record records[16];
    for (uint32_t i = 0; i < count; i++) {
        records[i] = (struct st_wqe_record){
            .t_tsc = t_tsc,
            .index = index + i,
            .qp = stream->object,
            .kind = !valid ? ST_WQE_INVALID : i ? ST_WQE_FURTHER : ST_WQE_FIRST};
        memcpy((uint8_t *)&records[i] + offsetof(struct st_wqe_record, w0),
               slots + (size_t)i * ST_GPU_SLOT_BYTES, ST_GPU_SLOT_BYTES);
    }
    st_wqe_store(records, count);
}

_Static_assert(sizeof(struct st_wqe_record) ==
                   offsetof(struct st_wqe_record, w0) + ST_GPU_SLOT_BYTES,
               "the words of a slot lie in a row at the end");

struct st_gpu_walked st_gpu_record(const struct st_gpu_stream *stream, const uint8_t *slots,
                                   uint64_t first, uint32_t count, uint64_t t_tsc)
{
    struct st_gpu_walked walked = {0};
    bool full = st_mode() == ST_MODE_FULL;
    struct st_wqe wqe;
    for (uint32_t at = 0; at < count;) {
        const uint8_t *slot = slots + (size_t)at * ST_GPU_SLOT_BYTES;
        uint64_t index = first + at;
        uint32_t taken = st_wqe_decode(slot, count - at, (uint16_t)index, stream->qpn,
                                       stream->has_av, &wqe);
        if (taken) {
            uint64_t peer = peer_of(stream, &wqe);
            record_op(stream, &wqe, peer, index, t_tsc);
            if (full)
                record_request(stream, &wqe, peer, index, t_tsc);
            if (wqe.signaled)
                walked.signaled = index + 1;
        } else {
            walked.invalid++;
        }
        if (full)
            record_slots(stream, slot, index, taken ? taken : 1, taken != 0, t_tsc);
        at += taken ? taken : 1;
    }
    return walked;
}
