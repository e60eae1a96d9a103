/* An emulated ConnectX in user space: what its parts share. libibverbs.so.1 and libmlx5.so.1 of
 * this folder create the objects; one engine thread consumes the doorbells, reads the WQEs, moves
 * the data and writes the CQEs. Nothing here comes from the tracer: the rig is to judge it. */
#ifndef NIC_H
#define NIC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NIC_API __attribute__((visibility("default")))

enum { NIC_MKEYS = 1024, NIC_UMEMS = 4096, NIC_UARS = 1024, NIC_QPS = 2048, NIC_CQS = 2048 };
enum { NIC_QPN_BASE = 0x48, NIC_CQN_BASE = 0x400, NIC_UAR_BASE = 0x10, NIC_UMEM_BASE = 1 };
enum { NIC_PAGE = 4096, NIC_REGISTERS = 4, NIC_REGISTER_AT = 0x800, NIC_REGISTER_STRIDE = 0x100 };
enum { NIC_SLOT = 64, NIC_WQE_BYTES = 1024, NIC_SEGMENTS = 62, NIC_CHUNK = 32768 };
enum { NIC_NODES = 4, NIC_OPCODES = 64 };

/* What an access may be: the bits of enum ibv_access_flags. */
enum { NIC_LOCAL_WRITE = 1, NIC_REMOTE_WRITE = 2, NIC_REMOTE_READ = 4, NIC_REMOTE_ATOMIC = 8 };

enum nic_syndrome {
    NIC_OK = 0,
    NIC_LENGTH = 0x01,
    NIC_QP_OP = 0x02,
    NIC_LOCAL_PROTECTION = 0x04,
    NIC_FLUSHED = 0x05,
    NIC_REMOTE_INVALID = 0x12,
    NIC_REMOTE_ACCESS = 0x13,
    NIC_RETRY_EXCEEDED = 0x15,
    NIC_RNR_EXCEEDED = 0x16,
    NIC_NOT_READY = 0xff, /* not on a real one's wire: no receive is posted, to be tried again */
};

/* A piece of memory as the NIC sees it: `iova` is what WQEs say, `at` is where it is. */
struct nic_memory {
    uint64_t iova, size;
    uint8_t *at;
    bool device;   /* reached by the CUDA driver, not by loads and stores */
    void *mapping; /* of a dmabuf, to be unmapped */
    const uint8_t *mirror; /* what is read instead, or NULL */
};

struct nic_mkey {
    bool used;
    uint32_t key, access;
    struct nic_memory memory;
};

struct nic_umem {
    bool used;
    struct nic_memory memory;
};

struct nic_uar {
    uint8_t *page; /* published last: read without the lock */
    uint32_t kind; /* that of mlx5dv_devx_alloc_uar */
    uint32_t taken; /* bit per register */
};

struct nic_cq {
    bool used, collapsed;
    uint32_t log_size;
    struct nic_memory *umem;
    uint64_t offset, produced;
};

/* A WQE, decoded. */
struct nic_segment {
    uint64_t at;
    const uint8_t *inlined; /* the bytes themselves; NULL: `at` and `key` */
    uint32_t key, size;
};
struct nic_wqe {
    uint8_t opcode, opmod, ds, ce, slots;
    uint16_t index;
    uint32_t imm, qpn;
    bool has_av;
    uint64_t dc_key;
    uint32_t dct;
    uint16_t rlid;
    uint64_t raddr;
    uint32_t rkey, segments;
    uint8_t operand_bytes; /* of an atomic */
    uint64_t add_or_swap, compare, swap_mask, compare_mask;
    uint64_t bytes; /* of all segments */
    struct nic_segment segment[NIC_SEGMENTS];
    uint8_t raw[NIC_WQE_BYTES];
};

/* What one node asks another one, and the answer; a payload of at most NIC_CHUNK follows. */
struct nic_request {
    uint8_t opcode, operand_bytes;
    bool is_dc;
    uint16_t from;
    uint32_t from_qpn, to_qpn, rkey, imm, size;
    uint64_t dc_key, raddr, total, offset, add_or_swap, compare, swap_mask, compare_mask;
};
struct nic_answer {
    uint32_t to_qpn, size;
    uint32_t syndrome;
};

/* Counted for each life of a queue pair; a reset begins another life. */
struct nic_counts {
    uint64_t doorbells, repeated, from_record, stale, slots, cqes, errors, received;
    uint64_t operations[NIC_OPCODES], bytes[NIC_OPCODES];
};

enum nic_state { NIC_RESET, NIC_INIT, NIC_RTR, NIC_RTS, NIC_ERROR };

struct nic_qp {
    bool used, is_dc, is_dct;
    enum nic_state state;
    uint32_t qpn, uar, cqn_send, cqn_receive, remote_qpn;
    uint16_t remote_lid;
    uint64_t dc_key;
    struct nic_memory *queue, *record;
    uint64_t sq_at, rq_at, record_at;
    uint32_t sq_slots, rq_slots, rq_stride;
    uint64_t head, tail, received; /* of the send queue in slots: executed, announced */
    uint64_t behind_since_ns;      /* since when the doorbell record is ahead of the doorbells */
    /* the WQE that is being executed */
    bool busy, asked;
    uint64_t offset, retry_ns, first_try_ns;
    struct nic_wqe wqe;
    /* the message that is being received */
    struct nic_wqe receive;
    struct nic_counts counts;
};

struct nic {
    pthread_mutex_t lock;
    atomic_uint impatient; /* threads of the program that wait for the lock */
    struct nic_mkey mkeys[NIC_MKEYS];
    struct nic_umem umems[NIC_UMEMS];
    struct nic_uar uars[NIC_UARS];
    struct nic_qp qps[NIC_QPS];
    struct nic_cq cqs[NIC_CQS];
    uint32_t qps_end; /* above the highest queue pair ever used */
    uint32_t uars_end;
    uint32_t lid;
};
extern NIC_API struct nic nic;

/* --- objects.c: called by the program's threads; each takes the lock ------------------------- */

/* Starts the engine at the first call. */
NIC_API void nic_start(void);
void nic_enter(void);
void nic_leave(void);
/* 0: failed, errno is set. fd: a dmabuf, or -1. */
NIC_API uint32_t nic_mkey_add(void *at, uint64_t size, uint64_t iova, uint32_t access, int fd);
NIC_API void nic_mkey_remove(uint32_t key);
NIC_API uint32_t nic_umem_add(void *at, uint64_t size, int fd, uint64_t offset);
NIC_API void nic_umem_remove(uint32_t id);
/* The register's address, and the identity of its page; NULL: none left. */
NIC_API void *nic_uar_add(uint32_t kind, uint32_t *page_id);
NIC_API void nic_uar_remove(void *address);
/* Whether all of the range lies in the pages of registers; takes no lock. */
NIC_API bool mlx5emu_is_uar(const void *at, uint64_t size);
struct nic_qp *nic_qp_find(uint32_t qpn);
struct nic_cq *nic_cq_find(uint32_t cqn);
struct nic_umem *nic_umem_find(uint32_t id);
/* The first unused one, cleared; NULL: none. With the lock held. */
struct nic_qp *nic_qp_new(void);
struct nic_cq *nic_cq_new(uint32_t *cqn);

/* --- mailbox.c: commands of the firmware ----------------------------------------------------- */

enum nic_kind { NIC_NO_OBJECT, NIC_QP_OBJECT, NIC_CQ_OBJECT };
/* false: refused; `out` says why. `number` and `kind`: of what was created. */
NIC_API bool nic_command(const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size,
                         enum nic_kind *kind, uint32_t *number);
NIC_API void nic_object_destroy(enum nic_kind kind, uint32_t number);
/* A DC target, which the verbs create. */
NIC_API uint32_t nic_dct_add(uint64_t dc_key);

/* --- decode.c -------------------------------------------------------------------------------- */

struct nic_doorbell {
    uint32_t qpn;
    uint16_t next; /* index behind the last WQE that is announced */
};
struct nic_doorbell nic_doorbell_decode(uint64_t value);
/* From wqe->raw; false: its segments make no sense. */
bool nic_wqe_decode(struct nic_wqe *wqe, bool has_av);
/* The segments of a receive WQE. */
void nic_receive_decode(struct nic_wqe *wqe, uint32_t bytes);

/* --- memory.c -------------------------------------------------------------------------------- */

/* false: errno is set. */
bool nic_memory_make(struct nic_memory *memory, void *at, uint64_t size, uint64_t iova, int fd,
                     uint64_t offset);
void nic_memory_drop(struct nic_memory *memory);
void nic_memory_read(const struct nic_memory *memory, uint64_t offset, void *to, uint64_t size);
void nic_memory_write(const struct nic_memory *memory, uint64_t offset, const void *from,
                      uint64_t size);
/* Told by whoever hands out dmabufs of memory that the host cannot map. */
NIC_API void mlx5emu_dmabuf(int fd, uint64_t address);
/* Memory of a GPU of which the program keeps an equal copy in the host's. A NIC reads a GPU's memory
 * without its driver's help; this one would take turns with all others that use the driver. */
NIC_API void mlx5emu_mirror(uint64_t device, const void *host, uint64_t size);

/* --- execute.c, target.c, cqe.c: the engine's thread, with the lock held --------------------- */

/* Executes WQEs of a queue pair while it can; true: it did something. */
bool nic_qp_step(struct nic_qp *qp);
void nic_qp_answer(struct nic_qp *qp, const struct nic_answer *answer, const uint8_t *payload);
/* The target's part; the answer's payload is at most NIC_CHUNK. */
void nic_serve(const struct nic_request *request, const uint8_t *payload,
               struct nic_answer *answer, uint8_t *answer_payload);
/* Finds memory for a key; NULL: not allowed. */
const struct nic_memory *nic_mkey_check(uint32_t key, uint64_t at, uint64_t size, uint32_t access);
/* Copies between the segments of a WQE, from `offset` of the message on, and a buffer. */
bool nic_segments_move(const struct nic_wqe *wqe, uint64_t offset, uint8_t *bytes, uint32_t size,
                       bool into_memory);

struct nic_completion {
    uint8_t opcode; /* of op_own */
    uint8_t syndrome;
    uint16_t counter;
    uint32_t qpn, wqe_opcode, bytes, imm;
};
void nic_cq_write(uint32_t cqn, const struct nic_completion *completion);

/* --- fabric.c: other processes --------------------------------------------------------------- */

/* The node's LID; the wire is the file that MLX5EMU_FABRIC names. */
uint32_t nic_fabric_join(void);
/* false: no room now. */
bool nic_fabric_ask(uint32_t lid, const struct nic_request *request, const uint8_t *payload);
/* Serves requests and takes answers; true: there were some. */
bool nic_fabric_poll(void);

/* --- engine.c -------------------------------------------------------------------------------- */

void nic_engine_start(void);
/* Takes what was stored to the registers; with the lock held. A command comes behind all stores
 * that the program made before it, as on a bus. */
bool nic_registers_poll(void);
uint64_t nic_now_ns(void);

/* --- journal.c: what was done, for the judge ------------------------------------------------- */

void nic_journal_start(void);
void nic_journal_wqe(const struct nic_qp *qp, const struct nic_wqe *wqe, uint32_t syndrome);
/* The counts of a life that ends. */
void nic_journal_life(struct nic_qp *qp);
void nic_journal_bad_doorbell(void);

#endif
