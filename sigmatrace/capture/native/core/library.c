/* Small registers of a process: libraries seen, names of API calls, what was lost, warnings. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "msgpack.h"

#define LIBRARIES 32u
#define CALLS 256u

struct library {
    char name[64], version[64], path[512], how[16];
    enum st_layer layer;
    int filled, emitted;
};

static struct library libraries[LIBRARIES];
static uint32_t library_count;
static const char *calls[CALLS];
static uint32_t call_count = 1; /* 0 is no call */
struct st_loss st_losses[ST_LOSSES];

static void emit(struct library *library)
{
    int no = 0;
    struct st_object o;
    if (!__atomic_load_n(&library->filled, __ATOMIC_ACQUIRE) ||
        !__atomic_compare_exchange_n(&library->emitted, &no, 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    st_object_begin(&o, "library", st_object_id());
    st_object_str(&o, "name", library->name);
    st_object_str(&o, "version", library->version);
    st_object_str(&o, "path", library->path);
    st_object_str(&o, "how", library->how);
    st_object_str(&o, "layer", st_layer_names[library->layer]);
    st_object_end(&o);
}

void st_libraries_emit(void)
{
    uint32_t n = __atomic_load_n(&library_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n && i < LIBRARIES; i++)
        emit(&libraries[i]);
}

void st_libraries_forked(void)
{
    for (uint32_t i = 0; i < LIBRARIES; i++)
        libraries[i].emitted = 0;
    memset(st_losses, 0, sizeof(st_losses));
}

static bool known(enum st_layer layer, const char *name, const char *path)
{
    uint32_t n = __atomic_load_n(&library_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n && i < LIBRARIES; i++)
        if (__atomic_load_n(&libraries[i].filled, __ATOMIC_ACQUIRE) &&
            libraries[i].layer == layer && !strcmp(libraries[i].name, name) &&
            !strcmp(libraries[i].path, path))
            return true;
    return false;
}

bool st_library_seen(enum st_layer layer, const char *name, const char *version, const char *path,
                     const char *how)
{
    if (st_mode() == ST_MODE_OFF || layer >= ST_LAYER_LAST)
        return false;
    int saved = errno;
    struct library wanted = {.layer = layer};
    snprintf(wanted.name, sizeof(wanted.name), "%s", name ? name : "");
    snprintf(wanted.version, sizeof(wanted.version), "%s", version ? version : "");
    snprintf(wanted.path, sizeof(wanted.path), "%s", path ? path : "");
    snprintf(wanted.how, sizeof(wanted.how), "%s", how ? how : "");
    if (!known(layer, wanted.name, wanted.path)) {
        uint32_t at = __atomic_fetch_add(&library_count, 1, __ATOMIC_ACQ_REL);
        if (at < LIBRARIES) {
            libraries[at] = wanted;
            __atomic_store_n(&libraries[at].filled, 1, __ATOMIC_RELEASE);
        } else {
            st_lost("library beyond the first 32", 1);
        }
    }
    st_process_files_begin();
    /* Whoever opens the files emits what it finds; this is for a library that came later. */
    if (st_process_open())
        st_libraries_emit();
    errno = saved;
    return st_recording();
}

uint8_t st_call_register(const char *name)
{
    uint32_t n = __atomic_load_n(&call_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 1; i < n && i < CALLS; i++) {
        const char *other = __atomic_load_n(&calls[i], __ATOMIC_ACQUIRE);
        if (other && !strcmp(other, name))
            return (uint8_t)i;
    }
    uint32_t at = __atomic_fetch_add(&call_count, 1, __ATOMIC_ACQ_REL);
    if (at >= CALLS) {
        st_lost("name of an API call beyond the 255th", 1);
        return 0;
    }
    __atomic_store_n(&calls[at], name, __ATOMIC_RELEASE);
    if (__atomic_load_n(&st_process.state, __ATOMIC_RELAXED) != ST_STATE_IDLE)
        st_lost("name of an API call registered after the header", 1);
    return (uint8_t)at;
}

uint32_t st_call_count(void)
{
    uint32_t n = __atomic_load_n(&call_count, __ATOMIC_ACQUIRE);
    return n < CALLS ? n : CALLS;
}

const char *st_call_name(uint32_t call)
{
    return __atomic_load_n(&calls[call], __ATOMIC_ACQUIRE);
}

void st_lost(const char *reason, uint64_t n)
{
    for (uint32_t i = 0; i < ST_LOSSES; i++) {
        const char *there = NULL;
        if (__atomic_compare_exchange_n(&st_losses[i].reason, &there, reason, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            there == reason || !strcmp(there, reason) || i + 1 == ST_LOSSES) {
            __atomic_fetch_add(&st_losses[i].n, n, __ATOMIC_RELAXED);
            return;
        }
    }
}

void st_warn_once(bool *once, const char *format, ...)
{
    if (__atomic_exchange_n(once, true, __ATOMIC_RELAXED))
        return;
    int saved = errno;
    char text[640] = "sigmatrace: ";
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text + used, sizeof(text) - used - 1, format, arguments);
    va_end(arguments);
    if (n > 0) {
        used = strlen(text);
        text[used++] = '\n';
        if (write(STDERR_FILENO, text, used) < 0) {
            /* Nobody can be told. */
        }
    }
    errno = saved;
}
