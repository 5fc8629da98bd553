#include "engine/image/exif.h"

#include <stdbool.h>
#include <string.h>

enum {
    TAG_ORIENTATION = 0x0112,
    TAG_X_RESOLUTION = 0x011a,
    TAG_RESOLUTION_UNIT = 0x0128,
    TYPE_SHORT = 3,
    TYPE_RATIONAL = 5,
    UNIT_INCH = 2,
    UNIT_CENTIMETRE = 3,
    ENTRY_BYTES = 12,
};

struct tiff {
    const uint8_t *data;
    size_t len;
    bool big; /* big endian */
};

/* Reads past the end give 0: the callers take 0 for nonsense anyway. */
static uint32_t number(const struct tiff *t, size_t at, unsigned bytes)
{
    uint32_t value = 0;

    if (at > t->len || bytes > t->len - at)
        return 0;
    for (unsigned i = 0; i < bytes; i++)
        value = value << 8 | t->data[at + (t->big ? i : bytes - 1 - i)];
    return value;
}

uint32_t ocr_plausible_dpi(double dpi)
{
    return dpi >= 30 && dpi <= 9600 ? (uint32_t)(dpi + 0.5) : 0;
}

static double rational(const struct tiff *t, size_t at)
{
    const uint32_t over = number(t, at, 4);
    const uint32_t under = number(t, at + 4, 4);

    return under ? (double)over / under : 0;
}

static void read_entries(struct ocr_exif *out, const struct tiff *t, size_t at)
{
    const uint32_t entries = number(t, at, 2);
    uint32_t unit = UNIT_INCH;
    double resolution = 0;

    for (uint32_t i = 0; i < entries; i++) {
        const size_t entry = at + 2 + (size_t)i * ENTRY_BYTES;
        const uint32_t tag = number(t, entry, 2);
        const uint32_t type = number(t, entry + 2, 2);
        const uint32_t value = number(t, entry + 8, 2);

        if (entry + ENTRY_BYTES > t->len)
            break;
        if (tag == TAG_ORIENTATION && type == TYPE_SHORT && value >= 1 &&
            value <= 8)
            out->orientation = value;
        else if (tag == TAG_X_RESOLUTION && type == TYPE_RATIONAL)
            resolution = rational(t, number(t, entry + 8, 4));
        else if (tag == TAG_RESOLUTION_UNIT && type == TYPE_SHORT)
            unit = value;
    }
    if (unit == UNIT_CENTIMETRE)
        resolution *= 2.54;
    if (unit == UNIT_INCH || unit == UNIT_CENTIMETRE)
        out->dpi = ocr_plausible_dpi(resolution);
}

void ocr_exif_read(struct ocr_exif *out, const uint8_t *tiff, size_t len)
{
    struct tiff t = {tiff, len, false};

    *out = (struct ocr_exif){.orientation = 1};
    if (len < 8)
        return;
    t.big = tiff[0] == 'M';
    if (memcmp(tiff, t.big ? "MM" : "II", 2) || number(&t, 2, 2) != 42)
        return;
    read_entries(out, &t, number(&t, 4, 4));
}
