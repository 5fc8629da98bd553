/* engine/model/tokenizer_i.h - a tokenizer from inside.
 *
 * Layer:   engine, inside engine/model.
 * Threads: as tokenizer.h. */
#ifndef OCR_TOKENIZER_I_H
#define OCR_TOKENIZER_I_H
#include "engine/model/tokenizer.h"

#include <stdbool.h>

#define NO_ID UINT32_MAX

struct token {
    size_t at; /* in bytes */
    uint32_t len;
    bool present, special;
};

/* `left` and `right` become `merged`; the lowest rank goes first. */
struct merge {
    uint32_t left, right, merged, rank;
};

struct ocr_tokenizer {
    struct ocr_buf bytes; /* of all tokens */
    struct token *token;  /* by id */
    uint32_t count;
    uint32_t *added; /* ids of added tokens, longest text first */
    size_t added_count;
    uint32_t byte[256];  /* ids of single bytes, or NO_ID */
    struct merge *merge; /* hash table; merged == NO_ID: empty */
    size_t merge_mask;
};

static inline const char *token_text(const struct ocr_tokenizer *t, uint32_t id)
{
    return t->bytes.data + t->token[id].at;
}

/* Where the merge of the pair is, or would be put. */
struct merge *merge_find(const struct ocr_tokenizer *t, uint32_t left,
                         uint32_t right);

#endif
