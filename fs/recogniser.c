/* fs/recogniser.c - which recogniser the options mean, and what it is told. */
#include "fs/models.h"
#include "fs/options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_TOKENS_LOADED = 4096,
    MAX_TOKENS_EVER = 1 << 20
};

static bool is_engine(const struct ocr_options *o, const char *name)
{
    return !strcmp(o->engine, name);
}

const char *ocr_options_recogniser(const struct ocr_options *o)
{
    if (is_engine(o, "auto"))
        return o->url[0] ? "http" : o->model[0] ? "lighton" : "tesseract";
    return strncmp(o->engine, "null:", 5) ? o->engine : "null";
}

static bool reads_with_model(const struct ocr_options *o)
{
    return !strcmp(ocr_options_recogniser(o), "lighton");
}

static bool reads_elsewhere(const struct ocr_options *o)
{
    return !strcmp(ocr_options_recogniser(o), "http");
}

void ocr_options_engine(const struct ocr_options *o, char *out, size_t size)
{
    char memory[32] = "", longer[32] = "";

    if (reads_elsewhere(o)) {
        snprintf(out, size, "http:url=%s\napi_key_file=%s\nsilence=%u\n",
                 o->url, o->api_key_file, o->http_timeout_s);
        return;
    }
    if (!reads_with_model(o)) {
        snprintf(out, size, "%s",
                 is_engine(o, "auto") ? "tesseract" : o->engine);
        return;
    }
    if (o->gpu_memory)
        snprintf(memory, sizeof memory, ":memory=%ju",
                 (uintmax_t)o->gpu_memory);
    /* It is loaded for so many at least, and shared by all who ask for no
     * more. */
    if (o->max_tokens > MAX_TOKENS_LOADED)
        snprintf(longer, sizeof longer, ":max_tokens=%u",
                 o->max_tokens < MAX_TOKENS_EVER ? o->max_tokens
                                                 : MAX_TOKENS_EVER);
    snprintf(out, size, "lighton:precision=%s:patch_multiple=%s%s%s",
             o->precision, o->patch_multiple, memory, longer);
}

/* What decides about pixels; nothing where all is as always. */
static void page_settings(const struct ocr_options *o, struct ocr_buf *out)
{
    if (o->partial)
        ocr_buf_puts(out, "partial=1\n");
    if (!strcmp(o->pdf, "text"))
        ocr_buf_puts(out, "pdf=text\n");
}

static void http_settings(const struct ocr_options *o, struct ocr_buf *out)
{
    ocr_buf_printf(out, "max_tokens=%u\n", o->max_tokens);
    page_settings(o, out);
    ocr_buf_printf(out, "patch_multiple=%s\n", o->patch_multiple);
    if (o->prompt[0])
        ocr_buf_printf(out, "prompt=%s\n", o->prompt);
    ocr_buf_printf(out,
                   "repetition_penalty=%g\ntables=%s\ntemperature=%g\n"
                   "top_p=%g\n",
                   o->repetition_penalty, o->tables, o->temperature, o->top_p);
}

void ocr_options_settings(const struct ocr_options *o, struct ocr_buf *out)
{
    if (reads_elsewhere(o)) {
        http_settings(o, out);
        return;
    }
    if (reads_with_model(o)) {
        ocr_buf_printf(out, "max_tokens=%u\n", o->max_tokens);
        page_settings(o, out);
        ocr_buf_printf(out,
                       "patch_multiple=%s\nprecision=%s\n"
                       "repetition_penalty=%g\ntables=%s\ntemperature=%g\n"
                       "top_p=%g\n",
                       o->patch_multiple, o->precision, o->repetition_penalty,
                       o->tables, o->temperature, o->top_p);
        return;
    }
    ocr_buf_printf(out, "lang=%s\n", o->lang);
    page_settings(o, out);
    ocr_buf_printf(out, "tables=%s\n", o->tables);
}

/* ---- servers ------------------------------------------------------------ */

static bool is_here(const char *url)
{
    static const char *const hosts[] = {"localhost", "127.", "[::1]"};
    const char *host = strstr(url, "://");

    for (size_t i = 0; host && i < sizeof hosts / sizeof *hosts; i++)
        if (!strncasecmp(host + 3, hosts[i], strlen(hosts[i])))
            return true;
    return false;
}

bool ocr_options_say_sent(const struct ocr_options *o, struct ocr_buf *out)
{
    const char *end = o->url + strlen(o->url);
    bool leaves = false;

    if (!reads_elsewhere(o))
        return false;
    for (const char *at = o->url; at < end; at += strcspn(at, ";") + 1)
        leaves = leaves || (*at != ';' && !is_here(at));
    ocr_buf_puts(out, leaves ? "image bytes leave this machine, to "
                             : "image bytes go to a server on this machine, ");
    for (const char *at = o->url; at < end; at++)
        if (*at == ';')
            ocr_buf_puts(out, ", ");
        else
            ocr_buf_putc(out, *at);
    return leaves;
}

/* ---- finding a model -------------------------------------------------------
 */

static char *find_model(void)
{
    char folder[PATH_MAX], found[PATH_MAX];

    for (int where = 0; where < OCR_MODELS_PLACES; where++)
        if (ocr_models_folder((enum ocr_models_where)where, folder,
                              sizeof folder) &&
            ocr_models_first(folder, found))
            return strdup(found);
    return NULL;
}

static void say_place(struct ocr_buf *out, const char *folder)
{
    char found[PATH_MAX];

    ocr_buf_printf(out, ", %s (%s)", folder,
                   ocr_models_first(folder, found) ? strrchr(found, '/') + 1
                   : access(folder, F_OK) == 0 ? "no folder with a config.json"
                                               : "is not there");
}

void ocr_options_model_places(struct ocr_buf *out)
{
    const char *named = getenv("OCRFS_MODEL");
    char folder[PATH_MAX];

    ocr_buf_printf(out, "$OCRFS_MODEL (%s)",
                   named && *named ? named : "not set");
    for (int where = 0; where < OCR_MODELS_PLACES; where++)
        if (ocr_models_folder((enum ocr_models_where)where, folder,
                              sizeof folder))
            say_place(out, folder);
}

static int no_model(struct ocr_err *err)
{
    struct ocr_buf places;
    int rc;

    ocr_buf_init(&places, 4 * PATH_MAX);
    ocr_options_model_places(&places);
    rc = ocr_err_set(err, -ENOENT,
                     "engine=lighton needs a model: name its folder with "
                     "model=DIR; there is none at %s",
                     places.failed ? "the usual places" : places.data);
    ocr_buf_release(&places);
    return rc;
}

static int settle_server(struct ocr_options *o, struct ocr_err *err)
{
    char *name = strdup(o->model_name ? o->model_name : "");

    if (!name)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    free(o->model);
    o->model = name;
    if (o->url[strspn(o->url, ";")])
        return 0;
    return ocr_err_set(err, -EINVAL,
                       "engine=http needs a server: name it with "
                       "url=http://HOST:8000/v1");
}

int ocr_options_settle(struct ocr_options *o, struct ocr_err *err)
{
    const char *named = getenv("OCRFS_MODEL");
    char *found;

    if (reads_elsewhere(o))
        return settle_server(o, err);
    if (o->model_from && *o->model_from)
        return ocr_err_set(err, -EINVAL,
                           "%soption 'model': '%s' must begin with / or ~/",
                           o->model_from, o->model);
    if (o->model[0] || !(is_engine(o, "auto") || is_engine(o, "lighton")))
        return 0;
    if (named && *named && named[0] != '/')
        return ocr_err_set(err, -EINVAL,
                           "OCRFS_MODEL=%s: the folder must begin with /",
                           named);
    found = named && *named ? strdup(named) : find_model();
    if (!found)
        return is_engine(o, "auto") ? 0 : no_model(err);
    free(o->model);
    o->model = found;
    o->model_found = true;
    return 0;
}

int ocr_options_check_model(const struct ocr_options *o, struct ocr_err *err)
{
    struct stat st;

    if (!reads_with_model(o) || ocr_models_is_model(o->model))
        return 0;
    if (stat(o->model, &st))
        return ocr_err_errno(err, "model %s", o->model);
    return ocr_err_set(err, -ENOENT, "model %s: %s", o->model,
                       S_ISDIR(st.st_mode)
                           ? "there is no config.json in this folder"
                           : "that is no folder");
}
