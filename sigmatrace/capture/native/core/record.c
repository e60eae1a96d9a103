/* The hot path: check, store, count. */
#include <string.h>

#include "core.h"

#define ST_INLINE static inline __attribute__((always_inline))

__thread uint8_t st_nesting;

/* Read by other threads at the process's end only. */
ST_INLINE void set_busy(struct st_thread *thread, uint32_t busy)
{
    __atomic_store_n(&thread->busy, busy, __ATOMIC_RELAXED);
}

/* Makes or empties the segment, so that `count` records fit. Called with `busy` set. */
static __attribute__((noinline, cold)) bool make_room(struct st_thread *thread, uint32_t schema,
                                                      uint32_t count)
{
    struct st_segment *segment = &thread->segments[schema];
    st_clock_check();
    /* Records in the file should find their channels there, should the ring file get lost. */
    if (segment->area && schema != ST_SCHEMA_CHANNEL && thread->segments[ST_SCHEMA_CHANNEL].area)
        st_segment_flush(thread, ST_SCHEMA_CHANNEL);
    bool done = !segment->area ? st_segment_make(thread, schema)
                               : st_segment_hand_over(thread, schema) ||
                                     st_segment_flush(thread, schema);
    if (done && segment->control->count + count <= segment->capacity)
        return true;
    segment->control->dropped = thread->dropped[schema] += count;
    return false;
}

static __attribute__((noinline, cold)) void drop_nested(struct st_thread *thread, uint32_t schema,
                                                        uint32_t count)
{
    uint64_t dropped = thread->dropped[schema] += count;
    if (thread->segments[schema].area)
        thread->segments[schema].control->dropped = dropped;
}

static __attribute__((noinline, cold)) struct st_thread *enter_slow(uint32_t schema, uint32_t count)
{
    struct st_thread *thread = st_thread_self();
    if (!thread && __atomic_load_n(&st_process.state, __ATOMIC_RELAXED) == ST_STATE_FAILED) {
        struct st_thread *known = st_thread_known();
        st_process_say_failure();
        if (known)
            known->dropped[schema] += count;
        else
            st_process_refuse("record after the recording had stopped");
    }
    return thread;
}

/* The calling thread with room for `count` records in a row, marked busy; NULL when nothing can
 * be stored. */
ST_INLINE struct st_thread *enter_for(uint32_t schema, uint32_t count)
{
    struct st_thread *thread = st_local.thread;
    if (ST_UNLIKELY(st_local.generation != st_generation())) {
        thread = enter_slow(schema, count);
        if (!thread)
            return NULL;
    }
    if (ST_UNLIKELY(thread->busy)) {
        drop_nested(thread, schema, count);
        return NULL;
    }
    set_busy(thread, 1);
    ST_BARRIER();
    struct st_segment *segment = &thread->segments[schema];
    if (ST_UNLIKELY(segment->control->count + count > segment->capacity) &&
        !make_room(thread, schema, count)) {
        ST_BARRIER();
        set_busy(thread, 0);
        return NULL;
    }
    return thread;
}

ST_INLINE struct st_thread *enter(uint32_t schema) { return enter_for(schema, 1); }

ST_INLINE void *slot(struct st_thread *thread, uint32_t schema)
{
    struct st_segment *segment = &thread->segments[schema];
    return segment->records + segment->control->count * st_record_size[schema];
}

ST_INLINE void leave_with(struct st_thread *thread, uint32_t schema, uint32_t count)
{
    struct st_control *control = thread->segments[schema].control;
    ST_BARRIER(); /* the records are there before the count says so */
    __atomic_store_n(&control->count, control->count + count, __ATOMIC_RELEASE);
    ST_BARRIER();
    set_busy(thread, 0);
}

ST_INLINE void leave(struct st_thread *thread, uint32_t schema) { leave_with(thread, schema, 1); }

ST_INLINE void tick(uint64_t t_tsc)
{
    if (ST_UNLIKELY(t_tsc >= __atomic_load_n(&st_page->deadline, __ATOMIC_RELAXED)))
        st_clock_check();
}

/* The four words of an op record as they lie in memory. */
struct op_words {
    uint64_t t_tsc, size_bytes, where, what;
};

_Static_assert(sizeof(struct op_words) == sizeof(struct st_op_record), "the same record");

/* What is not as usual: no segment, a full one, a signal handler, a fork. */
static __attribute__((noinline, cold)) void op_slow(uint64_t t_tsc, uint64_t size_bytes,
                                                    uint64_t where, uint64_t what)
{
    struct st_thread *thread = enter(ST_SCHEMA_OP);
    if (!thread)
        return;
    struct op_words *record = slot(thread, ST_SCHEMA_OP);
    *record = (struct op_words){t_tsc, size_bytes, where, what};
    leave(thread, ST_SCHEMA_OP);
    tick(t_tsc);
}

/* enter, slot and leave by hand, with calls at the end only: no register has to be saved. */
void st_op_store(uint64_t t_tsc, uint64_t size_bytes, uint64_t where, uint64_t what)
{
    struct st_thread *thread = st_local.thread;
    if (ST_UNLIKELY(st_process.aggregates)) {
        st_aggregate_add(size_bytes, (uint32_t)where, what);
        return;
    }
    if (ST_UNLIKELY(st_local.generation != st_generation() || thread->busy)) {
        op_slow(t_tsc, size_bytes, where, what);
        return;
    }
    set_busy(thread, 1);
    ST_BARRIER();
    struct st_segment *segment = &thread->segments[ST_SCHEMA_OP];
    struct st_control *control = segment->control;
    uint64_t count = control->count;
    if (ST_UNLIKELY(count >= segment->capacity)) {
        set_busy(thread, 0);
        ST_BARRIER();
        op_slow(t_tsc, size_bytes, where, what);
        return;
    }
    struct op_words *record = (struct op_words *)segment->records + count;
    *record = (struct op_words){t_tsc, size_bytes, where, what};
    ST_BARRIER(); /* the record is there before the count says so */
    __atomic_store_n(&control->count, count + 1, __ATOMIC_RELEASE);
    ST_BARRIER();
    set_busy(thread, 0);
    if (ST_UNLIKELY(t_tsc >= __atomic_load_n(&st_page->deadline, __ATOMIC_RELAXED)))
        st_clock_check();
}

/* The six words of a request or cqe record. */
struct six_words {
    uint64_t t_tsc, word[5];
};

_Static_assert(sizeof(struct six_words) == sizeof(struct st_request_record), "the same record");
_Static_assert(sizeof(struct six_words) == sizeof(struct st_cqe_record), "the same record");

static __attribute__((noinline, cold)) void six_slow(uint32_t schema, const struct six_words *words)
{
    struct st_thread *thread = enter(schema);
    if (!thread)
        return;
    *(struct six_words *)slot(thread, schema) = *words;
    leave(thread, schema);
    tick(words->t_tsc);
}

/* As st_op_store. */
ST_INLINE void store_six(uint32_t schema, uint64_t t_tsc, uint64_t b, uint64_t c, uint64_t d,
                         uint64_t e, uint64_t f)
{
    struct st_thread *thread = st_local.thread;
    if (ST_UNLIKELY(st_local.generation != st_generation() || thread->busy)) {
        six_slow(schema, &(struct six_words){t_tsc, {b, c, d, e, f}});
        return;
    }
    set_busy(thread, 1);
    ST_BARRIER();
    struct st_segment *segment = &thread->segments[schema];
    struct st_control *control = segment->control;
    uint64_t count = control->count;
    if (ST_UNLIKELY(count >= segment->capacity)) {
        set_busy(thread, 0);
        ST_BARRIER();
        six_slow(schema, &(struct six_words){t_tsc, {b, c, d, e, f}});
        return;
    }
    struct six_words *record = (struct six_words *)segment->records + count;
    *record = (struct six_words){t_tsc, {b, c, d, e, f}};
    ST_BARRIER(); /* the record is there before the count says so */
    __atomic_store_n(&control->count, count + 1, __ATOMIC_RELEASE);
    ST_BARRIER();
    set_busy(thread, 0);
    if (ST_UNLIKELY(t_tsc >= __atomic_load_n(&st_page->deadline, __ATOMIC_RELAXED)))
        st_clock_check();
}

void st_request_store(uint64_t t_tsc, uint64_t wr_id, uint64_t raddr, uint64_t size_rkey,
                      uint64_t imm_object, uint64_t what)
{
    store_six(ST_SCHEMA_REQUEST, t_tsc, wr_id, raddr, size_rkey, imm_object, what);
}

void st_cqe_store(uint64_t t_tsc, uint64_t posted_tsc, uint64_t wr_id, uint64_t size_imm,
                  uint64_t object_position, uint64_t what)
{
    store_six(ST_SCHEMA_CQE, t_tsc, posted_tsc, wr_id, size_imm, object_position, what);
}

void st_completion(uint64_t t_tsc, uint64_t size_bytes, uint32_t channel, uint32_t ordinal,
                   int32_t status, uint8_t op, uint8_t call, uint8_t depth, uint8_t flags)
{
    if (st_mode() != ST_MODE_FULL)
        return;
    struct st_thread *thread = enter(ST_SCHEMA_COMPLETION);
    if (ST_UNLIKELY(!thread))
        return;
    struct st_completion_record *record = slot(thread, ST_SCHEMA_COMPLETION);
    *record = (struct st_completion_record){t_tsc,  size_bytes, channel, ordinal, status,
                                            op,     call,       depth,   flags};
    leave(thread, ST_SCHEMA_COMPLETION);
    tick(t_tsc);
}

void st_target(uint64_t raddr, uint64_t rkey, uint64_t context, uint32_t channel, uint32_t ordinal)
{
    if (st_mode() != ST_MODE_FULL)
        return;
    struct st_thread *thread = enter(ST_SCHEMA_TARGET);
    if (ST_UNLIKELY(!thread))
        return;
    struct st_target_record *record = slot(thread, ST_SCHEMA_TARGET);
    *record = (struct st_target_record){raddr, rkey, context, channel, ordinal};
    leave(thread, ST_SCHEMA_TARGET);
}

void st_mark(uint64_t t_tsc, double value, uint32_t name, uint8_t kind)
{
    struct st_thread *thread = enter(ST_SCHEMA_MARK);
    if (ST_UNLIKELY(!thread))
        return;
    struct st_mark_record *record = slot(thread, ST_SCHEMA_MARK);
    *record = (struct st_mark_record){.t_tsc = t_tsc, .value = value, .name = name, .kind = kind};
    leave(thread, ST_SCHEMA_MARK);
    tick(t_tsc);
}

void st_doorbell(const struct st_doorbell_record *from)
{
    struct st_thread *thread = enter(ST_SCHEMA_DOORBELL);
    if (ST_UNLIKELY(!thread))
        return;
    *(struct st_doorbell_record *)slot(thread, ST_SCHEMA_DOORBELL) = *from;
    leave(thread, ST_SCHEMA_DOORBELL);
    tick(from->t_tsc);
}

void st_kernel(const struct st_kernel_record *from)
{
    struct st_thread *thread = enter(ST_SCHEMA_KERNEL);
    if (ST_UNLIKELY(!thread))
        return;
    *(struct st_kernel_record *)slot(thread, ST_SCHEMA_KERNEL) = *from;
    leave(thread, ST_SCHEMA_KERNEL);
}

void st_wqe_store(const struct st_wqe_record *from, uint32_t count)
{
    struct st_thread *thread = enter_for(ST_SCHEMA_WQE, count);
    if (ST_UNLIKELY(!thread))
        return;
    memcpy(slot(thread, ST_SCHEMA_WQE), from, count * sizeof(*from));
    leave_with(thread, ST_SCHEMA_WQE, count);
}

bool st_channel_store(const struct st_channel_record *from)
{
    struct st_thread *thread = st_thread_self();
    /* In a signal handler the segment may be in use, but the channel must be described. */
    if (!thread || thread->busy)
        return st_process_open() && st_chunk_write_direct(ST_SCHEMA_CHANNEL, from, 1);
    thread = enter(ST_SCHEMA_CHANNEL);
    if (!thread)
        return false;
    struct st_channel_record *record = slot(thread, ST_SCHEMA_CHANNEL);
    *record = *from;
    leave(thread, ST_SCHEMA_CHANNEL);
    return true;
}
