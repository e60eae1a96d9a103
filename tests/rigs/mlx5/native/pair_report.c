/* What was posted to each queue pair, as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include "pair_host.h"

static void operations_print(const struct pair_qp *qp)
{
    const char *comma = "";
    for (uint32_t i = 0; i < PAIR_OPCODES; i++)
        if (qp->operations[i]) {
            printf("%s\"%u\": {\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", comma, i,
                   qp->operations[i], qp->bytes[i]);
            comma = ", ";
        }
}

void queues_print(const struct pair_qp *qps)
{
    printf(", \"qps\": [");
    for (uint32_t k = 0; k < options.qps; k++) {
        const struct end *to = setup_to(k);
        printf("%s{\"qpn\": %u, \"remote_qpn\": %u, \"rings\": %" PRIu64 ", \"slots\": %" PRIu64
               ", \"error\": %u, \"operations\": {",
               k ? ", " : "", qps[k].qpn, options.dci ? to->dct : to->target[k], qps[k].rings,
               qps[k].slots_before + qps[k].reserved, qps[k].error);
        operations_print(&qps[k]);
        printf("}}");
    }
    printf("]");
}
