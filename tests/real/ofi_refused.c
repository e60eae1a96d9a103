/* Connects to a port where nobody listens, and prints the error that the event queue tells.
 *
 *   ofi_refused PROVIDER
 */
#include <netinet/in.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CHECK(call)                                                                               \
    do {                                                                                          \
        long check_result = (call);                                                               \
        if (check_result < 0) {                                                                   \
            fprintf(stderr, "%s: %ld %s\n", #call, check_result,                                  \
                    fi_strerror((int)-check_result));                                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* A port of this process's own that is bound and does not listen. */
static struct sockaddr_in deaf_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int deaf = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(deaf, (struct sockaddr *)&address, length));
    CHECK(getsockname(deaf, (struct sockaddr *)&address, &length));
    return address;
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_eq *eq;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_eq_cm_entry entry;
    struct fi_eq_err_entry error = {0};
    struct sockaddr_in to = deaf_port();
    uint32_t event;
    if (argc != 2)
        return 2;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->addr_format = FI_SOCKADDR_IN;
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, 0, hints, &info));
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_ep_bind(ep, &eq->fid, 0));
    CHECK(fi_enable(ep));
    CHECK(fi_connect(ep, &to, NULL, 0));
    ssize_t got = fi_eq_sread(eq, &event, &entry, sizeof(entry), 10000, 0);
    if (got != -FI_EAVAIL)
        CHECK(got < 0 ? got : -FI_EOTHER);
    CHECK(fi_eq_readerr(eq, &error, 0));
    printf("%d %d\n", error.err, error.fid == &ep->fid);
    CHECK(fi_close(&ep->fid));
    CHECK(fi_close(&cq->fid));
    CHECK(fi_close(&domain->fid));
    CHECK(fi_close(&eq->fid));
    CHECK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return 0;
}
