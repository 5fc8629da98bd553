/* One page: made ready, read, turned if it reads badly, and what the first
 * look left out read again. */
#include "engine/tesseract/tesseract_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tesseract/capi.h>

enum {
    BAND = 8000,   /* pixels read at once: longer pages are cut */
    SURE = 70,     /* mean confidence that needs no second thought */
    HOPELESS = 40, /* below: what was read is no text */
    LARGEST = 100 * 1000 * 1000, /* pixels */
    DUMP_MAX = 64 << 20,         /* bytes of a text that clients take */
};

struct job {
    struct tess_reader *reader;
    const atomic_bool *cancel;
    struct tess_image image;
    struct tess_words words;
};

/* The row (or column) in [from, to) with the least ink, the last of equals. */
static int quiet(NUMA *counts, int from, int to)
{
    int best = to - 1, least = 1 << 30;

    for (int i = from; i < to; i++) {
        int count = 0;

        numaGetIValue(counts, i, &count);
        if (count <= least) {
            least = count;
            best = i;
        }
    }
    return best;
}

/* Reads [from, to) of the longer side; coordinates stay those of the page. */
static int read_band(struct job *job, bool tall, int from, int to,
                     struct ocr_err *err)
{
    PIX *gray = job->image.gray;
    BOX *box = tall ? boxCreate(0, from, pixGetWidth(gray), to - from)
                    : boxCreate(from, 0, to - from, pixGetHeight(gray));
    PIX *band = box ? pixClipRectangle(gray, box, NULL) : NULL;
    size_t first = job->words.n;
    int code = -ENOMEM;

    if (band)
        code = tess_reader_read(job->reader, band, job->image.dpi, PSM_AUTO,
                                NULL, job->cancel, &job->words, err);
    boxDestroy(&box);
    pixDestroy(&band);
    for (size_t i = first; i < job->words.n; i++) {
        struct tess_box *at = &job->words.at[i].box;

        at->x0 += tall ? 0 : from;
        at->x1 += tall ? 0 : from;
        at->y0 += tall ? from : 0;
        at->y1 += tall ? from : 0;
    }
    return code;
}

/* Very long pages in bands, cut where there is no ink. */
static int read_bands(struct job *job, struct ocr_err *err)
{
    PIX *ink = job->image.ink;
    int width = pixGetWidth(ink), height = pixGetHeight(ink);
    bool tall = height >= width;
    int side = tall ? height : width, code = 0;
    NUMA *counts =
        tall ? pixCountPixelsByRow(ink, NULL) : pixCountPixelsByColumn(ink);

    for (int from = 0, to; code == 0 && from < side; from = to) {
        to = side;
        if (side - from > BAND + BAND / 2 && counts)
            to = quiet(counts, from + BAND * 3 / 4, from + BAND);
        code = read_band(job, tall, from, to, err);
    }
    numaDestroy(&counts);
    return code;
}

static int read_all(struct job *job, struct ocr_err *err)
{
    PIX *gray = job->image.gray;
    int side = pixGetWidth(gray) > pixGetHeight(gray) ? pixGetWidth(gray)
                                                      : pixGetHeight(gray);
    int code;

    tess_words_release(&job->words);
    if (side > BAND + BAND / 2)
        code = read_bands(job, err);
    else
        code = tess_reader_read(job->reader, gray, job->image.dpi, PSM_AUTO,
                                NULL, job->cancel, &job->words, err);
    return code;
}

static int prepare_and_read(struct job *job, PIX *gray, int dpi,
                            struct ocr_err *err)
{
    int code = tess_prepare(&job->image, gray, dpi, err);

    if (code == 0 && job->image.xh > 0)
        code = read_all(job, err);
    return code;
}

static void forget(struct job *job)
{
    tess_image_release(&job->image);
    tess_words_release(&job->words);
}

/* How well a page reads: confidence, as far as there are letters. */
static float worth(const struct job *job)
{
    float confidence = tess_words_confidence(&job->words);
    size_t letters = 0;

    for (size_t i = 0; i < job->words.n; i++)
        letters += text_alnum(job->words.at[i].text);
    return letters < 4 ? confidence / 4 : confidence;
}

/* Reads the page turned by `quarters`; keeps that if it is better. */
static int try_turned(struct job *job, PIX *gray, int dpi, int quarters,
                      struct ocr_err *err)
{
    struct job other = {.reader = job->reader, .cancel = job->cancel};
    PIX *turned = pixRotateOrth(gray, quarters);
    int code = turned ? prepare_and_read(&other, turned, dpi, err) : -ENOMEM;

    pixDestroy(&turned);
    if (code == 0 && worth(&other) > worth(job) + 5) {
        struct job old = *job;

        *job = other;
        other = old;
    }
    forget(&other);
    return code;
}

/* A page that reads badly may lie on its side. The detector is asked first;
 * if it does not know, trying is the only way, but not with a page of dots. */
static int turn(struct job *job, PIX *gray, int dpi, struct ocr_err *err)
{
    int quarters, code = 0;

    if (job->image.xh <= 0 || worth(job) >= SURE)
        return 0;
    quarters = tess_reader_turns(job->reader, job->image.gray, job->image.dpi);
    if (quarters == 0 || (quarters < 0 && job->image.speckle))
        return 0;
    if (quarters > 0)
        code = try_turned(job, gray, dpi, quarters, err);
    for (int i = 1; i < 4 && code == 0 && worth(job) < SURE; i++)
        if (i != quarters)
            code = try_turned(job, gray, dpi, i, err);
    return code;
}

static int add_ticks(struct job *job)
{
    struct tess_words *ticks = &job->image.ticks;

    for (size_t i = 0; i < ticks->n; i++) {
        struct tess_word *word = tess_words_add(&job->words);

        if (!word)
            return -ENOMEM;
        *word = ticks->at[i];
        word->line = ++job->words.lines;
        ticks->at[i].text = NULL;
    }
    ticks->n = 0;
    return 0;
}

static int write_out(struct job *job, char **text, size_t *len,
                     struct ocr_err *err)
{
    struct ocr_buf out;
    int code;

    ocr_buf_init(&out, (size_t)1 << 20);
    code = tess_layout(&out, &job->words, &job->image, err);
    if (code == 0) {
        *text = ocr_buf_detach(&out, len);
        if (!*text)
            code = ocr_err_set(err, -ENOMEM, "no memory for a page's text");
    }
    ocr_buf_release(&out);
    return code;
}

/* From words to text. */
static int finish(struct job *job, char **text, size_t *len,
                  struct ocr_err *err)
{
    int code = 0;

    if (worth(job) >= HOPELESS) {
        code = tess_rescue(job->reader, &job->image, &job->words, job->cancel,
                           err);
        tess_words_join(&job->words, job->image.xh);
        tess_words_measure(&job->words, job->image.ink);
        tess_words_clean(&job->words, job->image.xh);
        if (code == 0)
            code = add_ticks(job);
    } else {
        tess_words_release(&job->words);
    }
    return code ? code : write_out(job, text, len, err);
}

/* The pixels in gray; halved while they are more than a worker's share of
 * memory allows. */
static PIX *fitting(const struct ocr_image *image, int *dpi)
{
    PIX *gray = tess_gray(image);

    *dpi = (int)image->dpi;
    while (gray && (double)pixGetWidth(gray) * pixGetHeight(gray) > LARGEST) {
        PIX *half = pixScaleAreaMap2(gray);

        pixDestroy(&gray);
        gray = half;
        *dpi /= 2;
    }
    return gray;
}

int tess_page_read(struct tess_reader *reader, const struct ocr_image *image,
                   const char *lang, const atomic_bool *cancel, char **text,
                   size_t *len, struct ocr_err *err)
{
    struct job job = {.reader = reader, .cancel = cancel};
    PIX *gray;
    int dpi, code = tess_reader_language(reader, lang, err);

    if (code)
        return code;
    if (!(gray = fitting(image, &dpi)))
        return ocr_err_set(err, -ENOMEM, "no memory for the pixels");
    code = prepare_and_read(&job, gray, dpi, err);
    if (code == 0)
        code = turn(&job, gray, dpi, err);
    pixDestroy(&gray);
    if (code == 0)
        code = finish(&job, text, len, err);
    forget(&job);
    return code;
}

/* ---- pixels instead of a text ---- */

static int write_pgm(PIX *gray, int dpi, char **pgm, size_t *len,
                     struct ocr_err *err)
{
    const int width = pixGetWidth(gray), height = pixGetHeight(gray);
    const size_t pixels = (size_t)width * (size_t)height;
    char head[96], *at;
    const int bytes = snprintf(head, sizeof(head), "P5\n# %d dpi\n%d %d\n255\n",
                               dpi, width, height);

    *len = (size_t)bytes + pixels;
    if (*len > DUMP_MAX)
        return ocr_err_kind(err, OCR_KIND_TOO_LARGE,
                            "prepared it is %d x %d pixels, too large to be "
                            "handed out",
                            width, height);
    *pgm = at = malloc(*len);
    if (!at)
        return ocr_err_set(err, -ENOMEM, "no memory for a page's pixels");
    memcpy(at, head, (size_t)bytes);
    at += bytes;
    for (int y = 0; y < height; y++) {
        l_uint32 *line = pixGetData(gray) + (size_t)y * (size_t)pixGetWpl(gray);

        for (int x = 0; x < width; x++)
            *at++ = (char)GET_DATA_BYTE(line, x);
    }
    return 0;
}

int tess_page_prepare(const struct ocr_image *image, char **pgm, size_t *len,
                      struct ocr_err *err)
{
    struct tess_image ready;
    int dpi, code = -ENOMEM;
    PIX *gray = fitting(image, &dpi);

    if (!gray)
        return ocr_err_set(err, code, "no memory for the pixels");
    code = tess_prepare(&ready, gray, dpi, err);
    pixDestroy(&gray);
    if (code)
        return code;
    code = write_pgm(ready.gray, ready.dpi, pgm, len, err);
    tess_image_release(&ready);
    return code;
}
