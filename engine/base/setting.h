/* engine/base/setting.h - the settings that travel with a page.
 *
 * Lines "name=value\n", as a client sends them: "lang=deu+eng\n". Names are
 * words, values hold no newline; of two lines with one name the last counts.
 *
 * Layer:   base.
 * Threads: no state. */
#ifndef OCR_SETTING_H
#define OCR_SETTING_H
#include <stddef.h>

/* The value of `name` in `settings` (NULL: none), copied into `out`
 * (NUL-terminated, cut at size - 1); `fallback` if it is not there. Returns
 * out. */
const char *ocr_setting(const char *settings, const char *name,
                        const char *fallback, char *out, size_t size);

#endif
