/* The C around a call of libfabric, once for each form of call.
 *
 * In all of them `parameters` and `arguments` are the call's own, each in parentheses. */
#ifndef SIGMATRACE_OFI_WRAP_H
#define SIGMATRACE_OFI_WRAP_H

#include "ofi.h"

/* An operation: the function that stands for `member` of fid->table, where `fid` is the first
 * parameter. What follows describes the operation by its parameters: initializers of struct
 * ofi_out or struct ofi_in. */
#define OFI_OUT(table, member, name, parameters, arguments, ...)                                  \
    OFI_OPERATION(out, table, member, name, parameters, arguments, __VA_ARGS__)
#define OFI_IN(table, member, name, parameters, arguments, ...)                                   \
    OFI_OPERATION(in, table, member, name, parameters, arguments, __VA_ARGS__)

#define OFI_OPERATION(way, table, member, name_, parameters, arguments, ...)                      \
    static ssize_t table##_##member parameters                                                    \
    {                                                                                             \
        struct fi_ops_##table *ops = __atomic_load_n(&fid->table, __ATOMIC_ACQUIRE);              \
        if (ops->member != table##_##member) /* see ofi_swaps_close */                            \
            return ofi_missed(), ops->member arguments;                                           \
        const struct ofi_table *swapped = ofi_table_of(ops);                                      \
        const struct fi_ops_##table *inner = swapped->original;                                   \
        struct ofi_##way operation = {.name = OFI_CALL_##name_, __VA_ARGS__};                     \
        struct ofi_call call;                                                                     \
        ofi_##way##_begin(&call, swapped, &operation);                                            \
        ssize_t result = inner->member arguments;                                                 \
        ofi_##way##_end(&call, &operation, result);                                               \
        return result;                                                                            \
    }

/* What the parameter `msg` of fi_*msg calls says, whatever its type; they bring their flags. */
#define OFI_OF_MSG(flags_)                                                                        \
    .peer = msg->addr, .context = msg->context, .flags = (flags_), .has_flags = true

/* One piece of remote memory; its length is not recorded. */
#define OFI_TARGET(address, key)                                                                  \
    .targets = &(const struct fi_rma_iov){(address), 0, (key)}, .target_count = 1

/* A call that makes something: `function` stands for `inner`, and what follows is done when it
 * succeeded, with `depth` of the call. What the library does inside is nested in it. */
#define OFI_MAKE(function, inner, parameters, arguments, ...)                                     \
    static int function parameters                                                                \
    {                                                                                             \
        uint8_t depth = st_enter();                                                               \
        int result = (inner)arguments;                                                            \
        st_leave();                                                                               \
        if (!result)                                                                              \
            __VA_ARGS__;                                                                          \
        return result;                                                                            \
    }

#endif
