/* Reading tokenizer.json. */
#include "engine/model/tokenizer_i.h"
#include "engine/base/utf8.h"
#include "engine/model/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "tokenizer.json"

/* The one pattern that words.c follows. */
static const char pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Bytes that print stand for themselves; the others, in order, for the
 * characters from U+0100 on. Fills byte[character], -1: none. */
static void fill_byte_table(int16_t byte[0x144])
{
    int next = 0x100;

    memset(byte, -1, 0x144 * sizeof *byte);
    for (int b = 0; b < 256; b++) {
        const bool prints = (b > 32 && b < 127) || (b > 160 && b != 173);

        byte[prints ? b : next++] = (int16_t)b;
    }
}

static int no_memory(struct ocr_err *err)
{
    return ocr_err_set(err, -ENOMEM, "out of memory");
}

__attribute__((format(printf, 2, 3))) static int refuse(struct ocr_err *err,
                                                        const char *format, ...)
{
    char why[200];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return ocr_err_set(err, -EINVAL, FILE_NAME ": %s", why);
}

static bool good_id(const json_t *json, uint32_t *id)
{
    const json_int_t value = json_integer_value(json);

    *id = (uint32_t)value;
    return json_is_integer(json) && value >= 0 && value < OCR_TOKENIZER_IDS_MAX;
}

/* Room for ids up to the largest of both lists. */
static int make_room(struct ocr_tokenizer *t, const json_t *vocab,
                     const json_t *added, struct ocr_err *err)
{
    const char *name;
    json_t *value;
    uint32_t id;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)vocab, name, value)
    {
        if (!good_id(value, &id))
            return refuse(err, "token \"%.80s\" has no good id", name);
        if (id >= t->count)
            t->count = id + 1;
    }
    json_array_foreach(added, i, value)
    {
        if (!good_id(json_object_get(value, "id"), &id))
            return refuse(err, "added token %zu has no good id", i);
        if (id >= t->count)
            t->count = id + 1;
    }
    t->token = calloc(t->count + 1UL, sizeof *t->token);
    t->added = calloc(json_array_size(added) + 1, sizeof *t->added);
    return t->token && t->added ? 0 : no_memory(err);
}

/* Spells the bytes of a token out; one with characters that stand for no byte
 * is taken as it is written. */
static void add_spelled(struct ocr_buf *out, const char *name,
                        const int16_t byte[0x144])
{
    const size_t start = out->len, len = strlen(name);
    uint32_t cp;

    for (size_t at = 0, n; at < len; at += n) {
        n = ocr_utf8_next(name + at, len - at, &cp);
        if (!n || cp >= 0x144 || byte[cp] < 0) {
            ocr_buf_truncate(out, start);
            ocr_buf_add(out, name, len);
            return;
        }
        ocr_buf_putc(out, (char)byte[cp]);
    }
}

static int take_vocab(struct ocr_tokenizer *t, const json_t *vocab,
                      struct ocr_err *err)
{
    int16_t byte[0x144];
    const char *name;
    json_t *value;

    fill_byte_table(byte);
    memset(t->byte, 0xFF, sizeof t->byte);
    json_object_foreach((json_t *)(uintptr_t)vocab, name, value)
    {
        const uint32_t id = (uint32_t)json_integer_value(value);
        struct token *token = &t->token[id];

        if (token->present)
            return refuse(err, "id %u belongs to two tokens", id);
        token->present = true;
        token->at = t->bytes.len;
        add_spelled(&t->bytes, name, byte);
        token->len = (uint32_t)(t->bytes.len - token->at);
        if (token->len == 1)
            t->byte[(unsigned char)t->bytes.data[token->at]] = id;
    }
    return t->bytes.failed ? no_memory(err) : 0;
}

static bool is_set(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* An added token may stand in the vocabulary, too: its text then wins. */
static int take_added(struct ocr_tokenizer *t, const json_t *entry,
                      struct ocr_err *err)
{
    const char *text = json_string_value(json_object_get(entry, "content"));
    const uint32_t id =
        (uint32_t)json_integer_value(json_object_get(entry, "id"));
    struct token *token = &t->token[id];
    size_t i = t->added_count;

    if (!text || !*text)
        return refuse(err, "added token %u has no text", id);
    if (is_set(entry, "lstrip") || is_set(entry, "rstrip") ||
        is_set(entry, "single_word"))
        return refuse(err,
                      "added token %.80s asks for lstrip, rstrip or "
                      "single_word, which are not supported",
                      text);
    *token = (struct token){.present = true,
                            .special = is_set(entry, "special"),
                            .at = t->bytes.len,
                            .len = (uint32_t)strlen(text)};
    ocr_buf_puts(&t->bytes, text);
    for (; i > 0 && t->token[t->added[i - 1]].len < token->len; i--)
        t->added[i] = t->added[i - 1];
    t->added[i] = id;
    t->added_count++;
    return t->bytes.failed ? no_memory(err) : 0;
}

struct merge *merge_find(const struct ocr_tokenizer *t, uint32_t left,
                         uint32_t right)
{
    const uint64_t key = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15U;
    size_t i = (key ^ key >> 32) & t->merge_mask;

    while (t->merge[i].merged != NO_ID &&
           (t->merge[i].left != left || t->merge[i].right != right))
        i = (i + 1) & t->merge_mask;
    return &t->merge[i];
}

/* "left right", or ["left", "right"], into `pair`: the two with a NUL between.
 * Returns where the second begins, 0 if it is neither. */
static size_t split_merge(struct ocr_buf *pair, const json_t *merge)
{
    const char *left = json_string_value(json_array_get(merge, 0));
    const char *right = json_string_value(json_array_get(merge, 1));
    const char *both = json_string_value(merge);
    const char *space = both ? strchr(both, ' ') : NULL;

    ocr_buf_reset(pair);
    if (space && !strchr(space + 1, ' ')) {
        ocr_buf_add(pair, both, (size_t)(space - both));
        right = space + 1;
    } else if (json_array_size(merge) == 2 && left && right) {
        ocr_buf_puts(pair, left);
    } else {
        return 0;
    }
    ocr_buf_putc(pair, '\0');
    ocr_buf_puts(pair, right);
    return pair->failed ? 0 : strlen(pair->data) + 1;
}

static int take_merge(struct ocr_tokenizer *t, const json_t *vocab,
                      const json_t *json, uint32_t rank, struct ocr_buf *pair,
                      struct ocr_err *err)
{
    const size_t second = split_merge(pair, json);
    struct merge m = {.rank = rank};
    const char *left, *right;

    if (!second)
        return refuse(err, "merge %u is not a pair of tokens", rank);
    left = pair->data;
    right = pair->data + second;
    if (!good_id(json_object_get(vocab, left), &m.left) ||
        !good_id(json_object_get(vocab, right), &m.right))
        return refuse(err, "merge %u is of tokens that there are not", rank);
    memmove(pair->data + second - 1, right, pair->len - second + 1);
    if (!good_id(json_object_get(vocab, pair->data), &m.merged))
        return refuse(err, "merge %u makes a token that there is not", rank);
    *merge_find(t, m.left, m.right) = m;
    return 0;
}

static int take_merges(struct ocr_tokenizer *t, const json_t *vocab,
                       const json_t *merges, struct ocr_err *err)
{
    struct ocr_buf pair;
    size_t size = 16, i;
    json_t *merge;
    int rc = 0;

    while (size < 2 * json_array_size(merges))
        size *= 2;
    t->merge = malloc(size * sizeof *t->merge);
    if (!t->merge)
        return no_memory(err);
    memset(t->merge, 0xFF, size * sizeof *t->merge);
    t->merge_mask = size - 1;
    ocr_buf_init(&pair, 1 << 20);
    json_array_foreach(merges, i, merge)
    {
        rc = take_merge(t, vocab, merge, (uint32_t)i, &pair, err);
        if (rc)
            break;
    }
    ocr_buf_release(&pair);
    return rc;
}

/* "type" of the object, or of the one of its list `key` that has `type`. */
static const json_t *part(const json_t *object, const char *key,
                          const char *type)
{
    const char *own = json_string_value(json_object_get(object, "type"));
    const json_t *item;
    size_t i;

    if (own && !strcmp(own, type))
        return object;
    json_array_foreach(json_object_get(object, key), i, item)
    {
        own = json_string_value(json_object_get(item, "type"));
        if (own && !strcmp(own, type))
            return item;
    }
    return NULL;
}

/* Absent, null, "" or false. */
static bool is_off(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && !json_string_length(value));
}

static int check_kind(const json_t *file, const json_t *model,
                      struct ocr_err *err)
{
    static const char *const off[] = {"dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "byte_fallback",
                                      "ignore_merges"};
    const json_t *normalizer = json_object_get(file, "normalizer");
    const json_t *pre = json_object_get(file, "pre_tokenizer");
    const json_t *split = part(pre, "pretokenizers", "Split");
    const char *regex = json_string_value(
        json_object_get(json_object_get(split, "pattern"), "Regex"));

    if (!part(model, "", "BPE"))
        return refuse(err, "not a BPE tokenizer");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(model, off[i]))
            return refuse(err, "%s is set, which is not supported", off[i]);
    if (!part(json_object_get(file, "decoder"), "decoders", "ByteLevel") ||
        !part(pre, "pretokenizers", "ByteLevel"))
        return refuse(err, "not a byte-level tokenizer");
    if (!part(normalizer, "normalizers", "NFC"))
        return refuse(err, "its normalizer is not NFC");
    if (!regex || strcmp(regex, pattern))
        return refuse(err, "it splits into words by another pattern");
    return 0;
}

static int take_all(struct ocr_tokenizer *t, const json_t *file,
                    struct ocr_err *err)
{
    const json_t *model = json_object_get(file, "model");
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const json_t *added = json_object_get(file, "added_tokens"), *entry;
    size_t i;
    int rc = check_kind(file, model, err);

    if (rc)
        return rc;
    if (!json_is_object(vocab) || !json_is_array(merges))
        return refuse(err, "its model has no vocab or no merges");
    rc = make_room(t, vocab, added, err);
    if (!rc)
        rc = take_vocab(t, vocab, err);
    json_array_foreach(added, i, entry) if (!rc) rc = take_added(t, entry, err);
    return rc ? rc : take_merges(t, vocab, merges, err);
}

int ocr_tokenizer_parse(struct ocr_tokenizer **out, const char *text,
                        size_t len, struct ocr_err *err)
{
    json_t *file = ocr_json_parse(text, len, FILE_NAME, err);
    struct ocr_tokenizer *t;
    int rc;

    if (!file)
        return -EINVAL;
    t = calloc(1, sizeof *t);
    if (t)
        ocr_buf_init(&t->bytes, OCR_TOKENIZER_BYTES_MAX);
    rc = t ? take_all(t, file, err) : no_memory(err);
    json_decref(file);
    if (rc)
        ocr_tokenizer_free(t);
    else
        *out = t;
    return rc;
}

void ocr_tokenizer_free(struct ocr_tokenizer *t)
{
    if (!t)
        return;
    ocr_buf_release(&t->bytes);
    free(t->token);
    free(t->added);
    free(t->merge);
    free(t);
}

uint32_t ocr_tokenizer_count(const struct ocr_tokenizer *t)
{
    return t->count;
}

uint32_t ocr_tokenizer_added(const struct ocr_tokenizer *t, const char *content)
{
    const size_t len = strlen(content);

    for (size_t i = 0; i < t->added_count; i++) {
        const uint32_t id = t->added[i];

        if (t->token[id].len == len && !memcmp(token_text(t, id), content, len))
            return id;
    }
    return NO_ID;
}
