/* A phase of ucx_pair: rank 0 writes to and reads from the memory of rank 1. */
#ifndef UCX_PAIR_RMA_H
#define UCX_PAIR_RMA_H
#include "ucx_pair.h"

static uint64_t peer_address;
static ucp_rkey_h rkey;

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
    pair_exchange(mine, theirs, sizeof(mine));
    uint64_t address = (uintptr_t)window;
    pair_exchange(&address, &peer_address, sizeof(address));
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
#endif
