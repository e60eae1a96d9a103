/* Names of the recorded calls; registered when the library is loaded, before any header. */
#include "ofi.h"

uint8_t ofi_call_number[OFI_CALL_COUNT];

#define OFI_CALL_NAME(name) #name,
static const char *const ofi_call_names[OFI_CALL_COUNT] = {OFI_CALLS(OFI_CALL_NAME)};

__attribute__((constructor)) static void ofi_calls_register(void)
{
    for (int i = 0; i < OFI_CALL_COUNT; i++)
        ofi_call_number[i] = st_call_register(ofi_call_names[i]);
}
