/* The wire between processes: a file that all of them map. Each pair of nodes has two pipes a
 * direction, of requests and of answers; each pipe has one writer and one reader, the engines. */
#include "nic.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIPE = 1 << 18, ANSWERS = 1, KINDS = 2 };

struct pipe {
    _Atomic uint64_t written, taken;
    uint8_t bytes[PIPE];
};
static struct wire {
    atomic_uint nodes;
    struct pipe pipe[KINDS][NIC_NODES][NIC_NODES]; /* from, to */
} *wire;

static void give_up(const char *what)
{
    fprintf(stderr, "mlx5emu: no wire: %s\n", what);
    _exit(3);
}

uint32_t nic_fabric_join(void)
{
    const char *name = getenv("MLX5EMU_FABRIC");
    if (!name || !*name)
        return 1;
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct wire)))
        give_up(name);
    void *mapped = mmap(NULL, sizeof(struct wire), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        give_up("mmap");
    wire = mapped;
    uint32_t lid = atomic_fetch_add(&wire->nodes, 1) + 1;
    if (lid > NIC_NODES)
        give_up("too many nodes");
    return lid;
}

static void copy_in(struct pipe *pipe, uint64_t at, const void *from, uint32_t size)
{
    uint64_t first = at % PIPE, part = PIPE - first < size ? PIPE - first : size;
    memcpy(pipe->bytes + first, from, part);
    memcpy(pipe->bytes, (const uint8_t *)from + part, size - part);
}

static void copy_out(const struct pipe *pipe, uint64_t at, void *to, uint32_t size)
{
    uint64_t first = at % PIPE, part = PIPE - first < size ? PIPE - first : size;
    memcpy(to, pipe->bytes + first, part);
    memcpy((uint8_t *)to + part, pipe->bytes, size - part);
}

static bool has_room(struct pipe *pipe, uint64_t size)
{
    return PIPE - (atomic_load(&pipe->written) - atomic_load(&pipe->taken)) >= size;
}

static bool push(struct pipe *pipe, const void *head, uint32_t head_size, const void *payload,
                 uint32_t size)
{
    uint64_t at = atomic_load(&pipe->written);
    if (!has_room(pipe, head_size + size))
        return false;
    copy_in(pipe, at, head, head_size);
    copy_in(pipe, at + head_size, payload, size);
    atomic_store(&pipe->written, at + head_size + size);
    return true;
}

/* The payload's size is in the head, which `size_of` points into. */
static bool take(struct pipe *pipe, void *head, uint32_t head_size, const uint32_t *size_of,
                 void *payload, bool has_payload)
{
    uint64_t at = atomic_load(&pipe->taken);
    if (atomic_load(&pipe->written) == at)
        return false;
    copy_out(pipe, at, head, head_size);
    uint32_t size = has_payload ? *size_of : 0;
    copy_out(pipe, at + head_size, payload, size);
    atomic_store(&pipe->taken, at + head_size + size);
    return true;
}

/* Requests that bring data back carry none. */
static bool carries(const struct nic_request *request)
{
    return !request->operand_bytes && request->opcode != 0x10;
}

bool nic_fabric_ask(uint32_t lid, const struct nic_request *request, const uint8_t *payload)
{
    if (!wire || lid - 1 >= NIC_NODES || lid > atomic_load(&wire->nodes)) {
        /* Nobody there: the answer comes as from a timer. */
        struct nic_answer none = {.to_qpn = request->from_qpn, .syndrome = NIC_RETRY_EXCEEDED};
        struct nic_qp *qp = nic_qp_find(request->from_qpn);
        qp->asked = true;
        nic_qp_answer(qp, &none, NULL);
        return false;
    }
    return push(&wire->pipe[0][nic.lid - 1][lid - 1], request, sizeof(*request), payload,
                carries(request) ? request->size : 0);
}

static bool serve_from(uint32_t node)
{
    static uint8_t payload[NIC_CHUNK], back[NIC_CHUNK];
    struct pipe *asked = &wire->pipe[0][node][nic.lid - 1];
    struct pipe *answered = &wire->pipe[ANSWERS][nic.lid - 1][node];
    struct nic_request request;
    struct nic_answer answer;
    if (atomic_load(&asked->written) == atomic_load(&asked->taken) ||
        !has_room(answered, sizeof(answer) + NIC_CHUNK))
        return false;
    copy_out(asked, atomic_load(&asked->taken), &request, sizeof(request));
    take(asked, &request, sizeof(request), &request.size, payload, carries(&request));
    nic_serve(&request, payload, &answer, back);
    push(answered, &answer, sizeof(answer), back, answer.size);
    return true;
}

static bool answer_from(uint32_t node)
{
    static uint8_t payload[NIC_CHUNK];
    struct nic_answer answer;
    if (!take(&wire->pipe[ANSWERS][node][nic.lid - 1], &answer, sizeof(answer), &answer.size,
              payload, true))
        return false;
    struct nic_qp *qp = nic_qp_find(answer.to_qpn);
    if (qp)
        nic_qp_answer(qp, &answer, payload);
    return true;
}

bool nic_fabric_poll(void)
{
    bool worked = false;
    for (uint32_t node = 0; wire && node < NIC_NODES; node++)
        if (node != nic.lid - 1) {
            worked |= answer_from(node);
            worked |= serve_from(node);
        }
    return worked;
}
