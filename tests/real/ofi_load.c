/* Runs the main() of a shared object that is loaded the way plugins are:
 *   ofi_load (local|deepbind) OBJECT ARGUMENTS... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int deep = argc > 1 && !strcmp(argv[1], "deepbind") ? RTLD_DEEPBIND : 0;
    void *object = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | deep) : NULL;
    int (*entry)(int, char **) = object ? (int (*)(int, char **))dlsym(object, "main") : NULL;
    if (!entry) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    return entry(argc - 2, argv + 2);
}
