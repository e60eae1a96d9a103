/* rdma_cm: the socket addresses between which a queue pair is connected. The queue pair itself
 * is made and connected by calls of libibverbs that librdmacm makes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>

#include "verbs.h"

#include <rdma/rdma_cma.h>

typedef __typeof__(&rdma_create_qp_ex) create_function;

static size_t bytes_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
           : address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                            : sizeof(struct sockaddr_storage);
}

static void describe(struct rdma_cm_id *id, const struct st_verbs_qp *qp)
{
    struct st_object o;
    struct sockaddr *local = rdma_get_local_addr(id), *remote = rdma_get_peer_addr(id);
    st_object_begin(&o, "ib_cm", st_object_id());
    st_object_u64(&o, "qp", qp->id);
    if (local->sa_family)
        st_object_bin(&o, "local_sockaddr", local, bytes_of(local));
    if (remote->sa_family)
        st_object_bin(&o, "remote_sockaddr", remote, bytes_of(remote));
    st_object_end(&o);
}

static create_function real_create(const void *caller)
{
    static create_function found;
    create_function known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (known)
        return known;
    void *handle = dlopen("librdmacm.so.1", RTLD_LAZY | RTLD_NOLOAD);
    known = (create_function)(handle ? st_dlvsym(handle, "rdma_create_qp_ex", "RDMACM_1.0") : NULL);
    if (!known)
        known = (create_function)st_next_symbol("rdma_create_qp_ex", caller);
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    return known;
}

/* rdma_create_qp and rdma_create_ep come here as well. */
ST_API int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
    create_function real = real_create(ST_CALLER);
    if (!real) {
        errno = ENOSYS;
        return -1;
    }
    int result = real(id, attr), saved = errno;
    struct st_verbs_qp *qp = !result && id->qp ? st_verbs_qp_of(id->qp) : NULL;
    if (qp)
        describe(id, qp);
    errno = saved;
    return result;
}
