/* libcupti.so.13 of the stand-in: activity records of the kernels that its libcuda.so.1 has run.
 * The layout is that of the beginning of CUpti_ActivityKernel4; the clock is the monotonic one. */
#include <string.h>

#include "fake_cuda.h"

enum { SIZE = 216, KERNEL = 10, END_OF_BUFFER = 12, INVALID_KIND = 1 };
typedef void (*request_function)(uint8_t **, size_t *, size_t *);
typedef void (*complete_function)(void *, uint32_t, uint8_t *, size_t, size_t);

static request_function request;
static complete_function complete;

FAKE_API int cuptiGetTimestamp(uint64_t *ns)
{
    *ns = fake_now_ns();
    return 0;
}

FAKE_API int cuptiActivityRegisterCallbacks(request_function asked, complete_function full)
{
    request = asked;
    complete = full;
    return 0;
}

FAKE_API int cuptiActivityEnable(int kind)
{
    if (kind != KERNEL)
        return INVALID_KIND;
    fake_kernels_keep();
    return 0;
}

static void put(uint8_t *at, size_t offset, const void *value, size_t size)
{
    memcpy(at + offset, value, size);
}

static void describe(uint8_t *at, const struct fake_kernel_run *run)
{
    uint32_t kind = KERNEL, device_context_stream[3] = {0, 1, run->stream};
    int32_t grid[3] = {(int32_t)run->blocks, 1, 1}, block[3] = {(int32_t)run->threads, 1, 1};
    const char *name = run->name;
    memset(at, 0, SIZE);
    put(at, 0, &kind, sizeof(kind));
    put(at, 16, &run->begin_ns, 8);
    put(at, 24, &run->end_ns, 8);
    put(at, 40, device_context_stream, sizeof(device_context_stream));
    put(at, 52, grid, sizeof(grid));
    put(at, 64, block, sizeof(block));
    put(at, 92, &run->number, sizeof(run->number));
    put(at, 104, &name, sizeof(name));
}

FAKE_API int cuptiActivityFlushAll(uint32_t forced)
{
    struct fake_kernel_run run;
    uint8_t *buffer = NULL;
    size_t size = 0, used = 0, most = 0;
    (void)forced;
    while (request && fake_kernel_take(&run)) {
        if (!buffer)
            request(&buffer, &size, &most);
        if (!buffer)
            return 0;
        describe(buffer + used, &run);
        used += SIZE;
        if (used + SIZE > size) {
            complete(NULL, 0, buffer, size, used);
            buffer = NULL;
            used = 0;
        }
    }
    if (buffer)
        complete(NULL, 0, buffer, size, used);
    return 0;
}

FAKE_API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + SIZE : buffer;
    if (next >= buffer + valid)
        return END_OF_BUFFER;
    *record = next;
    return 0;
}

FAKE_API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    *dropped = 0;
    return 0;
}

FAKE_API int cuptiGetResultString(int result, const char **text)
{
    *text = result ? "CUPTI_ERROR_INVALID_KIND" : "CUPTI_SUCCESS";
    return 0;
}
