#include "engine/finish/finish_i.h"

#include "engine/base/utf8.h"
#include "engine/protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Of what a recogniser wrote; the rest cannot come to light. */
    INPUT_MAX = 16 * OCR_PAGE_TEXT_MAX,
    /* Laying out makes a text at most a few times longer: see "|||". */
    LAYOUT_MAX = 16 * INPUT_MAX,
    /* Each round but the last cuts lines off or aligns a column for good;
     * more than two happen only where a text is cut. */
    ROUNDS = 2 * OCR_TABLE_COLUMNS,
};

/* Start of the character that the byte at `at` belongs to. */
static size_t character_start(const char *text, size_t at)
{
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

/* Cuts `text` to at most `most` bytes plus a newline: behind the last line
 * that fits, if that leaves at least `least` bytes, else behind a character. */
static void cut(struct ocr_buf *text, size_t most, size_t least)
{
    const char *line;
    size_t at;

    if (most >= text->len)
        return;
    line = memrchr(text->data, '\n', most);
    at = line && (size_t)(line - text->data) >= least
             ? (size_t)(line - text->data)
             : character_start(text->data, most);
    ocr_buf_truncate(text, at);
    ocr_buf_putc(text, '\n');
}

static int guard(struct ocr_buf *text, unsigned *flags)
{
    struct ocr_repeat *r = ocr_repeat_new();
    size_t keep, turn;

    if (!r)
        return -ENOMEM;
    /* The newline at the end is ours: it would end every loop. */
    for (size_t i = 0; i + 1 < text->len; i++)
        ocr_repeat_add(r, (unsigned char)text->data[i]);
    keep = ocr_repeat_keep(r);
    turn = ocr_repeat_period(r);
    ocr_repeat_free(r);
    if (keep + 1 < text->len) {
        *flags |= OCR_TEXT_LOOP;
        /* Lines that repeat end with a whole line. */
        cut(text, keep, keep > turn ? keep - turn : 0);
    }
    return 0;
}

/* One round on the compact form; *same tells whether it changed nothing. */
static int settle(struct ocr_buf *text, struct ocr_buf *scratch,
                  enum ocr_tables tables, unsigned *flags, bool *same)
{
    struct ocr_buf swap;
    int rc;

    ocr_buf_reset(scratch);
    rc = ocr_layout(scratch, text->data, text->len, tables, false);
    if (rc == 0)
        rc = guard(scratch, flags);
    if (rc)
        return rc;
    if (scratch->len > OCR_PAGE_TEXT_MAX) {
        *flags |= OCR_TEXT_CUT;
        cut(scratch, OCR_PAGE_TEXT_MAX - 1, OCR_PAGE_TEXT_MAX / 2);
    }
    *same =
        scratch->len == text->len &&
        (text->len == 0 || memcmp(scratch->data, text->data, text->len) == 0);
    swap = *text;
    *text = *scratch;
    *scratch = swap;
    return 0;
}

/* Pads the tables if there is room. */
static int pad(struct ocr_buf *text, enum ocr_tables tables)
{
    struct ocr_buf padded;

    ocr_buf_init(&padded, OCR_PAGE_TEXT_MAX);
    if (ocr_layout(&padded, text->data, text->len, tables, true) == 0) {
        ocr_buf_reset(text);
        ocr_buf_add(text, padded.data, padded.len);
    }
    ocr_buf_release(&padded);
    return text->failed ? -ENOMEM : 0;
}

static int finish(struct ocr_buf *text, struct ocr_buf *scratch,
                  enum ocr_tables tables, unsigned *flags)
{
    bool same = false;
    int rc = text->failed ? -ENOMEM : 0;

    /* A model that loops in a table never writes its end; seen here, for as
     * a row of pipes the last turn, broken off in a cell, looks different. */
    if (rc == 0 && tables == OCR_TABLES_PIPE && text->len &&
        ocr_html_unclosed(text->data, text->len))
        rc = guard(text, flags);
    for (int round = 0; rc == 0 && !same && round < ROUNDS; round++)
        rc = settle(text, scratch, tables, flags, &same);
    return rc ? rc : pad(text, tables);
}

int ocr_finish(char **out, size_t *out_len, unsigned *flags, const char *text,
               size_t len, enum ocr_tables tables, struct ocr_err *err)
{
    struct ocr_buf cleaned, scratch;
    int rc;

    *flags = 0;
    if (len > INPUT_MAX) {
        *flags = OCR_TEXT_CUT;
        len = INPUT_MAX;
    }
    ocr_buf_init(&cleaned, LAYOUT_MAX);
    ocr_buf_init(&scratch, LAYOUT_MAX);
    ocr_clean(&cleaned, text, len);
    rc = finish(&cleaned, &scratch, tables, flags);
    ocr_buf_release(&scratch);
    *out = rc ? NULL : ocr_buf_detach(&cleaned, out_len);
    ocr_buf_release(&cleaned);
    if (!*out)
        return ocr_err_set(err, -ENOMEM, "No memory to finish a text.");
    return 0;
}
