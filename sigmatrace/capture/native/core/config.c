/* SIGMATRACE_* and the launchers' variables, read once, before the program can change them. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

#define ST_NAME(number, upper, name, other) [number] = name,
#define ST_OTHER(number, upper, name, other) [number] = other,
#define ST_LISTED(number, upper, name, other) " " name
/* 0: no layer, but the bindings for Python. */
const char *const st_layer_names[ST_LAYER_LAST] = {[0] = "python", ST_LAYERS(ST_NAME)};
static const char *const other_names[ST_LAYER_LAST] = {ST_LAYERS(ST_OTHER)};
const char *const st_mode_names[] = {"off", "aggregate", "simple", "full"};

static struct st_config config;
static int ready; /* 0 not read, 1 being read, 2 read */

static void copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

static bool parse_number(const char *text, long low, long high, long *value)
{
    char *end;
    if (!text || !*text)
        return false;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || *end || v < low || v > high)
        return false;
    *value = v;
    return true;
}

static long number(const char *name, long otherwise, long low, long high)
{
    const char *text = getenv(name);
    long value = otherwise;
    static bool warned;
    if (text && *text && !parse_number(text, low, high, &value))
        st_warn_once(&warned, "%s=%s is not a number from %ld to %ld; %ld is used", name, text,
                     low, high, otherwise);
    return value;
}

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && !strncasecmp(text, word, n);
}

static void read_layers(const char *text)
{
    static bool warned;
    while (*text) {
        size_t n = strcspn(text, ", ");
        bool known = false;
        for (int layer = 1; layer < ST_LAYER_LAST; layer++)
            if (is_word(text, n, st_layer_names[layer]) || is_word(text, n, other_names[layer]) ||
                is_word(text, n, "all"))
                config.layers[layer] = known = true;
        if (n && !known)
            st_warn_once(&warned, "SIGMATRACE_LAYERS: no layer is called \"%.*s\"; there are:%s, "
                                  "and the groups ucx gpu all",
                         (int)n, text, "" ST_LAYERS(ST_LISTED));
        text += n;
        text += strspn(text, ", ");
    }
}

static enum st_mode read_mode(const char *text)
{
    static bool warned;
    if (!text || !*text)
        return ST_MODE_SIMPLE;
    for (int mode = ST_MODE_OFF; mode <= ST_MODE_FULL; mode++)
        if (!strcasecmp(text, st_mode_names[mode]))
            return (enum st_mode)mode;
    st_warn_once(&warned, "SIGMATRACE_MODE=%s is none of aggregate, simple, full; simple is used",
                 text);
    return ST_MODE_SIMPLE;
}

static bool read_writer(const char *text)
{
    static bool warned;
    if (!text || !*text || !strcasecmp(text, "thread"))
        return false;
    if (!strcasecmp(text, "inline"))
        return true;
    st_warn_once(&warned, "SIGMATRACE_WRITER=%s is none of thread, inline; thread is used", text);
    return false;
}

/* The most specific launcher first: torchrun may run under mpirun, both under SLURM. The launcher
 * has the same list, in runid.py. */
static void read_rank(void)
{
    static const struct {
        const char *rank, *world, *only_with;
    } sources[] = {
        {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL},
        {"PMIX_RANK", "PMIX_SIZE", NULL},
        {"PMI_RANK", "PMI_SIZE", NULL},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", NULL},
        {"PALS_RANKID", "PALS_SIZE", NULL},
        {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", NULL},
        {"RANK", "WORLD_SIZE", "WORLD_SIZE"},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"}, /* a batch script has no step's id */
    };
    config.rank = config.world = -1;
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        long rank, world;
        if (sources[i].only_with && !getenv(sources[i].only_with))
            continue;
        if (!parse_number(getenv(sources[i].rank), 0, 1L << 30, &rank))
            continue;
        config.rank = (int)rank;
        if (parse_number(getenv(sources[i].world), 1, 1L << 30, &world))
            config.world = (int)world;
        copy(config.rank_source, sizeof(config.rank_source), sources[i].rank);
        return;
    }
}

static void read_out(void)
{
    const char *out = getenv("SIGMATRACE_OUT");
    char folder[sizeof(config.out)];
    static bool warned;
    if (!out || !*out)
        return;
    if (out[0] == '/')
        snprintf(folder, sizeof(folder), "%s", out);
    else if (!getcwd(folder, sizeof(folder)))
        folder[0] = 0;
    size_t used = strlen(folder);
    if (out[0] != '/' && used)
        snprintf(folder + used, sizeof(folder) - used, "/%s", out);
    if (!used || strlen(folder) + 1 >= sizeof(folder)) {
        st_warn_once(&warned, "SIGMATRACE_OUT is too long; nothing is recorded");
        return;
    }
    copy(config.out, sizeof(config.out), folder);
}

static void read_all(void)
{
    read_out();
    config.mode = config.out[0] ? read_mode(getenv("SIGMATRACE_MODE")) : ST_MODE_OFF;
    const char *layers = getenv("SIGMATRACE_LAYERS");
    read_layers(layers && *layers ? layers : "ofi,ucp");
    copy(config.run_id, sizeof(config.run_id), getenv("SIGMATRACE_RUN_ID"));
    copy(config.clock, sizeof(config.clock), getenv("SIGMATRACE_CLOCK"));
    config.segment_bytes = (uint32_t)number("SIGMATRACE_SEGMENT_KIB", 256, 4, 32 << 10) << 10;
    config.max_channels = (uint32_t)number("SIGMATRACE_MAX_CHANNELS", 1 << 20, 1, 1 << 22);
    config.write_inline = read_writer(getenv("SIGMATRACE_WRITER"));
    read_rank();
}

const struct st_config *st_config(void)
{
    static const struct st_config off;
    if (ST_LIKELY(__atomic_load_n(&ready, __ATOMIC_ACQUIRE) == 2))
        return &config;
    int saved = errno, unread = 0;
    if (!__atomic_compare_exchange_n(&ready, &unread, 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return unread == 2 ? &config : &off;
    read_all();
    __atomic_store_n(&ready, 2, __ATOMIC_RELEASE);
    errno = saved;
    return &config;
}

enum st_mode st_mode(void)
{
    return st_config()->mode;
}

bool st_layer_on(enum st_layer layer)
{
    const struct st_config *c = st_config();
    return c->mode != ST_MODE_OFF && layer < ST_LAYER_LAST && c->layers[layer];
}
