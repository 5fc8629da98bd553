/* engine/base/err.h - an error as a code for the machine and one sentence for
 * the person, both set by the place that knew.
 *
 * Every fallible function returns 0 or a negative errno and takes a struct
 * ocr_err as its last parameter, NULL if the caller does not care. The first
 * message wins: outer layers do not overwrite it. On success the struct is
 * untouched.
 *
 * Layer:   base, no dependencies.
 * Threads: no state; a struct ocr_err belongs to one thread at a time. */
#ifndef OCR_ERR_H
#define OCR_ERR_H
#include <stdbool.h>

/* What is wrong, as far as anyone acts on it differently. The numbers travel
 * in the engine protocol and stand in the cache: never renumber. */
enum ocr_kind {
    OCR_KIND_NONE = 0,
    OCR_KIND_EMPTY = 1,       /* a file of 0 bytes */
    OCR_KIND_TRUNCATED = 2,   /* ends too early: may still be being written */
    OCR_KIND_CORRUPT = 3,     /* damaged data */
    OCR_KIND_NOT_IMAGE = 4,   /* no picture at all */
    OCR_KIND_UNSUPPORTED = 5, /* a format or feature that is not supported */
    OCR_KIND_TOO_LARGE = 6,   /* above a limit: pixels, bytes, scans, time */
    OCR_KIND_DENIED = 7,      /* may not be read */
    OCR_KIND_VANISHED = 8,    /* the image is gone */
    OCR_KIND_CHANGING = 9,    /* it kept changing while being read */
    OCR_KIND_FAILED = 10,     /* the recogniser failed on this image alone */
    OCR_KIND_GONE = 11,       /* no engine, and none can be started */
    OCR_KIND_CANCELLED = 12,  /* nobody waited any more */
    OCR_KIND_STOPPING = 13,   /* the mount is being stopped */
    OCR_KIND_TIMEOUT = 14,    /* longer than ocr_timeout */
    OCR_KIND_REFUSED = 15,    /* program named in noocr= */
    OCR_KIND_LAST = 15,
};

struct ocr_err {
    int code; /* negative errno, 0 if nothing was set */
    enum ocr_kind kind;
    char text[512]; /* one sentence, no newline, NUL-terminated */
};

#define OCR_ERR_INIT                                                           \
    {                                                                          \
        0                                                                      \
    }

/* Sets code and sentence unless `err` holds one already. Returns `code`, so
 * that one line reports and leaves: return ocr_err_set(err, -EINVAL, "..."). */
__attribute__((format(printf, 3, 4))) int
ocr_err_set(struct ocr_err *err, int code, const char *format, ...);

/* The same with ": <text of errno>" behind the sentence; returns -errno. Call
 * it before anything else can change errno. */
__attribute__((format(printf, 2, 3))) int
ocr_err_errno(struct ocr_err *err, const char *format, ...);

/* The same for a kind; the code is ocr_kind_errno(kind). */
__attribute__((format(printf, 3, 4))) int
ocr_err_kind(struct ocr_err *err, enum ocr_kind kind, const char *format, ...);

/* Ready for reuse. */
void ocr_err_clear(struct ocr_err *err);

/* What open() of a text answers for `kind`, negative: -EBADMSG, -EFBIG, ...
 * (the table of README "Errors"). Unknown kinds give -EIO. */
int ocr_kind_errno(enum ocr_kind kind);

/* Short stable word for logs, metrics and JSON: "truncated", "too-large". */
const char *ocr_kind_name(enum ocr_kind kind);

/* The same for people, who know neither "engine-gone" nor "vanished". */
const char *ocr_kind_words(enum ocr_kind kind);

/* True for verdicts on the bytes themselves, which stay true until the bytes
 * or the decoder change: empty to too-large. */
bool ocr_kind_is_verdict(enum ocr_kind kind);

#endif
