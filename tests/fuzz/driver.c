/* One libFuzzer program per target: built with -DTARGET=fuzz_config or another
 * of targets.h. */
#include "tests/fuzz/targets.h"

#ifndef TARGET
#define TARGET fuzz_safetensors
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return TARGET(data, size);
}
