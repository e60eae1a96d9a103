/* The UCX programs end when something is not as it must be. */
#ifndef UCX_CHECK_H
#define UCX_CHECK_H
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)
#endif
