/* Built three times: PROVIDER defines the function; USER reaches it; WRAPPER stands before it
 * and asks the core for the real one; without a name it is the program. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "sigmatrace.h"

typedef int (*answer_function)(void);

#if defined(PROVIDER)
int provider_answer(void)
{
    return 42;
}
#elif defined(USER)
int provider_answer(void);
int user_ask(void)
{
    return provider_answer();
}
#elif defined(WRAPPER)
int provider_answer(void)
{
    answer_function real =
        (answer_function)st_next_symbol("provider_answer", __builtin_return_address(0));
    return real ? 1000 + real() : -1;
}

void *dlsym(void *handle, const char *name) /* a layer may wrap it: the core must not meet it */
{
    (void)handle;
    (void)name;
    return (void *)provider_answer;
}
#else
int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    /* The wrapper's dlsym may answer this: user_ask is then reached by its own definition. */
    void *(*real_dlsym)(void *, const char *) = dlsym;
    if (argv[2][0] == 'w')
        real_dlsym = (void *(*)(void *, const char *))st_next_symbol("dlsym", NULL);
    answer_function ask = (answer_function)real_dlsym(handle, "user_ask");
    printf("%d %d\n", ask ? ask() : -2, st_next_symbol("no_such_function", NULL) == NULL);
    return 0;
}
#endif
