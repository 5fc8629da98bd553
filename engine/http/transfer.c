/* One HTTP request, from its options to what became of it. */
#include "engine/http/http_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECT_MS = 10000,
    LOOK_S = 20,       /* for GET /models */
    SILENCES_MAX = 12, /* an answer may take so many times the silence */
    RECEIVE_BYTES = 64 << 10,
    SEND_BYTES = 256 << 10,
    REDIRECTS_MAX = 3,
};

struct http_transfer *http_transfer_new(void)
{
    struct http_transfer *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->easy = curl_easy_init();
    if (t->easy && !http_answer_init(&t->answer, 1))
        return t;
    http_transfer_free(t);
    return NULL;
}

void http_transfer_free(struct http_transfer *t)
{
    if (!t)
        return;
    curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    http_answer_release(&t->answer);
    free(t);
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *arg)
{
    struct http_transfer *t = arg;
    const size_t len = size * count;

    if (!http_answer_add(&t->answer, bytes, len))
        return 0; /* hangs up */
    if (t->answer.ended && !t->ended_ms)
        t->ended_ms = ocr_now_ms();
    return len;
}

/* ---- options ------------------------------------------------------------ */

/* Of the system's certificates, unless the user named others as OpenSSL's
 * programs take them; libcurl would not look there by itself. */
static void set_certificates(CURL *easy)
{
    const char *file = getenv("SSL_CERT_FILE"), *dir = getenv("SSL_CERT_DIR");

    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    if (file && *file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, file);
    if (dir && *dir)
        curl_easy_setopt(easy, CURLOPT_CAPATH, dir);
}

static void set_connection(CURL *easy, bool tls)
{
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_2TLS);
    curl_easy_setopt(easy, CURLOPT_PIPEWAIT, tls ? 1L : 0L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)RECEIVE_BYTES);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)SEND_BYTES);
    set_certificates(easy);
}

static void set_limits(CURL *easy, unsigned silence_s, bool look)
{
    const long silence = (long)silence_s;

    if (look) {
        curl_easy_setopt(easy, CURLOPT_TIMEOUT, (long)LOOK_S);
        return;
    }
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, silence);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, silence * SILENCES_MAX);
}

static void set_callbacks(struct http_transfer *t)
{
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
}

static bool add_header(struct http_transfer *t, const char *line)
{
    struct curl_slist *longer = curl_slist_append(t->headers, line);

    if (longer)
        t->headers = longer;
    return longer != NULL;
}

static void free_headers(struct http_transfer *t)
{
    curl_slist_free_all(t->headers);
    t->headers = NULL;
}

/* The key is in no other place that is sent. */
static bool make_headers(struct http_transfer *t, const char *key)
{
    char line[KEY_MAX + 32];
    bool made;

    free_headers(t);
    /* Without "Expect" a large body takes no second round trip. */
    made = add_header(t, "Content-Type: application/json") &&
           add_header(t, "Accept: text/event-stream, application/json") &&
           add_header(t, "Expect:");
    if (made && *key) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", key);
        made = add_header(t, line);
        explicit_bzero(line, sizeof line);
    }
    return made;
}

static void set_request(struct http_transfer *t)
{
    CURL *easy = t->easy;

    curl_easy_setopt(easy, CURLOPT_URL, t->url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    if (!t->page)
        return;
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, t->page->body);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     (curl_off_t)t->page->body_len);
}

int http_transfer_start(struct ocr_recogniser *r, struct http_transfer *t,
                        struct http_server *s, struct http_page *p)
{
    t->server = s;
    t->page = p;
    t->redirects = 0;
    t->full = false;
    t->since_ms = ocr_now_ms();
    t->ended_ms = 0;
    t->error[0] = '\0';
    http_answer_release(&t->answer);
    if (http_answer_init(&t->answer,
                         p ? http_settings_max_tokens(p->page.settings) : 1) ||
        !make_headers(t, r->config.key))
        return -1;
    snprintf(t->url, sizeof t->url, "%s%s", s->url->base,
             p ? "/chat/completions" : "/models");
    curl_easy_reset(t->easy);
    set_connection(t->easy, s->url->tls);
    set_limits(t->easy, r->config.silence_s, !p);
    set_callbacks(t);
    set_request(t);
    return curl_multi_add_handle(r->multi, t->easy) ? -1 : 0;
}

/* ---- what became of it -------------------------------------------------- */

/* Nobody was there to take the request: no page can be blamed. */
static bool is_absence(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
        return true;
    default:
        return false;
    }
}

static bool timed_out_connecting(CURL *easy, CURLcode code)
{
    curl_off_t connected = 0;

    return code == CURLE_OPERATION_TIMEDOUT &&
           !curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &connected) &&
           connected == 0;
}

static long status_of(CURL *easy)
{
    long status = 0;

    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

/* libcurl's words may hold what a server sent. */
static void say_fault(const struct http_transfer *t, CURLcode code, char *why,
                      size_t size)
{
    const char *words = t->error[0] ? t->error : curl_easy_strerror(code);

    if (code == CURLE_OUT_OF_MEMORY) /* so it calls endless headers, too */
        words = "the headers of its answer are too long, or memory ran out";
    ocr_log_escape(why, size, words, strlen(words));
}

enum http_outcome http_transfer_judge(struct http_transfer *t, CURLcode code,
                                      int64_t *retry_after_s, char *why,
                                      size_t size)
{
    const long status = status_of(t->easy);
    curl_off_t retry = 0;
    enum http_outcome outcome;

    *retry_after_s = 0;
    if (!curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &retry))
        *retry_after_s = (int64_t)retry;
    if (is_absence(code) || timed_out_connecting(t->easy, code)) {
        say_fault(t, code, why, size);
        return HTTP_ABSENT;
    }
    if (status == 0) {
        say_fault(t, code, why, size);
        return HTTP_TROUBLE;
    }
    outcome =
        http_answer_judge(&t->answer, status, code == CURLE_OK, why, size);
    /* Half an answer, or none: why it broke off says more. */
    if (outcome == HTTP_TROUBLE && status == 200 && code != CURLE_OK &&
        code != CURLE_WRITE_ERROR && !t->answer.error_code)
        say_fault(t, code, why, size);
    return outcome;
}

/* ---- redirects ---------------------------------------------------------- */

int http_transfer_follow(struct ocr_recogniser *r, struct http_transfer *t,
                         char *why, size_t size)
{
    const long status = status_of(t->easy);
    char *target = NULL;

    if (status < 301 || status > 308 || status == 304)
        return 0;
    curl_easy_getinfo(t->easy, CURLINFO_REDIRECT_URL, &target);
    if (!target)
        return 0;
    if (!http_url_may_redirect(t->server->url, target)) {
        snprintf(why, size,
                 "it sends to another host (%.120s), where pages and keys do "
                 "not go: give that address as url= if it is right",
                 target);
        return -1;
    }
    if (++t->redirects > REDIRECTS_MAX || strlen(target) >= sizeof t->url) {
        snprintf(why, size, "it redirects again and again");
        return -1;
    }
    snprintf(t->url, sizeof t->url, "%s", target);
    curl_multi_remove_handle(r->multi, t->easy);
    http_answer_reset(&t->answer);
    t->error[0] = '\0';
    set_request(t);
    if (curl_multi_add_handle(r->multi, t->easy)) {
        snprintf(why, size, "no memory for the request");
        return -1;
    }
    return 1;
}
