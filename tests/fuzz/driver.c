/* One libFuzzer program per target: built with -DTARGET=fuzz_config or another
 * of targets.h. */
#include "engine/base/log.h"
#include "tests/fuzz/targets.h"

#include <syslog.h>

#ifndef TARGET
#define TARGET fuzz_safetensors
#endif

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is wrong with an engine is said a thousand times a second. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    setlogmask(LOG_MASK(LOG_EMERG));
    ocr_log_to_syslog();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return TARGET(data, size);
}
