/* Device contexts: opened, their tables patched, closed.
 *
 * A context has its own copy of the provider's table. What was in it is kept with the context,
 * and forgotten when it is closed, as the address may come again with another provider. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

static struct st_verbs_context contexts[ST_VERBS_CONTEXTS];
static struct st_verbs_pool pool;

/* Does this context have the member? Tables grow at their beginning. */
#define HAS(extended, member)                                                                      \
    ((extended) &&                                                                                 \
     (extended)->sz >= sizeof(*(extended)) - offsetof(struct verbs_context, member) &&             \
     (extended)->member)

static struct verbs_context *extended_of(struct ibv_context *context)
{
    return context->abi_compat == __VERBS_ABI_IS_EXTENDED
               ? (void *)((uint8_t *)context - offsetof(struct verbs_context, context))
               : NULL;
}

/* The provider's own functions. */
static void keep(struct st_verbs_context *state)
{
    struct verbs_context *extended = extended_of(state->handle);
    state->ops = state->handle->ops;
#define ST_KEEP(name) state->name = HAS(extended, name) ? extended->name : NULL;
    ST_VERBS_EXTENDED(ST_KEEP)
#undef ST_KEEP
}

static void patch(struct st_verbs_context *state)
{
    struct ibv_context *context = state->handle;
    struct verbs_context *extended = extended_of(context);
#define ST_PATCH(name, wrapper)                                                                    \
    if (state->ops.name)                                                                           \
        context->ops.name = wrapper;
    ST_PATCH(post_send, st_verbs_post_send)
    ST_PATCH(bind_mw, st_verbs_bind_mw)
    ST_PATCH(dealloc_mw, st_verbs_dealloc_mw)
    ST_PATCH(poll_cq, st_verbs_poll_cq)
    if (st_verbs_full) {
        ST_PATCH(post_recv, st_verbs_post_recv)
        ST_PATCH(post_srq_recv, st_verbs_post_srq_recv)
    }
#undef ST_PATCH
#define ST_PATCH(name)                                                                             \
    if (state->name)                                                                               \
        extended->name = st_verbs_##name;
    ST_VERBS_EXTENDED(ST_PATCH)
#undef ST_PATCH
}

/* "44.0" of ".../libibverbs.so.1.14.44.0". */
static void library_seen(struct st_verbs_library *library)
{
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void *)library->ibv_open_device, &info) || !realpath(info.dli_fname, path))
        return;
    const char *version = strstr(path, ".so.");
    for (int dots = 0; version && dots < 3; dots++)
        version = strchr(version + 1, '.');
    st_library_seen(ST_LAYER_VERBS, "libibverbs", version ? version + 1 : "", path, "symbol");
}

static struct st_verbs_context *opened(struct ibv_context *context,
                                       struct st_verbs_library *library)
{
    if (context->ops.post_send == st_verbs_post_send)
        return NULL; /* patched by a state that is gone: what it stood for is not known */
    int saved = errno;
    library_seen(library);
    struct st_verbs_context *state =
        st_verbs_state(contexts, &pool, ST_VERBS_CONTEXTS, sizeof(contexts[0]));
    if (state) {
        *state = (struct st_verbs_context){.taken = 1,
                                           .index = (uint32_t)(state - contexts),
                                           .handle = context,
                                           .library = library,
                                           .device = st_verbs_device(context, library)};
        keep(state);
        if (st_verbs_put(ST_VERBS_HOT, context, state)) {
            patch(state); /* the wrappers look for the state */
        } else {
            st_verbs_state_give(state, &pool);
            state = NULL;
        }
    }
    errno = saved;
    return state;
}

/* Made behind our back. */
static struct st_verbs_context *adopt(struct ibv_context *context,
                                      struct st_verbs_library *library)
{
    if (!st_verbs_make_begin(ST_VERBS_MAKE_CONTEXT, context))
        return NULL;
    struct st_verbs_context *state = st_verbs_find(ST_VERBS_HOT, context);
    if (!state)
        state = opened(context, library);
    st_verbs_make_end(ST_VERBS_MAKE_CONTEXT, context);
    return state;
}

struct st_verbs_context *st_verbs_context_of(struct ibv_context *context, const void *caller)
{
    struct st_verbs_context *state = st_verbs_find(ST_VERBS_HOT, context);
    if (ST_LIKELY(state != NULL) || !st_verbs_on)
        return state;
    struct st_verbs_library *library = st_verbs_library(caller);
    return library ? adopt(context, library) : NULL;
}

const struct ibv_context_ops *st_verbs_pass_on(struct ibv_context *context, const char *what)
{
    struct st_verbs_context *state = st_verbs_find(ST_VERBS_HOT, context);
    st_lost(what, 1);
    return state ? &state->ops : NULL;
}

struct st_verbs_library *st_verbs_library_of(struct ibv_context *context, const void *caller)
{
    struct st_verbs_context *state = st_verbs_context_of(context, caller);
    return state ? state->library : st_verbs_library(caller);
}

ST_API struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct st_verbs_library *library = st_verbs_library(ST_CALLER);
    if (!library) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_context *context = ST_VERBS_INSIDE(library->ibv_open_device(device));
    if (context && st_verbs_on && !st_verbs_inside)
        opened(context, library);
    return context;
}

ST_API struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct st_verbs_library *library = st_verbs_library(ST_CALLER);
    if (!library || !library->ibv_import_device) {
        errno = ENOSYS;
        return NULL;
    }
    struct ibv_context *context = ST_VERBS_INSIDE(library->ibv_import_device(cmd_fd));
    if (context && st_verbs_on && !st_verbs_inside)
        opened(context, library);
    return context;
}

ST_API int ibv_close_device(struct ibv_context *context)
{
    struct st_verbs_library *library = st_verbs_library_of(context, ST_CALLER);
    struct st_verbs_context *state = st_verbs_find(ST_VERBS_HOT, context);
    int result = library ? library->ibv_close_device(context) : ENOSYS;
    if (state && !result) {
        st_verbs_remove(ST_VERBS_HOT, context, state);
        st_verbs_state_give(state, &pool);
    }
    return result;
}
