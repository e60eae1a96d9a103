/* From bytes to doorbells and WQEs. Sources: mlx5dv.h of rdma-core (struct mlx5_wqe_*_seg). */
#include "nic.h"

#include <string.h>

enum { WRITE = 0x08, WRITE_IMM = 0x09, READ = 0x10, CAS = 0x11, ADD = 0x12, MASKED_CAS = 0x14 };
enum { MASKED_ADD = 0x15, DUMP = 0x23, EXTENDED_4 = 0x08, EXTENDED_8 = 0x09, INLINE_BIT = 0x80 };
enum { UNIT = 16, AV_SHORT = 16, AV_LONG = 48, EXTENDED_AV = 0x80 };
enum { NO_KEY = 0x100 };

static uint64_t big(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    while (bytes--)
        value = value << 8 | *at++;
    return value;
}

struct nic_doorbell nic_doorbell_decode(uint64_t value)
{
    uint8_t bytes[8];
    memcpy(bytes, &value, sizeof(bytes));
    /* Without a size it announces the next index; else it is the start of the last WQE. */
    unsigned units = bytes[7] & 0x3f;
    unsigned next = (unsigned)big(bytes + 1, 2) + (units * UNIT + NIC_SLOT - 1) / NIC_SLOT;
    return (struct nic_doorbell){.qpn = (uint32_t)big(bytes + 4, 3), .next = (uint16_t)next};
}

static uint32_t decode_av(struct nic_wqe *wqe, uint32_t at)
{
    const uint8_t *av = wqe->raw + at;
    wqe->has_av = true;
    wqe->dc_key = big(av, 8);
    wqe->dct = (uint32_t)big(av + 9, 3);
    wqe->rlid = (uint16_t)big(av + 14, 2);
    if (!(av[8] & EXTENDED_AV))
        return at + AV_SHORT;
    if (!wqe->rlid)
        wqe->rlid = (uint16_t)big(av + 46, 2); /* of the emulated GIDs, the last two bytes */
    return at + AV_LONG;
}

static uint32_t decode_atomic(struct nic_wqe *wqe, uint32_t at)
{
    const uint8_t *segment = wqe->raw + at;
    bool masked = wqe->opcode == MASKED_CAS || wqe->opcode == MASKED_ADD;
    unsigned width = masked && wqe->opmod == EXTENDED_4 ? 4 : 8;
    if (masked && wqe->opmod != EXTENDED_4 && wqe->opmod != EXTENDED_8)
        return 0;
    wqe->operand_bytes = (uint8_t)width;
    wqe->add_or_swap = big(segment, width);
    wqe->compare = big(segment + width, width);
    wqe->swap_mask = wqe->compare_mask = ~(uint64_t)0;
    if (wqe->opcode == MASKED_CAS) {
        wqe->swap_mask = big(segment + 2 * width, width);
        wqe->compare_mask = big(segment + 3 * width, width);
    }
    if (wqe->opcode == ADD)
        wqe->compare = 0; /* no boundary: an ordinary addition */
    return at + (wqe->opcode == MASKED_CAS ? 4 * width : UNIT);
}

static bool decode_data(struct nic_wqe *wqe, uint32_t at, uint32_t end)
{
    while (at + UNIT <= end) {
        const uint8_t *bytes = wqe->raw + at;
        struct nic_segment *segment = &wqe->segment[wqe->segments];
        bool inlined = bytes[0] & INLINE_BIT;
        *segment = (struct nic_segment){.size = (uint32_t)big(bytes, 4) & 0x7fffffff};
        if (inlined) {
            segment->inlined = bytes + 4;
            at += (4 + segment->size + UNIT - 1) / UNIT * UNIT;
            if (segment->size > NIC_WQE_BYTES || at > end)
                return false;
        } else {
            segment->key = (uint32_t)big(bytes + 4, 4);
            segment->at = big(bytes + 8, 8);
            at += UNIT;
        }
        wqe->bytes += segment->size;
        wqe->segments++;
    }
    return at == end;
}

bool nic_wqe_decode(struct nic_wqe *wqe, bool has_av)
{
    const uint8_t *ctrl = wqe->raw;
    wqe->opmod = ctrl[0];
    wqe->index = (uint16_t)big(ctrl + 1, 2);
    wqe->opcode = ctrl[3];
    wqe->qpn = (uint32_t)big(ctrl + 4, 3);
    wqe->ds = ctrl[7] & 0x3f;
    wqe->ce = ctrl[11] >> 2 & 3;
    wqe->imm = (uint32_t)big(ctrl + 12, 4);
    wqe->slots = (uint8_t)((wqe->ds * UNIT + NIC_SLOT - 1) / NIC_SLOT);
    uint32_t at = UNIT, end = wqe->ds * UNIT;
    bool is_data = wqe->opcode == WRITE || wqe->opcode == WRITE_IMM || wqe->opcode == READ;
    bool is_atomic = wqe->opcode == CAS || wqe->opcode == ADD || wqe->opcode == MASKED_CAS ||
                     wqe->opcode == MASKED_ADD;
    if (wqe->opcode == 0x00 || wqe->opcode == 0x0f || wqe->opcode == 0x25)
        return wqe->ds > 0; /* NOP, WAIT, UMR: nothing more to know */
    if (has_av && wqe->opcode != DUMP)
        at = decode_av(wqe, at);
    if (is_data || is_atomic) {
        wqe->raddr = big(wqe->raw + at, 8);
        wqe->rkey = (uint32_t)big(wqe->raw + at + 8, 4);
        at += UNIT;
    }
    if (is_atomic && !(at = decode_atomic(wqe, at)))
        return false;
    return wqe->ds > 0 && at <= end && decode_data(wqe, at, end);
}

void nic_receive_decode(struct nic_wqe *wqe, uint32_t bytes)
{
    wqe->segments = 0;
    wqe->bytes = 0;
    for (uint32_t at = 0; at + UNIT <= bytes && wqe->segments < NIC_SEGMENTS; at += UNIT) {
        struct nic_segment segment = {.size = (uint32_t)big(wqe->raw + at, 4),
                                      .key = (uint32_t)big(wqe->raw + at + 4, 4),
                                      .at = big(wqe->raw + at + 8, 8)};
        if (segment.key == NO_KEY)
            break;
        wqe->segment[wqe->segments++] = segment;
        wqe->bytes += segment.size;
    }
}
