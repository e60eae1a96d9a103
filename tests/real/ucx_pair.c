/* Two processes that use every kind of UCP operation a known number of times.
 *
 * usage: ucx_pair PHASE...   (all phases when none is named)
 *
 * The program forks before it touches UCX; the two exchange addresses over a socket pair.
 * Each prints, for every (operation, kind, tag), how many operations of which sum of bytes
 * it did or saw complete: "RANK OP KIND DIR TAG COUNT BYTES". That is what a trace is held
 * against. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <ucp/api/ucp_compat.h>
#include <unistd.h>

#define BIG (3u << 20)
#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "ucx_pair: rank %d, line %d: %s\n", rank, __LINE__, #x);               \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static int rank, channel;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static uint64_t peer_address;
static ucp_rkey_h rkey;
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

/* --- plumbing ----------------------------------------------------------------------------- */

static void meet(void)
{
    char byte = 1;
    CHECK(write(channel, &byte, 1) == 1);
    ssize_t got;
    while ((got = recv(channel, &byte, 1, MSG_DONTWAIT)) < 0)
        ucp_worker_progress(worker);
    CHECK(got == 1); /* 0: the other process is gone */
}

static void swap_bytes(const void *mine, void *theirs, size_t size)
{
    CHECK(write(channel, mine, size) == (ssize_t)size);
    CHECK(recv(channel, theirs, size, MSG_WAITALL) == (ssize_t)size);
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

/* --- phases: rank 0 sends, rank 1 receives --------------------------------------------------- */

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

/* --- active messages and streams ---------------------------------------------------------------- */

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

/* --- one-sided ------------------------------------------------------------------------------------ */

static void puts_and_gets(void)
{
    uint64_t at = peer_address;
    CHECK(finish(ucp_put_nbx(ep, buffer, 100, at, rkey, &send_cb)) == UCS_OK);
    RMA("PUT", 100);
    CHECK(finish(ucp_put_nb(ep, buffer, 101, at, rkey, on_old_send)) == UCS_OK);
    RMA("PUT", 101);
    CHECK(!UCS_STATUS_IS_ERR(ucp_put_nbi(ep, buffer, 102, at, rkey)));
    RMA("PUT", 102);
    CHECK(ucp_put(ep, buffer, 103, at, rkey) == UCS_OK);
    RMA("PUT", 103);
    CHECK(finish(ucp_get_nbx(ep, buffer, 200, at, rkey, &plain)) == UCS_OK);
    RMA("GET", 200);
    CHECK(finish(ucp_get_nb(ep, buffer, 201, at, rkey, on_old_send)) == UCS_OK);
    RMA("GET", 201);
    CHECK(!UCS_STATUS_IS_ERR(ucp_get_nbi(ep, buffer, 202, at, rkey)));
    RMA("GET", 202);
    CHECK(ucp_get(ep, buffer, 203, at, rkey) == UCS_OK);
    RMA("GET", 203);
    CHECK(finish(ucp_put_nbx(ep, buffer, 1 << 20, at, rkey, &plain)) == UCS_OK);
    RMA("PUT", 1 << 20);
}

static void atomics(void)
{
    uint64_t at = peer_address, value = 5, result64;
    uint32_t result32;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE,
                                 .datatype = ucp_dt_make_contig(8)};
    CHECK(finish(ucp_ep_flush_nbx(ep, &plain)) == UCS_OK);
    RMA("FLUSH", 0);
    memset(buffer, 0, 64);
    CHECK(ucp_put(ep, buffer, 64, at, rkey) == UCS_OK);
    RMA("PUT", 64);
    CHECK(ucp_ep_flush(ep) == UCS_OK);
    RMA("FLUSH", 0);
    CHECK(finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &value, 1, at, rkey, &param)) == UCS_OK);
    RMA("ATOMIC", 8);
    CHECK(!UCS_STATUS_IS_ERR(ucp_atomic_post(ep, UCP_ATOMIC_POST_OP_ADD, 1, 8, at, rkey)));
    RMA("ATOMIC", 8);
    CHECK(ucp_atomic_add32(ep, 1, at, rkey) == UCS_OK);
    RMA("ATOMIC", 4);
    CHECK(finish(ucp_worker_flush_nbx(worker, &send_cb)) == UCS_OK);
    RMA("FLUSH", 0);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_REPLY_BUFFER;
    param.reply_buffer = &result64;
    CHECK(finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &value, 1, at, rkey, &param)) == UCS_OK);
    RMA("ATOMIC_FETCH", 8);
    CHECK(result64 == 7);
    CHECK(finish(ucp_atomic_fetch_nb(ep, UCP_ATOMIC_FETCH_OP_FADD, 1, &result64, 8, at, rkey,
                                     on_old_send)) == UCS_OK);
    RMA("ATOMIC_FETCH", 8);
    CHECK(result64 == 12);
    CHECK(ucp_atomic_fadd64(ep, 1, at, rkey, &result64) == UCS_OK && result64 == 13);
    RMA("ATOMIC_FETCH", 8);
    CHECK(ucp_atomic_swap32(ep, 3, at, rkey, &result32) == UCS_OK && result32 == 14);
    RMA("ATOMIC_FETCH", 4);
    CHECK(ucp_atomic_cswap64(ep, 3, 4, at, rkey, &result64) == UCS_OK && result64 == 3);
    RMA("ATOMIC_FETCH", 8);
    CHECK(finish(ucp_ep_flush_nb(ep, 0, on_old_send)) == UCS_OK);
    RMA("FLUSH", 0);
    CHECK(finish(ucp_worker_flush_nb(worker, 0, on_old_send)) == UCS_OK);
    RMA("FLUSH", 0);
    CHECK(ucp_worker_flush(worker) == UCS_OK);
    RMA("FLUSH", 0);
}

static void one_sided(void)
{
    ucp_mem_h memory;
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                              UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                .address = window,
                                .length = BIG};
    CHECK(ucp_mem_map(context, &map, &memory) == UCS_OK);
    void *packed;
    size_t size;
    CHECK(ucp_rkey_pack(context, memory, &packed, &size) == UCS_OK && size <= 512);
    char mine[512] = {0}, theirs[512];
    memcpy(mine, packed, size);
    ucp_rkey_buffer_release(packed);
    swap_bytes(mine, theirs, sizeof(mine));
    uint64_t address = (uintptr_t)window;
    swap_bytes(&address, &peer_address, sizeof(address));
    CHECK(ucp_ep_rkey_unpack(ep, theirs, &rkey) == UCS_OK);
    meet();
    if (rank == 0) {
        puts_and_gets();
        atomics();
    }
    meet();
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(context, memory) == UCS_OK);
    meet();
}

/* --- start and end --------------------------------------------------------------------------------- */

static void start(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 |
                                       UCP_FEATURE_AMO64 | UCP_FEATURE_STREAM | UCP_FEATURE_AM};
    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    CHECK(ucp_context_query(context, &attr) == UCS_OK);
    request_bytes = attr.request_size;
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = getenv("UCX_PAIR_MULTI")
                                                            ? UCS_THREAD_MODE_MULTI
                                                            : UCS_THREAD_MODE_SINGLE};
    CHECK(ucp_worker_create(context, &worker_params, &worker) == UCS_OK);
    ucp_address_t *address;
    size_t length;
    static char mine[4096], theirs[4096];
    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK && length <= sizeof(mine));
    memcpy(mine, address, length);
    ucp_worker_release_address(worker, address);
    swap_bytes(mine, theirs, sizeof(mine));
    ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                                 .address = (ucp_address_t *)theirs};
    CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
    buffer = calloc(1, BIG);
    window = aligned_alloc(4096, BIG);
    memset(window, 0, BIG);
    meet();
}

static void stop(void)
{
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &plain);
    CHECK(!UCS_PTR_IS_ERR(request));
    finish(request);
    meet();
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    for (int i = 0; did_table[i].op; i++)
        printf("%d %s %s %s %lu %lu %lu\n", rank, did_table[i].op, did_table[i].kind,
               did_table[i].dir, did_table[i].tag, did_table[i].count, did_table[i].bytes);
    printf("%d pid %d\n", rank, (int)getpid());
    fflush(stdout);
}

static const struct {
    const char *name;
    void (*run)(void);
} phases[] = {{"posted", posted},       {"unexpected", unexpected}, {"wildcard", wildcard},
              {"inversion", inversion}, {"sync", sync_send},        {"probe", probe},
              {"old", old_calls},       {"nbr", nbr},               {"cancel", cancel},
              {"free", early_free},     {"truncated", truncated},   {"am", active},
              {"stream", stream},       {"rma", one_sided}};

int main(int argc, char **argv)
{
    int pair[2], status = 0;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = fork();
    CHECK(child >= 0);
    rank = child ? 0 : 1;
    channel = pair[rank];
    close(pair[!rank]);
    start();
    for (size_t p = 0; p < sizeof(phases) / sizeof(*phases); p++) {
        int wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            wanted |= !strcmp(argv[i], phases[p].name);
        if (wanted)
            phases[p].run();
    }
    stop();
    if (child)
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    return 0;
}
