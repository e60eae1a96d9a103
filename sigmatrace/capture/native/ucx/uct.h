/* UCT: what uct.c (interfaces, endpoints, arrivals) and uct_ops.c (operations) share. */
#ifndef UCX_UCT_H
#define UCX_UCT_H

#include "ucx.h"

#include <uct/api/uct.h>

#define UCX_UCT_HANDLERS 32 /* UCT_AM_ID_MAX */

struct ucx_uct_handler {
    struct ucx_slot *iface;
    uct_am_callback_t callback;
    void *arg;
    uint64_t id;
};

struct ucx_uct_iface {
    uct_iface_ops_t ops; /* the transport's own */
    struct ucx_uct_handler handlers[UCX_UCT_HANDLERS];
    size_t device_bytes, iface_bytes, ep_bytes; /* lengths of addresses */
};

/* Puts the wrappers into an interface's table. */
void ucx_uct_wrap(uct_iface_ops_t *ops);
/* The slot of an endpoint; made when it is met for the first time. */
struct ucx_slot *ucx_uct_ep_slot(uct_ep_h ep);
/* How many calls enclose a call or arrival: one at least when UCP, itself recorded, makes it,
 * because its progress, which is not recorded, is not the application's own call of UCT. */
uint8_t ucx_uct_nesting(const void *caller);

#endif
