/* engine/model/tokenizer.h - the byte-level BPE of a tokenizer.json.
 *
 * An ordinary token is a run of bytes, spelled in the file by one character a
 * byte; an added token is a text of its own. Bytes are joined across tokens,
 * so that a character may come from several: a detokenizer holds back what is
 * not whole yet.
 *
 * Encoding splits at added tokens first, then normalises (NFC), splits into
 * words by the pattern of the Qwen family and merges by rank. Files that ask
 * for anything else are refused when they are opened.
 *
 * Layer:   engine, inside engine/model.
 * Threads: a tokenizer is immutable; a detokenizer has one owner. */
#ifndef OCR_TOKENIZER_H
#define OCR_TOKENIZER_H
#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdint.h>

enum {
    OCR_TOKENIZER_BYTES_MAX = 128 << 20, /* of the file */
    OCR_TOKENIZER_IDS_MAX = 4000000,
};

struct ocr_tokenizer; /* opaque */

/* The tokenizer in the text of a tokenizer.json. */
int ocr_tokenizer_parse(struct ocr_tokenizer **out, const char *text,
                        size_t len, struct ocr_err *err);

/* NULL is a no-op. */
void ocr_tokenizer_free(struct ocr_tokenizer *t);

/* The largest id + 1. */
uint32_t ocr_tokenizer_count(const struct ocr_tokenizer *t);

/* The id of the added token `content`, UINT32_MAX if there is none. */
uint32_t ocr_tokenizer_added(const struct ocr_tokenizer *t,
                             const char *content);

/* A growing list of ids; begin with zeros, free(id). */
struct ocr_ids {
    uint32_t *id;
    size_t count, size;
};

/* Appends the ids of `text`: -EILSEQ if that is not UTF-8. */
int ocr_tokenizer_encode(const struct ocr_tokenizer *t, const char *text,
                         size_t len, struct ocr_ids *out, struct ocr_err *err);

/* Appends the whole prompt of a page: an empty system turn, the user's turn of
 * `images` times `image_token`, the beginning of the assistant's. */
int ocr_prompt_build(const struct ocr_tokenizer *t, uint32_t image_token,
                     uint32_t images, struct ocr_ids *out, struct ocr_err *err);

struct ocr_detokenizer {
    const struct ocr_tokenizer *tokenizer;
    unsigned char held[4]; /* of a character that is not whole yet */
    unsigned count;
};

/* Borrows `t`. There is nothing to release. */
void ocr_detokenizer_init(struct ocr_detokenizer *d,
                          const struct ocr_tokenizer *t);

/* Appends what `id` adds to the text, valid UTF-8 with U+FFFD for bytes that
 * are none. Special tokens and ids without a token add nothing. */
void ocr_detokenizer_add(struct ocr_detokenizer *d, uint32_t id,
                         struct ocr_buf *out);

/* The text is at its end: a character that never got whole is one U+FFFD. */
void ocr_detokenizer_finish(struct ocr_detokenizer *d, struct ocr_buf *out);

#endif
