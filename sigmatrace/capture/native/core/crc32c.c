/* CRC-32C with the SSE4.2 instruction, three streams at once: the instruction takes three
 * cycles but one can begin in each. The streams are joined by tables that advance a checksum
 * over a block of zeros (the method of Mark Adler's crc32c.c). */
#include <string.h>

#include "core.h"

#define POLYNOMIAL 0x82f63b78u
#define BLOCK 4096u

static uint32_t zeros[4][256]; /* advances over BLOCK zero bytes */
static int built;

/* Advances a checksum over `n` zero bytes, bit by bit through a squared matrix. */
static void matrix_square(uint32_t *to, const uint32_t *from)
{
    for (int i = 0; i < 32; i++) {
        uint32_t sum = 0;
        for (int k = 0; k < 32; k++)
            if (from[i] >> k & 1)
                sum ^= from[k];
        to[i] = sum;
    }
}

static void build(void)
{
    uint32_t a[32], b[32];
    a[0] = POLYNOMIAL; /* one zero bit */
    for (int i = 1; i < 32; i++)
        a[i] = 1u << (i - 1);
    for (uint32_t bits = 1; bits < BLOCK * 8; bits *= 2) {
        matrix_square(b, a);
        memcpy(a, b, sizeof(a));
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int place = 0; place < 4; place++) {
            uint32_t sum = 0;
            for (int k = 0; k < 8; k++)
                if (byte >> k & 1)
                    sum ^= a[place * 8 + k];
            zeros[place][byte] = sum;
        }
    __atomic_store_n(&built, 1, __ATOMIC_RELEASE);
}

static inline uint64_t advance(uint64_t crc)
{
    return zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^
           zeros[3][crc >> 24 & 255];
}

static inline uint64_t load(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

uint32_t st_crc32c(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    uint64_t c = crc ^ UINT32_MAX;
    if (!__atomic_load_n(&built, __ATOMIC_ACQUIRE))
        build(); /* twice at the same time writes the same numbers */
    for (; size >= 3 * BLOCK; size -= 3 * BLOCK, p += 3 * BLOCK) {
        uint64_t c1 = 0, c2 = 0;
        for (const uint8_t *q = p; q < p + BLOCK; q += 8) {
            c = __builtin_ia32_crc32di(c, load(q));
            c1 = __builtin_ia32_crc32di(c1, load(q + BLOCK));
            c2 = __builtin_ia32_crc32di(c2, load(q + 2 * BLOCK));
        }
        c = advance(c) ^ c1;
        c = advance(c) ^ c2;
    }
    for (; size >= 8; size -= 8, p += 8)
        c = __builtin_ia32_crc32di(c, load(p));
    for (; size; size--, p++)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return (uint32_t)c ^ UINT32_MAX;
}
