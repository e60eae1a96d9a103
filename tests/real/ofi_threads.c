/* An endpoint for several threads that sends to itself, used by one thread and then by two.
 *
 *   ofi_threads PROVIDER (one|two)
 *
 * The main thread exchanges ROUNDS messages of 1 byte. Then a second thread starts. `two`: it
 * sends ROUNDS messages of 3 bytes and posts as many receives, the first of them before the main
 * thread goes on, the others while the main thread exchanges as many of 2 bytes. `one`: it reads
 * the queues in the main thread's place meanwhile. */
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "ofi_check.h"

#define ROUNDS 50

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *queues[2]; /* of sends, of receives */
static struct fid_ep *ep;
static fi_addr_t self;
static atomic_int used, ended, started, done;
static struct message {
    struct fi_context2 send, receive;
    char in[8];
} messages[3 * ROUNDS];
static char out[8];

static void read_queues(void)
{
    struct fi_cq_tagged_entry entry;
    for (int i = 0; i < 2; i++) {
        ssize_t n = fi_cq_read(queues[i], &entry, 1);
        if (n != -FI_EAGAIN)
            CHECK(n);
        if (n == 1)
            atomic_fetch_add(&ended, 1);
    }
}

static void post(size_t size, bool reads)
{
    struct message *m = &messages[atomic_fetch_add(&used, 1)];
    ssize_t n;
    while ((n = fi_recv(ep, m->in, sizeof(m->in), NULL, FI_ADDR_UNSPEC, &m->receive)) == -FI_EAGAIN)
        if (reads)
            read_queues();
    CHECK(n);
    while ((n = fi_send(ep, out, size, NULL, self, &m->send)) == -FI_EAGAIN)
        if (reads)
            read_queues();
    CHECK(n);
}

static void await(int messages_ended, bool reads)
{
    while (atomic_load(&ended) < 2 * messages_ended)
        if (reads)
            read_queues();
}

static void *second(void *two)
{
    for (int i = 0; two && i < ROUNDS; i++) {
        post(3, false);
        atomic_store(&started, 1);
    }
    atomic_store(&started, 1);
    while (!two && !atomic_load(&done))
        read_queues();
    return NULL;
}

static void open_endpoint(const char *provider)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    char name[256];
    size_t length = sizeof(name);
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup(provider);
    CHECK(fi_getinfo(FI_VERSION(1, 15), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &av->fid, 0));
    for (int i = 0; i < 2; i++) {
        CHECK(fi_cq_open(domain, &cq_attr, &queues[i], NULL));
        CHECK(fi_ep_bind(ep, &queues[i]->fid, i ? FI_RECV : FI_TRANSMIT));
    }
    CHECK(fi_enable(ep));
    CHECK(fi_getname(&ep->fid, name, &length));
    CHECK(fi_av_insert(av, name, 1, &self, 0, NULL) == 1 ? 0 : -FI_EINVAL);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    bool two = argc == 3 && !strcmp(argv[2], "two");
    CHECK(argc == 3 ? 0 : -FI_EINVAL);
    open_endpoint(argv[1]);
    for (int i = 0; i < ROUNDS; i++) {
        post(1, true);
        await(i + 1, true);
    }
    CHECK(-pthread_create(&thread, NULL, second, two ? &thread : NULL));
    while (!atomic_load(&started))
        if (two)
            read_queues();
    for (int i = 0; i < ROUNDS; i++)
        post(2, two);
    await(two ? 3 * ROUNDS : 2 * ROUNDS, two);
    atomic_store(&done, 1);
    CHECK(-pthread_join(thread, NULL));
    fi_close(&ep->fid);
    for (int i = 0; i < 2; i++)
        fi_close(&queues[i]->fid);
    fi_close(&av->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    return 0;
}
