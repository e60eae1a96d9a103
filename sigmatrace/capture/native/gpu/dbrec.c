/* The copier's reading of doorbell records, the index that a queue pair last announced in memory.
 * That of a pair that rang is read when the copier has nothing else to do: where it says what was
 * forwarded, the sweeper may repeat the doorbell; a program that writes it after the doorbell gets
 * some time. Those of registers with several pairs are read after each of their doorbells and once
 * a millisecond, because a value may have been overwritten before the sweeper saw it. */
#include <string.h>

#include "repeater.h"

#define TICK_US 1000u
#define TRIES 100u /* a program that writes it after the doorbell may be interrupted in between */

static struct st_pair *list[ST_PAIRS];
static uint32_t listed;
static uint64_t tick_tsc;

uint32_t st_changed;

void st_records_want(struct st_pair *pair)
{
    if (!pair->record)
        return;
    pair->tries = 0;
    if (!pair->listed)
        list[listed++] = pair;
    pair->listed = true;
}

void st_records_forget(struct st_pair *pair)
{
    for (uint32_t i = 0; pair->listed && i < listed; i++)
        if (list[i] == pair) {
            list[i] = list[--listed];
            pair->listed = false;
        }
}

/* All pairs of registers with several. */
static void want_shared(void)
{
    for (uint32_t i = 0; i < ST_LOAD(&st_pairs_used); i++) {
        struct st_pair *pair = &st_pairs[i];
        struct st_register *at = ST_LOAD(&pair->state) == ST_ACTIVE ? ST_LOAD(&pair->at) : NULL;
        if (at && ST_LOAD(&at->pairs) > 1)
            st_records_want(pair);
    }
}

static bool start(struct st_pair *pair)
{
    uint64_t at = ST_SOURCE_SLOT_BYTES + 4ull * (uint64_t)(pair - st_pairs);
    __atomic_store_n(&pair->reading, 1, __ATOMIC_SEQ_CST);
    bool done = __atomic_load_n(&pair->state, __ATOMIC_SEQ_CST) == ST_ACTIVE &&
                st_source_start(pair->record, at, pair->made.dbrec, 4);
    __atomic_store_n(&pair->reading, 0, __ATOMIC_SEQ_CST);
    return done;
}

/* Tells the sweeper what the record says; true: nothing more is to be expected of it. */
static bool tell(struct st_pair *pair)
{
    uint32_t value;
    uint64_t at = ST_SOURCE_SLOT_BYTES + 4ull * (uint64_t)(pair - st_pairs);
    memcpy(&value, st_source_data(pair->record, at), sizeof(value));
    uint16_t index = (uint16_t)__builtin_bswap32(value);
    struct st_register *shared = ST_LOAD(&pair->at);
    bool same = index == (uint16_t)pair->taken;
    if (!same && (!shared || ST_LOAD(&shared->pairs) < 2))
        return false;
    struct st_message message = {.pair = (uint32_t)(pair - st_pairs),
                                 .life = pair->life,
                                 .kind = ST_RECORD,
                                 .index16 = index};
    return st_queue_put(&st_to_sweeper, &message) && same;
}

static void read_listed(bool tick)
{
    static bool reading[ST_PAIRS];
    for (uint32_t i = 0; i < listed; i++)
        reading[i] = (!list[i]->tries || tick) && start(list[i]);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < listed; i++) {
        struct st_pair *pair = list[i];
        bool asked = !pair->tries || tick;
        bool done = reading[i] ? st_source_wait(pair->record) && tell(pair) : asked;
        if (asked && !done)
            done = ++pair->tries == TRIES;
        pair->listed = !done;
        if (!done)
            list[kept++] = pair;
    }
    listed = kept;
    st_sources_clear();
}

void st_records_look(bool idle)
{
    uint64_t now = st_now();
    bool tick = now - tick_tsc > TICK_US * st_tsc_per_us;
    if (tick)
        tick_tsc = now;
    bool changed = ST_LOAD(&st_changed) && __atomic_exchange_n(&st_changed, 0, __ATOMIC_SEQ_CST);
    if (tick || changed)
        want_shared();
    else if (!idle)
        return;
    if (listed)
        read_listed(tick);
}
