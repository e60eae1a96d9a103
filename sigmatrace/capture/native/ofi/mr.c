/* Memory that peers may touch: what the key of a one-sided operation stands for. */
#include "ofi.h"

#define OFI_MR_DMABUF (1ULL << 40) /* of libfabric 1.20 and newer: no list of pieces then */

struct region {
    const void *address;
    uint64_t length_bytes, access;
};

static struct fid_domain *domain_of(struct fid *fid)
{
    return (struct fid_domain *)((char *)fid - offsetof(struct fid_domain, fid));
}

static const struct fi_ops_mr *mr_original(struct fid *fid)
{
    return ofi_table_original(domain_of(fid)->mr);
}

/* Regions for local use alone are of no interest to anyone else, and may be many. */
static void region_record(struct fid *fid, const struct fid_mr *mr, const struct region *region,
                          uint8_t depth)
{
    const struct ofi_domain *domain = ofi_domain_find(domain_of(fid));
    if (!domain || ofi_deeper(depth, domain->depth) || ofi_mode == ST_MODE_AGGREGATE ||
        !(region->access & (FI_REMOTE_READ | FI_REMOTE_WRITE)))
        return;
    if (mr->key == FI_KEY_NOTAVAIL) {
        st_lost("memory region without a key", 1);
        return;
    }
    struct st_object object;
    st_object_begin(&object, "memory", st_object_id());
    st_object_str(&object, "layer", "ofi");
    st_object_str(&object, "domain", domain->name);
    st_object_u64(&object, "address", (uintptr_t)region->address);
    st_object_u64(&object, "length_bytes", region->length_bytes);
    st_object_u64(&object, "key", mr->key);
    st_object_u64(&object, "access", region->access);
    st_object_end(&object);
}

static int mr_reg(struct fid *fid, const void *buf, size_t size, uint64_t access, uint64_t offset,
                  uint64_t requested_key, uint64_t flags, struct fid_mr **mr, void *context)
{
    uint8_t depth = st_enter();
    int result = mr_original(fid)->reg(fid, buf, size, access, offset, requested_key, flags, mr,
                                       context);
    st_leave();
    if (!result)
        region_record(fid, *mr, &(struct region){buf, size, access}, depth);
    return result;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access,
                   uint64_t offset, uint64_t requested_key, uint64_t flags, struct fid_mr **mr,
                   void *context)
{
    uint8_t depth = st_enter();
    int result = mr_original(fid)->regv(fid, iov, count, access, offset, requested_key, flags, mr,
                                        context);
    st_leave();
    if (!result && count) {
        const struct region region = {iov[0].iov_base, ofi_iov_bytes(iov, count), access};
        region_record(fid, *mr, &region, depth);
    }
    return result;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                      struct fid_mr **mr)
{
    uint8_t depth = st_enter();
    int result = mr_original(fid)->regattr(fid, attr, flags, mr);
    st_leave();
    if (result)
        return result;
    struct region region = {NULL, 0, attr->access};
    if (!(flags & OFI_MR_DMABUF) && attr->iov_count) {
        region.address = attr->mr_iov[0].iov_base;
        region.length_bytes = ofi_iov_bytes(attr->mr_iov, attr->iov_count);
    }
    region_record(fid, *mr, &region, depth);
    return result;
}

static void mr_install(void *ops)
{
    struct fi_ops_mr *table = ops;
    OFI_INSTALL(table, reg, mr_reg);
    OFI_INSTALL(table, regv, mr_regv);
    OFI_INSTALL(table, regattr, mr_regattr);
}

void ofi_mr_wrap(struct fid_domain *fid)
{
    if (fid->mr)
        ofi_table_patch(fid->mr, mr_install);
}
