/* engine/base/log.h - one line per event, to standard error or syslog.
 *
 * On standard error a line begins "PROGRAM: ", and errors and warnings say so:
 * "ocrfs: warning: ...". syslog has priorities instead.
 *
 * Every line is made safe before it leaves: control characters, ESC and bytes
 * that are not UTF-8 (a hostile file name) come out as \xNN, so one event is
 * always one valid line. A failure is logged once, at the border where it is
 * handled, not at each layer it passes.
 *
 * Layer:   base.
 * Threads: any; a line is written with one write. */
#ifndef OCR_LOG_H
#define OCR_LOG_H
#include <stddef.h>

enum ocr_log_level {
    OCR_LOG_ERROR,
    OCR_LOG_WARNING,
    OCR_LOG_INFO,
    OCR_LOG_DEBUG,
};

/* Call before threads start. `program` (borrowed for good) begins each line
 * on standard error; level defaults to OCR_LOG_INFO. */
void ocr_log_init(const char *program, enum ocr_log_level level);

/* From now on to syslog: for a daemon without a terminal. */
void ocr_log_to_syslog(void);

__attribute__((format(printf, 2, 3))) void ocr_log(enum ocr_log_level level,
                                                   const char *format, ...);

#define ocr_error(...) ocr_log(OCR_LOG_ERROR, __VA_ARGS__)
#define ocr_warning(...) ocr_log(OCR_LOG_WARNING, __VA_ARGS__)
#define ocr_info(...) ocr_log(OCR_LOG_INFO, __VA_ARGS__)
#define ocr_debug(...) ocr_log(OCR_LOG_DEBUG, __VA_ARGS__)

/* Writes `text` (`len` bytes) into `out` (`size` > 0 bytes, NUL-terminated)
 * as one printable line of valid UTF-8; what is not becomes \xNN. Cuts at
 * `size` - 1, never inside a character. Returns the bytes written. */
size_t ocr_log_escape(char *out, size_t size, const char *text, size_t len);

#endif
