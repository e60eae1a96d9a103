/* ofi_self by functions of libfabric that it looks up in a library of its own scope.
 *
 *   ofi_dl (local|deepbind) (dlsym|dlvsym) LIBRARY PROVIDER */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

static __typeof__(&fi_getinfo) call_getinfo;
static __typeof__(&fi_fabric) call_fabric;
static __typeof__(&fi_dupinfo) call_dupinfo;
static __typeof__(&fi_strerror) call_strerror;

#define fi_getinfo call_getinfo
#define fi_fabric call_fabric
#define fi_allocinfo() call_dupinfo(NULL)
#define fi_strerror call_strerror
#define main self_main
#include "ofi_self.c"
#undef main

static void *library;
static int versioned;

static void *look_up(const char *name, const char *version)
{
    void *found = versioned ? dlvsym(library, name, version) : dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int deep = strcmp(argv[1], "deepbind") ? 0 : RTLD_DEEPBIND;
    versioned = !strcmp(argv[2], "dlvsym");
    if (!(library = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL | deep))) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    call_getinfo = (__typeof__(call_getinfo))look_up("fi_getinfo", "FABRIC_1.3");
    call_fabric = (__typeof__(call_fabric))look_up("fi_fabric", "FABRIC_1.1");
    call_dupinfo = (__typeof__(call_dupinfo))look_up("fi_dupinfo", "FABRIC_1.3");
    call_strerror = (__typeof__(call_strerror))look_up("fi_strerror", "FABRIC_1.0");
    return self_main(2, argv + 3);
}
