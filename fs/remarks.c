#include "fs/remarks.h"

#include "engine/base/log.h"
#include "engine/protocol.h"

void ocr_remarks_say(struct ocr_remarks *r, const char *name, unsigned flags)
{
    if (flags & OCR_TEXT_LOOP)
        ocr_warning("%s: the output repeated itself and was ended", name);
    if (flags & OCR_TEXT_CUT)
        ocr_warning("%s: the text is longer than its limit (max_tokens, or "
                    "64 KiB) and was cut",
                    name);
    if (flags & OCR_TEXT_LOWERED && !atomic_exchange(&r->lowered_said, true))
        ocr_warning("%s: max_tokens was lowered to what the model has "
                    "positions for (not said again for other files)",
                    name);
}
