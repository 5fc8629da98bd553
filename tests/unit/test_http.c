/* The parts of the recogniser `http` that need no server: answers, windows,
 * addresses, keys, models, bodies. */
#include "engine/http/http_i.h"
#include "engine/image/image.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- answers ------------------------------------------------------------ */

/* Feeds `body` in pieces of `step` bytes and judges it. */
static enum http_outcome judge(struct http_answer *a, const char *body,
                               size_t step, long status, bool whole, char *why)
{
    const size_t len = strlen(body);

    assert_int_equal(http_answer_init(a, 100), 0);
    for (size_t at = 0; at < len; at += step)
        if (!http_answer_add(a, body + at, len - at < step ? len - at : step))
            break;
    return http_answer_judge(a, status, whole, why, SENTENCE_MAX);
}

static const char streamed[] =
    ": hello\r\n\r\n"
    "event: chunk\n"
    "data: "
    "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}"
    "\n\n"
    "data:{\"choices\":[{\"delta\":{\"content\":\"Gr\\u00fc\"}}]}\r\n\r\n"
    "data: {\"choices\":[{\"delta\":\n"
    "data: {\"content\":\"\xc3\x9f"
    "e\"},\"finish_reason\":null}]}\n\n"
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"total_tokens\":7}}\n\n"
    "data: [DONE]\n\n";

static void a_stream_is_a_text_however_it_is_cut(void **state)
{
    struct http_answer a;
    char why[SENTENCE_MAX];

    (void)state;
    for (size_t step = 1; step < sizeof streamed; step++) {
        assert_int_equal(judge(&a, streamed, step, 200, true, why), HTTP_TEXT);
        assert_string_equal(a.text.data, "Gr\xc3\xbc\xc3\x9f"
                                         "e");
        assert_true(a.ended && !a.cut && !a.loops);
        http_answer_release(&a);
    }
}

/* Without its end an answer is none, wherever it breaks off; it may lack what
 * comes behind the reason why it ended. */
static void half_a_stream_is_no_text(void **state)
{
    const char *const end = strstr(streamed, "\"stop\"");
    char part[sizeof streamed], why[SENTENCE_MAX];
    struct http_answer a;

    (void)state;
    for (size_t n = 0; n < sizeof streamed; n++) {
        const bool finished = streamed + n >= strstr(end, "\n\n") + 2;
        enum http_outcome outcome;

        memcpy(part, streamed, n);
        part[n] = '\0';
        outcome = judge(&a, part, 7, 200, false, why);
        assert_int_equal(outcome, finished ? HTTP_TEXT : HTTP_TROUBLE);
        http_answer_release(&a);
    }
}

static void answers_and_what_they_amount_to(void **state)
{
    static const struct {
        const char *body;
        long status;
        enum http_outcome outcome;
        const char *why;
    } cases[] = {
        {"{\"choices\":[{\"finish_reason\":\"stop\",\"message\":{\"content\":"
         "\"x\"}}]}",
         200, HTTP_TEXT, ""},
        {" \n {\"choices\":[{\"finish_reason\":\"length\",\"message\":{}}]}",
         200, HTTP_TEXT, ""},
        {"{\"choices\":[{\"message\":{\"content\":\"x\"}}]}", 200, HTTP_TROUBLE,
         "in the middle"},
        {"{\"choices\":[{\"finish_reason\":\"content_filter\",\"message\":{}}]"
         "}",
         200, HTTP_REFUSED, "filter"},
        {"{\"choices\":[{\"finish_reason\":\"abort\",\"message\":{}}]}", 200,
         HTTP_TROUBLE, "gave up"},
        {"<html>", 200, HTTP_TROUBLE, "JSON"},
        {"[]", 200, HTTP_TROUBLE, "JSON"},
        {"", 200, HTTP_TROUBLE, "in the middle"},
        {"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n"
         "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n",
         200, HTTP_TROUBLE, "JSON"},
        {"data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n", 200,
         HTTP_REFUSED, "HTTP 400: no"},
        {"data: {\"error\":{\"message\":\"no\"}}\n\n", 200, HTTP_TROUBLE,
         "HTTP 500: no"},
        {"data: {\"error\":{\"message\":\"full\",\"code\":429}}\n\n", 200,
         HTTP_BUSY, "full"},
        {"{\"error\":{\"message\":\"a\\nb\\u001b\"}}", 400, HTTP_REFUSED,
         "HTTP 400: a"},
        {"{\"error\":\"plain\"}", 404, HTTP_REFUSED, "HTTP 404: plain"},
        {"{\"detail\":\"so\"}", 422, HTTP_REFUSED, "HTTP 422: so"},
        {"{\"object\":\"error\",\"message\":\"old\"}", 413, HTTP_REFUSED,
         "HTTP 413: old"},
        {"nothing", 401, HTTP_REFUSED, "HTTP 401"},
        {"", 408, HTTP_TROUBLE, "HTTP 408"},
        {"", 429, HTTP_BUSY, "HTTP 429"},
        {"", 503, HTTP_BUSY, "HTTP 503"},
        {"", 500, HTTP_TROUBLE, "HTTP 500"},
        {"", 204, HTTP_TROUBLE, "HTTP 204"},
        {"", 302, HTTP_TROUBLE, "HTTP 302"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct http_answer a;
        char why[SENTENCE_MAX];

        assert_int_equal(
            judge(&a, cases[i].body, 1000, cases[i].status, true, why),
            cases[i].outcome);
        assert_non_null(strstr(why, cases[i].why));
        assert_null(strpbrk(why, "\n\x1b"));
        http_answer_release(&a);
    }
}

/* Never more than a few megabytes, whatever comes. */
static void answers_without_end_are_hung_up_on(void **state)
{
    static const char *const pieces[] = {
        "x",
        "{\"a\":\"",
        "data: ",
        "data: x\n",
        ": comment\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"%x \"}}]}\n\n"};

    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct http_answer a;
        char piece[256], why[SENTENCE_MAX];
        uint64_t sent = 0;
        bool more = true;

        assert_int_equal(http_answer_init(&a, 4096), 0);
        for (unsigned n = 0; more; n++) {
            /* %x: a number that is another each time, so that nothing loops. */
            const char *hole = strstr(pieces[i], "%x");
            const size_t before = hole ? (size_t)(hole - pieces[i]) : 0;

            snprintf(piece, sizeof piece, "%s", pieces[i]);
            if (hole)
                snprintf(piece, sizeof piece, "%.*s%08x%s", (int)before,
                         pieces[i], n * 2654435761u, hole + 2);
            more = http_answer_add(&a, piece, strlen(piece));
            sent += strlen(piece);
            assert_true(sent < 16 << 20);
        }
        assert_int_equal(http_answer_judge(&a, 200, false, why, sizeof why),
                         HTTP_TROUBLE);
        assert_true(a.text.size + a.input.size + a.event.size < 16 << 20);
        http_answer_release(&a);
    }
}

static void a_looping_answer_is_hung_up_on_and_kept_short(void **state)
{
    static const char piece[] =
        "data: {\"choices\":[{\"delta\":{\"content\":\"no end \"}}]}\n\n";
    struct http_answer a;
    char why[SENTENCE_MAX];
    unsigned n = 0;

    (void)state;
    assert_int_equal(http_answer_init(&a, 4096), 0);
    while (http_answer_add(&a, piece, strlen(piece)))
        assert_true(n++ < 5000);
    assert_true(a.loops);
    assert_int_equal(http_answer_judge(&a, 200, false, why, sizeof why),
                     HTTP_TEXT);
    assert_true(ocr_repeat_keep(a.repeat) < 100);
    http_answer_release(&a);
}

/* ---- windows ------------------------------------------------------------ */

/* A server that works at `slots` requests at a time and lets others wait: the
 * window after `epochs`. */
static unsigned settle(struct http_window *w, unsigned slots, unsigned epochs)
{
    for (unsigned i = 0; i < epochs; i++) {
        const unsigned size = http_window_size(w);
        const int64_t took =
            (int64_t)(300.0 * (size > slots ? (double)size / slots : 1));

        for (unsigned k = 0; k < size; k++)
            http_window_ended(w, took, 1000, true);
    }
    return http_window_size(w);
}

static void windows_find_what_a_server_takes(void **state)
{
    struct http_window w;

    (void)state;
    http_window_init(&w);
    assert_int_equal(settle(&w, 1000, 4), WINDOW_MAX);
    http_window_init(&w);
    assert_in_range(settle(&w, 12, 100), 10, 24);
    http_window_init(&w);
    assert_in_range(settle(&w, 4, 100), 4, 12);
}

static void windows_that_are_not_filled_do_not_grow(void **state)
{
    struct http_window w;

    (void)state;
    http_window_init(&w);
    for (unsigned i = 0; i < 1000; i++)
        http_window_ended(&w, 300, 1000, false);
    assert_int_equal(http_window_size(&w), WINDOW_FIRST);
}

static void
windows_are_halved_once_for_refusals_that_come_together(void **state)
{
    struct http_window w;
    int64_t now = 1000;

    (void)state;
    http_window_init(&w);
    settle(&w, 1000, 10);
    for (unsigned i = 0; i < 50; i++)
        http_window_refused(&w, now + i);
    assert_int_equal(http_window_size(&w), WINDOW_MAX / 2);
    for (unsigned i = 0; i < 20; i++)
        http_window_refused(&w, now += 1000);
    assert_int_equal(http_window_size(&w), 1);
    assert_true(settle(&w, 1000, 200) > 4); /* and up again, slowly */
}

static void windows_follow_a_server_that_gets_slower(void **state)
{
    struct http_window w;

    (void)state;
    http_window_init(&w);
    settle(&w, 40, 50);
    assert_true(http_window_size(&w) > 20);
    assert_true(settle(&w, 4, 100) < 20);
}

/* ---- servers ------------------------------------------------------------ */

static void a_server_is_lost_and_found(void **state)
{
    const struct http_url url = {.place = (char[]){"here"}};
    struct http_server s;

    (void)state;
    http_server_init(&s, &url, 0);
    assert_false(http_server_has_room(&s, 0));
    http_server_found(&s);
    assert_true(http_server_has_room(&s, 0));
    http_server_failed(&s, 10, false, "once", 0.5);
    http_server_failed(&s, 10, false, "twice", 0.5);
    assert_true(s.up);
    http_server_answered(&s, 5, 100, false);
    http_server_failed(&s, 10, false, "once", 0.5);
    assert_true(s.up);
    http_server_failed(&s, 10, true, "gone", 0.5);
    assert_false(s.up);
    assert_string_equal(s.why, "gone");
    assert_in_range(s.probe_at_ms, 11, 10 + 10000);
    http_server_found(&s);
    http_server_refused(&s, 100, 3, 0.5);
    assert_false(http_server_has_room(&s, 3099));
    assert_true(http_server_has_room(&s, 3100));
    http_server_refused(&s, 4000, 999999999, 0.5);
    assert_true(http_server_has_room(&s, 4000 + 301 * 1000)); /* not for ever */
}

static void backoff_doubles_and_is_spread(void **state)
{
    (void)state;
    assert_int_equal(http_backoff_ms(100, 5000, 1, 0), 50);
    assert_int_equal(http_backoff_ms(100, 5000, 1, 1), 100);
    assert_int_equal(http_backoff_ms(100, 5000, 4, 1), 800);
    assert_int_equal(http_backoff_ms(100, 5000, 4000000000u, 1), 5000);
}

/* ---- addresses ---------------------------------------------------------- */

static void addresses_are_taken_apart(void **state)
{
    struct http_url url;

    (void)state;
    assert_int_equal(http_url_init(&url, "https://Host.example/v1//", NULL), 0);
    assert_string_equal(url.base, "https://Host.example/v1");
    assert_string_equal(url.place, "https://host.example:443");
    assert_true(url.tls);
    http_url_release(&url);
    assert_int_equal(http_url_init(&url, "http://[::1]:8000/v1", NULL), 0);
    assert_string_equal(url.place, "http://[::1]:8000");
    http_url_release(&url);
}

static void wrong_addresses_are_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        "host",
        "/v1",
        "ftp://host/v1",
        "file:///x",
        "http://",
        "http://me:secret@host/v1",
        "http://me@host/v1",
        "http://host/v1?key=secret",
        "http://host/v1#x",
        "http://host:99999/v1",
        "http://ho st/v1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct http_url url;
        struct ocr_err err = OCR_ERR_INIT;

        assert_int_equal(http_url_init(&url, wrong[i], &err), -EINVAL);
        if (strchr(wrong[i], '@'))
            assert_null(strstr(err.text, "secret"));
        http_url_release(&url);
    }
}

static void redirects_stay_with_their_origin(void **state)
{
    static const struct {
        const char *target;
        bool may;
    } cases[] = {
        {"http://host:8000/v2/x?y=z", true},
        {"http://HOST:8000/", true},
        {"https://host/", true},
        {"https://host:9999/", true},
        {"http://host/", false},
        {"http://host:8001/", false},
        {"http://host.evil:8000/", false},
        {"http://evil/host:8000", false},
        {"http://host:8000@evil/", false},
        {"file://host:8000/etc/passwd", false},
        {"", false},
    };
    struct http_url url, tls;

    (void)state;
    assert_int_equal(http_url_init(&url, "http://host:8000/v1", NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(http_url_may_redirect(&url, cases[i].target),
                         cases[i].may);
    http_url_release(&url);
    assert_int_equal(http_url_init(&tls, "https://host/v1", NULL), 0);
    assert_false(http_url_may_redirect(&tls, "http://host/v1"));
    assert_false(http_url_may_redirect(&tls, "http://host:443/v1"));
    http_url_release(&tls);
}

/* ---- keys --------------------------------------------------------------- */

static void keys_are_cleaned_and_scrubbed(void **state)
{
    char text[] = "no sk-1234 here, sk-1234!";
    struct http_config c;
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    assert_int_equal(
        http_config_init(&c, "url=http://h/v1\n", " sk-1234 \n", NULL), 0);
    assert_string_equal(c.key, "sk-1234");
    http_scrub(text, c.key);
    assert_string_equal(text, "no ******* here, *******!");
    http_scrub(text, "");
    http_config_release(&c);
    assert_int_equal(
        http_config_init(&c, "url=http://h/v1\n", "two words", &err), -EINVAL);
    http_config_release(&c);
    ocr_err_clear(&err);
    assert_int_equal(http_config_init(&c, "url=;\n", "", &err), -EINVAL);
    http_config_release(&c);
}

static void a_key_file_is_for_its_owner_alone(void **state)
{
    static const mode_t good[] = {0600, 0400}, bad[] = {0640, 0604, 0660, 0601};
    char path[] = "/tmp/test_http.XXXXXX", arguments[128];
    const int fd = mkstemp(path);
    struct http_config c;

    (void)state;
    assert_true(fd >= 0 && write(fd, "key-1\n", 6) == 6);
    snprintf(arguments, sizeof arguments, "url=http://h/v1\napi_key_file=%s\n",
             path);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ocr_err err = OCR_ERR_INIT;

        assert_int_equal(fchmod(fd, bad[i]), 0);
        assert_int_equal(http_config_init(&c, arguments, "", &err), -EPERM);
        assert_non_null(strstr(err.text, "chmod 600"));
        http_config_release(&c);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(fchmod(fd, good[i]), 0);
        assert_int_equal(http_config_init(&c, arguments, "other", NULL), 0);
        assert_string_equal(c.key, "key-1");
        assert_false(http_config_renew_key(&c));
        http_config_release(&c);
    }
    close(fd);
    unlink(path);
    assert_int_equal(http_config_init(&c, arguments, "", NULL), -ENOENT);
    http_config_release(&c);
}

/* ---- models ------------------------------------------------------------- */

static void models_are_chosen(void **state)
{
    static const struct {
        const char *body, *wanted, *chosen; /* NULL: none */
    } cases[] = {
        {"{\"data\":[{\"id\":\"a\"}]}", "", "a"},
        {"{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}", "", NULL},
        {"{\"data\":[{\"id\":\"a\"},{\"id\":\"my-OCR-1\"}]}", "", "my-OCR-1"},
        {"{\"data\":[{\"id\":\"ocr1\"},{\"id\":\"ocr2\"}]}", "", NULL},
        {"{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}", "b", "b"},
        {"{\"data\":[{\"id\":\"a\"}]}", "b", NULL},
        {"{\"data\":[]}", "", NULL},
        {"{\"data\":[{\"id\":\"a\\nb\"}]}", "", NULL},
        {"{\"data\":[{\"id\":7},{},\"x\"]}", "", NULL},
        {"{\"data\":{}}", "", NULL},
        {"<html>", "", NULL},
        {"", "", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[NAME_MAX_LEN];
        struct ocr_err err = OCR_ERR_INIT;
        const int rc = http_models_choose(cases[i].body, strlen(cases[i].body),
                                          cases[i].wanted, name, &err);

        assert_int_equal(rc == 0, cases[i].chosen != NULL);
        if (cases[i].chosen)
            assert_string_equal(name, cases[i].chosen);
        else
            assert_true(err.text[0] && !strchr(err.text, '\n'));
    }
}

/* ---- bodies ------------------------------------------------------------- */

static size_t decode_base64(const char *text, uint8_t *out)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = 0, value = 0;
    size_t n = 0;

    for (; *text && *text != '='; text++) {
        const char *at = strchr(letters, *text);

        assert_non_null(at);
        value = value << 6 | (unsigned)(at - letters);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[n++] = (uint8_t)(value >> bits);
        }
    }
    return n;
}

static void base64_in_pieces_of_any_size(void **state)
{
    uint8_t in[10000], out[10000];

    (void)state;
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t len = 0; len < 40; len++)
        for (size_t step = 1; step < 9; step++) {
            struct ocr_buf text;
            struct http_base64 b = {.out = &text};

            ocr_buf_init(&text, 1000);
            for (size_t at = 0; at < len; at += step)
                http_base64_add(&b, in + at, len - at < step ? len - at : step);
            http_base64_end(&b);
            assert_int_equal(text.len, (len + 2) / 3 * 4);
            if (len) {
                assert_int_equal(decode_base64(text.data, out), len);
                assert_memory_equal(in, out, len);
            }
            ocr_buf_release(&text);
        }
}

static void *allocate(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

/* The body as a server sees it: JSON, with the very pixels. */
static void check_body(uint32_t channels)
{
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {.alloc = allocate};
    uint8_t pixels[56 * 28 * 3], *png;
    struct ocr_image page = {.width = 56,
                             .height = 28,
                             .channels = channels,
                             .pixels = pixels},
                     back;
    static const char head[] = "data:image/png;base64,";
    const char *url = NULL, *prompt = NULL, *model = NULL;
    double penalty = 0;
    char *body;
    json_t *root;
    size_t len;

    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 40503u >> 4);
    assert_int_equal(http_body_make(&body, &len, &page,
                                    "prompt=say \"it\"\\\n"
                                    "repetition_penalty=1.25\n",
                                    "na\"me", NULL),
                     0);
    root = json_loadb(body, len, 0, NULL);
    assert_int_equal(json_unpack(root, "{s:s, s:f, s:[{s:[{s:{s:s}}, {s:s}]}]}",
                                 "model", &model, "repetition_penalty",
                                 &penalty, "messages", "content", "image_url",
                                 "url", &url, "text", &prompt),
                     0);
    assert_string_equal(model, "na\"me");
    assert_string_equal(prompt, "say \"it\"\\");
    assert_true(penalty == 1.25);
    assert_memory_equal(url, head, strlen(head));
    png = malloc(strlen(url));
    assert_non_null(png);
    len = decode_base64(url + strlen(head), png);
    assert_int_equal(ocr_image_decode(&back, png, len, &limits, &alloc, NULL),
                     0);
    assert_int_equal(back.width, 56);
    assert_int_equal(back.channels, channels);
    assert_memory_equal(back.pixels, pixels, ocr_image_bytes(&page));
    free(back.pixels);
    free(png);
    json_decref(root);
    free(body);
}

static void a_body_holds_the_pixels_and_the_settings(void **state)
{
    (void)state;
    check_body(1);
    check_body(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_a_text_however_it_is_cut),
        cmocka_unit_test(half_a_stream_is_no_text),
        cmocka_unit_test(answers_and_what_they_amount_to),
        cmocka_unit_test(answers_without_end_are_hung_up_on),
        cmocka_unit_test(a_looping_answer_is_hung_up_on_and_kept_short),
        cmocka_unit_test(windows_find_what_a_server_takes),
        cmocka_unit_test(windows_that_are_not_filled_do_not_grow),
        cmocka_unit_test(
            windows_are_halved_once_for_refusals_that_come_together),
        cmocka_unit_test(windows_follow_a_server_that_gets_slower),
        cmocka_unit_test(a_server_is_lost_and_found),
        cmocka_unit_test(backoff_doubles_and_is_spread),
        cmocka_unit_test(addresses_are_taken_apart),
        cmocka_unit_test(wrong_addresses_are_refused),
        cmocka_unit_test(redirects_stay_with_their_origin),
        cmocka_unit_test(keys_are_cleaned_and_scrubbed),
        cmocka_unit_test(a_key_file_is_for_its_owner_alone),
        cmocka_unit_test(models_are_chosen),
        cmocka_unit_test(base64_in_pieces_of_any_size),
        cmocka_unit_test(a_body_holds_the_pixels_and_the_settings),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
