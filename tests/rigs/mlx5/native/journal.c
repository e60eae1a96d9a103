/* What the NIC did: a line for each WQE, and counts of each life of a queue pair. The folder is
 * MLX5EMU_OUT; wqes-PID.txt is written with MLX5EMU_LOG=1, nic-PID.json at exit.
 * A line: index qpn opcode bytes raddr rkey slots syndrome (decimal). */
#include "nic.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096 };

struct life {
    uint32_t qpn, remote_qpn;
    uint16_t remote_lid;
    struct nic_counts counts;
    struct life *next;
};
static struct life *lives, **last_life = &lives; /* in the order in which they ended */
static FILE *lines;
static uint64_t bad_doorbells;
static bool over;

static bool path_of(char *path, const char *kind, const char *suffix)
{
    const char *folder = getenv("MLX5EMU_OUT");
    return folder && *folder &&
           snprintf(path, PATH, "%s/%s-%d.%s", folder, kind, (int)getpid(), suffix) < PATH;
}

void nic_journal_start(void)
{
    char path[PATH];
    const char *wanted = getenv("MLX5EMU_LOG");
    if (wanted && !strcmp(wanted, "1") && path_of(path, "wqes", "txt"))
        lines = fopen(path, "w");
}

void nic_journal_bad_doorbell(void)
{
    bad_doorbells++;
}

void nic_journal_wqe(const struct nic_qp *qp, const struct nic_wqe *wqe, uint32_t syndrome)
{
    if (lines && !over)
        fprintf(lines, "%u %u %u %" PRIu64 " %" PRIu64 " %u %u %u\n", wqe->index, qp->qpn,
                wqe->opcode, wqe->bytes, wqe->raddr, wqe->rkey, wqe->slots, syndrome);
}

static bool is_empty(const struct nic_counts *counts)
{
    static const struct nic_counts none;
    return !memcmp(counts, &none, sizeof(none));
}

void nic_journal_life(struct nic_qp *qp)
{
    struct life *life = is_empty(&qp->counts) ? NULL : calloc(1, sizeof(*life));
    if (!life)
        return;
    *life = (struct life){qp->qpn, qp->remote_qpn, qp->remote_lid, qp->counts, NULL};
    *last_life = life;
    last_life = &life->next;
}

static void life_write(FILE *file, const struct life *life)
{
    const struct nic_counts *c = &life->counts;
    fprintf(file,
            "{\"qpn\": %u, \"remote_qpn\": %u, \"remote_lid\": %u, \"doorbells\": %" PRIu64
            ", \"repeated\": %" PRIu64 ", \"from_record\": %" PRIu64 ", \"stale\": %" PRIu64
            ", \"slots\": %" PRIu64 ", \"cqes\": %" PRIu64 ", \"errors\": %" PRIu64
            ", \"received\": %" PRIu64 ", \"operations\": {",
            life->qpn, life->remote_qpn, life->remote_lid, c->doorbells, c->repeated,
            c->from_record, c->stale, c->slots, c->cqes, c->errors, c->received);
    const char *comma = "";
    for (unsigned i = 0; i < NIC_OPCODES; i++)
        if (c->operations[i]) {
            fprintf(file, "%s\"%u\": {\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", comma, i,
                    c->operations[i], c->bytes[i]);
            comma = ", ";
        }
    fputs("}}", file);
}

__attribute__((destructor)) static void finish(void)
{
    char path[PATH];
    nic_enter();
    over = true;
    if (lines)
        fclose(lines);
    for (uint32_t i = 0; i < nic.qps_end; i++)
        if (nic.qps[i].used)
            nic_journal_life(&nic.qps[i]);
    FILE *file = nic.lid && path_of(path, "nic", "json") ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "{\"lid\": %u, \"bad_doorbells\": %" PRIu64 ", \"lives\": [", nic.lid,
                bad_doorbells);
        for (struct life *life = lives; life; life = life->next) {
            life_write(file, life);
            fputs(life->next ? ",\n" : "", file);
        }
        fputs("]}\n", file);
        fclose(file);
    }
    nic_leave();
}
