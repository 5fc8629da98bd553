/* engine/base/dynamic.h - finds the parts that are loaded only when wanted:
 * ocrfs-NAME.so beside this program, or in ../../lib/ocrfs.
 *
 * Layer:   base, no dependencies.
 * Threads: any. */
#ifndef OCR_DYNAMIC_H
#define OCR_DYNAMIC_H
#include "engine/base/err.h"

/* The address of `symbol` in ocrfs-NAME.so, which stays loaded until the
 * process ends. NULL: -ENOENT if the file is not there, -ENOEXEC if it cannot
 * be loaded or lacks the symbol, with a sentence either way. */
void *ocr_dynamic_symbol(const char *name, const char *symbol,
                         struct ocr_err *err);

/* The symbol of a library of the system, "libcuda.so.1"; NULL without it. The
 * library stays loaded. */
void *ocr_dynamic_system(const char *library, const char *symbol);

#endif
