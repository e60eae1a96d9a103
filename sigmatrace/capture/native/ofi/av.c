/* Address vectors: which fi_addr_t stands for which address. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ofi.h"

#define OFI_ADDRESS_MAX 512u
#define OFI_ADDRESSES (1u << 20) /* with an object id to close; larger numbers have none */

struct ofi_av {
    struct fid_av *fid;
    struct ofi_swaps swaps;
    uint32_t object;
    uint32_t *ids; /* of addresses by fi_addr_t; untouched pages cost nothing */
};

static uint32_t *address_id(struct ofi_av *av, fi_addr_t addr)
{
    return av->ids && addr < OFI_ADDRESSES ? &av->ids[addr] : NULL;
}

/* The address as the library gives it back: the same bytes as the peer's own name. */
static void address_record(struct ofi_av *av, const struct fi_ops_av *inner, fi_addr_t addr)
{
    unsigned char bytes[OFI_ADDRESS_MAX];
    size_t size = sizeof(bytes);
    if (addr == FI_ADDR_NOTAVAIL)
        return;
    if (inner->lookup(av->fid, addr, bytes, &size) || size > sizeof(bytes)) {
        st_lost("address that the address vector does not give back", 1);
        return;
    }
    uint32_t *known = address_id(av, addr);
    uint32_t id = known && *known ? *known : st_object_id();
    if (known)
        *known = id;
    struct st_object object;
    st_object_begin(&object, "ofi_address", id);
    st_object_u64(&object, "av", av->object);
    st_object_u64(&object, "addr", addr);
    st_object_bin(&object, "address", bytes, size);
    st_object_end(&object);
}

static void addresses_record(struct ofi_av *av, const struct fi_ops_av *inner,
                             const fi_addr_t *addrs, size_t count)
{
    int kept = errno;
    st_enter();
    for (size_t i = 0; i < count; i++)
        address_record(av, inner, addrs[i]);
    st_leave();
    errno = kept;
}

/* `used` in the arguments: a table lets the caller leave out the array of numbers, and counts
 * along. The library is then asked for them into an array of ours. */
#define AV_INSERT(member, parameters, arguments, count)                                           \
    static int av_##member parameters                                                             \
    {                                                                                             \
        struct fi_ops_av *ops = __atomic_load_n(&fid->ops, __ATOMIC_ACQUIRE);                     \
        const struct ofi_table *table = ops->member == av_##member ? ofi_table_of(ops) : NULL;    \
        const struct fi_ops_av *inner = table ? table->original : ops;                            \
        fi_addr_t *own = addrs ? NULL : calloc((count) + 1, sizeof(*own));                        \
        fi_addr_t *used = addrs ? addrs : own;                                                    \
        st_enter();                                                                               \
        int result = inner->member arguments;                                                     \
        st_leave();                                                                               \
        if (!table)                                                                               \
            ofi_missed();                                                                         \
        else if (result > 0 && used)                                                              \
            addresses_record(table->owner, inner, used, count);                                   \
        free(own);                                                                                \
        return result;                                                                            \
    }

AV_INSERT(insert,
          (struct fid_av *fid, const void *address, size_t count, fi_addr_t *addrs, uint64_t flags,
           void *context),
          (fid, address, count, used, flags, context),
          count)

AV_INSERT(insertsvc,
          (struct fid_av *fid, const char *node, const char *service, fi_addr_t *addrs,
           uint64_t flags, void *context),
          (fid, node, service, used, flags, context),
          1)

AV_INSERT(insertsym,
          (struct fid_av *fid, const char *node, size_t nodes, const char *service,
           size_t services, fi_addr_t *addrs, uint64_t flags, void *context),
          (fid, node, nodes, service, services, used, flags, context),
          nodes * services)

static int av_remove(struct fid_av *fid, fi_addr_t *addrs, size_t count, uint64_t flags)
{
    struct fi_ops_av *ops = __atomic_load_n(&fid->ops, __ATOMIC_ACQUIRE);
    if (ops->remove != av_remove) /* see ofi_swaps_close */
        return ofi_missed(), ops->remove(fid, addrs, count, flags);
    const struct ofi_table *table = ofi_table_of(ops);
    const struct fi_ops_av *inner = table->original;
    st_enter();
    int result = inner->remove(fid, addrs, count, flags);
    st_leave();
    for (size_t i = 0; !result && i < count; i++) {
        uint32_t *known = address_id(table->owner, addrs[i]);
        if (known && *known) {
            st_object_closed("ofi_address", *known, st_now());
            *known = 0;
        }
    }
    return result;
}

static void av_ops_install(void *ops)
{
    struct fi_ops_av *table = ops;
    OFI_INSTALL(table, insert, av_insert);
    OFI_INSTALL(table, insertsvc, av_insertsvc);
    OFI_INSTALL(table, insertsym, av_insertsym);
    OFI_INSTALL(table, remove, av_remove);
}

static int av_close(struct fid *fid)
{
    struct ofi_av *av = ofi_table_of(fid->ops)->owner;
    int result = ofi_swaps_close(&av->swaps, fid);
    if (result)
        return result;
    st_object_closed("ofi_av", av->object, st_now());
    if (av->ids)
        munmap(av->ids, OFI_ADDRESSES * sizeof(*av->ids));
    free(av);
    return 0;
}

static void av_fid_install(void *ops)
{
    struct fi_ops *table = ops;
    OFI_INSTALL(table, close, av_close);
}

uint32_t ofi_av_of(const struct fid *fid)
{
    const struct fi_ops *ops = fid->ops;
    if (!ops || ops->close != av_close)
        return 0;
    return ((struct ofi_av *)ofi_table_of(ops)->owner)->object;
}

void ofi_av_wrap(struct ofi_domain *domain, struct fid_av *fid, const struct fi_av_attr *attr)
{
    struct ofi_av *av = ofi_av_of(&fid->fid) ? NULL : calloc(1, sizeof(*av));
    if (!av)
        return;
    int kept = errno;
    void *ids = mmap(NULL, OFI_ADDRESSES * sizeof(*av->ids), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = kept;
    av->ids = ids == MAP_FAILED ? NULL : ids;
    av->fid = fid;
    av->object = st_object_id();
    av->swaps.owner = av;
    ofi_swaps_add(&av->swaps, &fid->fid.ops, av_fid_install);
    ofi_swaps_add(&av->swaps, &fid->ops, av_ops_install);
    struct st_object object;
    st_object_begin(&object, "ofi_av", av->object);
    st_object_str(&object, "prov", domain->prov);
    st_object_str(&object, "av_type", attr && attr->type == FI_AV_MAP ? "map" : "table");
    st_object_end(&object);
}
