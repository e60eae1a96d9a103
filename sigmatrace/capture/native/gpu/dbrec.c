/* The copier's reading of doorbell records, the index that a queue pair last announced in memory.
 * Those of registers with several queue pairs are read after each of their doorbells and once a
 * millisecond, because a value may have been overwritten before the sweeper saw it; and before one
 * of them goes. */
#include <string.h>

#include "repeater.h"

#define TICK_US 1000u

uint32_t st_changed;
uint64_t st_records_rounds;

static uint64_t tick_tsc;

static uint64_t place_of(const struct st_pair *pair)
{
    return ST_SOURCE_SLOT_BYTES + 4ull * (uint64_t)(pair - st_pairs);
}

static bool start(struct st_pair *pair)
{
    __atomic_store_n(&pair->reading, 1, __ATOMIC_SEQ_CST);
    bool done = __atomic_load_n(&pair->state, __ATOMIC_SEQ_CST) == ST_ACTIVE &&
                st_source_start(pair->record, place_of(pair), pair->made.dbrec, 4);
    __atomic_store_n(&pair->reading, 0, __ATOMIC_SEQ_CST);
    return done;
}

/* Tells the sweeper what the record says; what it has no room for is read once more. */
static void tell(struct st_pair *pair)
{
    uint32_t value;
    memcpy(&value, st_source_data(pair->record, place_of(pair)), sizeof(value));
    uint16_t index = (uint16_t)__builtin_bswap32(value);
    if (index != (uint16_t)pair->taken)
        st_queue_put(&st_to_sweeper, &(struct st_message){.pair = (uint32_t)(pair - st_pairs),
                                                          .life = pair->life,
                                                          .kind = ST_RECORD,
                                                          .index16 = index});
}

/* Of all queue pairs whose register is another one's, too. */
static void read_shared(void)
{
    static struct st_pair *list[ST_PAIRS];
    uint32_t listed = 0;
    for (uint32_t i = 0; i < ST_LOAD(&st_pairs_used); i++) {
        struct st_pair *pair = &st_pairs[i];
        struct st_register *at = ST_LOAD(&pair->state) == ST_ACTIVE ? ST_LOAD(&pair->at) : NULL;
        if (at && pair->record && ST_LOAD(&at->pairs) > 1 && start(pair))
            list[listed++] = pair;
    }
    for (uint32_t i = 0; i < listed; i++)
        if (st_source_wait(list[i]->record))
            tell(list[i]);
    if (listed)
        st_sources_clear();
}

void st_records_look(void)
{
    uint64_t now = st_now();
    bool tick = now - tick_tsc > TICK_US * st_tsc_per_us;
    if (tick)
        tick_tsc = now;
    bool changed = ST_LOAD(&st_changed) && __atomic_exchange_n(&st_changed, 0, __ATOMIC_SEQ_CST);
    if (tick || changed) {
        read_shared();
        ST_STORE(&st_records_rounds, st_records_rounds + 1);
    }
}
