/* Where the servers are, and the key that opens them. */
#include "engine/http/http_i.h"

#include "engine/base/io.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ARGUMENT_MAX = 4096,
    SILENCE_S = 300,
    PATIENCE_S = 30,
    SECONDS_MAX = 86400,
};

/* ---- URLs --------------------------------------------------------------- */

static char *part_of(CURLU *parsed, CURLUPart part)
{
    char *text = NULL;

    return curl_url_get(parsed, part, &text, 0) ? NULL : text;
}

static bool has_part(CURLU *parsed, CURLUPart part)
{
    char *text = part_of(parsed, part);
    const bool there = text != NULL;

    curl_free(text);
    return there;
}

/* Why `parsed` is no base of an API, or NULL. */
static const char *fault_of(CURLU *parsed)
{
    char *scheme = part_of(parsed, CURLUPART_SCHEME);
    const bool http =
        scheme && (!strcmp(scheme, "http") || !strcmp(scheme, "https"));

    curl_free(scheme);
    if (!http || !has_part(parsed, CURLUPART_HOST))
        return "it must begin with http:// or https:// and a host";
    if (has_part(parsed, CURLUPART_USER) ||
        has_part(parsed, CURLUPART_PASSWORD))
        return "a password in it would be seen by everybody: put the key into "
               "api_key_file= or OPENAI_API_KEY";
    if (has_part(parsed, CURLUPART_QUERY) ||
        has_part(parsed, CURLUPART_FRAGMENT))
        return "it must end with the path, like /v1";
    return NULL;
}

static unsigned port_of(CURLU *parsed)
{
    char *text = NULL;
    unsigned port = 0;

    if (!curl_url_get(parsed, CURLUPART_PORT, &text, CURLU_DEFAULT_PORT))
        port = (unsigned)strtoul(text, NULL, 10);
    curl_free(text);
    return port;
}

static void lower(char *text)
{
    for (; text && *text; text++)
        *text = (char)tolower((unsigned char)*text);
}

static int take_parts(struct http_url *url, CURLU *parsed, const char *text,
                      struct ocr_err *err)
{
    char *host = part_of(parsed, CURLUPART_HOST);
    size_t len = strlen(text);

    while (len && text[len - 1] == '/')
        len--;
    lower(host);
    url->host = host ? strdup(host) : NULL;
    url->port = port_of(parsed);
    url->tls = !strncasecmp(text, "https:", 6);
    url->base = strndup(text, len);
    curl_free(host);
    if (!url->host || !url->base ||
        asprintf(&url->place, "%s://%s:%u", url->tls ? "https" : "http",
                 url->host, url->port) < 0) {
        url->place = NULL;
        return ocr_err_set(err, -ENOMEM, "no memory for the address");
    }
    return 0;
}

int http_url_init(struct http_url *url, const char *text, struct ocr_err *err)
{
    CURLU *parsed = curl_url();
    const char *fault;
    int rc = 0;

    *url = (struct http_url){0};
    if (!parsed)
        return ocr_err_set(err, -ENOMEM, "no memory for the address");
    if (strlen(text) >= URL_MAX - 64)
        fault = "it is too long";
    else if (curl_url_set(parsed, CURLUPART_URL, text, 0))
        fault = "it is no address like http://host:8000/v1";
    else
        fault = fault_of(parsed);
    if (fault)
        rc = ocr_err_set(err, -EINVAL, "url=%.200s: %s",
                         strchr(text, '@') ? "(not shown)" : text, fault);
    else
        rc = take_parts(url, parsed, text, err);
    curl_url_cleanup(parsed);
    return rc;
}

void http_url_release(struct http_url *url)
{
    free(url->base);
    free(url->place);
    free(url->host);
    *url = (struct http_url){0};
}

bool http_url_may_redirect(const struct http_url *url, const char *target)
{
    struct http_url to;
    bool may = false;
    CURLU *parsed = curl_url();

    /* The target may have a query: only its origin counts. */
    if (parsed && !curl_url_set(parsed, CURLUPART_URL, target, 0) &&
        !has_part(parsed, CURLUPART_USER) &&
        !take_parts(&to, parsed, target, NULL)) {
        may = !strcmp(to.host, url->host) &&
              ((to.tls == url->tls && to.port == url->port) ||
               (to.tls && !url->tls));
        http_url_release(&to);
    }
    curl_url_cleanup(parsed);
    return may;
}

/* ---- the key ------------------------------------------------------------ */

static int64_t mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* Cuts white space at both ends; what is left must be one printable word. */
static bool clean_key(char *key)
{
    char *from = key + strspn(key, " \t\r\n");
    size_t len = strlen(from);

    while (len && strchr(" \t\r\n", from[len - 1]))
        len--;
    memmove(key, from, len);
    key[len] = '\0';
    for (size_t i = 0; i < len; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return false;
    return len > 0;
}

static int check_key_file(int fd, const char *path, struct stat *st,
                          struct ocr_err *err)
{
    if (fstat(fd, st))
        return ocr_err_errno(err, "api_key_file=%s", path);
    if (!S_ISREG(st->st_mode))
        return ocr_err_set(err, -EINVAL, "api_key_file=%s: this is no file",
                           path);
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return ocr_err_set(
            err, -EPERM, "api_key_file=%s: it belongs to somebody else", path);
    if (st->st_mode & 077)
        return ocr_err_set(err, -EPERM,
                           "api_key_file=%s: others may read it; run: chmod "
                           "600 %s",
                           path, path);
    return 0;
}

static int read_key(struct http_config *c, struct ocr_err *err)
{
    const char *path = c->key_file;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t n = 0;
    int rc;

    if (fd < 0)
        return ocr_err_errno(err, "api_key_file=%s", path);
    rc = check_key_file(fd, path, &st, err);
    if (!rc) {
        n = ocr_pread_full(fd, c->key, sizeof c->key - 1, 0);
        c->key[n > 0 ? n : 0] = '\0';
        c->key_mtime_ns = mtime_ns(&st);
    }
    ocr_close(fd);
    if (!rc && (n < 0 || !clean_key(c->key)))
        rc = ocr_err_set(err, -EINVAL,
                         "api_key_file=%s: there must be one key in it and "
                         "nothing else",
                         path);
    return rc;
}

bool http_config_renew_key(struct http_config *c)
{
    struct http_config other = {.key_file = c->key_file};
    struct stat st;
    bool renewed;

    if (!*c->key_file || stat(c->key_file, &st) ||
        mtime_ns(&st) == c->key_mtime_ns || read_key(&other, NULL))
        return false;
    renewed = strcmp(other.key, c->key) != 0;
    memcpy(c->key, other.key, sizeof c->key);
    c->key_mtime_ns = other.key_mtime_ns;
    explicit_bzero(other.key, sizeof other.key);
    return renewed;
}

void http_scrub(char *text, const char *key)
{
    const size_t len = strlen(key);

    while (len && (text = strstr(text, key))) {
        memset(text, '*', len);
        text += len;
    }
}

static int take_key(struct http_config *c, const char *api_key,
                    struct ocr_err *err)
{
    if (*c->key_file)
        return read_key(c, err);
    if (!*api_key)
        return 0;
    snprintf(c->key, sizeof c->key, "%s", api_key);
    return clean_key(c->key) ? 0
                             : ocr_err_set(err, -EINVAL,
                                           "OPENAI_API_KEY must hold one key "
                                           "and nothing else");
}

/* ---- arguments ---------------------------------------------------------- */

static int take_urls(struct http_config *c, char *list, struct ocr_err *err)
{
    char *rest = list, *one;

    while ((one = strsep(&rest, ";"))) {
        int rc;

        if (!*one)
            continue;
        if (c->urls == SERVERS_MAX)
            return ocr_err_set(err, -E2BIG, "url=: at most %d servers",
                               SERVERS_MAX);
        rc = http_url_init(&c->url[c->urls], one, err);
        if (rc)
            return rc;
        c->urls++;
    }
    return c->urls ? 0
                   : ocr_err_set(err, -EINVAL,
                                 "engine=http needs a server: "
                                 "url=http://HOST:8000/v1");
}

static int take_seconds(const char *arguments, const char *name,
                        unsigned preset, unsigned *out, struct ocr_err *err)
{
    char text[32], *end;
    unsigned long value;

    ocr_setting(arguments, name, "", text, sizeof text);
    *out = preset;
    if (!*text)
        return 0;
    value = strtoul(text, &end, 10);
    if (end == text || *end || value < 1 || value > SECONDS_MAX)
        return ocr_err_set(err, -EINVAL, "%s=%s is no time from 1 to %d s",
                           name, text, SECONDS_MAX);
    *out = (unsigned)value;
    return 0;
}

int http_config_init(struct http_config *c, const char *arguments,
                     const char *api_key, struct ocr_err *err)
{
    char list[SERVERS_MAX * 256], file[PATH_MAX];
    int rc;

    *c = (struct http_config){0};
    ocr_setting(arguments, "url", "", list, sizeof list);
    ocr_setting(arguments, "api_key_file", "", file, sizeof file);
    if (!(c->key_file = strdup(file)))
        return ocr_err_set(err, -ENOMEM, "no memory for the settings");
    rc = take_urls(c, list, err);
    if (!rc)
        rc = take_key(c, api_key, err);
    if (!rc)
        rc = take_seconds(arguments, "silence", SILENCE_S, &c->silence_s, err);
    if (!rc)
        rc = take_seconds(arguments, "patience", PATIENCE_S, &c->patience_s,
                          err);
    return rc;
}

void http_config_release(struct http_config *c)
{
    for (unsigned i = 0; i < SERVERS_MAX; i++)
        http_url_release(&c->url[i]);
    free(c->key_file);
    explicit_bzero(c->key, sizeof c->key);
    *c = (struct http_config){0};
}
