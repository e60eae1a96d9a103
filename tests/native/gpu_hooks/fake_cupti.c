/* A CUPTI of two kernels: its clock is the monotonic one, and they end up in one buffer. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAKE_API __attribute__((visibility("default")))
enum { SIZE = 216, KIND = 10, MAX_LIMIT_REACHED = 12 };
typedef void (*request_function)(uint8_t **, size_t *, size_t *);
typedef void (*complete_function)(void *, uint32_t, uint8_t *, size_t, size_t);

static request_function request;
static complete_function complete;
static uint64_t begun;

FAKE_API int cuptiGetTimestamp(uint64_t *ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
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
    const char *error = getenv("FAKE_CUPTI_ERROR");
    cuptiGetTimestamp(&begun);
    return error ? atoi(error) : kind == KIND ? 0 : 1;
}

FAKE_API int cuptiGetResultString(int result, const char **text)
{
    *text = "CUPTI_ERROR_FAKE";
    return result == 39 ? 0 : 1;
}

static void put(uint8_t *at, size_t offset, const void *value, size_t size)
{
    memcpy(at + offset, value, size);
}

static void kernel(uint8_t *at, const char *name, uint64_t start, uint64_t end, uint32_t number)
{
    int32_t shape[6] = {(int32_t)number, 2, 3, 32, 4, 1};
    uint32_t kind = KIND, where[3] = {0, 1, 20 + number};
    memset(at, 0, SIZE);
    put(at, 0, &kind, 4);
    put(at, 16, &start, 8);
    put(at, 24, &end, 8);
    put(at, 40, where, sizeof(where));
    put(at, 52, shape, sizeof(shape));
    put(at, 92, &number, 4);
    put(at, 104, &name, sizeof(name));
}

FAKE_API int cuptiActivityFlushAll(uint32_t forced)
{
    uint8_t *buffer = NULL;
    size_t size = 0, records = 0;
    if (!forced || !request)
        return 0;
    request(&buffer, &size, &records);
    kernel(buffer, "first_kernel", begun + 1000000, begun + 3000000, 5);
    kernel(buffer + SIZE, "second_kernel", begun + 4000000, begun + 4500000, 6);
    complete(NULL, 0, buffer, size, 2 * SIZE);
    return 0;
}

FAKE_API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + SIZE : buffer;
    if (next >= buffer + valid)
        return MAX_LIMIT_REACHED;
    *record = next;
    return 0;
}

FAKE_API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    *dropped = 3;
    return 0;
}
