/* Device, memory and queue pairs of gpu_pair. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pair_host.h"

enum { KIND_BF = 0, KIND_PLAIN = 1, REGISTER_BYTES = 8, BF_BYTES = 512, RECEIVE_BYTES = 16 };
enum { LOG_TARGET = 2, LOG_RECEIVES = 4 };
#define KIND_OWN (1u << 31)

struct setup setup;
static struct mlx5dv_devx_uar *target_uar;

static uint32_t log2_up(uint32_t value)
{
    uint32_t log = 0;
    while (1u << log < value)
        log++;
    return log;
}

static uint32_t umem_of(uint64_t at, uint64_t size)
{
    struct mlx5dv_devx_umem_in in = {.size = size, .access = IBV_ACCESS_LOCAL_WRITE,
                                     .pgsz_bitmap = UINT64_MAX & ~0xfffu,
                                     .comp_mask = MLX5DV_UMEM_MASK_DMABUF};
    struct mlx5dv_devx_umem *umem;
    if (options.memory == IN_GPU_AS_DMABUF) {
        in.dmabuf_fd = cuda_dmabuf(at, size);
        umem = mlx5dv_devx_umem_reg_ex(setup.context, &in);
        close(in.dmabuf_fd);
    } else {
        umem = mlx5dv_devx_umem_reg(setup.context, (void *)(uintptr_t)at, size,
                                    IBV_ACCESS_LOCAL_WRITE);
    }
    need("umem_reg", !umem);
    return umem->umem_id;
}

static void heap_make(void)
{
    heap_layout();
    setup.heap = cuda_memory(setup.heap_size, options.heap);
    heap_fill();
    if (options.heap == IN_GPU_AS_DMABUF) {
        int fd = cuda_dmabuf(setup.heap, setup.heap_size);
        setup.mr = ibv_reg_dmabuf_mr(setup.pd, 0, setup.heap_size, setup.heap, fd, ACCESS);
        close(fd);
    } else {
        setup.mr = (ibv_reg_mr)(setup.pd, (void *)(uintptr_t)setup.heap, setup.heap_size, ACCESS);
    }
    need("reg_mr", !setup.mr);
}

/* Whether a GPU can ring at all: asked before there is any queue pair. */
static void probe(void)
{
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(setup.context, KIND_OWN);
    need("alloc_uar", !uar);
    cuda_register(uar->reg_addr, REGISTER_BYTES);
    cuda_unregister(uar->reg_addr);
    mlx5dv_devx_free_uar(uar);
}

void setup_open(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct mlx5dv_pd pd = {0};
    struct ibv_port_attr port;
    need("no device", !devices || !devices[0]);
    setup.context = ibv_open_device(devices[0]);
    need("open_device", !setup.context);
    ibv_free_device_list(devices);
    need("query_port", ibv_query_port(setup.context, 1, &port));
    need("query_gid", ibv_query_gid(setup.context, 1, 0, &setup.mine.gid));
    setup.mine.lid = port.lid;
    setup.pd = ibv_alloc_pd(setup.context);
    need("alloc_pd", !setup.pd);
    struct mlx5dv_obj object = {.pd = {setup.pd, &pd}};
    need("init_obj", mlx5dv_init_obj(&object, MLX5DV_OBJ_PD));
    setup.pdn = pd.pdn;
    probe();
    heap_make();
    setup.mine.heap = setup.heap;
    setup.mine.rkey = setup.mr->rkey;
}

static void register_make(struct queue *queue, const struct queue *first)
{
    static const uint32_t kinds[] = {KIND_OWN, KIND_OWN, KIND_PLAIN, KIND_BF};
    uint32_t size = options.uar == UAR_BF ? BF_BYTES : REGISTER_BYTES;
    bool shares = options.uar == UAR_SHARED && queue != first;
    queue->uar = shares ? first->uar : mlx5dv_devx_alloc_uar(setup.context, kinds[options.uar]);
    need("alloc_uar", !queue->uar);
    if (options.args.dialect == PAIR_PROXY)
        queue->db = (uintptr_t)queue->uar->reg_addr; /* the host rings */
    else if (queue != first && queue->uar->reg_addr == first->uar->reg_addr)
        queue->db = first->db;
    else
        queue->db = cuda_register(queue->uar->reg_addr, size);
}

/* Of doorbell records and completion queues. */
static enum memory small_memory(void)
{
    return options.memory == MIRRORED ? IN_HOST : options.memory;
}

static uint64_t mirror_make(uint64_t queues, uint64_t size)
{
    void (*tell)(uint64_t, const void *, uint64_t);
    if (options.memory != MIRRORED)
        return 0;
    *(void **)&tell = dlsym(RTLD_DEFAULT, "mlx5emu_mirror");
    need("mlx5emu_mirror", !tell);
    uint64_t mirror = cuda_memory(size, IN_HOST);
    tell(queues, (const void *)(uintptr_t)mirror, size);
    return mirror;
}

/* One piece of memory for all send queues, one for their records, one for their CQs. */
static void senders_make(void)
{
    uint32_t count = options.qps, log_size = log2_up(options.slots);
    uint64_t receive_bytes = options.receives ? (uint64_t)RECEIVE_BYTES << LOG_RECEIVES : 0;
    uint64_t queue_bytes = receive_bytes + (uint64_t)options.slots * PAIR_SLOT;
    uint64_t queues = cuda_memory(count * queue_bytes, options.memory);
    uint64_t mirror = mirror_make(queues, count * queue_bytes);
    uint64_t records = cuda_memory(count * RECORD_BYTES, small_memory());
    uint64_t cqs = cuda_memory(count * CQ_BYTES, small_memory());
    uint32_t queues_umem = umem_of(queues, count * queue_bytes);
    uint32_t records_umem = umem_of(records, count * RECORD_BYTES);
    uint32_t cqs_umem = umem_of(cqs, count * CQ_BYTES);
    uint8_t ones[CQ_BYTES];
    memset(ones, 0xff, sizeof(ones));
    for (uint32_t k = 0; k < count; k++) {
        struct queue *queue = &setup.sender[k];
        queue->sq = queues + k * queue_bytes + receive_bytes;
        queue->mirror = mirror ? mirror + (queue->sq - queues) : 0;
        queue->record = records + (uint64_t)k * RECORD_BYTES + SEND_RECORD;
        queue->cq_at = cqs + (uint64_t)k * CQ_BYTES;
        cuda_put(queue->cq_at, ones, sizeof(ones));
        devx_cq(queue, cqs_umem, (uint64_t)k * CQ_BYTES, 0, true);
        register_make(queue, &setup.sender[0]);
        struct devx_qp how = {.umem = queues_umem, .record_umem = records_umem,
                              .uar = queue->uar->page_id, .log_size = log_size,
                              .cqn_receive = queue->cqn, .offset = k * queue_bytes,
                              .record_offset = (uint64_t)k * RECORD_BYTES, .dci = options.dci,
                              .receives = options.receives, .log_receives = LOG_RECEIVES};
        devx_qp(queue, &how);
        setup.mine.sender[k] = queue->qpn;
    }
}

/* Posts all receives that will be needed. */
static void receives_post(struct queue *queue, uint64_t ring, uint64_t record)
{
    uint32_t size = options.args.bytes;
    uint64_t bytes = (uint64_t)setup.receives * size;
    queue->receives_at = cuda_memory(bytes, IN_GPU);
    struct ibv_mr *mr =
        (ibv_reg_mr)(setup.pd, (void *)(uintptr_t)queue->receives_at, bytes, ACCESS);
    need("reg_mr", !mr);
    for (uint32_t i = 0; i < setup.receives; i++) {
        struct mlx5_wqe_data_seg segment;
        mlx5dv_set_data_seg(&segment, size, mr->lkey, queue->receives_at + (uint64_t)i * size);
        cuda_put(ring + (uint64_t)i * RECEIVE_BYTES, &segment, sizeof(segment));
    }
    uint32_t posted = htobe32(setup.receives);
    cuda_put(record, &posted, sizeof(posted));
}

static void target_make(struct queue *queue)
{
    uint32_t log_receives = log2_up(setup.receives ? setup.receives : 1);
    uint64_t receives = setup.receives ? (uint64_t)RECEIVE_BYTES << log_receives : 0;
    uint64_t size = receives + (PAIR_SLOT << LOG_TARGET), cq_bytes = (uint64_t)CQ_BYTES
                                                                     << log_receives;
    uint64_t ring = cuda_memory(size, small_memory());
    uint64_t record = cuda_memory(RECORD_BYTES, small_memory());
    queue->receive_cq = cuda_memory(cq_bytes, small_memory());
    devx_cq(queue, umem_of(queue->receive_cq, cq_bytes), 0, log_receives, false);
    struct devx_qp how = {.umem = umem_of(ring, size),
                          .record_umem = umem_of(record, RECORD_BYTES),
                          .uar = target_uar->page_id,
                          .log_size = LOG_TARGET,
                          .log_receives = log_receives,
                          .receives = setup.receives > 0,
                          .cqn_receive = queue->cqn};
    devx_qp(queue, &how);
    if (setup.receives)
        receives_post(queue, ring, record);
}

void setup_queues(void)
{
    uint32_t messages = 0;
    for (uint32_t i = 0; i < options.args.operations; i++) {
        uint32_t kind = options.args.kind[i % options.args.kinds];
        messages += kind == PAIR_SEND || kind == PAIR_IMM;
    }
    setup.receives = messages * options.threads * (options.blocks / options.qps);
    target_uar = mlx5dv_devx_alloc_uar(setup.context, KIND_PLAIN);
    need("alloc_uar", !target_uar);
    for (uint32_t k = 0; options.verbs && k < options.qps; k++) {
        verbs_qp_make(&setup.sender[k]);
        setup.mine.sender[k] = setup.sender[k].qpn;
    }
    if (!options.verbs)
        senders_make();
    if (options.dci)
        verbs_dct_make();
    for (uint32_t k = 0; !options.dci && k < options.qps; k++) {
        target_make(&setup.target[k]);
        setup.mine.target[k] = setup.target[k].qpn;
    }
}

static void faults_make(struct pair_qp *qp)
{
    qp->rkey += options.args.fault == PAIR_REMOTE_KEY;
    qp->lkey += options.args.fault == PAIR_LOCAL_KEY;
    if (options.args.fault == PAIR_BOUNDS)
        qp->remote += setup.heap_size;
}

static void connect_all(void)
{
    for (uint32_t k = 0; k < options.qps; k++) {
        const struct end *to = setup_to(k), *from = setup_from(k);
        if (options.verbs)
            verbs_qp_connect(&setup.sender[k], to, to->target[k]);
        else
            devx_connect(&setup.sender[k], to, options.dci ? 0 : to->target[k]);
        if (!options.dci)
            devx_connect(&setup.target[k], from, from->sender[k]);
    }
    /* Nobody sends before all others can receive. */
    meet("connected");
}

void setup_connect(void)
{
    struct pair_qp *qps = calloc(options.qps, sizeof(*qps));
    need("memory", !qps);
    exchange("ends", &setup.mine, sizeof(setup.mine), setup.ends);
    for (uint32_t k = 0; k < options.qps; k++) {
        struct queue *sender = &setup.sender[k];
        const struct end *to = setup_to(k);
        qps[k] = (struct pair_qp){.sq = sender->sq, .record = sender->record, .db = sender->db,
                                  .cq = sender->cq_at, .local = setup.heap,
                                  .mirror = sender->mirror, .remote = to->heap, .qpn = sender->qpn,
                                  .slots = options.slots, .lkey = setup.mr->lkey,
                                  .rkey = to->rkey};
        faults_make(&qps[k]);
        if (options.args.dialect == PAIR_PROXY)
            qps[k].proxy = cuda_memory(8, IN_HOST);
        if (options.dci)
            verbs_av_make(&qps[k], to);
    }
    setup.qps = cuda_memory(options.qps * sizeof(*qps), IN_GPU);
    cuda_put(setup.qps, qps, options.qps * sizeof(*qps));
    free(qps);
    connect_all();
}

static void life_begin(struct pair_qp *qp, const struct queue *sender)
{
    uint8_t ones[CQ_BYTES];
    uint32_t none = 0;
    memset(ones, 0xff, sizeof(ones));
    cuda_put(sender->cq_at, ones, sizeof(ones));
    cuda_put(sender->record, &none, sizeof(none));
    qp->slots_before += qp->reserved;
    qp->reserved = qp->ready = qp->rung = 0;
}

void setup_again(void)
{
    struct pair_qp *qps = calloc(options.qps, sizeof(*qps));
    need("memory", !qps);
    cuda_get(qps, setup.qps, options.qps * sizeof(*qps));
    for (uint32_t k = 0; k < options.qps; k++) {
        devx_reset(&setup.sender[k]);
        if (!options.dci)
            devx_reset(&setup.target[k]);
        life_begin(&qps[k], &setup.sender[k]);
    }
    cuda_put(setup.qps, qps, options.qps * sizeof(*qps));
    free(qps);
    heap_fill();
    connect_all();
}

void setup_close(void)
{
    for (uint32_t k = 0; k < options.qps; k++) {
        struct queue *sender = &setup.sender[k];
        if (sender->verbs) {
            ibv_destroy_qp(sender->verbs);
            continue;
        }
        mlx5dv_devx_obj_destroy(sender->qp);
        mlx5dv_devx_obj_destroy(sender->cq);
        bool last_user = options.uar != UAR_SHARED || k + 1 == options.qps;
        bool registered = options.args.dialect != PAIR_PROXY && last_user &&
                          (options.uar != UAR_PLAIN || k + 1 == options.qps);
        if (registered)
            cuda_unregister(sender->uar->reg_addr);
        if (last_user)
            mlx5dv_devx_free_uar(sender->uar);
    }
    for (uint32_t k = 0; !options.dci && k < options.qps; k++) {
        mlx5dv_devx_obj_destroy(setup.target[k].qp);
        mlx5dv_devx_obj_destroy(setup.target[k].cq);
    }
    ibv_dereg_mr(setup.mr);
    ibv_dealloc_pd(setup.pd);
    ibv_close_device(setup.context);
}
