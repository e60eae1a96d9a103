/* Queue pairs: made, found by the number in a doorbell, and ended. */
#define _GNU_SOURCE
#include <string.h>

#include "repeater.h"
#include "st_handle.h"

#define SWEPT_MS 1000u /* for the last look at the register; that takes a microsecond */
#define COPIED_MS 50u
#define RECORD_MS 200u /* the copier may wait for a CPU */

struct st_gpu_qp st_gpu_qps[ST_GPU_QPS];
uint32_t st_gpu_qps_used;

static struct st_handle_table by_number;
static uint32_t turn;

/* Page and number together: 36 and 24 bits. */
static const void *name_of(const volatile void *real, uint32_t qpn)
{
    return (const void *)(((uintptr_t)real & ~(uintptr_t)ST_PAGE_MASK) << 16 |
                          (uintptr_t)qpn << 4);
}

static const void *page_in(const void *name)
{
    return (const void *)((uintptr_t)name >> 28 << 12);
}

struct st_gpu_qp *st_gpu_qp_find(const struct st_register *at, uint32_t qpn)
{
    return st_handle_find(&by_number, name_of(at->real, qpn));
}

void st_gpu_qp_hide(struct st_gpu_qp *qp)
{
    st_handle_remove(&by_number, qp->name, qp);
}

/* Where it rings, and how its memory is read. */
struct place {
    struct st_register *at; /* NULL: none of its page is left */
    struct st_page *page;
    const void *name;
    struct st_source *ring, *proof, *record;
};

/* What a former queue pair left is forgotten; its life ends with a new number. */
static void begin(struct st_gpu_qp *qp, const struct st_gpu_qp_new *new, const struct place *place)
{
    uint32_t life = qp->life + 1;
    memset((uint8_t *)qp + sizeof(qp->state), 0, sizeof(*qp) - sizeof(qp->state));
    qp->life = life;
    qp->made = *new;
    qp->stream = (struct st_gpu_stream){new->object, new->qpn, new->has_av, {0}};
    memcpy(qp->stream.prefix, new->prefix, sizeof(new->prefix));
    qp->at = place->at;
    qp->page = place->page;
    qp->name = place->name;
    qp->ring = place->ring;
    qp->proof = place->proof;
    qp->record = place->record;
    qp->forwarded = qp->told = qp->taken = qp->started = qp->copied = new->first;
}

static bool record_is_read(const void *qp)
{
    return ST_LOAD(&((const struct st_gpu_qp *)qp)->asked) == ST_READ;
}

/* False: it was not, within the time. */
static bool read_record(struct st_gpu_qp *qp)
{
    ST_STORE(&qp->asked, ST_ASKED);
    ST_STORE(&st_asked, 1);
    return st_repeater_wait(&st_copier_beat, record_is_read, qp, RECORD_MS);
}

static void count_users(struct st_register *at, struct st_page *page, uint32_t by)
{
    if (at)
        ST_ADD(&at->qps, by);
    ST_ADD(&page->qps, by);
    ST_ADD(&page->unproven, by);
}

/* What others overwrite of a doorbell on their register is found in its record, or not at all. */
static void warn_of_loss(struct st_register *at, bool has_record)
{
    static bool said;
    at->blind |= !has_record;
    if (!at->blind || ST_LOAD(&at->qps) < 2)
        return;
    st_lost("gpu: queue pair of a shared register, of which doorbells may not have been seen", 1);
    st_warn_once(&said, "several queue pairs ring on one register, one of them without a doorbell "
                        "record that can be read: where they ring at the same time, the GPU may wait "
                        "for operations that the NIC was not told of; trace it without layer mlx5dv");
}

static bool add(const struct st_gpu_qp_new *new, const struct place *place, bool is_new)
{
    bool sees = st_gpu_cq_begin(new->cq);
    struct st_gpu_qp *qp =
        st_state_claim(st_gpu_qps, ST_GPU_QPS, sizeof(*qp), &st_gpu_qps_used, &turn);
    if (!qp) {
        st_lost("gpu: queue pair beyond the number that can be followed", 1);
        return false;
    }
    begin(qp, new, place);
    if (!sees)
        qp->made.cq = NULL;
    count_users(place->at, place->page, 1);
    if (place->at)
        warn_of_loss(place->at, place->record);
    ST_STORE(&qp->state, ST_ACTIVE);
    if (!st_handle_publish(&by_number, qp->name, qp)) {
        count_users(place->at, place->page, -1u);
        ST_STORE(&qp->state, ST_FREE);
        st_lost("gpu: queue pair beyond the number that can be followed", 1);
        return false;
    }
    /* What its record says before anything was rung is of an earlier life, and no doorbell. Of a new
     * queue pair that was not read in time it may be one: the ring has to prove it. */
    if (place->record && (!read_record(qp) || !ST_LOAD(&qp->looked))) {
        st_lost("gpu: queue pair whose doorbell record was not read before it could ring", 1);
        ST_STORE(&qp->unread, is_new);
    }
    return true;
}

bool st_gpu_qp_add(const struct st_gpu_qp_new *new)
{
    struct st_register *at = st_register_of(new->shadow);
    bool ring = new->sq && new->sq_slots && new->sq_slots <= ST_RING_SLOTS_MAX &&
                !(new->sq_slots & (new->sq_slots - 1));
    bool recorded = !new->doorbells_only && st_gpu_config.order != ST_COPY_OFF;
    if (!at || !st_repeater_here())
        return false;
    struct place place = {.at = at, .page = at->of, .name = name_of(at->real, new->qpn)};
    place.proof = ring ? st_source_of(new->sq) : NULL;
    place.ring = recorded ? place.proof : NULL;
    place.record = new->dbrec && new->dbrec % 4 == 0 ? st_source_of(new->dbrec) : NULL;
    return add(new, &place, new->first == 0);
}

/* The register may have gone before, and with it the name. */
static struct st_gpu_qp *named(const void *shadow, uint32_t qpn)
{
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used); i++) {
        struct st_gpu_qp *qp = &st_gpu_qps[i];
        if (ST_LOAD(&qp->state) == ST_ACTIVE && qp->made.qpn == qpn &&
            qp->made.shadow == shadow)
            return qp;
    }
    return NULL;
}

static bool is_not_read(const void *qp)
{
    return !__atomic_load_n(&((const struct st_gpu_qp *)qp)->reading, __ATOMIC_SEQ_CST);
}

/* The copier did not come to its end in time. Totals are told next: they should not miss what it is
 * recording just now; but the program waits no longer than for the copy. */
static void abandon(struct st_gpu_qp *qp)
{
    st_gpu_qp_hide(qp);
    if (!st_repeater_wait(&st_copier_beat, is_not_read, qp, COPIED_MS) && st_repeater_here())
        st_lost("gpu: queue pair whose totals may not count its last slots", 1);
}

/* Where others overwrite its doorbells, the last one may have been: the record tells. The sweeper
 * takes what it says before it lets the QP go. */
static void look_at_record(struct st_gpu_qp *qp)
{
    const struct st_register *at = ST_LOAD(&qp->at);
    if (!qp->record || !at || !st_gpu_qp_shares(qp, at) || !st_repeater_here())
        return;
    if (!read_record(qp))
        st_lost("gpu: queue pair whose last doorbells may not have been seen", 1);
}

static bool has_left(const void *qp)
{
    return ST_LOAD(&((const struct st_gpu_qp *)qp)->left);
}

static bool has_ended(const void *qp)
{
    return ST_LOAD(&((const struct st_gpu_qp *)qp)->state) != ST_ENDING;
}

/* False: not all is done. */
static bool finish(struct st_gpu_qp *qp)
{
    if (!st_repeater_here())
        return false;
    ST_ADD(&st_hurry, 1);
    ST_ADD(&st_attention, 1);
    if (!st_repeater_wait(&st_sweeper_beat, has_left, qp, SWEPT_MS)) {
        st_lost("gpu: queue pair whose last doorbells may not have been seen", 1);
        return false;
    }
    return st_repeater_wait(&st_copier_beat, has_ended, qp, COPIED_MS);
}

/* False: another thread does. */
static bool end(struct st_gpu_qp *qp, struct st_gpu_qp_totals *totals)
{
    look_at_record(qp);
    if (!st_swap_state(&qp->state, ST_ACTIVE, ST_ENDING))
        return false;
    bool ended = finish(qp) || !st_swap_state(&qp->state, ST_ENDING, ST_ABANDONED);
    if (!ended)
        abandon(qp);
    uint64_t slots = ST_LOAD(&qp->forwarded) - qp->made.first, recorded = ST_LOAD(&qp->recorded);
    *totals = (struct st_gpu_qp_totals){
        .doorbells = ST_LOAD(&qp->doorbells),
        .slots = slots,
        .invalid_slots = ST_LOAD(&qp->invalid),
        .uncopied_slots = slots - recorded};
    if (ended || !st_swap_state(&qp->state, ST_ABANDONED, ST_GONE))
        ST_STORE(&qp->state, ST_FREE);
    return true;
}

void st_gpu_qp_remove(const void *shadow, uint32_t qpn, struct st_gpu_qp_totals *totals)
{
    struct st_gpu_qp *qp = named(shadow, qpn);
    memset(totals, 0, sizeof(*totals));
    if (qp)
        end(qp, totals);
}

void st_gpu_qp_restart(const void *shadow, uint32_t qpn, uint32_t object,
                       struct st_gpu_qp_totals *totals)
{
    struct st_gpu_qp *qp = named(shadow, qpn);
    memset(totals, 0, sizeof(*totals));
    if (!qp)
        return;
    struct place place = {.page = qp->page, .name = qp->name, .ring = qp->ring,
                          .proof = qp->proof, .record = qp->record};
    struct st_register *at = ST_LOAD(&qp->at); /* by now it may be known better than at first; */
    struct st_gpu_qp_new new = qp->made;
    new.object = object;
    new.first = 0;
    end(qp, totals);
    /* or have gone: then another one of the page may be rung, now or later. */
    place.at = at && ST_LOAD(&at->state) == ST_ACTIVE && at->of == place.page ? at : NULL;
    if (!place.at)
        place.at = st_register_beside(page_in(place.name));
    add(&new, &place, false);
}

void st_gpu_qps_end(uint64_t until_tsc)
{
    for (uint32_t i = 0; i < ST_LOAD(&st_gpu_qps_used) && st_now() < until_tsc; i++) {
        struct st_gpu_qp *qp = &st_gpu_qps[i];
        struct st_gpu_qp_totals totals = {0};
        struct st_object o;
        /* One that was to end before has totals from then, too: of it, none are told. */
        if (ST_LOAD(&qp->state) != ST_ACTIVE || qp->made.first)
            continue;
        uint32_t object = qp->stream.object;
        if (!end(qp, &totals))
            continue;
        st_object_begin(&o, "mlx5_qp", object);
        st_gpu_qp_totals_put(&o, &totals);
        st_object_end(&o);
    }
}

void st_gpu_qp_totals_put(struct st_object *o, const struct st_gpu_qp_totals *totals)
{
    st_object_u64(o, "doorbells", totals->doorbells);
    st_object_u64(o, "slots", totals->slots);
    st_object_u64(o, "invalid_slots", totals->invalid_slots);
    st_object_u64(o, "uncopied_slots", totals->uncopied_slots);
}
