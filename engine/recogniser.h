/* engine/recogniser.h - what turns a page of pixels into Markdown.
 *
 * One table of functions for all: `null` (for tests), `tesseract` and `http`
 * (plugins), `lighton`. The engine decodes, checks for blank pages,
 * submits, takes results, and finishes the text (engine/finish.h); a
 * recogniser only reads pixels.
 *
 * Layer:   engine. A plugin links nothing of the engine but engine/base.
 * Threads: open, submit, cancel, urge, capacity, close on the engine's main
 *          thread; next on one thread of its own. submit, cancel and urge
 *          never block.
 * Errors:  a page that fails gives a result with a kind; a recogniser that
 *          is lost for good says so by `lost`, which ends the process (the
 *          client starts a new one). */
#ifndef OCR_RECOGNISER_H
#define OCR_RECOGNISER_H
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/setting.h" /* ocr_setting(): what a page asks for */
#include "engine/image/image.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OCR_RECOGNISER_ABI = 4
};

struct ocr_recogniser; /* opaque, the implementation's */

enum {
    OCR_SUSPECTS = 64
};

/* Why a recogniser can read no more in this process. */
struct ocr_loss {
    bool device_fault; /* nothing that a page can cause: no suspects */
    unsigned count;    /* of suspects: pages that were being worked on */
    uint64_t suspects[OCR_SUSPECTS];
    char sentence[200]; /* with what it works on: "cuda:0: ..." */
};

struct ocr_recogniser_config {
    const char *arguments; /* behind the colon of null:200ms, else "" */
    const char *device;    /* "auto", "cpu", "cuda:0" */
    const char *model;     /* folder or name of a model, "" if none */
    /* What OPENAI_API_KEY held, "" if nothing: the environment of the engine
     * and its helpers has it no longer. Valid while open runs. */
    const char *api_key;
    void *arg; /* of the two below, which may be NULL */
    /* It reads no more: its pages get no results, the process must end. Called
     * once, from a thread of its own. */
    void (*lost)(void *arg, const struct ocr_loss *loss);
    /* A page was given `count` more tokens; from a thread of its own. For
     * those who measure. */
    void (*wrote)(void *arg, uint64_t id, uint32_t count);
};

/* A page to read. `id` is the engine's; results carry it back. */
struct ocr_page {
    uint64_t id;
    struct ocr_image image; /* pixels: see submit */
    /* Lines "name=value\n" of the client that asked (engine/settings.h), for
     * example "lang=deu+eng\n"; valid until the page's result was taken.
     * With "dump=1" the text is the page as it was prepared, a PGM file. */
    const char *settings;
    bool urgent; /* somebody waits for it */
};

/* A sign of life of one that can hang. */
struct ocr_beat {
    uint64_t finished; /* pieces of work so far */
    unsigned limit_ms; /* it counts as lost if this long none is finished
                          while it has pages; 0: never */
};

struct ocr_recognised {
    uint64_t id;
    /* No result yet: the pixels of this page are needed no more, and the
     * engine frees them. Nothing else is set. */
    bool pixels_done;
    enum ocr_kind kind; /* OCR_KIND_NONE: text is set */
    unsigned flags;     /* OCR_TEXT_* of engine/protocol.h: cut, loop */
    char *text;         /* Markdown, malloc'd, the taker frees; else NULL */
    size_t len;
    char sentence[256]; /* why, if kind is set */
};

struct ocr_recogniser_ops {
    uint32_t abi; /* OCR_RECOGNISER_ABI */
    const char *name;
    bool network; /* it talks to other machines: all others must not */
    /* Seconds a page may take, of the clock and of this process; 0: as long as
     * it likes. One that takes longer, or does not end when it is cancelled,
     * ends the engine: a library that does not look up cannot be stopped. */
    unsigned limit_s;

    /* Loads what it needs; may take long. */
    int (*open)(struct ocr_recogniser **out,
                const struct ocr_recogniser_config *config,
                struct ocr_err *err);

    /* Pages it can hold at once, >= 1. Constant after open. */
    unsigned (*capacity)(struct ocr_recogniser *r);

    /* Where it works, for people: "cpu", "NVIDIA H200". Borrowed. */
    const char *(*device)(struct ocr_recogniser *r);

    /* What it works with and what that takes, for `ocrfs doctor`: one line
     * into out[size]. NULL: nothing to tell. */
    void (*describe)(struct ocr_recogniser *r, char *out, size_t size);

    /* What it would take of each GPU that config->device names, or, with
     * `sizes`, of cards of 16 to 141 GB: lines "VERDICT SUBJECT SENTENCE" with
     * tabs between, as ocr_gpu_report() writes. Opens nothing. NULL: it has
     * nothing to do with GPUs. */
    void (*plans)(const struct ocr_recogniser_config *config, bool sizes,
                  struct ocr_buf *out);

    /* Names everything beside the image and the settings that decides about
     * the text: versions of program, models, preprocessing. A printable
     * string without newline. Fails if the settings cannot be served (a
     * language pack is missing): the sentence says what to install. */
    int (*fingerprint)(struct ocr_recogniser *r, const char *settings,
                       char *out, size_t size, struct ocr_err *err);

    /* Takes a page. The pixels stay valid and unchanged until the result of
     * this id, or pixels_done, was returned by next. -EAGAIN above capacity, or
     * until next has returned something: it is asked again then. */
    int (*submit)(struct ocr_recogniser *r, const struct ocr_page *page,
                  struct ocr_err *err);

    /* Nobody wants `id` any more: end it soon. A result still comes (any
     * kind). Unknown ids are ignored. */
    void (*cancel)(struct ocr_recogniser *r, uint64_t id);

    /* Somebody waits for `id` now. NULL: it makes no difference. */
    void (*urge)(struct ocr_recogniser *r, uint64_t id);

    /* How it is; any thread. NULL: it cannot hang. */
    void (*beat)(struct ocr_recogniser *r, struct ocr_beat *out);

    /* Waits for the next finished page. 0 and *out, or -ESHUTDOWN after
     * close was asked for through wake. */
    int (*next)(struct ocr_recogniser *r, struct ocr_recognised *out);

    /* Makes next return -ESHUTDOWN, now and from then on. Any thread. */
    void (*wake)(struct ocr_recogniser *r);

    /* After next returned -ESHUTDOWN. Pages in flight are dropped. */
    void (*close)(struct ocr_recogniser *r);
};

/* The one symbol a plugin exports. */
typedef const struct ocr_recogniser_ops *ocr_recogniser_plugin_fn(void);
#define OCR_RECOGNISER_PLUGIN_SYMBOL "ocr_recogniser_plugin"

extern const struct ocr_recogniser_ops ocr_recogniser_null;
extern const struct ocr_recogniser_ops ocr_recogniser_lighton;

#endif
