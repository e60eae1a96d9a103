/* The libfabric programs end when a call fails. */
#ifndef OFI_CHECK_H
#define OFI_CHECK_H
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        long check_result = (call);                                                                \
        if (check_result < 0) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %ld %s\n", __FILE__, __LINE__, #call, check_result,        \
                    fi_strerror((int)-check_result));                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#endif
