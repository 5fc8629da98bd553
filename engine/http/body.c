/* The body of POST /chat/completions: one user message with one picture. */
#include "engine/http/http_i.h"

#include "engine/image/encode.h"
#include "engine/image/resize.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS_DEFAULT = 4096,
    TOKENS_MAX = 1 << 20,
};
#define BODY_MAX ((size_t)256 << 20)

/* ---- settings ----------------------------------------------------------- */

static double number(const char *settings, const char *name, double preset)
{
    char text[32], *end;
    double value;

    ocr_setting(settings, name, "", text, sizeof text);
    value = strtod(text, &end);
    return end == text ? preset : value;
}

uint32_t http_settings_max_tokens(const char *settings)
{
    const double asked = number(settings, "max_tokens", TOKENS_DEFAULT);

    return asked < 1 ? 1 : asked > TOKENS_MAX ? TOKENS_MAX : (uint32_t)asked;
}

static uint32_t multiple_of(const char *settings)
{
    return number(settings, "patch_multiple", 28) < 28 ? 14 : 28;
}

int http_settings_check(const char *settings, struct ocr_err *err)
{
    char prompt[PROMPT_MAX + 2];

    ocr_setting(settings, "prompt", "", prompt, sizeof prompt);
    if (strlen(prompt) > PROMPT_MAX)
        return ocr_err_set(err, -E2BIG, "the prompt is longer than %d bytes",
                           PROMPT_MAX);
    return 0;
}

/* ---- JSON around the picture -------------------------------------------- */

static void put_string(struct ocr_buf *out, const char *text)
{
    json_t *value = json_string(text);
    char *encoded = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;

    if (encoded)
        ocr_buf_puts(out, encoded);
    else
        out->failed = true;
    free(encoded);
    json_decref(value);
}

static void put_head(struct ocr_buf *out, const char *settings,
                     const char *model)
{
    const double penalty = number(settings, "repetition_penalty", 1);

    ocr_buf_puts(out, "{\"model\":");
    put_string(out, model);
    ocr_buf_printf(out,
                   ",\"stream\":true,\"max_tokens\":%u,\"temperature\":%.6g,"
                   "\"top_p\":%.6g",
                   http_settings_max_tokens(settings),
                   number(settings, "temperature", 0),
                   number(settings, "top_p", 1));
    /* Not part of the API as it was written down: only where it is wanted. */
    if (penalty != 1)
        ocr_buf_printf(out, ",\"repetition_penalty\":%.6g", penalty);
    ocr_buf_puts(out, ",\"messages\":[{\"role\":\"user\",\"content\":[{"
                      "\"type\":\"image_url\",\"image_url\":{\"url\":"
                      "\"data:image/png;base64,");
}

static void put_tail(struct ocr_buf *out, const char *settings)
{
    char prompt[PROMPT_MAX + 2];

    ocr_setting(settings, "prompt", "", prompt, sizeof prompt);
    ocr_buf_puts(out, "\"}}");
    if (*prompt) {
        ocr_buf_puts(out, ",{\"type\":\"text\",\"text\":");
        put_string(out, prompt);
        ocr_buf_putc(out, '}');
    }
    ocr_buf_puts(out, "]}]}");
}

/* ---- the picture -------------------------------------------------------- */

/* The pixels at the size the model reads, malloc'd unless they have it. */
static int resize(const struct ocr_image *image, uint32_t width,
                  uint32_t height, uint8_t **out, struct ocr_err *err)
{
    if (image->width == width && image->height == height)
        return 0;
    *out = malloc((size_t)width * height * image->channels);
    if (!*out)
        return ocr_err_set(err, -ENOMEM, "no memory to resize the page");
    return ocr_resize_bicubic(image->pixels, image->width, image->height,
                              image->channels, *out, width, height, err);
}

static int put_picture(struct ocr_buf *out, const struct ocr_image *image,
                       const char *settings, struct ocr_err *err)
{
    struct http_base64 base64 = {.out = out};
    uint8_t *resized = NULL;
    uint32_t width, height;
    int rc;

    ocr_resize_size(image->width, image->height, LONGEST_EDGE,
                    multiple_of(settings), &width, &height);
    rc = resize(image, width, height, &resized, err);
    if (!rc)
        rc = ocr_png_encode(resized ? resized : image->pixels, width, height,
                            image->channels, http_base64_add, &base64, err);
    http_base64_end(&base64);
    free(resized);
    return rc;
}

int http_body_make(char **out, size_t *len, const struct ocr_image *image,
                   const char *settings, const char *model, struct ocr_err *err)
{
    struct ocr_buf body;
    int rc;

    ocr_buf_init(&body, BODY_MAX);
    put_head(&body, settings, model);
    rc = put_picture(&body, image, settings, err);
    put_tail(&body, settings);
    if (!rc && !(*out = ocr_buf_detach(&body, len)))
        rc = ocr_err_set(err, -ENOMEM, "no memory for another page");
    ocr_buf_release(&body);
    return rc;
}
