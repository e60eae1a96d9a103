/* rdma_cm: the socket addresses between which a queue pair is connected. The queue pair itself
 * is made and connected by calls of libibverbs that librdmacm makes. */
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

/* rdma_create_qp and rdma_create_ep come here as well. */
ST_API int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
    int before = errno;
    create_function real = (create_function)st_copy_look_up(ST_CALLER, "librdmacm.so.1",
                                                             "rdma_create_qp_ex", "RDMACM_1.0");
    errno = before;
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

static const struct st_interposed wrappers[] = {
    {"rdma_create_qp_ex", "RDMACM_1.0", rdma_create_qp_ex}, {NULL, NULL, NULL}};

__attribute__((constructor)) static void start(void)
{
    if (st_layer_on(ST_LAYER_VERBS))
        st_interpose("librdmacm", wrappers);
}
