/* The NIC's objects: keys, umems, registers, queue pairs and completion queues. */
#include "nic.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { KIND_BF = 0, KIND_NC = 1 };
#define KIND_NC_DEDICATED (1u << 31)
enum { ALL_REGISTERS = (1 << NIC_REGISTERS) - 1 };

struct nic nic = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void)
{
    nic.lid = nic_fabric_join();
    nic_journal_start();
    nic_engine_start();
}

void nic_start(void)
{
    pthread_once(&once, start);
}

void nic_enter(void)
{
    atomic_fetch_add(&nic.impatient, 1);
    pthread_mutex_lock(&nic.lock);
    atomic_fetch_sub(&nic.impatient, 1);
}

void nic_leave(void)
{
    pthread_mutex_unlock(&nic.lock);
}

uint32_t nic_mkey_add(void *at, uint64_t size, uint64_t iova, uint32_t access, int fd)
{
    static uint8_t variant = 0x37;
    uint32_t key = 0;
    nic_enter();
    for (uint32_t i = 1; i < NIC_MKEYS && !key; i++) {
        struct nic_mkey *mkey = &nic.mkeys[i];
        if (mkey->used)
            continue;
        /* Of a dmabuf, `at` is the offset in it. */
        uint64_t offset = fd >= 0 ? (uint64_t)(uintptr_t)at : 0;
        if (!nic_memory_make(&mkey->memory, fd >= 0 ? NULL : at, size, iova, fd, offset))
            break;
        key = mkey->key = i << 8 | variant++;
        mkey->access = access;
        mkey->used = true;
    }
    nic_leave();
    if (!key)
        errno = ENOMEM;
    return key;
}

void nic_mkey_remove(uint32_t key)
{
    nic_enter();
    struct nic_mkey *mkey = &nic.mkeys[(key >> 8) % NIC_MKEYS];
    if (mkey->used && mkey->key == key) {
        mkey->used = false;
        nic_memory_drop(&mkey->memory);
    }
    nic_leave();
}

const struct nic_memory *nic_mkey_check(uint32_t key, uint64_t at, uint64_t size, uint32_t access)
{
    const struct nic_mkey *mkey = &nic.mkeys[(key >> 8) % NIC_MKEYS];
    const struct nic_memory *memory = &mkey->memory;
    if (!mkey->used || mkey->key != key || (mkey->access & access) != access)
        return NULL;
    bool inside = at >= memory->iova && size <= memory->size &&
                  at - memory->iova <= memory->size - size;
    return inside ? memory : NULL;
}

uint32_t nic_umem_add(void *at, uint64_t size, int fd, uint64_t offset)
{
    uint32_t id = 0;
    nic_enter();
    for (uint32_t i = 0; i < NIC_UMEMS && !id; i++) {
        if (nic.umems[i].used)
            continue;
        if (!nic_memory_make(&nic.umems[i].memory, at, size, 0, fd, offset))
            break;
        nic.umems[i].used = true;
        id = i + NIC_UMEM_BASE;
    }
    nic_leave();
    if (!id)
        errno = ENOMEM;
    return id;
}

struct nic_umem *nic_umem_find(uint32_t id)
{
    uint32_t at = id - NIC_UMEM_BASE;
    return at < NIC_UMEMS && nic.umems[at].used ? &nic.umems[at] : NULL;
}

void nic_umem_remove(uint32_t id)
{
    nic_enter();
    struct nic_umem *umem = nic_umem_find(id);
    if (umem) {
        umem->used = false;
        nic_memory_drop(&umem->memory);
    }
    nic_leave();
}

/* The next free register of a page of this kind: two to a BlueFlame page, four to a dedicated one,
 * and one for all of the plain kind. */
static int register_take(struct nic_uar *uar, uint32_t kind)
{
    static const uint32_t allowed[] = {[KIND_BF] = 0x5, [KIND_NC] = 0x1};
    uint32_t mine = kind == KIND_NC_DEDICATED ? ALL_REGISTERS : allowed[kind];
    if (uar->page && uar->kind != kind)
        return -1;
    if (uar->page && kind == KIND_NC)
        return 0;
    for (int i = 0; i < NIC_REGISTERS; i++)
        if (mine >> i & 1 && !(uar->taken >> i & 1))
            return i;
    return -1;
}

static void *uar_take(struct nic_uar *uar, uint32_t kind, int at)
{
    if (!uar->page) {
        void *page =
            mmap(NULL, NIC_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return NULL;
        uar->kind = kind;
        uar->page = page;
    }
    uar->taken |= 1u << at;
    return uar->page + NIC_REGISTER_AT + at * NIC_REGISTER_STRIDE;
}

void *nic_uar_add(uint32_t kind, uint32_t *page_id)
{
    void *address = NULL;
    if (kind != KIND_BF && kind != KIND_NC && kind != KIND_NC_DEDICATED) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    nic_enter();
    /* A page that is begun comes before a new one. */
    for (int fresh = 0; fresh < 2 && !address; fresh++)
        for (uint32_t i = 0; i < NIC_UARS && !address; i++) {
            struct nic_uar *uar = &nic.uars[i];
            int at = (uar->page == NULL) == fresh ? register_take(uar, kind) : -1;
            if (at < 0)
                continue;
            address = uar_take(uar, kind, at);
            *page_id = i + NIC_UAR_BASE;
            if (i >= nic.uars_end)
                nic.uars_end = i + 1;
        }
    nic_leave();
    return address;
}

/* Pages stay, as those of a context do until it is closed. */
void nic_uar_remove(void *address)
{
    uintptr_t at = (uintptr_t)address;
    nic_enter();
    for (uint32_t i = 0; i < nic.uars_end; i++)
        if (nic.uars[i].page && at - (uintptr_t)nic.uars[i].page < NIC_PAGE)
            nic.uars[i].taken &=
                ~(1u << ((at % NIC_PAGE - NIC_REGISTER_AT) / NIC_REGISTER_STRIDE));
    nic_leave();
}

bool mlx5emu_is_uar(const void *at, uint64_t size)
{
    for (uint32_t i = 0; i < nic.uars_end; i++) {
        uint64_t from = (uintptr_t)at - (uintptr_t)nic.uars[i].page;
        if (nic.uars[i].page && from < NIC_PAGE && size <= NIC_PAGE - from)
            return true;
    }
    return false;
}

struct nic_qp *nic_qp_find(uint32_t qpn)
{
    uint32_t at = qpn - NIC_QPN_BASE;
    return at < NIC_QPS && nic.qps[at].used ? &nic.qps[at] : NULL;
}

/* The lowest free number: numbers of destroyed queue pairs are soon used again. */
struct nic_qp *nic_qp_new(void)
{
    for (uint32_t i = 0; i < NIC_QPS; i++)
        if (!nic.qps[i].used) {
            memset(&nic.qps[i], 0, sizeof(nic.qps[i]));
            nic.qps[i].qpn = i + NIC_QPN_BASE;
            nic.qps[i].used = true;
            if (i >= nic.qps_end)
                nic.qps_end = i + 1;
            return &nic.qps[i];
        }
    return NULL;
}

struct nic_cq *nic_cq_find(uint32_t cqn)
{
    uint32_t at = cqn - NIC_CQN_BASE;
    return at < NIC_CQS && nic.cqs[at].used ? &nic.cqs[at] : NULL;
}

struct nic_cq *nic_cq_new(uint32_t *cqn)
{
    for (uint32_t i = 0; i < NIC_CQS; i++)
        if (!nic.cqs[i].used) {
            nic.cqs[i] = (struct nic_cq){.used = true};
            *cqn = i + NIC_CQN_BASE;
            return &nic.cqs[i];
        }
    return NULL;
}
