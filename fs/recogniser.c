/* fs/recogniser.c - which recogniser the options mean, and what it is told. */
#include "fs/options.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_engine(const struct ocr_options *o, const char *name)
{
    return !strcmp(o->engine, name);
}

const char *ocr_options_recogniser(const struct ocr_options *o)
{
    if (is_engine(o, "auto"))
        return o->model[0] ? "lighton" : "tesseract";
    return strncmp(o->engine, "null:", 5) ? o->engine : "null";
}

static bool reads_with_model(const struct ocr_options *o)
{
    return !strcmp(ocr_options_recogniser(o), "lighton");
}

void ocr_options_engine(const struct ocr_options *o, char *out, size_t size)
{
    char memory[32] = "";

    if (o->gpu_memory)
        snprintf(memory, sizeof memory, ":memory=%ju",
                 (uintmax_t)o->gpu_memory);
    if (reads_with_model(o))
        snprintf(out, size, "lighton:precision=%s:patch_multiple=%s%s",
                 o->precision, o->patch_multiple, memory);
    else
        snprintf(out, size, "%s",
                 is_engine(o, "auto") ? "tesseract" : o->engine);
}

void ocr_options_settings(const struct ocr_options *o, struct ocr_buf *out)
{
    if (reads_with_model(o)) {
        ocr_buf_printf(out, "max_tokens=%u\n", o->max_tokens);
        if (o->partial)
            ocr_buf_puts(out, "partial=1\n");
        ocr_buf_printf(out,
                       "patch_multiple=%s\nprecision=%s\n"
                       "repetition_penalty=%g\ntables=%s\ntemperature=%g\n"
                       "top_p=%g\n",
                       o->patch_multiple, o->precision, o->repetition_penalty,
                       o->tables, o->temperature, o->top_p);
        return;
    }
    ocr_buf_printf(out, "lang=%s\n", o->lang);
    if (o->partial)
        ocr_buf_puts(out, "partial=1\n");
    ocr_buf_printf(out, "tables=%s\n", o->tables);
}

/* ---- finding a model -------------------------------------------------------
 */

static bool is_model(const char *folder)
{
    char path[PATH_MAX];

    return (size_t)snprintf(path, sizeof path, "%s/config.json", folder) <
               sizeof path &&
           access(path, R_OK) == 0;
}

/* The first model folder in `folder` by name: two machines with the same
 * folders choose the same. */
static char *model_in(const char *folder)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);
    char *found = NULL, path[PATH_MAX];

    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;

        if (!found && name[0] != '.' &&
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) <
                sizeof path &&
            is_model(path))
            found = strdup(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return found;
}

static char *find_model(void)
{
    const char *named = getenv("OCRFS_MODEL");
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char folder[PATH_MAX];
    char *found = NULL;

    if (named && named[0] == '/' && is_model(named))
        return strdup(named);
    if (data && data[0] == '/')
        snprintf(folder, sizeof folder, "%s/ocrfs/models", data);
    else
        snprintf(folder, sizeof folder, "%s/.local/share/ocrfs/models",
                 home && home[0] == '/' ? home : "");
    found = model_in(folder);
    return found ? found : model_in("/usr/share/ocrfs/models");
}

int ocr_options_settle(struct ocr_options *o, struct ocr_err *err)
{
    char *found;

    if (o->model[0] || !(is_engine(o, "auto") || is_engine(o, "lighton")))
        return 0;
    found = find_model();
    if (found) {
        free(o->model);
        o->model = found;
        return 0;
    }
    if (is_engine(o, "auto"))
        return 0;
    return ocr_err_set(err, -ENOENT,
                       "engine=lighton needs a model: name its folder with "
                       "model=DIR, or put it into "
                       "~/.local/share/ocrfs/models");
}
