#include "engine/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int code;
} kinds[] = {
    [OCR_KIND_NONE] = {"none", 0},
    [OCR_KIND_EMPTY] = {"empty-file", -EBADMSG},
    [OCR_KIND_TRUNCATED] = {"truncated", -EBADMSG},
    [OCR_KIND_CORRUPT] = {"corrupt", -EBADMSG},
    [OCR_KIND_NOT_IMAGE] = {"not-an-image", -EBADMSG},
    [OCR_KIND_UNSUPPORTED] = {"unsupported", -EOPNOTSUPP},
    [OCR_KIND_TOO_LARGE] = {"too-large", -EFBIG},
    [OCR_KIND_DENIED] = {"denied", -EACCES},
    [OCR_KIND_VANISHED] = {"vanished", -ENOENT},
    [OCR_KIND_CHANGING] = {"changing", -EBUSY},
    [OCR_KIND_FAILED] = {"failed", -EIO},
    [OCR_KIND_GONE] = {"engine-gone", -EIO},
    [OCR_KIND_CANCELLED] = {"cancelled", -EINTR},
    [OCR_KIND_STOPPING] = {"stopping", -ENODEV},
    [OCR_KIND_TIMEOUT] = {"timeout", -ETIMEDOUT},
    [OCR_KIND_REFUSED] = {"refused", -EACCES},
};

static bool known(enum ocr_kind kind)
{
    return (unsigned)kind <= OCR_KIND_LAST;
}

int ocr_kind_errno(enum ocr_kind kind)
{
    return known(kind) ? kinds[kind].code : -EIO;
}

const char *ocr_kind_name(enum ocr_kind kind)
{
    return known(kind) ? kinds[kind].name : "unknown";
}

const char *ocr_kind_words(enum ocr_kind kind)
{
    switch (kind) {
    case OCR_KIND_GONE:
        return "there is no engine";
    case OCR_KIND_VANISHED:
        return "no such file";
    default:
        return ocr_kind_name(kind);
    }
}

bool ocr_kind_is_verdict(enum ocr_kind kind)
{
    return kind >= OCR_KIND_EMPTY && kind <= OCR_KIND_TOO_LARGE;
}

void ocr_err_clear(struct ocr_err *err)
{
    if (err)
        *err = (struct ocr_err)OCR_ERR_INIT;
}

/* True if this call is the first to speak. */
static bool claim(struct ocr_err *err, int code, enum ocr_kind kind)
{
    if (!err || err->code)
        return false;
    err->code = code;
    err->kind = kind;
    return true;
}

int ocr_err_set(struct ocr_err *err, int code, const char *format, ...)
{
    va_list args;

    if (!claim(err, code, OCR_KIND_NONE))
        return code;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return code;
}

int ocr_err_errno(struct ocr_err *err, const char *format, ...)
{
    const int saved = errno ? errno : EIO;
    va_list args;
    size_t used;

    if (!claim(err, -saved, OCR_KIND_NONE))
        return -saved;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s",
             strerror(saved));
    return -saved;
}

int ocr_err_kind(struct ocr_err *err, enum ocr_kind kind, const char *format,
                 ...)
{
    const int code = ocr_kind_errno(kind);
    va_list args;

    if (!claim(err, code, kind))
        return code;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return code;
}
