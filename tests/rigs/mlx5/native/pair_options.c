/* Options of the programs, NAME=VALUE; --help lists them. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pair_host.h"

struct options options = {.kernel = "pair_kernel.so",
                          .size = 1,
                          .lives = 1,
                          .rounds = 1,
                          .gpus = 1,
                          .batch = 16,
                          .qps = 1,
                          .blocks = 1,
                          .heap = UNCHOSEN,
                          .threads = 1,
                          .slots = 256,
                          .args = {.operations = 100, .bytes = 256, .group = 1, .kinds = 1}};
const char *const kind_names[] = {"write", "read",  "inline", "long", "add",  "cas", "swap8",
                                    "xor8",  "add4", "swap4",  "imm",  "send", "dump"};
static const char *const dialects[] = {"nvshmem", "doca", "rdma", "rocshmem", "blueflame", "proxy"};
static const char *const uars[] = {"own", "shared", "plain", "bf"};
static const char *const memories[] = {"gpu", "dmabuf", "host", "mirrored"};
static const char *const faults[] = {"none",   "remote_key", "local_key", "bounds",
                                     "index", "number",     "opcode"};
const char *const mode_names[] = {"run", "time", "pingpong"};

void fail(const char *what, long code)
{
    fprintf(stderr, "%s: %s failed (%ld)\n", program_invocation_short_name, what, code);
    exit(2);
}

void refuse(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s (--help lists the options)\n", program_invocation_short_name, what,
            why);
    exit(2);
}

void need(const char *what, long code)
{
    if (code)
        fail(what, code);
}

bool has_kind(enum pair_kind kind)
{
    for (uint32_t i = 0; i < options.args.kinds; i++)
        if (options.args.kind[i] == kind)
            return true;
    return false;
}

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
static uint32_t choice(const char *value, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(value, names[i]))
            return (uint32_t)i;
    refuse(value, "no such choice");
}

static void mix_read(char *value)
{
    options.args.kinds = 0;
    for (char *name = strtok(value, ","); name; name = strtok(NULL, ",")) {
        need("mix", options.args.kinds == PAIR_MOST_MIX);
        options.args.kind[options.args.kinds++] = (uint8_t)choice(name, kind_names, COUNT(kind_names));
    }
}

static bool number_read(const char *name, const char *value)
{
    const struct {
        const char *name;
        uint32_t *at;
    } numbers[] = {{"ops", &options.args.operations}, {"bytes", &options.args.bytes},
                   {"qps", &options.qps},             {"blocks", &options.blocks},
                   {"threads", &options.threads},     {"slots", &options.slots},
                   {"group", &options.args.group},    {"rank", &options.rank},
                   {"lives", &options.lives},         {"rounds", &options.rounds},
                   {"size", &options.size},           {"warmup", &options.warmup},
                   {"window", &options.args.window},  {"gpus", &options.gpus},
                   {"root", &options.root},           {"batch", &options.batch}};
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (!strcmp(name, numbers[i].name)) {
            *numbers[i].at = (uint32_t)strtoul(value, NULL, 10);
            return true;
        }
    return false;
}

static void option_read(const char *name, char *value)
{
    if (number_read(name, value))
        return;
    if (!strcmp(name, "kernel"))
        options.kernel = value;
    else if (!strcmp(name, "folder"))
        options.folder = value;
    else if (!strcmp(name, "graph"))
        options.graph = value;
    else if (!strcmp(name, "mix"))
        mix_read(value);
    else if (!strcmp(name, "dialect"))
        options.args.dialect = choice(value, dialects, COUNT(dialects));
    else if (!strcmp(name, "uar"))
        options.uar = choice(value, uars, COUNT(uars));
    else if (!strcmp(name, "memory"))
        options.memory = choice(value, memories, COUNT(memories));
    else if (!strcmp(name, "heap"))
        options.heap = choice(value, memories, COUNT(memories));
    else if (!strcmp(name, "mode"))
        options.mode = choice(value, mode_names, COUNT(mode_names));
    else if (!strcmp(name, "each"))
        options.each = !strcmp(value, "1");
    else if (!strcmp(name, "dci"))
        options.dci = !strcmp(value, "1");
    else if (!strcmp(name, "av"))
        options.long_av = !strcmp(value, "long");
    else if (!strcmp(name, "make"))
        options.verbs = !strcmp(value, "verbs");
    else if (!strcmp(name, "fault"))
        options.args.fault = choice(value, faults, COUNT(faults));
    else if (!strcmp(name, "receives"))
        options.receives = !strcmp(value, "1");
    else if (!strcmp(name, "abandon"))
        options.args.abandon = !strcmp(value, "1");
    else
        refuse(name, "no such option");
}

/* What is missing is said in one line, before anything is begun. */
static void files_check(void)
{
    if (access(options.kernel, R_OK))
        refuse(options.kernel, "the kernels cannot be read: kernel=FILE names them");
    if (options.size > 1 && (!options.folder || access(options.folder, W_OK)))
        refuse(options.folder ? options.folder : "folder", "several processes meet in folder=PATH");
}

void options_read(int count, char **texts)
{
    for (int i = 1; i < count; i++) {
        char *equals = strchr(texts[i], '=');
        if (!strcmp(texts[i], "--help")) {
            fputs(usage, stdout);
            exit(0);
        }
        if (!equals)
            refuse(texts[i], "not NAME=VALUE");
        *equals = 0;
        option_read(texts[i], equals + 1);
    }
    need("qps", options.qps == 0 || options.qps > MOST_QPS || options.blocks % options.qps);
    need("slots", options.slots & (options.slots - 1) || options.slots < 16);
    need("size", options.size == 0 || options.size > MOST_RANKS);
    need("bytes", options.args.bytes < 8 && has_kind(PAIR_SEND));
    need("dci", options.dci && (has_kind(PAIR_SEND) || has_kind(PAIR_IMM)));
    need("group", options.args.group == 0);
    need("lives", options.lives > 1 && (has_kind(PAIR_SEND) || has_kind(PAIR_IMM)));
    need("lives", options.lives > 1 && options.verbs);
    need("abandon", options.args.abandon && (options.size > 1 || options.mode != RUN));
    need("gpus", options.gpus == 0);
    need("window", options.args.window > options.slots);
    need("heap", options.heap == MIRRORED);
    need("mix", options.mode == TIME && options.args.kinds != 1 && !options.each);
    if (options.heap == UNCHOSEN)
        options.heap = options.memory == IN_GPU_AS_DMABUF ? IN_GPU_AS_DMABUF : IN_GPU;
    files_check();
    options.args.rank = options.rank;
    options.args.qp_count = options.qps;
}
