/* Phases of ucx_pair: active messages and streams. Rank 0 sends, rank 1 receives. */
#ifndef UCX_PAIR_AM_H
#define UCX_PAIR_AM_H
#include "ucx_pair.h"

static int arrived;
static void *pending_data;
static size_t pending_bytes;

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data,
                          size_t length, const ucp_am_recv_param_t *param)
{
    unsigned id = (unsigned)(uintptr_t)arg;
    (void)header;
    did("RECV", "AM", "IN", id, header_length + length);
    arrived++;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP && id == 6) {
        ucs_status_ptr_t request = ucp_am_send_nbx(param->reply_ep, 7, NULL, 0, buffer, 12, &plain);
        if (UCS_PTR_IS_PTR(request))
            ucp_request_free(request);
        did("SEND", "AM", "OUT", 7, 12);
    }
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        pending_data = data;
        pending_bytes = length;
        return UCS_INPROGRESS;
    }
    return UCS_OK;
}

static ucs_status_t on_old_am(void *arg, void *data, size_t length, ucp_ep_h reply, unsigned flags)
{
    (void)arg, (void)data, (void)reply, (void)flags;
    did("RECV", "AM", "IN", 9, length);
    arrived++;
    return UCS_OK;
}

static void set_handlers(void)
{
    for (uintptr_t id = 5; id <= 8; id++) {
        ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                        .id = id,
                                        .cb = on_am,
                                        .arg = (void *)id};
        CHECK(ucp_worker_set_am_recv_handler(worker, &param) == UCS_OK);
    }
    CHECK(ucp_worker_set_am_handler(worker, 9, on_old_am, NULL, UCP_AM_FLAG_WHOLE_MSG) == UCS_OK);
}

static void send_am(unsigned id, size_t header, size_t size, uint32_t flags)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags};
    CHECK(finish(ucp_am_send_nbx(ep, id, buffer, header, buffer, size, &param)) == UCS_OK);
    did("SEND", "AM", "OUT", id, header + size);
}

static void await_arrivals(int count)
{
    while (arrived < count)
        ucp_worker_progress(worker);
    arrived = 0;
}

static void active(void)
{
    set_handlers();
    meet();
    for (int i = 0; rank == 0 && i < 5; i++)
        send_am(5, 16, 200 + i, 0);
    for (int i = 0; rank == 0 && i < 4; i++)
        send_am(6, 0, 50, UCP_AM_SEND_FLAG_REPLY);
    for (int i = 0; rank == 0 && i < 3; i++) {
        CHECK(finish(ucp_am_send_nb(ep, 9, buffer, 30, ucp_dt_make_contig(2), on_old_send, 0)) ==
              UCS_OK);
        did("SEND", "AM", "OUT", 9, 60);
    }
    await_arrivals(rank == 0 ? 4 : 12);
    meet();
    if (rank == 0) {
        send_am(8, 8, BIG, UCP_AM_SEND_FLAG_RNDV);
    } else {
        await_arrivals(1);
        CHECK(pending_bytes == BIG);
        CHECK(finish(ucp_am_recv_data_nbx(worker, pending_data, buffer, BIG, &plain)) == UCS_OK);
    }
    meet();
}

static void stream(void)
{
    for (int i = 0; rank == 0 && i < 5; i++) {
        CHECK(finish(i % 2 ? ucp_stream_send_nb(ep, buffer, 1000, ucp_dt_make_contig(1),
                                                on_old_send, 0)
                           : ucp_stream_send_nbx(ep, buffer, 1000, &send_cb)) == UCS_OK);
        did("SEND", "STREAM", "OUT", 0, 1000);
    }
    const ucp_request_param_t all = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_STREAM_RECV_FLAG_WAITALL};
    for (int i = 0; rank == 1 && i < 8; i++) {
        size_t length = 0;
        CHECK(finish(ucp_stream_recv_nbx(ep, buffer, 500, &length, &all)) == UCS_OK);
        did("RECV", "STREAM", "IN", 0, 500);
    }
    for (size_t left = 1000; rank == 1 && left;) {
        size_t length;
        ucs_status_ptr_t data = ucp_stream_recv_data_nb(ep, &length);
        CHECK(!UCS_PTR_IS_ERR(data));
        if (data) {
            did("RECV", "STREAM", "IN", 0, length);
            left -= length;
            ucp_stream_data_release(ep, data);
        } else {
            ucp_worker_progress(worker);
        }
    }
    meet();
}
#endif
