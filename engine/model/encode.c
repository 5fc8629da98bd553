/* From text to ids. */
#include "engine/model/tokenizer_i.h"
#include "engine/base/utf8.h"
#include "engine/model/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Text that is still to be split, valid UTF-8. */
struct rest {
    const char *at;
    size_t len;
};

static int ids_add(struct ocr_ids *out, uint32_t id, struct ocr_err *err)
{
    if (out->count == out->size) {
        const size_t size = out->size ? out->size * 2 : 256;
        uint32_t *grown = reallocarray(out->id, size, sizeof *grown);

        if (!grown)
            return ocr_err_set(err, -ENOMEM, "out of memory");
        out->id = grown;
        out->size = size;
    }
    out->id[out->count++] = id;
    return 0;
}

/* Class of the character at byte `at` and its bytes; 0 bytes at the end. */
static enum ocr_unicode_class class_at(struct rest r, size_t at, size_t *bytes)
{
    uint32_t cp;

    *bytes = ocr_utf8_next(r.at + at, r.len - at, &cp);
    return *bytes ? ocr_unicode_class(cp) : OCR_UNICODE_OTHER;
}

/* Bytes of the characters of `class` from byte `at` on. */
static size_t run_of(struct rest r, size_t at, enum ocr_unicode_class class)
{
    const size_t start = at;
    size_t n;

    while (class_at(r, at, &n) == class && n)
        at += n;
    return at - start;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d), where a long s is an s. */
static size_t contraction(struct rest r)
{
    static const char *const ends[] = {"s", "t",  "re", "ve",
                                       "m", "ll", "d",  "\xC5\xBF"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]);

        if (r.len > n && r.at[0] == '\'' && !strncasecmp(r.at + 1, ends[i], n))
            return n + 1;
    }
    return 0;
}

/* [^\r\n\p{L}\p{N}]?\p{L}+ */
static size_t word(struct rest r)
{
    size_t n, letters;
    const enum ocr_unicode_class first = class_at(r, 0, &n);

    if (first == OCR_UNICODE_LETTER)
        return run_of(r, 0, OCR_UNICODE_LETTER);
    if (first == OCR_UNICODE_NEWLINE || first == OCR_UNICODE_NUMBER)
        return 0;
    letters = run_of(r, n, OCR_UNICODE_LETTER);
    return letters ? n + letters : 0;
}

/*  ?[^\s\p{L}\p{N}]+[\r\n]* */
static size_t marks(struct rest r)
{
    const size_t space = r.at[0] == ' ';
    const size_t n = run_of(r, space, OCR_UNICODE_OTHER);

    return n ? space + n + run_of(r, space + n, OCR_UNICODE_NEWLINE) : 0;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end, else all but the last
 * space, which goes to the next word. */
static size_t blanks(struct rest r)
{
    enum ocr_unicode_class class;
    size_t at = 0, n, last = 0, newline = 0;

    for (; class = class_at(r, at, &n), n; at += n) {
        if (class != OCR_UNICODE_NEWLINE && class != OCR_UNICODE_SPACE)
            break;
        last = at;
        if (class == OCR_UNICODE_NEWLINE)
            newline = at + n;
    }
    if (newline)
        return newline;
    return at < r.len && last ? last : at;
}

/* Bytes of the next piece, in the order of the pattern's alternatives. */
static size_t next_piece(struct rest r)
{
    size_t n;

    if ((n = contraction(r)) || (n = word(r)))
        return n;
    if (class_at(r, 0, &n) == OCR_UNICODE_NUMBER)
        return n;
    n = marks(r);
    return n ? n : blanks(r);
}

/* Merges ids[0..n) in place, lowest rank first, leftmost among equals; returns
 * how many are left. rank[i] is that of the pair (i, i + 1). */
static size_t merge_all(const struct ocr_tokenizer *t, uint32_t *ids,
                        uint32_t *rank, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = merge_find(t, ids[i], ids[i + 1])->rank;
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_ID)
            break;
        ids[best] = merge_find(t, ids[best], ids[best + 1])->merged;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        if (best)
            rank[best - 1] = merge_find(t, ids[best - 1], ids[best])->rank;
        if (best + 1 < n)
            rank[best] = merge_find(t, ids[best], ids[best + 1])->rank;
    }
    return n;
}

static int encode_piece(const struct ocr_tokenizer *t, struct rest piece,
                        struct ocr_ids *out, struct ocr_err *err)
{
    uint32_t *ids = calloc(2 * piece.len + 1, sizeof *ids);
    size_t n = 0;
    int rc = 0;

    if (!ids)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    for (; n < piece.len && !rc; n++) {
        ids[n] = t->byte[(unsigned char)piece.at[n]];
        if (ids[n] == NO_ID)
            rc = ocr_err_set(err, -EINVAL,
                             "tokenizer.json has no token for byte 0x%02x",
                             (unsigned char)piece.at[n]);
    }
    if (!rc)
        n = merge_all(t, ids, ids + piece.len, n);
    for (size_t i = 0; i < n && !rc; i++)
        rc = ids_add(out, ids[i], err);
    free(ids);
    return rc;
}

/* Text without added tokens. */
static int encode_plain(const struct ocr_tokenizer *t, struct rest r,
                        struct ocr_ids *out, struct ocr_err *err)
{
    size_t len;
    char *text;
    int rc = 0;

    if (!r.len)
        return 0;
    text = ocr_unicode_nfc(r.at, r.len, &len, err);
    if (!text)
        return -ENOMEM;
    for (size_t at = 0, n; at < len && !rc; at += n) {
        n = next_piece((struct rest){text + at, len - at});
        rc = encode_piece(t, (struct rest){text + at, n}, out, err);
    }
    free(text);
    return rc;
}

/* The longest added token at the beginning of `r`, NO_ID if there is none. */
static uint32_t added_at(const struct ocr_tokenizer *t, struct rest r)
{
    for (size_t i = 0; i < t->added_count; i++) {
        const uint32_t id = t->added[i];

        if (t->token[id].len <= r.len &&
            !memcmp(token_text(t, id), r.at, t->token[id].len))
            return id;
    }
    return NO_ID;
}

int ocr_tokenizer_encode(const struct ocr_tokenizer *t, const char *text,
                         size_t len, struct ocr_ids *out, struct ocr_err *err)
{
    size_t from = 0, at = 0;
    int rc = 0;

    if (ocr_utf8_valid(text, len) != len)
        return ocr_err_set(err, -EILSEQ, "the text is not UTF-8");
    while (at < len && !rc) {
        const uint32_t id = added_at(t, (struct rest){text + at, len - at});

        if (id == NO_ID) {
            at++;
            continue;
        }
        rc = encode_plain(t, (struct rest){text + from, at - from}, out, err);
        if (!rc)
            rc = ids_add(out, id, err);
        at += t->token[id].len;
        from = at;
    }
    if (rc)
        return rc;
    return encode_plain(t, (struct rest){text + from, len - from}, out, err);
}

int ocr_prompt_build(const struct ocr_tokenizer *t, uint32_t image_token,
                     uint32_t images, struct ocr_ids *out, struct ocr_err *err)
{
    static const char before[] =
        "<|im_start|>system<|im_end|>\n<|im_start|>user\n";
    static const char after[] = "<|im_end|>\n<|im_start|>assistant\n";
    int rc;

    if (ocr_tokenizer_added(t, "<|im_start|>") == NO_ID ||
        ocr_tokenizer_added(t, "<|im_end|>") == NO_ID)
        return ocr_err_set(err, -EINVAL,
                           "tokenizer.json has no tokens for turns "
                           "(<|im_start|>, <|im_end|>)");
    rc = ocr_tokenizer_encode(t, before, strlen(before), out, err);
    for (uint32_t i = 0; i < images && !rc; i++)
        rc = ids_add(out, image_token, err);
    return rc ? rc : ocr_tokenizer_encode(t, after, strlen(after), out, err);
}
