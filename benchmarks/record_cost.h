/* The LTTng-UST tracepoint with the payload of one `op` record. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER sigmatrace_bench
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "record_cost.h"

#if !defined(RECORD_COST_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define RECORD_COST_H
#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(
    sigmatrace_bench, op,
    LTTNG_UST_TP_ARGS(uint64_t, t_tsc, uint64_t, size_bytes, uint32_t, channel, uint32_t, ordinal,
                      uint32_t, what, uint32_t, aux),
    LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, t_tsc, t_tsc)
                            lttng_ust_field_integer(uint64_t, size_bytes, size_bytes)
                                lttng_ust_field_integer(uint32_t, channel, channel)
                                    lttng_ust_field_integer(uint32_t, ordinal, ordinal)
                                        lttng_ust_field_integer(uint32_t, what, what)
                                            lttng_ust_field_integer(uint32_t, aux, aux)))
#endif
#include <lttng/tracepoint-event.h>
