#include "fs/download.h"

#include "engine/base/log.h"
#include "fs/program.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TRIES = 5, /* in a row that bring nothing */
    POLL_MS = 200,
    SAID_MAX = 64 << 10,
};

/* Exit statuses of curl that another try may mend, or that say more. */
enum {
    CURL_HTTP = 22,
    CURL_WRITE = 23,
    CURL_NO_RANGES = 33,
    CURL_BAD_RESUME = 36,
    CURL_TOO_LARGE = 63,
};

static int no_curl(struct ocr_err *err)
{
    return ocr_err_set(err, -ENOPKG,
                       "the program curl is not installed: apt-get install "
                       "curl, or copy a folder with ocrfs model add DIR");
}

/* Ends what curl printed: its sentence or the answer, then a line with the
 * status of HTTP, 0 if there was none. */
static unsigned take_http_status(struct ocr_buf *said)
{
    char *line = said->data ? strrchr(said->data, '\n') : NULL;
    unsigned status;

    if (!line)
        return 0;
    status = (unsigned)strtoul(line + 1, NULL, 10);
    ocr_buf_truncate(said, (size_t)(line - said->data));
    return status;
}

/* The first line of what it said, without its own name. */
static const char *reason(struct ocr_buf *said)
{
    char *text = said->data ? said->data : (char *)(uintptr_t) "";

    if (!strncmp(text, "curl: ", 6))
        text += 6;
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static bool is_https(const char *url)
{
    return !strncmp(url, "https:", 6);
}

/* How every call of curl begins. What came by TLS is never continued without.
 */
#define CURL_BEGIN(url)                                                        \
    "curl", "--fail", "--silent", "--show-error", "--location", "--globoff",   \
        "--proto", "=http,https", "--proto-redir",                             \
        is_https(url) ? "=https" : "=http,https"

/* Of a server that may be asked again: too many, overloaded, restarting. */
static bool is_busy(unsigned http)
{
    return http == 408 || http == 429 || http >= 500;
}

static bool is_cut(int status)
{
    static const int cuts[] = {5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 92};

    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (status == cuts[i])
            return true;
    return false;
}

static int say_failed(const char *url, int status, unsigned http,
                      struct ocr_buf *said, struct ocr_err *err)
{
    if (status == CURL_HTTP && (http == 401 || http == 403))
        return ocr_err_set(err, -EACCES,
                           "%s is not for everybody, or not there (HTTP %u)",
                           url, http);
    if (status == CURL_HTTP && http == 404)
        return ocr_err_set(err, -ENOENT, "%s is not there (HTTP 404)", url);
    if (status == CURL_TOO_LARGE)
        return ocr_err_set(err, -EBADMSG,
                           "%s is longer than the server announced", url);
    return ocr_err_set(err, -EIO, "cannot get %s: %s", url, reason(said));
}

int ocr_download_text(const char *url, struct ocr_buf *out, struct ocr_err *err)
{
    char limit[32];
    const char *const argv[] = {CURL_BEGIN(url),
                                "--max-time",
                                "60",
                                "--retry",
                                "2",
                                "--max-filesize",
                                limit,
                                "--write-out",
                                "\n%{http_code}",
                                "--",
                                url,
                                NULL};
    unsigned http;
    int status;

    snprintf(limit, sizeof limit, "%zu", out->limit);
    status = ocr_program_run(argv, out, err);
    if (status < 0)
        return status == -ENOENT ? no_curl(err) : status;
    http = take_http_status(out);
    if (status)
        return say_failed(url, status, http, out, err);
    return out->failed ? ocr_err_set(err, -EBADMSG, "%s is too long", url) : 0;
}

/* ---- digests ------------------------------------------------------------ */

int ocr_sha256(const char *path, char out[OCR_SHA256_SIZE], struct ocr_err *err)
{
    const char *const argv[] = {"sha256sum", "--", path, NULL};
    struct ocr_buf said;
    const char *digest;
    size_t digits = 0;
    int rc;

    ocr_buf_init(&said, SAID_MAX);
    rc = ocr_program_run(argv, &said, err);
    if (rc == -ENOENT)
        rc =
            ocr_err_set(err, -ENOPKG, "the program sha256sum is not installed");
    /* Before a name with odd characters there is a backslash. */
    digest = said.data ? said.data + (said.data[0] == '\\') : "";
    while (isxdigit((unsigned char)digest[digits]))
        digits++;
    if (rc == 0 && digits == OCR_SHA256_SIZE - 1)
        snprintf(out, OCR_SHA256_SIZE, "%.64s", digest);
    else if (rc >= 0)
        rc = ocr_err_set(err, -EIO, "cannot read %s: %s", path, reason(&said));
    ocr_buf_release(&said);
    return rc;
}

/* ---- one file ----------------------------------------------------------- */

static uint64_t size_of(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Runs curl until it ends, or until the file is longer than it may get: the
 * exit status or a negative errno. */
static int transfer(const struct ocr_download *d, struct ocr_buf *said,
                    struct ocr_err *err)
{
    const char *const argv[] = {CURL_BEGIN(d->url),
                                "--connect-timeout",
                                "20",
                                "--speed-limit",
                                "1024",
                                "--speed-time",
                                "60",
                                "--continue-at",
                                "-",
                                "--output",
                                d->path,
                                "--write-out",
                                "\n%{http_code}",
                                "--",
                                d->url,
                                NULL};
    struct ocr_program curl;
    int status, rc = ocr_program_start(&curl, argv, err);

    if (rc)
        return rc == -ENOENT ? no_curl(err) : rc;
    while (!ocr_program_poll(&curl, POLL_MS, said, &status)) {
        const uint64_t bytes = size_of(d->path);

        d->progress(d->arg, bytes < d->size ? bytes : d->size);
        if (bytes > d->size) {
            ocr_program_kill(&curl);
            return CURL_TOO_LARGE;
        }
    }
    return status;
}

/* After one run of curl: 0 to go on (or all is there), else the error. */
static int judge(const struct ocr_download *d, int status, struct ocr_buf *said,
                 struct ocr_err *err)
{
    const unsigned http = take_http_status(said);

    if (status == CURL_NO_RANGES || status == CURL_BAD_RESUME ||
        (status == CURL_HTTP && http == 416)) {
        unlink(d->path); /* from the beginning, then */
        return 0;
    }
    if (status == 0 || is_cut(status) || (status == CURL_HTTP && is_busy(http)))
        return 0;
    if (status == CURL_TOO_LARGE)
        unlink(d->path);
    return say_failed(d->url, status, http, said, err);
}

/* Until the file has its size. */
static int transfer_all(const struct ocr_download *d, struct ocr_err *err)
{
    unsigned vain = 0;
    struct ocr_buf said;
    int rc = 0;

    ocr_buf_init(&said, SAID_MAX);
    while (rc == 0 && size_of(d->path) < d->size) {
        const uint64_t before = size_of(d->path);

        ocr_buf_reset(&said);
        rc = transfer(d, &said, err);
        if (rc < 0)
            break;
        rc = judge(d, rc, &said, err);
        vain = size_of(d->path) > before ? 0 : vain + 1;
        if (rc == 0 && vain == TRIES)
            rc = ocr_err_set(err, -EIO, "cannot get %s: %s", d->url,
                             said.len ? reason(&said)
                                      : "the server sends too little");
        else if (rc == 0 && vain)
            sleep(vain);
    }
    ocr_buf_release(&said);
    if (rc == 0 && size_of(d->path) > d->size) {
        unlink(d->path);
        rc = ocr_err_set(err, -EBADMSG,
                         "%s is longer than the %" PRIu64
                         " bytes that the server announced",
                         d->url, d->size);
    }
    return rc;
}

int ocr_download(const struct ocr_download *d, struct ocr_err *err)
{
    /* What is there may be of an older version: once more without it. */
    bool again = size_of(d->path) > 0;
    char digest[OCR_SHA256_SIZE];
    int rc;

    if (size_of(d->path) > d->size)
        unlink(d->path);
    for (;; again = false) {
        rc = transfer_all(d, err);
        if (rc || !d->sha256[0])
            return rc;
        rc = ocr_sha256(d->path, digest, err);
        if (rc || !strcasecmp(digest, d->sha256))
            return rc;
        unlink(d->path);
        if (!again)
            return ocr_err_set(err, -EBADMSG,
                               "%s came with other content than the server "
                               "announced (SHA-256 %.12s..., not %.12s...); "
                               "it is deleted",
                               d->url, digest, d->sha256);
    }
}
