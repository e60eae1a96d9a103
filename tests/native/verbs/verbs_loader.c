/* Clients that are not linked with libibverbs: usage: loader plugin|dlsym|dlvsym|next PATH */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "verbs_client.h"

static const char *version; /* NULL: dlsym */

static void *look(void *handle, const char *name)
{
    return version ? dlvsym(handle, name, version) : dlsym(handle, name);
}

/* As NCCL does it: everything by name, from the library's own handle. */
static int run(void *handle)
{
    struct ibv_device **(*list)(int *) = look(handle, "ibv_get_device_list");
    struct ibv_context *(*open)(struct ibv_device *) = look(handle, "ibv_open_device");
    int (*close)(struct ibv_context *) = look(handle, "ibv_close_device");
    const struct client client = {
#define ROW(name) .name = look(handle, #name),
        CLIENT_FUNCTIONS(ROW)
#undef ROW
    };
    if (!list || !open || !close || dlerror())
        return 3;
    struct ibv_context *context = open(list(NULL)[0]);
    return client_write(&client, context) || close(context);
}

/* Look-ups that are to be answered as if nothing was wrapped. */
static int plain(void *handle)
{
    void *old = dlvsym(handle, "ibv_open_device", "IBVERBS_1.0");
    void *new = dlvsym(handle, "ibv_open_device", "IBVERBS_1.1");
    if (!old || !new || old == new)
        return 5;
    if (dlvsym(handle, "ibv_open_device", "IBVERBS_1.99") || !dlerror())
        return 6;
    if (dlsym(handle, "ibv_no_such_function") || !dlerror())
        return 7;
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    if (dlsym(libc, "ibv_open_device") || !dlerror()) /* libc has none */
        return 8;
    if (dlsym(RTLD_NEXT, "getpid") != dlsym(libc, "getpid") || dlsym(RTLD_DEFAULT, "getpid") == NULL)
        return 9;
    if (dlsym(RTLD_NEXT, "main") == dlsym(RTLD_DEFAULT, "main") && dlsym(RTLD_NEXT, "main"))
        return 10;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    void *handle = dlopen(argv[2], RTLD_LAZY | RTLD_LOCAL);
    if (!handle)
        return 2;
    if (!strcmp(argv[1], "plugin")) {
        int (*function)(void) = dlsym(handle, "plugin_run");
        return function ? function() : 2;
    }
    if (!strcmp(argv[1], "plain"))
        return plain(handle);
    if (!strcmp(argv[1], "dlvsym"))
        version = "IBVERBS_1.1";
    return run(handle);
}
