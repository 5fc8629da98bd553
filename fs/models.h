/* fs/models.h - folders of models: where they are, which are published, are
 * they whole.
 *
 * A model is a folder NAME below one of the folders of models. One that is
 * being fetched or copied is `.NAME.part` beside it, which nobody takes for a
 * model, and is renamed at the end.
 *
 * Layer:   fs.
 * Threads: no state. */
#ifndef OCR_MODELS_H
#define OCR_MODELS_H
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "fs/download.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where models are looked for, in this order. */
enum ocr_models_where {
    OCR_MODELS_USER,   /* $XDG_DATA_HOME/ocrfs/models, ~/.local/share/... */
    OCR_MODELS_LOCAL,  /* /usr/local/share/ocrfs/models: for all, by root */
    OCR_MODELS_SYSTEM, /* /usr/share/ocrfs/models: packages */
    OCR_MODELS_PLACES,
};

/* False if it does not fit, or the user has no home. */
bool ocr_models_folder(enum ocr_models_where where, char *out, size_t size);

/* True if `folder` has a config.json that can be read. */
bool ocr_models_is_model(const char *folder);

/* Calls `each` with the path of every model below `folder`, by name, until one
 * returns other than 0; that is returned. */
int ocr_models_each(const char *folder,
                    int (*each)(void *arg, const char *path), void *arg);

/* The first of them, so that two machines with the same folders choose the
 * same. False if there is none. */
bool ocr_models_first(const char *folder, char path[PATH_MAX]);

struct ocr_published {
    const char *name; /* below huggingface.co/lightonai */
    const char *about;
};

/* The models this program was made for; *count of them, static. */
const struct ocr_published *ocr_models_published(size_t *count);

/* True for a file of a model folder: *.json, *.safetensors, *.jinja, without
 * folders, and nothing that could be hidden or confuse a terminal. */
bool ocr_models_wants(const char *file);

/* The digest of a published file of this size as it was when this program was
 * made, "" if that is not known. */
const char *ocr_models_known_sha256(const char *model, const char *file,
                                    uint64_t size);

/* A folder being filled. */
struct ocr_models_new {
    char name[NAME_MAX], part[PATH_MAX], path[PATH_MAX];
    int fd; /* of part, locked */
};

/* Makes (or finds) the folder that becomes `name` below `home`, which is made
 * too. -EEXIST if there is such a model, -EBUSY if another process fills it. */
int ocr_models_begin(struct ocr_models_new *out, const char *home,
                     const char *name, struct ocr_err *err);

/* Checks what is there (ocr_models_check), and gives it its name. On failure
 * it stays as it is. */
int ocr_models_finish(struct ocr_models_new *new, struct ocr_err *err);

void ocr_models_release(struct ocr_models_new *new);

/* Remembers the digest of a file in `folder`/SHA256SUMS. */
int ocr_models_note_sum(const char *folder, const char *file,
                        const char *sha256, struct ocr_err *err);

/* 0 if the engine could load it: all files there, headers, sizes and shapes
 * right. *details (may be NULL) gets what the engine says of it. */
int ocr_models_check(const char *folder, struct ocr_buf *details,
                     struct ocr_err *err);

/* 0 if the contents are those that SHA256SUMS, or this program for published
 * models, tells; -EBADMSG if not; *known: how many files could be compared. */
int ocr_models_check_sums(const char *folder, unsigned *known,
                          struct ocr_err *err);

#endif
