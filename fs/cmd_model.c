/* fs/cmd_model.c - `ocrfs model list|fetch|add|check`: folders of models. */
#include "engine/base/log.h"
#include "fs/commands.h"
#include "fs/model_fetch.h"
#include "fs/models.h"
#include "fs/words.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NAMES_MAX = 32
};

/* What stands on the command line. */
struct request {
    char home[PATH_MAX]; /* the folder of models that is written to */
    char **names;
    int count;
};

/* ---- list --------------------------------------------------------------- */

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_published(const char *name)
{
    size_t count;
    const struct ocr_published *p = ocr_models_published(&count);

    for (size_t i = 0; i < count; i++)
        if (!strcmp(p[i].name, name))
            return true;
    return false;
}

static int print_model(void *arg, const char *path)
{
    (void)arg;
    printf("%-28s%s\n", last_name(path), path);
    return 0;
}

/* For ocr_models_each: ends at the model of this name. */
struct search {
    const char *name;
    char path[PATH_MAX];
};

static int is_it(void *arg, const char *path)
{
    struct search *search = arg;

    if (strcmp(last_name(path), search->name) != 0)
        return 0;
    snprintf(search->path, sizeof search->path, "%s", path);
    return 1;
}

static int for_all(int (*each)(void *arg, const char *path), void *arg)
{
    char folder[PATH_MAX];
    int rc = 0;

    for (int where = 0; where < OCR_MODELS_PLACES && rc == 0; where++)
        if (ocr_models_folder((enum ocr_models_where)where, folder,
                              sizeof folder))
            rc = ocr_models_each(folder, each, arg);
    return rc;
}

static bool find_model(struct search *search, const char *name)
{
    search->name = name;
    return for_all(is_it, search) == 1;
}

static bool is_begun(const char *home, const char *name)
{
    char part[PATH_MAX];

    return (size_t)snprintf(part, sizeof part, "%s/.%s.part", home, name) <
               sizeof part &&
           access(part, F_OK) == 0;
}

static int list(const struct request *request)
{
    size_t count;
    const struct ocr_published *p = ocr_models_published(&count);
    struct search search;

    for_all(print_model, NULL);
    for (size_t i = 0; i < count; i++)
        if (!find_model(&search, p[i].name))
            printf("%-28s%s; %s\n", p[i].name,
                   is_begun(request->home, p[i].name) ? "begun, fetch goes on"
                                                      : "not here",
                   p[i].about);
    return 0;
}

/* ---- fetch and add ------------------------------------------------------ */

static int say_unknown(const char *name)
{
    const char *names[NAMES_MAX];
    const char *near;
    size_t count;
    const struct ocr_published *p = ocr_models_published(&count);

    for (size_t i = 0; i < count; i++)
        names[i] = p[i].name;
    near = ocr_word_nearest(name, names, count);
    if (near)
        ocr_error("there is no model %s (did you mean %s?)", name, near);
    else
        ocr_error("there is no model %s (ocrfs model list names them; others "
                  "as OWNER/NAME)",
                  name);
    return 2;
}

/* "OWNER/NAME" of what was asked for; false if it can be none. */
static bool repository(const char *name, char *out, size_t size)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const size_t owner = strcspn(name, "/");

    if (is_published(name))
        return (size_t)snprintf(out, size, "lightonai/%s", name) < size;
    if (strspn(name, letters) != owner || !owner || name[owner] != '/' ||
        !name[owner + 1] || name[owner + 1] == '.' || name[0] == '.' ||
        name[owner + 1 + strspn(name + owner + 1, letters)])
        return false;
    return (size_t)snprintf(out, size, "%s", name) < size;
}

static int say_done(const char *path, int rc, const struct ocr_err *err)
{
    if (rc) {
        ocr_error("%s", err->text);
        return 1;
    }
    printf("%s is ready\n", path);
    return 0;
}

static int fetch(const struct request *request)
{
    int status = 0;

    for (int i = 0; i < request->count; i++) {
        struct ocr_err err = OCR_ERR_INIT;
        char repo[200], path[PATH_MAX];
        int rc;

        if (!repository(request->names[i], repo, sizeof repo))
            return say_unknown(request->names[i]);
        rc = ocr_model_fetch(repo, request->home, path, &err);
        status |= say_done(path, rc, &err);
    }
    return status;
}

static int add(const struct request *request)
{
    int status = 0;

    for (int i = 0; i < request->count; i++) {
        struct ocr_err err = OCR_ERR_INIT;
        char path[PATH_MAX];
        const int rc =
            ocr_model_add(request->names[i], request->home, path, &err);

        status |= say_done(path, rc, &err);
    }
    return status;
}

/* ---- check -------------------------------------------------------------- */

struct checked {
    unsigned good, bad;
};

static int check_one(void *arg, const char *path)
{
    struct checked *checked = arg;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf details;
    unsigned known = 0;
    int rc;

    ocr_buf_init(&details, 4096);
    rc = ocr_models_check(path, &details, &err);
    if (!rc)
        rc = ocr_models_check_sums(path, &known, &err);
    if (rc)
        ocr_error("%s: %s", path, err.text);
    else
        printf("%s: %s; %u files have the content that was published or "
               "fetched\n",
               path, details.data ? details.data : "whole", known);
    checked->good += !rc;
    checked->bad += rc != 0;
    ocr_buf_release(&details);
    return 0;
}

/* A folder, or the name of a model that is here. */
static void check_named(struct checked *checked, const char *name)
{
    struct search search;
    struct stat st;

    if (!strchr(name, '/') && find_model(&search, name))
        check_one(checked, search.path);
    else if (stat(name, &st) == 0 && S_ISDIR(st.st_mode))
        check_one(checked, name);
    else {
        ocr_error("there is no model %s here (ocrfs model list)", name);
        checked->bad++;
    }
}

static int check(const struct request *request)
{
    struct checked checked = {0, 0};

    for (int i = 0; i < request->count; i++)
        check_named(&checked, request->names[i]);
    if (!request->count)
        for_all(check_one, &checked);
    if (!checked.good && !checked.bad) {
        ocr_error("there is no model here; try: ocrfs model fetch "
                  "LightOnOCR-2-1B");
        return 1;
    }
    return checked.bad ? 1 : 0;
}

/* ---- the command -------------------------------------------------------- */

static const struct {
    const char *name;
    int least; /* names that it needs */
    int (*run)(const struct request *request);
} actions[] = {
    {"list", 0, list},
    {"fetch", 1, fetch},
    {"add", 1, add},
    {"check", 0, check},
};

static int usage(void)
{
    ocr_error("usage: ocrfs model list|fetch|add|check [--system] [NAME...] "
              "(try ocrfs model --help)");
    return 2;
}

int cmd_model(int argc, char **argv)
{
    const bool for_all_users = cmd_take("--system", &argc, argv);
    struct request request = {.names = argv + 2, .count = argc - 2};
    size_t action = 0;

    while (action < sizeof actions / sizeof *actions &&
           (argc < 2 || strcmp(argv[1], actions[action].name) != 0))
        action++;
    if (action == sizeof actions / sizeof *actions ||
        request.count < actions[action].least)
        return usage();
    for (int i = 0; i < request.count; i++)
        if (request.names[i][0] == '-') {
            ocr_error("unknown option '%s'", request.names[i]);
            return 2;
        }
    if (!ocr_models_folder(for_all_users ? OCR_MODELS_LOCAL : OCR_MODELS_USER,
                           request.home, sizeof request.home)) {
        ocr_error("you have no home folder for models; see --system");
        return 2;
    }
    return actions[action].run(&request);
}
