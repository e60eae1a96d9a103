/* What the phases of ucx_pair share: the endpoint, the count of what was done, waiting. */
#ifndef UCX_PAIR_H
#define UCX_PAIR_H
#include <string.h>
#include <ucp/api/ucp.h>
#include <ucp/api/ucp_compat.h>

#include "pair.h"
#include "ucx_check.h"

#define BIG (3u << 20)

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static char *window, *buffer;
static size_t request_bytes;

/* --- what was done ---------------------------------------------------------------------- */

static struct {
    const char *op, *kind, *dir;
    uint64_t tag, count, bytes;
} did_table[256];

static void did(const char *op, const char *kind, const char *dir, uint64_t tag, uint64_t bytes)
{
    int i = 0;
    while (did_table[i].op && (strcmp(did_table[i].op, op) || strcmp(did_table[i].kind, kind) ||
                               strcmp(did_table[i].dir, dir) || did_table[i].tag != tag))
        i++;
    did_table[i].op = op;
    did_table[i].kind = kind;
    did_table[i].dir = dir;
    did_table[i].tag = tag;
    did_table[i].count++;
    did_table[i].bytes += bytes;
}
#define SENT(tag, bytes) did("SEND", "TAG", "OUT", tag, bytes)
#define GOT(tag, bytes) did("RECV", "TAG", "IN", tag, bytes)
#define RMA(op, bytes) did(op, "RMA", "OUT", 0, bytes)

/* --- waiting ------------------------------------------------------------------------------ */

static void progress(void)
{
    ucp_worker_progress(worker);
}

static void meet(void)
{
    pair_meet(progress);
}

static ucs_status_t finish(ucs_status_ptr_t request)
{
    if (!UCS_PTR_IS_PTR(request))
        return UCS_PTR_STATUS(request);
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
        ucp_worker_progress(worker);
    ucp_request_free(request);
    return status;
}

static int callbacks;
static void on_send(void *request, ucs_status_t status, void *data)
{
    (void)request, (void)status;
    CHECK(data == &callbacks);
    callbacks++;
}
static void on_old_send(void *request, ucs_status_t status)
{
    (void)request;
    CHECK(status == UCS_OK);
    callbacks++;
}
static ucp_tag_recv_info_t last_info;
static void on_recv(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *data)
{
    (void)request, (void)status;
    CHECK(data == &callbacks);
    last_info = *info;
    callbacks++;
}
static void on_old_recv(void *request, ucs_status_t status, ucp_tag_recv_info_t *info)
{
    (void)request;
    CHECK(status == UCS_OK);
    last_info = *info;
    callbacks++;
}

static const ucp_request_param_t plain = {.op_attr_mask = 0};
static const ucp_request_param_t send_cb = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
    .cb.send = on_send,
    .user_data = &callbacks};
static const ucp_request_param_t recv_cb = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
    .cb.recv = on_recv,
    .user_data = &callbacks};

static void send_tag(uint64_t tag, size_t size)
{
    CHECK(finish(ucp_tag_send_nbx(ep, buffer, size, tag, &send_cb)) == UCS_OK);
    SENT(tag, size);
}

/* Waits until a message of this tag lies in the unexpected queue. */
static ucp_tag_recv_info_t await(uint64_t tag)
{
    ucp_tag_recv_info_t info;
    while (!ucp_tag_probe_nb(worker, tag, ~0ull, 0, &info))
        ucp_worker_progress(worker);
    did("PROBE", "MSG", "OUT", 0, info.length);
    return info;
}
#endif
