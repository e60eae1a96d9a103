/* Where the fake's own queue pairs have their send queue and their doorbell records. */
#ifndef FAKE_RING_H
#define FAKE_RING_H

#include <infiniband/verbs.h>
#include <stdint.h>

#define FAKE_RINGS 16
#define FAKE_RING_SLOTS 128

struct fake_ring {
    uint8_t *slots;
    __be32 records[2];
};

#endif
