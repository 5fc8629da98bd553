/* fs/model_fetch.h - a model from Hugging Face, or a mirror of it, or another
 * folder, into a folder of models.
 *
 * Layer:   fs.
 * Threads: one. Draws a bar on standard error. */
#ifndef OCR_MODEL_FETCH_H
#define OCR_MODEL_FETCH_H
#include "engine/base/err.h"

#include <limits.h>

/* Fetches the repository `repo`, "OWNER/NAME", to `home`/NAME: what is listed
 * there, every file with the size and the digest of the listing. A transfer
 * that was cut goes on. `path` gets where it is. */
int ocr_model_fetch(const char *repo, const char *home, char path[PATH_MAX],
                    struct ocr_err *err);

/* Copies the folder `from` to `home`/NAME, its last name. */
int ocr_model_add(const char *from, const char *home, char path[PATH_MAX],
                  struct ocr_err *err);

#endif
