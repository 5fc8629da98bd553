/* fs/cmd_cache_i.h - the parts of `ocrfs cache` that stand in fs/cmd_forget.c.
 * Both print what they did. 0, 1 (some files failed, told), or a negative
 * errno with the reason in *err. */
#ifndef OCR_CMD_CACHE_I_H
#define OCR_CMD_CACHE_I_H
#include "cache/cache.h"

/* Forgets the texts of these images, texts and folders (NULL-terminated). */
int cmd_cache_forget(struct ocr_cache *c, char **paths, struct ocr_err *err);

/* Drops what was not read for `unseen` ("90d"). */
int cmd_cache_gc(struct ocr_cache *c, const char *unseen, struct ocr_err *err);

#endif
