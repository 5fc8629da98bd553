/* From ids to text. */
#include "engine/model/tokenizer_i.h"

/* Bytes of the character that begins with `b`; 0 if none does. */
static unsigned length_of(unsigned char b)
{
    if (b < 0x80)
        return 1;
    if (b < 0xC2 || b > 0xF4)
        return 0;
    return b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

/* Whether `b` may follow what is held. Only the second byte depends on the
 * first: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool continues(const struct ocr_detokenizer *d, unsigned char b)
{
    unsigned char low = 0x80, high = 0xBF;

    if (d->count == 1) {
        switch (d->held[0]) {
        case 0xE0:
            low = 0xA0;
            break;
        case 0xED:
            high = 0x9F;
            break;
        case 0xF0:
            low = 0x90;
            break;
        case 0xF4:
            high = 0x8F;
            break;
        default:
            break;
        }
    }
    return b >= low && b <= high;
}

static void replace(struct ocr_detokenizer *d, struct ocr_buf *out)
{
    d->count = 0;
    ocr_buf_puts(out, "\xEF\xBF\xBD");
}

static void add_byte(struct ocr_detokenizer *d, unsigned char b,
                     struct ocr_buf *out)
{
    if (d->count && !continues(d, b))
        replace(d, out);
    if (!d->count && !length_of(b)) {
        replace(d, out);
        return;
    }
    d->held[d->count++] = b;
    if (d->count == length_of(d->held[0])) {
        ocr_buf_add(out, d->held, d->count);
        d->count = 0;
    }
}

void ocr_detokenizer_init(struct ocr_detokenizer *d,
                          const struct ocr_tokenizer *t)
{
    *d = (struct ocr_detokenizer){.tokenizer = t};
}

void ocr_detokenizer_add(struct ocr_detokenizer *d, uint32_t id,
                         struct ocr_buf *out)
{
    const struct ocr_tokenizer *t = d->tokenizer;

    if (id >= t->count || t->token[id].special)
        return;
    for (uint32_t i = 0; i < t->token[id].len; i++)
        add_byte(d, (unsigned char)token_text(t, id)[i], out);
}

void ocr_detokenizer_finish(struct ocr_detokenizer *d, struct ocr_buf *out)
{
    if (d->count)
        replace(d, out);
}
