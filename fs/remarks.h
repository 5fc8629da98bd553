/* fs/remarks.h - what the log says of a text that was made, but not as it was
 * meant to be: cut, a loop that was ended, fewer tokens than asked for.
 *
 * Layer:   fs.
 * Threads: any; the object holds one atomic flag. */
#ifndef OCR_REMARKS_H
#define OCR_REMARKS_H
#include <stdatomic.h>

struct ocr_remarks {
    atomic_bool lowered_said; /* zeroed: nothing was said yet */
};

/* Warns about `flags` (OCR_TEXT_* of engine/protocol.h) of the text of `name`:
 * one line for each, that about max_tokens for the first text only. */
void ocr_remarks_say(struct ocr_remarks *r, const char *name, unsigned flags);

#endif
