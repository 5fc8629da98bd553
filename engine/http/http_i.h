/* engine/http/http_i.h - the recogniser `http` from inside: pages read by an
 * OpenAI-compatible server (vLLM, SGLang, llama-server), or by several.
 *
 *   plugin.c    the table of functions; pages from submit to next
 *   driver.c    the one thread that talks to the servers, with libcurl
 *   transfer.c  one HTTP request and what became of it
 *   server.c    one server: is it there, how much may it get
 *   window.c    how many requests a server takes at once, found by trying
 *   models.c    GET /models: which model reads
 *   answer.c    what comes back, streamed or whole, to a text
 *   encode.c    threads that resize and encode pages
 *   body.c      the JSON of a request, with the page as PNG in base64.c
 *   config.c    arguments: URLs, the file of the key
 *
 * A page is QUEUED by submit, ENCODING in a thread of its own kind, READY for
 * a server (again after a failure, once it is due), SENT, and DONE until next
 * takes it away.
 *
 * Threads: all pages are in one table under `lock`, which is never held across
 *          slow work. Servers and transfers are the driver's alone, and it
 *          alone calls libcurl. Private to engine/http/. */
#ifndef OCR_HTTP_I_H
#define OCR_HTTP_I_H
#include "engine/base/buf.h"
#include "engine/finish.h"
#include "engine/recogniser.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    SERVERS_MAX = 16,
    WINDOW_FIRST = 8,
    WINDOW_MAX = 64,    /* requests at one server */
    REQUESTS_MAX = 256, /* at all of them */
    AHEAD = 16,         /* pages made ready beside those that are out */
    ENCODERS_MAX = 16,
    URL_MAX = 1024,
    NAME_MAX_LEN = 128, /* of a model */
    KEY_MAX = 4096,
    SENTENCE_MAX = 256,
    PROMPT_MAX = 8192,
    LONGEST_EDGE = 1540, /* what LightOnOCR-2-1B reads at */
};

/* ---- config.c ----------------------------------------------------------- */

struct http_url {
    char *base;  /* "http://host:8000/v1", no slash at the end */
    char *place; /* "http://host:8000", for people */
    char *host;  /* lower case */
    unsigned port;
    bool tls;
};

struct http_config {
    struct http_url url[SERVERS_MAX];
    unsigned urls;
    char *key_file;       /* "" if none */
    char key[KEY_MAX];    /* "" if none */
    int64_t key_mtime_ns; /* of the file, when it was read */
    unsigned silence_s;   /* a server that says nothing for so long is lost */
    unsigned patience_s;  /* pages wait so long for any server to be there */
};

/* From lines name=value: url, api_key_file, silence, patience. The key is the
 * file's, else `api_key`. Release also after a failure. */
int http_config_init(struct http_config *c, const char *arguments,
                     const char *api_key, struct ocr_err *err);
void http_config_release(struct http_config *c);

/* Reads the key's file again if it changed: true if there is another key. */
bool http_config_renew_key(struct http_config *c);

/* Makes stars of the key wherever it stands in `text`: a server may repeat
 * it. */
void http_scrub(char *text, const char *key);

/* Takes one URL apart. -EINVAL: no base of an API. */
int http_url_init(struct http_url *url, const char *text, struct ocr_err *err);
void http_url_release(struct http_url *url);

/* True if a server of `url` may send its clients on to `target`: the same
 * host, at the same port or from http to https. */
bool http_url_may_redirect(const struct http_url *url, const char *target);

/* ---- window.c ----------------------------------------------------------- */

/* How many requests a server gets at once. It doubles as long as that brings
 * more work done a second (by Little's law: as long as latency grows by less
 * than the window), then it goes up or down by an eighth now and then, and back
 * again unless that brought more or cost nothing. A server that says "too many"
 * halves it. */
struct http_window {
    double size;
    bool doubling, down;         /* down: the latest try was for less */
    double best_size, best_rate; /* work a second; 0: not known */
    unsigned rests;              /* epochs until the next try */
    /* The epoch: about as many ends as the window has places. */
    unsigned skip; /* ends of what was sent before */
    unsigned ends, full;
    double work;
    int64_t took_ms; /* sum of the ends */
    int64_t cut_ms;  /* when it was halved last, 0: never */
};

void http_window_init(struct http_window *w);
unsigned http_window_size(const struct http_window *w);

/* A request was answered: after took_ms, with `work` (bytes of text and what
 * the picture costs); `full`: no other could have been sent beside it. */
void http_window_ended(struct http_window *w, int64_t took_ms, double work,
                       bool full);

/* The server said that it has too many. */
void http_window_refused(struct http_window *w, int64_t now_ms);

/* ---- answer.c ----------------------------------------------------------- */

enum http_outcome {
    HTTP_TEXT,    /* the text is whole, or ended by max_tokens (flags) */
    HTTP_REFUSED, /* the page's fault: no other try would help */
    HTTP_BUSY,    /* try again later, the page is not to blame */
    HTTP_TROUBLE, /* the server's fault, or nobody's: try another */
    HTTP_ABSENT,  /* there is no server to talk to */
};

struct http_answer {
    int format;           /* enum in answer.c, known from the first byte */
    struct ocr_buf input; /* a line of a stream, or the whole answer */
    struct ocr_buf event; /* data lines of one event */
    struct ocr_buf text;
    uint64_t received, received_max; /* bytes of the body */
    struct ocr_repeat *repeat;
    bool finished; /* a finish_reason came */
    bool ended;    /* and the end of the stream */
    bool cut, filtered, loops, broken, too_long;
    long error_code;         /* of an error within the stream, 0: none */
    char said[SENTENCE_MAX]; /* the server's own words, one line */
};

/* `max_tokens` bounds what is taken. -ENOMEM. */
int http_answer_init(struct http_answer *a, uint32_t max_tokens);
void http_answer_release(struct http_answer *a);
void http_answer_reset(struct http_answer *a);

/* Takes bytes of the body. False: enough, hang up. */
bool http_answer_add(struct http_answer *a, const char *bytes, size_t len);

/* What it amounts to, after the last byte or a broken connection (`whole`
 * false), with the HTTP status; why[size] gets a sentence unless it is
 * HTTP_TEXT. */
enum http_outcome http_answer_judge(struct http_answer *a, long status,
                                    bool whole, char *why, size_t size);

/* The words of an error body, one printable line, "" if there are none. */
void http_error_words(const char *body, size_t len, char *out, size_t size);

/* ---- models.c ----------------------------------------------------------- */

/* The model to read with from the body of GET /models: `wanted` if it is
 * there, or with wanted "" the only one, or the only one with OCR in its name.
 * -ENOENT with a sentence that names what is served. */
int http_models_choose(const char *body, size_t len, const char *wanted,
                       char out[NAME_MAX_LEN], struct ocr_err *err);

/* ---- base64.c, body.c --------------------------------------------------- */

/* Bytes on their way to letters in `out`; up to two wait for a third. */
struct http_base64 {
    struct ocr_buf *out;
    uint8_t waiting[3];
    unsigned count;
};

void http_base64_add(void *base64, const uint8_t *in, size_t len);
void http_base64_end(struct http_base64 *b);

/* The body of POST /chat/completions for one page: resized as its settings
 * say, encoded, with the model's name. *out is malloc'd, the caller's. */
int http_body_make(char **out, size_t *len, const struct ocr_image *image,
                   const char *settings, const char *model,
                   struct ocr_err *err);

/* Checks the settings of a client, before any page comes. */
int http_settings_check(const char *settings, struct ocr_err *err);
uint32_t http_settings_max_tokens(const char *settings);

/* ---- pages -------------------------------------------------------------- */

enum http_state {
    HTTP_PAGE_QUEUED,
    HTTP_PAGE_ENCODING,
    HTTP_PAGE_READY,
    HTTP_PAGE_SENT,
    HTTP_PAGE_DONE,
};

struct http_page {
    /* Guarded by lock: */
    enum http_state state;
    bool cancel;
    bool told;      /* pixels_done was returned by next */
    bool urgent;    /* somebody waits for it */
    uint64_t order; /* of submission */

    /* Whoever works on it by its state: */
    struct ocr_page page;
    char *body; /* of the request, from READY on */
    size_t body_len;
    unsigned tries; /* that failed by a server's fault */
    int64_t first_ms, due_ms;
    int64_t asked_ms; /* for a look at servers that are long gone, 0: not */
    int avoid;        /* index of the server that failed last, -1: none */
    bool cancelled;   /* the driver saw `cancel` */
    struct ocr_recognised result;
};

struct http_server;
struct http_transfer;

struct ocr_recogniser {
    struct http_config config; /* constant after open, the key is the driver's
                                */
    unsigned capacity;
    char wanted[NAME_MAX_LEN]; /* model= */
    char place[64];            /* for people */
    pthread_t driver, encoder[ENCODERS_MAX];
    unsigned encoders;
    bool driving;
    CURLM *multi; /* the driver's; curl_multi_wakeup from any thread */

    pthread_mutex_t lock; /* guards down to `pages` */
    pthread_cond_t queued, done, opened;
    bool stop, woken;
    bool settled;              /* the driver knows the model, or why not */
    char model[NAME_MAX_LEN];  /* constant once settled */
    struct ocr_err open_error; /* why none can read */
    char described[SENTENCE_MAX];
    uint64_t orders;
    unsigned unencoded;       /* QUEUED and ENCODING */
    unsigned count;           /* pages between submit and next */
    struct http_page **pages; /* [capacity] */

    /* The driver's own: */
    struct http_server *servers; /* [config.urls] */
    struct http_transfer *flying, *idle;
    unsigned short seed[3];  /* of the jitter */
    int64_t begun_ms;        /* of the driver */
    int64_t absent_since_ms; /* no server is there, 0: one is */
};

/* encode.c: a thread; arg is the recogniser. */
void *http_encoder_run(void *arg);

/* driver.c: the same. */
void *http_driver_run(void *arg);

/* plugin.c: which of two goes first. Called with the lock. */
bool http_page_before(const struct http_page *a, const struct http_page *b);

/* plugin.c: the page's result is set. Called without the lock. */
void http_page_deliver(struct ocr_recogniser *r, struct http_page *p);
void http_page_fail(struct http_page *p, enum ocr_kind kind,
                    const char *sentence);

/* ---- server.c ----------------------------------------------------------- */

struct http_server {
    const struct http_url *url;
    int index;
    bool up, looked; /* it answered; it was asked at least once */
    bool away;       /* nobody was there at the last look, or not ready yet */
    bool probing;
    struct http_window window;
    unsigned in_flight;
    unsigned failures; /* in a row */
    unsigned refusals; /* in a row, 429 and 503 */
    int64_t pause_until_ms, probe_at_ms;
    char why[SENTENCE_MAX]; /* it is not up */
};

void http_server_init(struct http_server *s, const struct http_url *url,
                      int index);

/* True if it may get one more request now. */
bool http_server_has_room(const struct http_server *s, int64_t now_ms);

/* What became of a request. `jitter` is random, 0 to 1. */
void http_server_answered(struct http_server *s, int64_t took_ms, double work,
                          bool full);
void http_server_refused(struct http_server *s, int64_t now_ms,
                         int64_t retry_after_s, double jitter);
void http_server_failed(struct http_server *s, int64_t now_ms, bool absent,
                        const char *why, double jitter);

/* What became of a look whether it is there. */
void http_server_found(struct http_server *s);
void http_server_missed(struct http_server *s, int64_t now_ms, const char *why,
                        double jitter);

/* Doubles from `first` with each of `times`, up to `most`; between half and
 * all of it, by jitter. */
int64_t http_backoff_ms(int64_t first, int64_t most, unsigned times,
                        double jitter);

/* ---- transfer.c --------------------------------------------------------- */

struct http_transfer {
    CURL *easy;
    struct http_server *server;
    struct http_page *page; /* NULL: a look at /models */
    struct http_answer answer;
    char url[URL_MAX];
    struct curl_slist *headers; /* with the key */
    unsigned redirects;
    bool full;                  /* the window was, when it was sent */
    int64_t since_ms, ended_ms; /* ended: the stream said so, 0: not yet */
    char error[CURL_ERROR_SIZE];
    struct http_transfer *next; /* idle, or in flight */
};

struct http_transfer *http_transfer_new(void); /* NULL: no memory */
void http_transfer_free(struct http_transfer *t);

/* Adds it to the multi handle: a POST of the page's body, or a look. Negative:
 * no memory. */
int http_transfer_start(struct ocr_recogniser *r, struct http_transfer *t,
                        struct http_server *s, struct http_page *p);

/* The transfer ended with `code`. *retry_after_s is what the server asked
 * for, 0 if nothing. HTTP_ABSENT only if no byte of a request was taken. */
enum http_outcome http_transfer_judge(struct http_transfer *t, CURLcode code,
                                      int64_t *retry_after_s, char *why,
                                      size_t size);

/* A redirect within the same host: set off again, 1. 0: it was none. Negative:
 * refused, with *why. */
int http_transfer_follow(struct ocr_recogniser *r, struct http_transfer *t,
                         char *why, size_t size);
#endif
