/* engine/tesseract/tesseract_i.h - the parts of the tesseract recogniser.
 *
 *   plugin.c    workers and the table of functions
 *   reader.c    one libtesseract instance: language, cancel, words with boxes
 *   prepare.c   pixels to what libtesseract reads best
 *   panels.c    light text on dark ground turned round
 *   rules.c     ruled lines, boxes to tick and specks taken off the page
 *   page.c      one page from pixels to text: which passes, which way up
 *   rescue.c    lines that were left out or read in part
 *   words.c     size, weight and rubbish of words
 *   gaps.c      white rectangles between words
 *   columns.c   reading order: where a page divides into columns
 *   lines.c     words to lines
 *   layout.c    regions of the page, from words to text
 *   blocks.c    paragraphs, lists, headings
 *   table.c     rows that share columns
 *   markdown.c  text with the marks of Markdown escaped
 *
 * All sizes below are in pixels of the prepared page, and most are measured
 * in x-heights (the height of "x"), the one unit that scales with the type.
 *
 * Layer:   engine, plugin: sees engine/base and engine/recogniser.h only.
 * Threads: nothing here is shared but what plugin.c guards. */
#ifndef OCR_TESSERACT_I_H
#define OCR_TESSERACT_I_H
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/image/image.h"

#include <leptonica/allheaders.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* In the fingerprint; raise it with every change of what comes out. */
enum {
    TESS_LAYOUT_VERSION = 1
};

struct tess_box {
    int x0, y0, x1, y1; /* x1, y1 exclusive */
};

struct tess_word {
    char *text; /* UTF-8, malloc'd */
    float conf; /* 0..100 */
    struct tess_box box;
    int line;     /* of libtesseract: words of one line share it */
    float xh;     /* x-height told by the box and the letters, 0 unknown */
    float stroke; /* width of the strokes, in pixels */
    bool bullet;  /* a mark in front of a list item, no letter */
};

struct tess_words {
    struct tess_word *at;
    size_t n, size;
    int lines; /* numbers of lines given so far */
};

enum tess_speckle {
    TESS_SPECKLE_NONE,
    TESS_SPECKLE_TAKEN, /* thousands of dots were taken off */
    TESS_SPECKLE_ALL    /* nothing else is there */
};

/* A page made ready: 8 bits gray, dark on white, upright within a degree. */
struct tess_image {
    PIX *gray;
    PIX *ink;    /* 1 bit: what counts as ink in gray, without rules */
    float xh;    /* typical x-height, 0 if nothing looks like text */
    float scale; /* pixels here for one of the original */
    int dpi;     /* told or guessed, for gray */
    enum tess_speckle speckle;
    BOXA *rules;             /* straight lines that were taken off */
    struct tess_words ticks; /* boxes to tick, as words */
};

struct tess_reader;

/* ---- words.c ---- */

/* Appends an empty word; NULL: no memory. */
struct tess_word *tess_words_add(struct tess_words *words);
void tess_words_release(struct tess_words *words);
/* Mean confidence, weighted by letters; 0 without words. */
float tess_words_confidence(const struct tess_words *words);
/* Fills xh, stroke and bullet of all words from the ink of the page. */
void tess_words_measure(struct tess_words *words, PIX *ink);
/* Puts together what was parted at a mark within a number or name. */
void tess_words_join(struct tess_words *words, float xh);
/* Takes out what was read into dust, rules and pictures. */
void tess_words_clean(struct tess_words *words, float xh);
/* The median x-height of the words; `otherwise` if there are none. */
float tess_words_xh(const struct tess_words *words, float otherwise);

/* ---- prepare.c, panels.c, rules.c, speckle.c ---- */

/* Gray pixels of a decoded image; NULL: no memory. */
PIX *tess_gray(const struct ocr_image *image);
/* Makes `gray` (kept by the caller) ready. */
int tess_prepare(struct tess_image *out, PIX *gray, int dpi,
                 struct ocr_err *err);
void tess_image_release(struct tess_image *image);
/* Turns panels of light text on dark ground round, in place. */
void tess_panels_invert(PIX *gray, float xh);
/* Takes rules, boxes to tick and specks out of gray and ink. */
void tess_rules_remove(struct tess_image *image);
/* True if the whole page is noise: no two pixels belong together. */
bool tess_is_grain(PIX *gray);
/* Takes dots away where there are thousands of them. Before anything is
 * enlarged. */
enum tess_speckle tess_speckle_remove(PIX **gray);
/* Typical height of an "x" among the blobs of a 1 bit page, 0: no text. */
float tess_blob_size(PIX *ink);

/* ---- reader.c ---- */

struct tess_reader *tess_reader_new(const char *datapath);
void tess_reader_free(struct tess_reader *reader);
/* Loads `lang` ("eng+deu") unless it is loaded. */
int tess_reader_language(struct tess_reader *reader, const char *lang,
                         struct ocr_err *err);
/* Reads `box` of the image (NULL: all of it) and appends its words. */
int tess_reader_read(struct tess_reader *reader, PIX *gray, int dpi, int mode,
                     const struct tess_box *box, const atomic_bool *cancel,
                     struct tess_words *words, struct ocr_err *err);
/* Quarter turns (clockwise, 0..3) that bring the page upright; -1: unsure. */
int tess_reader_turns(struct tess_reader *reader, PIX *gray, int dpi);

/* ---- data.c ---- */

/* The folder with the language packs, NULL if none is found. */
const char *tess_datapath(const char *model);
/* Fails with the name of the package to install if a pack is missing. */
int tess_language_check(const char *datapath, const char *lang,
                        struct ocr_err *err);
/* Digest of the packs of `lang` and of osd. */
uint64_t tess_language_digest(const char *datapath, const char *lang);

/* ---- page.c ---- */

/* The text of one page, malloc'd. -ECANCELED once *cancel is set. */
int tess_page_read(struct tess_reader *reader, const struct ocr_image *image,
                   const char *lang, const atomic_bool *cancel, char **text,
                   size_t *len, struct ocr_err *err);

/* What tess_page_read would read first, as a PGM file (malloc'd) with the
 * resolution in a comment. A page that lies on its side does so here too. */
int tess_page_prepare(const struct ocr_image *image, char **pgm, size_t *len,
                      struct ocr_err *err);

/* ---- rescue.c ---- */

/* Reads again, line by line, where ink was left out. */
int tess_rescue(struct tess_reader *reader, const struct tess_image *image,
                struct tess_words *words, const atomic_bool *cancel,
                struct ocr_err *err);

/* ---- layout.c and below ---- */

/* The words of a page as Markdown. */
int tess_layout(struct ocr_buf *out, struct tess_words *words,
                const struct tess_image *image, struct ocr_err *err);

#endif
