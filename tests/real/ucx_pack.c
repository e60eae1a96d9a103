/* Sends messages that it packs itself, and says how deep each packing is.
 *
 * usage: ucx_pack MESSAGES BYTES
 *
 * UCP asks for the next piece of a message inside the operation of UCT that carries it, be that
 * in the call that sends the message or in a later turn of the worker. What runs there, a post to
 * a queue pair for one, takes its depth from the nesting of recorded calls in its thread: that
 * is printed, a line for each piece, and whether the worker's progress is around it. */
#define _GNU_SOURCE
#include "ucx_small.h"

#include <dlfcn.h>

static uint8_t *nesting;
static size_t message_bytes;
static bool in_send;

static void *start_pack(void *own, const void *buffer, size_t count)
{
    (void)own, (void)count;
    return (void *)buffer;
}

static size_t packed_size(void *state) { return (void)state, message_bytes; }

static size_t pack(void *state, size_t offset, void *to, size_t room)
{
    size_t length = room < message_bytes - offset ? room : message_bytes - offset;
    (void)state;
    memset(to, 1, length);
    printf("%s %d\n", in_send ? "send" : "progress", *nesting);
    return length;
}

static void pack_end(void *state) { (void)state; }

int main(int argc, char **argv)
{
    static ucp_generic_dt_ops_t ops = {
        .start_pack = start_pack, .packed_size = packed_size, .pack = pack, .finish = pack_end};
    ucp_request_param_t packed = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE};
    CHECK(argc == 3);
    message_bytes = strtoul(argv[2], NULL, 10);
    nesting = dlsym(RTLD_DEFAULT, "st_nesting");
    CHECK(nesting);
    begin();
    ucp_worker_h from = worker_new(), to = worker_new();
    ucp_ep_h ep = ep_new(from, to);
    CHECK(!ucp_dt_create_generic(&ops, NULL, &packed.datatype));
    char *out = malloc(message_bytes), *in = malloc(message_bytes);
    CHECK(out && in);
    for (long i = 0; i < atol(argv[1]); i++) {
        ucs_status_ptr_t receive = ucp_tag_recv_nbx(to, in, message_bytes, 7, ~0ull, &plain);
        in_send = true;
        ucs_status_ptr_t send = ucp_tag_send_nbx(ep, out, 1, 7, &packed);
        in_send = false;
        finish(send, from, to);
        finish(receive, to, from);
        CHECK(in[0] == 1 && in[message_bytes - 1] == 1);
    }
    return 0;
}
