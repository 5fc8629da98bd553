/* What a server says, to a text. It may say anything: a stream of events (the
 * usual), one JSON object (a server that does not stream), an error page, half
 * of any of these, or bytes without end. Only an answer that ends as an answer
 * ends (a finish_reason) is a text. */
#include "engine/http/http_i.h"

#include "engine/base/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_MAX = 1 << 20,
    RECEIVED_LEAST = 2 << 20, /* and so much for each token beside it: */
    RECEIVED_TOKEN = 1024,
    TOKENS_COUNTED = 1 << 16,
    BODY_OF_ERROR = 64 << 10,
};

enum format {
    UNKNOWN,
    STREAM,
    WHOLE
};

int http_answer_init(struct http_answer *a, uint32_t max_tokens)
{
    const uint32_t tokens =
        max_tokens < TOKENS_COUNTED ? max_tokens : TOKENS_COUNTED;

    *a = (struct http_answer){0};
    ocr_buf_init(&a->input, 2 * TEXT_MAX);
    ocr_buf_init(&a->event, 2 * TEXT_MAX);
    ocr_buf_init(&a->text, TEXT_MAX);
    a->received_max = RECEIVED_LEAST + (uint64_t)tokens * RECEIVED_TOKEN;
    a->repeat = ocr_repeat_new();
    return a->repeat ? 0 : -ENOMEM;
}

void http_answer_release(struct http_answer *a)
{
    ocr_buf_release(&a->input);
    ocr_buf_release(&a->event);
    ocr_buf_release(&a->text);
    ocr_repeat_free(a->repeat);
    a->repeat = NULL;
}

/* ---- words for people --------------------------------------------------- */

static const char *text_at(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

/* Servers differ in where they put the reason. */
static const char *reason_in(const json_t *object)
{
    const json_t *error = json_object_get(object, "error");
    const char *found = text_at(error, "message");

    if (!found)
        found = json_string_value(error);
    if (!found)
        found = text_at(object, "message");
    return found ? found : text_at(object, "detail");
}

void http_error_words(const char *body, size_t len, char *out, size_t size)
{
    json_t *object = json_loadb(body, len, 0, NULL);
    const char *words = reason_in(object);

    *out = '\0';
    if (words)
        ocr_log_escape(out, size, words, strlen(words));
    json_decref(object);
}

static void keep_words(struct http_answer *a, const char *words)
{
    if (words && !*a->said)
        ocr_log_escape(a->said, sizeof a->said, words, strlen(words));
}

/* ---- one object --------------------------------------------------------- */

static void add_text(struct http_answer *a, const char *text, size_t len)
{
    ocr_buf_add(&a->text, text, len);
    a->too_long = a->too_long || a->text.failed;
    for (size_t i = 0; i < len && !a->loops; i++)
        a->loops = ocr_repeat_add(a->repeat, (unsigned char)text[i]);
}

/* A string, or a list of parts with texts. */
static void add_content(struct http_answer *a, const json_t *content)
{
    const json_t *part;
    size_t i;

    if (json_is_string(content))
        add_text(a, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");

        if (json_is_string(text))
            add_text(a, json_string_value(text), json_string_length(text));
    }
}

static void take_end(struct http_answer *a, const char *reason)
{
    if (!reason || !*reason)
        return;
    if (!strcmp(reason, "abort") || !strcmp(reason, "error")) {
        a->broken = true;
        keep_words(a, "it gave up in the middle of the page");
        return;
    }
    a->finished = true;
    a->cut = !strcmp(reason, "length");
    a->filtered = !strcmp(reason, "content_filter");
}

static void take_error(struct http_answer *a, const json_t *object)
{
    const json_t *code =
        json_object_get(json_object_get(object, "error"), "code");

    a->error_code = json_is_integer(code) ? (long)json_integer_value(code) : 0;
    if (a->error_code < 400 || a->error_code > 599)
        a->error_code = 500;
    keep_words(a, reason_in(object));
}

/* `part` is "delta" in a stream, else "message". */
static void take_object(struct http_answer *a, const char *text, size_t len,
                        const char *part)
{
    json_t *object = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    const json_t *choice =
        json_array_get(json_object_get(object, "choices"), 0);
    const json_t *error = json_object_get(object, "error");

    if (!json_is_object(object)) {
        a->broken = true;
    } else if (error && !json_is_null(error)) {
        take_error(a, object);
    } else if (choice) {
        add_content(a,
                    json_object_get(json_object_get(choice, part), "content"));
        take_end(a, text_at(choice, "finish_reason"));
    }
    json_decref(object);
}

/* ---- a stream of events ------------------------------------------------- */

static void end_event(struct http_answer *a)
{
    if (!a->event.len)
        return;
    if (!strcmp(a->event.data, "[DONE]"))
        a->ended = true;
    else
        take_object(a, a->event.data, a->event.len, "delta");
    ocr_buf_reset(&a->event);
}

static void take_line(struct http_answer *a)
{
    const char *line = a->input.data;
    size_t len = a->input.len;

    if (len && line[len - 1] == '\r')
        len--;
    if (len == 0) {
        end_event(a);
    } else if (len >= 5 && !memcmp(line, "data:", 5)) {
        const size_t skip = len > 5 && line[5] == ' ' ? 6 : 5;

        if (a->event.len)
            ocr_buf_putc(&a->event, '\n');
        ocr_buf_add(&a->event, line + skip, len - skip);
        a->too_long = a->too_long || a->event.failed;
    }
    ocr_buf_reset(&a->input);
}

static void add_stream(struct http_answer *a, const char *bytes, size_t len)
{
    while (len) {
        const char *end = memchr(bytes, '\n', len);
        const size_t n = end ? (size_t)(end - bytes) : len;

        ocr_buf_add(&a->input, bytes, n);
        if (a->input.failed)
            a->too_long = true;
        else if (end)
            take_line(a);
        bytes += n + (end != NULL);
        len -= n + (end != NULL);
    }
}

/* ---- bytes -------------------------------------------------------------- */

/* A stream begins with the name of a field or a comment; JSON does not. */
static enum format format_of(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (strchr(" \t\r\n", bytes[i]))
            continue;
        return bytes[i] && strchr(":deir", bytes[i]) ? STREAM : WHOLE;
    }
    return UNKNOWN;
}

void http_answer_reset(struct http_answer *a)
{
    const uint64_t most = a->received_max;
    struct ocr_repeat *repeat = a->repeat;
    const struct ocr_buf input = a->input, event = a->event, text = a->text;

    *a = (struct http_answer){.input = input,
                              .event = event,
                              .text = text,
                              .repeat = repeat,
                              .received_max = most};
    ocr_buf_reset(&a->input);
    ocr_buf_reset(&a->event);
    ocr_buf_reset(&a->text);
}

bool http_answer_add(struct http_answer *a, const char *bytes, size_t len)
{
    a->received += len;
    if (a->received > a->received_max)
        a->too_long = true;
    if (a->format == UNKNOWN)
        a->format = format_of(bytes, len);
    if (a->format == STREAM) {
        add_stream(a, bytes, len);
    } else if (a->format == WHOLE) {
        ocr_buf_add(&a->input, bytes, len);
        a->too_long = a->too_long || a->input.failed;
    }
    return !a->too_long && !a->loops;
}

/* ---- the verdict -------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void say(char *why, size_t size,
                                                      const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
}

static enum http_outcome judge_status(struct http_answer *a, long status,
                                      char *why, size_t size)
{
    char words[SENTENCE_MAX] = "";

    if (*a->said)
        snprintf(words, sizeof words, "%s", a->said);
    else if (a->input.len)
        http_error_words(a->input.data,
                         a->input.len < BODY_OF_ERROR ? a->input.len
                                                      : BODY_OF_ERROR,
                         words, sizeof words);
    say(why, size, "HTTP %ld%s%.180s", status, *words ? ": " : "", words);
    if (status == 429 || status == 503 || status == 529)
        return HTTP_BUSY;
    if (status == 408 || status == 425 || status >= 500 || status < 400)
        return HTTP_TROUBLE;
    return HTTP_REFUSED;
}

static enum http_outcome judge_text(struct http_answer *a, bool whole,
                                    char *why, size_t size)
{
    if (a->format == STREAM && whole)
        end_event(a); /* the last empty line may be missing */
    else if (a->format == WHOLE && whole)
        take_object(a, a->input.data, a->input.len, "message");
    if (a->error_code)
        return judge_status(a, a->error_code, why, size);
    if (a->loops)
        return HTTP_TEXT; /* without the turns: that is no fault of anybody */
    if (a->too_long)
        say(why, size, "it answered more than a page can hold");
    else if (a->broken)
        say(why, size, "%s",
            *a->said ? a->said : "its answer is not what it should be (JSON)");
    else if (a->filtered)
        say(why, size, "its content filter refused the page");
    else if (!a->finished)
        say(why, size, "its answer ended in the middle");
    else
        return HTTP_TEXT;
    return a->filtered && !a->broken ? HTTP_REFUSED : HTTP_TROUBLE;
}

enum http_outcome http_answer_judge(struct http_answer *a, long status,
                                    bool whole, char *why, size_t size)
{
    *why = '\0';
    return status == 200 ? judge_text(a, whole, why, size)
                         : judge_status(a, status, why, size);
}
