/* A provider of libfabric that does nothing, and calls of it that meet in the worst moment.
 *
 *   ofi_race HOOK CASE
 *
 * HOOK: the hooking provider's library, which is handed the fabric as libfabric would do it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096

typedef ssize_t (*send_function)(struct fid_ep *, const void *, size_t, void *, fi_addr_t, void *);

static struct fi_provider *hook;
static struct fid_domain fake_domain;
static struct fid_ep fake_ep, fake_alias;
static struct fi_info info;
static int sends, domains, closes;
static void (*meanwhile)(void); /* what happens while the provider is inside a call */

static void demand(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "ofi_race: %s\n", what);
        exit(1);
    }
}

static void reach(void)
{
    if (meanwhile)
        meanwhile();
}

/* --- the provider ------------------------------------------------------------------------------- */

static ssize_t fake_send(struct fid_ep *ep, const void *buf, size_t size, void *desc,
                         fi_addr_t peer, void *context)
{
    (void)ep, (void)buf, (void)size, (void)desc, (void)peer, (void)context;
    __atomic_add_fetch(&sends, 1, __ATOMIC_RELAXED);
    return 0;
}
static struct fi_ops_msg first_msg = {.size = sizeof(first_msg), .send = fake_send};
static struct fi_ops_msg enabled_msg = {.size = sizeof(enabled_msg), .send = fake_send};

static struct fi_ops fid_ops;

static int fake_close(struct fid *fid)
{
    demand(fid != &fake_ep.fid || fake_ep.msg == &enabled_msg || fake_ep.msg == &first_msg,
           "the provider does not see its own table when it closes the endpoint");
    demand(fid->ops == &fid_ops, "the provider does not see its own table of the object");
    reach();
    return closes++ ? 0 : -FI_EBUSY;
}

static int fake_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
    (void)fid, (void)other, (void)flags;
    reach();
    return 0;
}

static int fake_control(struct fid *fid, int command, void *arg)
{
    (void)fid;
    if (command == FI_ENABLE)
        fake_ep.msg = &enabled_msg;
    if (command == FI_ALIAS) {
        fake_alias = fake_ep;
        *((struct fi_alias *)arg)->fid = &fake_alias.fid;
    }
    reach();
    return 0;
}

static int fake_setopt(fid_t fid, int level, int name, const void *value, size_t size)
{
    (void)fid, (void)level, (void)name, (void)value, (void)size;
    reach();
    return 0;
}

static int fake_name(fid_t fid, void *name, size_t *size)
{
    (void)fid, (void)name, (void)size;
    return -FI_ENOSYS;
}
static struct fi_ops fid_ops = {.size = sizeof(fid_ops), .close = fake_close, .bind = fake_bind,
                                .control = fake_control};
static struct fi_ops_ep ep_ops = {.size = sizeof(ep_ops), .setopt = fake_setopt};
static struct fi_ops_cm cm_ops = {.size = sizeof(cm_ops), .getname = fake_name};

static int fake_endpoint(struct fid_domain *domain, struct fi_info *wanted, struct fid_ep **ep,
                         void *context)
{
    (void)domain, (void)wanted, (void)context;
    fake_ep = (struct fid_ep){.fid = {.fclass = FI_CLASS_EP, .ops = &fid_ops}, .ops = &ep_ops,
                              .cm = &cm_ops, .msg = &first_msg};
    *ep = &fake_ep;
    return 0;
}
static struct fi_ops_domain domain_ops = {.size = sizeof(domain_ops), .endpoint = fake_endpoint};

static int fake_open(struct fid_fabric *fabric, struct fi_info *wanted, struct fid_domain **domain,
                     void *context)
{
    (void)fabric, (void)wanted, (void)context;
    domains++;
    fake_domain = (struct fid_domain){.fid = {.fclass = FI_CLASS_DOMAIN, .ops = &fid_ops},
                                      .ops = &domain_ops};
    *domain = &fake_domain;
    return 0;
}

static int fake_eq(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq,
                   void *context)
{
    (void)fabric, (void)attr, (void)eq, (void)context;
    return -FI_ENOSYS;
}
static const struct fi_ops_fabric fabric_ops = {.size = sizeof(fabric_ops), .domain = fake_open,
                                                .eq_open = fake_eq};

/* --- the program -------------------------------------------------------------------------------- */

static void hand_over(struct fid_fabric *fabric)
{
    struct fi_fabric_attr attr = {.fabric = fabric};
    struct fid_fabric *got;
    demand(!hook->fabric(&attr, &got, NULL) && got == fabric, "the hook has another fabric");
}

static struct fid_ep *open_endpoint(struct fid_fabric *fabric)
{
    struct fid_domain *domain;
    struct fid_ep *ep;
    demand(!fi_domain(fabric, &info, &domain, NULL), "no domain");
    demand(!fi_endpoint(domain, &info, &ep, NULL), "no endpoint");
    return ep;
}

static struct fid_fabric *a_fabric(void)
{
    static struct fi_ops_fabric ops;
    static struct fid_fabric fabric = {.fid = {.fclass = FI_CLASS_FABRIC, .ops = &fid_ops},
                                       .ops = &ops};
    ops = fabric_ops;
    return &fabric;
}

static send_function loaded; /* by a thread that has not come to its call yet */

static void *send_loaded(void *unused)
{
    demand(!loaded(&fake_ep, "", 1, NULL, 0, NULL), "refused");
    return unused;
}

static void *send_anew(void *unused)
{
    demand(!fi_send(&fake_ep, "", 1, NULL, 0, NULL), "refused");
    return unused;
}

static void in_thread(void *(*function)(void *))
{
    pthread_t thread;
    demand(!pthread_create(&thread, NULL, function, NULL), "no thread");
    pthread_join(thread, NULL);
}

static void both_sends(void)
{
    in_thread(send_loaded);
    in_thread(send_anew);
}

static void loaded_send(void) { in_thread(send_loaded); }

/* Other threads send while options are set, something is bound, flags are changed. */
static void case_setup(void)
{
    uint64_t flags = FI_TRANSMIT;
    struct fid_fabric *fabric = a_fabric();
    hand_over(fabric);
    struct fid_ep *ep = open_endpoint(fabric);
    demand(!fi_enable(ep), "not enabled");
    loaded = ep->msg->send;
    meanwhile = both_sends;
    demand(!fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &flags, sizeof(flags)),
           "no option");
    demand(!fi_control(&ep->fid, FI_SETOPSFLAG, &flags), "no flags");
    demand(!fi_ep_bind(ep, &fake_domain.fid, 0), "not bound");
}

/* A close is refused while another thread is about to send; then it is not. */
static void case_close(void)
{
    struct fid_fabric *fabric = a_fabric();
    hand_over(fabric);
    struct fid_ep *ep = open_endpoint(fabric);
    demand(!fi_enable(ep), "not enabled");
    loaded = ep->msg->send;
    meanwhile = loaded_send;
    demand(fi_close(&ep->fid) == -FI_EBUSY, "closed");
    meanwhile = NULL;
    send_anew(NULL);
    demand(!fi_close(&ep->fid), "not closed");
}

/* An alias made by copying outlives its endpoint. */
static void case_alias(void)
{
    struct fid_fabric *fabric = a_fabric();
    struct fid_ep *alias = NULL;
    hand_over(fabric);
    struct fid_ep *ep = open_endpoint(fabric);
    demand(!fi_ep_alias(ep, &alias, 0) && alias == &fake_alias, "no alias");
    closes = 1;
    demand(!fi_close(&ep->fid), "not closed");
    demand(!fi_send(alias, "", 1, NULL, 0, NULL) && !fi_close(&alias->fid), "alias is broken");
}

/* --- two threads hand over one table ------------------------------------------------------------ */

static struct fid_fabric *raced;
static __thread bool stops_in_malloc, stops_in_fclose, races_in_mprotect;
static sem_t stopped, resumed;
static pthread_t slow;

static void stop(bool *here)
{
    if (!*here)
        return;
    *here = false;
    sem_post(&stopped);
    sem_wait(&resumed);
}

static bool in_hook_library(const void *address)
{
    Dl_info here, there;
    return dladdr(address, &here) && dladdr((void *)hook->fabric, &there) &&
           here.dli_fbase == there.dli_fbase;
}

void *__libc_malloc(size_t size);
void *malloc(size_t size)
{
    if (stops_in_malloc && in_hook_library(__builtin_return_address(0)))
        stop(&stops_in_malloc);
    return __libc_malloc(size);
}

int fclose(FILE *file)
{
    int result = ((int (*)(FILE *))dlsym(RTLD_NEXT, "fclose"))(file);
    stop(&stops_in_fclose);
    return result;
}

static void slow_start(void *(*function)(void *))
{
    demand(!pthread_create(&slow, NULL, function, NULL), "no thread");
    sem_wait(&stopped);
}

static void *slow_in_malloc(void *unused)
{
    stops_in_malloc = true;
    hand_over(raced);
    demand(!stops_in_malloc, "the copy of a table takes no memory");
    return unused;
}

static void *slow_in_fclose(void *unused)
{
    stops_in_fclose = true;
    hand_over(raced);
    demand(!stops_in_fclose, "the protection of a table is not read from a file");
    return unused;
}

int mprotect(void *address, size_t size, int protection)
{
    int result = (int)syscall(SYS_mprotect, address, size, protection);
    if (races_in_mprotect) {
        races_in_mprotect = false;
        slow_start(slow_in_fclose);
    }
    return result;
}

static void race_begin(void)
{
    static struct fi_ops_fabric ops;
    struct fid_fabric other = {.ops = &ops};
    ops = fabric_ops;
    hand_over(&other); /* the recording has begun before */
    sem_init(&stopped, 0, 0);
    sem_init(&resumed, 0, 0);
}

static void race_end(void)
{
    sem_post(&resumed);
    pthread_join(slow, NULL);
    open_endpoint(raced);
    send_anew(NULL);
    demand(domains == 1, "the domain was opened several times");
}

/* A thread is stopped before it has its copy, while another one goes all the way. */
static void case_copied(void)
{
    race_begin();
    raced = a_fabric();
    slow_start(slow_in_malloc);
    hand_over(raced);
    race_end();
}

/* A thread has seen a table that was made writable, and writes when that thread is done. */
static void case_protected(void)
{
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    demand(page != MAP_FAILED, "no memory");
    memcpy(page, &fabric_ops, sizeof(fabric_ops));
    demand(!mprotect(page, PAGE, PROT_READ), "not protected");
    race_begin();
    raced = a_fabric();
    raced->ops = page;
    races_in_mprotect = true;
    hand_over(raced);
    demand(!races_in_mprotect, "the table was not made writable");
    race_end();
}

/* A provider is unloaded, and another one has its table at the same place; then it writes one
 * function of it anew. */
static int other_open(struct fid_fabric *fabric, struct fi_info *wanted,
                      struct fid_domain **domain, void *context)
{
    (void)fabric, (void)wanted, (void)domain, (void)context;
    return -FI_ENOSYS;
}

static void case_again(void)
{
    struct fid_fabric *fabric = a_fabric();
    struct fi_ops_fabric *ops = fabric->ops;
    hand_over(fabric);
    *ops = fabric_ops;
    ops->domain = other_open;
    hand_over(fabric);
    ops->domain = fake_open;
    hand_over(fabric);
    struct fid_eq *eq;
    demand(fi_eq_open(fabric, NULL, &eq, NULL) == -FI_ENOSYS, "an event queue was opened");
    open_endpoint(fabric);
    send_anew(NULL);
    demand(domains == 1, "the domain was opened several times");
}

int main(int argc, char **argv)
{
    static struct fi_ep_attr ep_attr = {.type = FI_EP_RDM};
    static struct fi_domain_attr domain_attr = {.threading = FI_THREAD_SAFE};
    static const struct { const char *name; void (*function)(void); } cases[] = {
        {"setup", case_setup}, {"close", case_close}, {"alias", case_alias},
        {"copied", case_copied}, {"protected", case_protected}, {"again", case_again}};
    alarm(60);
    info = (struct fi_info){.ep_attr = &ep_attr, .domain_attr = &domain_attr};
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    demand(library, "usage: ofi_race HOOK CASE");
    hook = ((struct fi_provider *(*)(void))dlsym(library, "fi_prov_ini"))();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (!strcmp(cases[i].name, argv[2]))
            cases[i].function();
    printf("%d\n", sends);
    return 0;
}
