/* Phases of ucx_pair: tagged messages. Rank 0 sends, rank 1 receives. */
#ifndef UCX_PAIR_TAG_H
#define UCX_PAIR_TAG_H
#include "ucx_pair.h"

static void posted(void)
{
    ucs_status_ptr_t requests[10];
    for (int i = 0; rank == 1 && i < 10; i++)
        requests[i] = ucp_tag_recv_nbx(worker, buffer, BIG, 0x10, ~0ull, i % 2 ? &plain : &recv_cb);
    meet();
    for (int i = 0; rank == 0 && i < 10; i++)
        send_tag(0x10, 100 * i);
    for (int i = 0; rank == 1 && i < 10; i++) {
        CHECK(finish(requests[i]) == UCS_OK);
        GOT(0x10, 100 * i);
    }
    meet();
}

/* Messages that lie there before they are asked for: some complete inside the call. */
static void unexpected(void)
{
    for (int i = 0; rank == 0 && i < 10; i++)
        send_tag(0x11, 10 + i);
    for (int i = 0; rank == 1 && i < 10; i++) {
        await(0x11);
        int before = callbacks;
        ucp_tag_recv_info_t info = {0};
        ucp_request_param_t param = recv_cb;
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
        param.recv_info.tag_info = &info;
        ucs_status_ptr_t request = ucp_tag_recv_nbx(worker, buffer, BIG, 0x11, ~0ull, &param);
        CHECK(!UCS_PTR_IS_ERR(request));
        CHECK(request || callbacks == before); /* no callback when complete at once */
        CHECK(finish(request) == UCS_OK);
        CHECK(!request || callbacks == before + 1);
        GOT(0x11, 10 + i);
    }
    meet();
}

static void wildcard(void)
{
    for (int i = 0; rank == 0 && i < 8; i++)
        send_tag(0x20 + i % 4, 1000 + i);
    for (int i = 0; rank == 1 && i < 8; i++) {
        int before = callbacks;
        ucp_request_param_t param = recv_cb;
        param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
        CHECK(finish(ucp_tag_recv_nbx(worker, buffer, BIG, 0x20, ~0xfull, &param)) == UCS_OK);
        CHECK(callbacks == before + 1);
        GOT(last_info.sender_tag, last_info.length);
    }
    meet();
}

/* A large message is overtaken by a small one of the same tag. */
static void inversion(void)
{
    if (rank == 1) {
        ucs_status_ptr_t first = ucp_tag_recv_nbx(worker, buffer, BIG, 0x30, ~0ull, &plain);
        ucs_status_ptr_t second = ucp_tag_recv_nbx(worker, window, 8, 0x30, ~0ull, &plain);
        meet();
        CHECK(finish(second) == UCS_OK && finish(first) == UCS_OK);
        GOT(0x30, BIG);
        GOT(0x30, 8);
    } else {
        meet();
        ucs_status_ptr_t first = ucp_tag_send_nbx(ep, buffer, BIG, 0x30, &plain);
        SENT(0x30, BIG);
        send_tag(0x30, 8);
        CHECK(finish(first) == UCS_OK);
    }
    meet();
}

static void sync_send(void)
{
    for (int i = 0; i < 3; i++)
        if (rank == 0) {
            CHECK(finish(ucp_tag_send_sync_nbx(ep, buffer, 64, 0x40, &send_cb)) == UCS_OK);
            CHECK(finish(ucp_tag_send_sync_nb(ep, buffer, 65, ucp_dt_make_contig(1), 0x40,
                                              on_old_send)) == UCS_OK);
            SENT(0x40, 64);
            SENT(0x40, 65);
        } else {
            CHECK(finish(ucp_tag_recv_nbx(worker, buffer, BIG, 0x40, ~0ull, &plain)) == UCS_OK);
            CHECK(finish(ucp_tag_recv_nbx(worker, buffer, BIG, 0x40, ~0ull, &plain)) == UCS_OK);
            GOT(0x40, 64);
            GOT(0x40, 65);
        }
    meet();
}

static void probe(void)
{
    size_t sizes[] = {5, 5000, 50000, BIG};
    for (int i = 0; i < 4; i++) {
        if (rank == 0) {
            send_tag(0x50, sizes[i]);
            continue;
        }
        ucp_tag_recv_info_t info;
        ucp_tag_message_h message;
        while (!(message = ucp_tag_probe_nb(worker, 0x50, ~0ull, 1, &info)))
            ucp_worker_progress(worker);
        did("PROBE", "MSG", "OUT", 0, info.length);
        CHECK(info.length == sizes[i]);
        ucs_status_ptr_t request =
            i % 2 ? ucp_tag_msg_recv_nb(worker, buffer, BIG, ucp_dt_make_contig(1), message,
                                        on_old_recv)
                  : ucp_tag_msg_recv_nbx(worker, buffer, BIG, message, &plain);
        CHECK(finish(request) == UCS_OK);
        GOT(0x50, info.length);
    }
    meet();
}

static void old_calls(void)
{
    ucp_datatype_t type = ucp_dt_make_contig(4);
    for (int i = 0; i < 6; i++)
        if (rank == 0) {
            CHECK(finish(ucp_tag_send_nb(ep, buffer, 10 + i, type, 0x60, on_old_send)) == UCS_OK);
            SENT(0x60, 4 * (10 + i));
        } else {
            if (i % 2)
                await(0x60);
            int before = callbacks;
            CHECK(finish(ucp_tag_recv_nb(worker, buffer, 1000, type, 0x60, ~0ull, on_old_recv)) ==
                  UCS_OK);
            CHECK(callbacks == before + 1 && last_info.sender_tag == 0x60);
            GOT(0x60, 4 * (10 + i));
        }
    meet();
}

static void nbr(void)
{
    char *memory = calloc(1, request_bytes + 64);
    void *request = memory + request_bytes;
    for (int i = 0; i < 6; i++) {
        size_t size = i == 5 ? BIG : 20u + i;
        ucp_tag_recv_info_t info;
        ucs_status_t status;
        if (rank == 0) {
            status = ucp_tag_send_nbr(ep, buffer, size, ucp_dt_make_contig(1), 0x70, request);
            while (status == UCS_INPROGRESS) {
                ucp_worker_progress(worker);
                status = ucp_request_check_status(request);
            }
            CHECK(status == UCS_OK);
            SENT(0x70, size);
            continue;
        }
        if (i % 2)
            await(0x70);
        CHECK(ucp_tag_recv_nbr(worker, buffer, BIG, ucp_dt_make_contig(1), 0x70, ~0ull, request) ==
              UCS_OK);
        while ((status = ucp_tag_recv_request_test(request, &info)) == UCS_INPROGRESS)
            ucp_worker_progress(worker);
        CHECK(status == UCS_OK && info.length == size);
        GOT(0x70, size);
    }
    meet();
    free(memory);
}

static void cancel(void)
{
    if (rank == 1) {
        int before = callbacks;
        ucs_status_ptr_t request = ucp_tag_recv_nbx(worker, buffer, BIG, 0x80, ~0ull, &recv_cb);
        ucp_request_cancel(worker, request);
        did("CANCEL", "MSG", "OUT", 0, 0);
        CHECK(finish(request) == UCS_ERR_CANCELED && callbacks == before + 1);
    }
    meet();
    if (rank == 0) {
        send_tag(0x80, 77);
    } else {
        CHECK(finish(ucp_tag_recv_nbx(worker, buffer, BIG, 0x80, ~0ull, &recv_cb)) == UCS_OK);
        GOT(0x80, 77);
    }
    meet();
}

/* Freed before its completion, a request completes without the application's callback. */
static void early_free(void)
{
    if (rank == 1) {
        int before = callbacks;
        memset(buffer, 0, 4);
        ucp_request_free(ucp_tag_recv_nbx(worker, buffer, BIG, 0x90, ~0ull, &recv_cb));
        meet();
        while (!*(volatile char *)buffer)
            ucp_worker_progress(worker);
        CHECK(callbacks == before);
        GOT(0x90, 33);
    } else {
        meet();
        buffer[0] = 1;
        send_tag(0x90, 33);
    }
    meet();
}

static void truncated(void)
{
    for (int i = 0; i < 2; i++)
        if (rank == 0) {
            send_tag(0xa0, 100);
        } else {
            if (i)
                await(0xa0);
            CHECK(finish(ucp_tag_recv_nbx(worker, buffer, 50, 0xa0, ~0ull, &plain)) ==
                  UCS_ERR_MESSAGE_TRUNCATED);
            GOT(0xa0, 100);
        }
    meet();
}
#endif
