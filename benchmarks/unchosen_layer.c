/* Where calls of the layers lead, and what one takes: "NAME OBJECT+OFFSET" for each function,
 * then "ns NS NS ..." of batches of fi_cq_read on an empty queue. No traffic.
 * usage: unchosen_layer ROUNDS CALLS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void check(int result, const char *what)
{
    if (!result)
        return;
    fprintf(stderr, "unchosen_layer: %s: %s\n", what, fi_strerror(-result));
    exit(1);
}

static void tell(const char *name, const void *function)
{
    Dl_info info;
    if (!function || !dladdr(function, &info)) {
        printf("%s unknown\n", name);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    printf("%s %s+%zx\n", name, slash ? slash + 1 : info.dli_fname,
           (size_t)((const char *)function - (const char *)info.dli_fbase));
}

static double read_ns(struct fid_cq *cq, long calls)
{
    struct fi_cq_tagged_entry entry;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < calls; i++)
        fi_cq_read(cq, &entry, 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
           (double)calls;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *endpoint;
    struct fid_cq *cq;
    struct fi_cq_attr attributes = {.format = FI_CQ_FORMAT_TAGGED};
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
    check(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info), "fi_getinfo");
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_cq_open(domain, &attributes, &cq, NULL), "fi_cq_open");
    check(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    tell("fi_fabric", dlsym(RTLD_DEFAULT, "fi_fabric"));
    tell("fi_domain", (void *)fabric->ops->domain);
    tell("fi_send", (void *)endpoint->msg->send);
    tell("fi_tsend", (void *)endpoint->tagged->send);
    tell("fi_write", (void *)endpoint->rma->write);
    tell("fi_cq_read", (void *)cq->ops->read);
    tell("ucp_tag_send_nbx", dlsym(RTLD_DEFAULT, "ucp_tag_send_nbx"));
    tell("ucp_worker_progress", dlsym(RTLD_DEFAULT, "ucp_worker_progress"));
    printf("ns");
    for (int round = 0; round < atoi(argv[1]); round++)
        printf(" %.2f", read_ns(cq, atol(argv[2])));
    printf("\n");
    /* An endpoint that was never enabled cannot be closed in every version: just end. */
    fflush(stdout);
    _exit(0);
}
