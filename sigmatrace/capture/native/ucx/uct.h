/* UCT: what uct.c (interfaces, endpoints, arrivals) and uct_ops.c (operations) share. */
#ifndef ST_UCT_H
#define ST_UCT_H

#include "ucx.h"

#include <uct/api/uct.h>

#define ST_UCT_HANDLERS 32 /* UCT_AM_ID_MAX */

struct st_uct_handler {
    struct st_slot *iface;
    uct_am_callback_t callback;
    void *arg;
    uint64_t id;
};

struct st_uct_iface {
    uct_iface_ops_t ops; /* the transport's own */
    struct st_uct_handler handlers[ST_UCT_HANDLERS];
    size_t device_bytes, iface_bytes, ep_bytes; /* lengths of addresses */
};

/* Puts the wrappers into an interface's table. */
void st_uct_wrap(uct_iface_ops_t *ops);
/* The slot of an endpoint; made when it is met for the first time. */
struct st_slot *st_uct_ep_slot(uct_ep_h ep);
/* How deep a call or arrival is: one at least when UCP, itself recorded, makes it. */
uint8_t st_uct_depth(uint8_t depth, const void *caller);

#endif
