#include "engine/base/log.h"
#include "engine/base/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

enum {
    LINE_MAX_BYTES = 2048
};

/* Set before threads start, read-only afterwards. */
static const char *log_program = "ocrfs";
static enum ocr_log_level log_level = OCR_LOG_INFO;
/* A daemon turns to syslog when its mount is there: threads run by then. */
static atomic_bool log_syslog;

void ocr_log_init(const char *program, enum ocr_log_level level)
{
    log_program = program;
    log_level = level;
}

void ocr_log_to_syslog(void)
{
    openlog(log_program, LOG_PID, LOG_DAEMON);
    log_syslog = true;
}

size_t ocr_log_escape(char *out, size_t size, const char *text, size_t len)
{
    size_t used = 0;

    for (size_t at = 0; at < len;) {
        uint32_t cp = 0;
        const size_t n = ocr_utf8_next(text + at, len - at, &cp);
        /* C0, DEL and C1 can drive a terminal; U+2028 and U+2029 end a line. */
        const bool plain = n && cp >= 0x20 && (cp < 0x7f || cp >= 0xa0) &&
                           cp != 0x2028 && cp != 0x2029;

        if (plain) {
            if (used + n >= size)
                break;
            memcpy(out + used, text + at, n);
            used += n;
            at += n;
            continue;
        }
        for (size_t i = 0; i < (n ? n : 1); i++) {
            if (used + 4 >= size)
                goto full;
            snprintf(out + used, 5, "\\x%02x", (unsigned char)text[at++]);
            used += 4;
        }
    }
full:
    out[used] = '\0';
    return used;
}

void ocr_log(enum ocr_log_level level, const char *format, ...)
{
    static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
    static const char *const words[] = {"error: ", "warning: ", "", ""};
    char raw[LINE_MAX_BYTES], line[2 * LINE_MAX_BYTES];
    size_t used = 0;
    va_list args;

    if (level > log_level)
        return;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    if (!log_syslog)
        used =
            (size_t)snprintf(line, 80, "%.60s: %s", log_program, words[level]);
    used +=
        ocr_log_escape(line + used, sizeof line - used - 1, raw, strlen(raw));
    if (log_syslog) {
        syslog(priorities[level], "%s", line);
        return;
    }
    line[used++] = '\n';
    /* Nowhere to report a failure of the log itself. */
    if (write(STDERR_FILENO, line, used) < 0)
        return;
}
