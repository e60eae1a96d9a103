/* The first and the last item of a rank file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "msgpack.h"

#define COMMAND_MAX (64u << 10)

struct field {
    const char *name, *dtype, *unit;
};

#define ST_DTYPE_u8 "<u8"
#define ST_DTYPE_u4 "<u4"
#define ST_DTYPE_i4 "<i4"
#define ST_DTYPE_f8 "<f8"
#define ST_DTYPE_u1 "u1"
#define ST_FIELD(name, dtype, unit) {#name, ST_DTYPE_##dtype, unit},
#define ST_PADDING(name, count) {#name, #count "u1", ""},
#define ST_DESCRIBE(number, upper, label)                                                          \
    static const struct field label##_fields[] = {                                                 \
        ST_FIELDS_##label(ST_FIELD, ST_PADDING){NULL, NULL, NULL}};
ST_RECORDS(ST_DESCRIBE)

static const struct {
    const char *name;
    const struct field *fields;
} schemas[ST_SCHEMA_LAST] = {
#define ST_SCHEMA(number, upper, label) [number] = {#label, label##_fields},
    ST_RECORDS(ST_SCHEMA)
};

static void put_number_key(struct st_object *o, unsigned number)
{
    char text[12];
    snprintf(text, sizeof(text), "%u", number);
    st_put_str(o, text);
}

static void put_schemas(struct st_object *o)
{
    st_put_str(o, "schemas");
    st_put_map(o, ST_SCHEMA_LAST - 1);
    for (uint32_t schema = 1; schema < ST_SCHEMA_LAST; schema++) {
        const struct field *field = schemas[schema].fields;
        uint32_t n = 0;
        while (field[n].name)
            n++;
        put_number_key(o, schema);
        st_put_map(o, 3);
        st_put_str(o, "name");
        st_put_str(o, schemas[schema].name);
        st_put_str(o, "size");
        st_put_u64(o, st_record_size[schema]);
        st_put_str(o, "fields");
        st_put_array(o, n);
        for (; field->name; field++) {
            st_put_array(o, 3);
            st_put_str(o, field->name);
            st_put_str(o, field->dtype);
            st_put_str(o, field->unit);
        }
    }
}

static void put_calls(struct st_object *o)
{
    uint32_t n = st_call_count(), named = 0;
    for (uint32_t call = 1; call < n; call++)
        named += st_call_name(call) != NULL;
    st_put_str(o, "calls");
    st_put_map(o, named);
    for (uint32_t call = 1; call < n && named; call++) {
        if (!st_call_name(call))
            continue;
        named--;
        put_number_key(o, call);
        st_put_str(o, st_call_name(call));
    }
}

/* Bytes of a small file of /proc; never more than size - 1, ended with a zero. */
static size_t read_file(const char *path, char *to, size_t size)
{
    size_t used = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n;
        while (used < size - 1 && (n = read(fd, to + used, size - 1 - used)) > 0)
            used += (size_t)n;
        close(fd);
    }
    to[used] = 0;
    return used;
}

static void put_command(struct st_object *o, char *scratch)
{
    size_t size = read_file("/proc/self/cmdline", scratch, COMMAND_MAX);
    uint32_t n = 0;
    for (size_t at = 0; at < size; at += strlen(scratch + at) + 1)
        n++;
    st_put_str(o, "command");
    st_put_array(o, n);
    for (size_t at = 0; at < size; at += strlen(scratch + at) + 1)
        st_put_str(o, scratch + at);
    ssize_t length = readlink("/proc/self/exe", scratch, COMMAND_MAX);
    st_put_str(o, "exe");
    st_put_strn(o, scratch, length > 0 ? (size_t)length : 0);
}

static void put_layers(struct st_object *o)
{
    uint32_t n = 0;
    for (int layer = ST_LAYER_OFI; layer < ST_LAYER_LAST; layer++)
        n += st_layer_on((enum st_layer)layer);
    st_put_str(o, "layers");
    st_put_array(o, n);
    for (int layer = ST_LAYER_OFI; layer < ST_LAYER_LAST; layer++)
        if (st_layer_on((enum st_layer)layer))
            st_put_str(o, st_layer_names[layer]);
}

static void text(struct st_object *o, const char *name, const char *value)
{
    st_put_str(o, name);
    st_put_str(o, value);
}

static void integer(struct st_object *o, const char *name, int64_t value)
{
    st_put_str(o, name);
    st_put_int(o, value);
}

static void put_header(struct st_object *o, char *scratch)
{
    const struct st_config *c = st_config();
    const char *source;
    uint64_t hz = st_tsc_hz(&source);
    st_put_map(o, 20);
    text(o, "format", "sigmatrace");
    st_put_str(o, "version");
    st_put_array(o, 2);
    st_put_u64(o, ST_FORMAT_MAJOR);
    st_put_u64(o, ST_FORMAT_MINOR);
    text(o, "host", st_process.host);
    size_t n = read_file("/proc/sys/kernel/random/boot_id", scratch, 64);
    st_put_str(o, "boot_id");
    st_put_strn(o, scratch, n && scratch[n - 1] == '\n' ? n - 1 : n);
    integer(o, "pid", st_process.pid);
    integer(o, "ppid", getppid());
    integer(o, "start_ns", (int64_t)st_process.start_ns);
    text(o, "run_id", c->run_id);
    integer(o, "rank", c->rank);
    integer(o, "world", c->world);
    text(o, "rank_source", c->rank_source);
    put_command(o, scratch); /* command, exe */
    text(o, "mode", st_mode_names[c->mode]);
    put_layers(o);
    st_put_str(o, "tsc_hz");
    st_put_u64(o, hz);
    text(o, "tsc_source", source);
    text(o, "clock", st_clock_name());
    put_schemas(o);
    put_calls(o);
}

bool st_header_write(void)
{
    struct st_object o;
    bool done = false;
    char *scratch = st_map(COMMAND_MAX);
    if (!scratch)
        return false;
    if (st_item_begin(&o)) {
        put_header(&o, scratch);
        done = st_item_seal(&o, ST_ITEM_HEADER) && st_writer_append(o.buffer, o.used);
        st_item_free(&o);
    }
    st_unmap(scratch, COMMAND_MAX);
    return done;
}

static void put_totals(struct st_object *o)
{
    st_put_str(o, "schemas");
    st_put_map(o, ST_SCHEMA_LAST - 1);
    for (uint32_t schema = 1; schema < ST_SCHEMA_LAST; schema++) {
        uint64_t written = st_chunk_direct_written(schema), dropped = 0;
        for (struct st_thread *t = st_thread_first(); t; t = t->all) {
            written += t->written[schema];
            dropped += t->dropped[schema];
        }
        put_number_key(o, schema);
        st_put_map(o, 2);
        integer(o, "written", (int64_t)written);
        integer(o, "dropped", (int64_t)dropped);
    }
}

static void put_losses(struct st_object *o)
{
    struct st_loss losses[ST_LOSSES];
    uint32_t n = 0;
    for (; n < ST_LOSSES && __atomic_load_n(&st_losses[n].reason, __ATOMIC_ACQUIRE); n++)
        losses[n] = st_losses[n];
    st_put_str(o, "lost");
    st_put_map(o, n);
    for (uint32_t i = 0; i < n; i++)
        integer(o, losses[i].reason, (int64_t)losses[i].n);
}

void st_end_write(const char *reason)
{
    struct st_object o;
    if (!st_item_begin(&o))
        return;
    st_put_map(&o, 4);
    st_put_str(&o, "t_tsc");
    st_put_u64(&o, st_now());
    put_totals(&o);
    put_losses(&o);
    text(&o, "reason", reason);
    if (st_item_seal(&o, ST_ITEM_END))
        st_writer_append_last(o.buffer, o.used);
    st_item_free(&o);
}
