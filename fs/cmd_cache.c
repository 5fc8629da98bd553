/* fs/cmd_cache.c - `ocrfs cache stat|verify|clear|forget|gc`: what the cache
 * holds, is it sound, away with it or with a part. Mounts may be using it
 * meanwhile. */
#include "cache/cache.h"
#include "engine/base/log.h"
#include "fs/cmd_cache_i.h"
#include "fs/commands.h"
#include "fs/options.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* "3.4 MiB", "17 bytes". */
static const char *size_words(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    size_t unit = 0;

    if (bytes < 1024) {
        snprintf(out, 32, "%" PRIu64 " bytes", bytes);
        return out;
    }
    for (; value >= 1024 && unit < 3; unit++)
        value /= 1024;
    snprintf(out, 32, "%.1f %s", value, units[unit]);
    return out;
}

static void print_date(const char *name, int64_t ns)
{
    const time_t seconds = ns / 1000000000;
    char date[64];
    struct tm tm;

    localtime_r(&seconds, &tm);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    printf("%-15s%s\n", name, date);
}

/* What stands behind the action. */
struct words {
    char **paths; /* NULL-terminated */
    int count;
    const char *unseen; /* of --unseen, NULL if not given */
};

static int cache_stat(struct ocr_cache *c, const struct words *words,
                      struct ocr_err *err)
{
    struct ocr_cache_stat stat;
    char size[32];
    const int code = ocr_cache_stat(c, &stat, err);

    (void)words;
    if (code)
        return code;
    printf("%-15s%s\n", "folder", ocr_cache_path(c));
    printf("%-15s%s\n", "on disk", size_words(stat.disk_bytes, size));
    printf("%-15s%" PRIu64 ", %s\n", "texts", stat.texts,
           size_words(stat.text_bytes, size));
    printf("%-15s%" PRIu64 "\n", "evicted", stat.sizes - stat.texts);
    printf("%-15s%" PRIu64 "\n", "verdicts", stat.verdicts);
    printf("%-15s%" PRIu64 "\n", "known files", stat.files);
    if (stat.texts)
        print_date("oldest use", stat.oldest_use_ns);
    return 0;
}

static int cache_verify(struct ocr_cache *c, const struct words *words,
                        struct ocr_err *err)
{
    uint64_t rows, bad;
    const int code = ocr_cache_verify(c, &rows, &bad, err);

    (void)words;
    if (code)
        return code;
    printf("%" PRIu64 " rows checked, %" PRIu64 " damaged%s\n", rows, bad,
           bad ? " and removed" : "");
    return bad ? 1 : 0;
}

static int cache_clear(struct ocr_cache *c, const struct words *words,
                       struct ocr_err *err)
{
    const int code = ocr_cache_clear(c, err);

    (void)words;
    if (code == 0)
        printf("%s is empty\n", ocr_cache_path(c));
    return code;
}

static int cache_forget(struct ocr_cache *c, const struct words *words,
                        struct ocr_err *err)
{
    return cmd_cache_forget(c, words->paths, err);
}

static int cache_gc(struct ocr_cache *c, const struct words *words,
                    struct ocr_err *err)
{
    return cmd_cache_gc(c, words->unseen ? words->unseen : "90d", err);
}

enum takes {
    NOTHING,
    PATHS,
    UNSEEN
};

static const struct {
    const char *name;
    enum takes takes;
    /* 0, 1 (damage was found, files failed), or a negative errno. */
    int (*run)(struct ocr_cache *c, const struct words *words,
               struct ocr_err *err);
} actions[] = {
    {"stat", NOTHING, cache_stat},   {"verify", NOTHING, cache_verify},
    {"clear", NOTHING, cache_clear}, {"forget", PATHS, cache_forget},
    {"gc", UNSEEN, cache_gc},
};

static int run(const struct ocr_options *o, size_t action,
               const struct words *words)
{
    const struct ocr_cache_options options = {.dir = o->cache,
                                              .max_bytes = o->cache_size};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c = NULL;
    char database[PATH_MAX];
    int code;

    /* The default is made with its parents; a folder that is named and holds
     * no cache is a slip of the pen. */
    snprintf(database, sizeof database, "%s/cache.db", o->cache);
    if (o->cache[0] == '/' && access(database, F_OK)) {
        ocr_error("there is no cache in %s", o->cache);
        return 1;
    }
    code = ocr_cache_open(&c, &options, &err);

    if (code == 0 && ocr_cache_path(c)[0] != '/')
        code = ocr_err_set(&err, -ENOENT, "there is no cache on a disk to %s",
                           actions[action].name);
    if (code == 0)
        code = actions[action].run(c, words, &err);
    if (code < 0)
        ocr_error("%s", err.text);
    ocr_cache_close(c);
    return code == -EINVAL ? 2 : code ? 1 : 0;
}

/* Takes --unseen=AGE or --unseen AGE out; false if the age is missing. */
static bool take_unseen(int *argc, char **argv, const char **unseen)
{
    static const char name[] = "--unseen";
    int kept = 0;

    *unseen = NULL;
    for (int i = 0; i < *argc; i++) {
        const char *behind = argv[i] + sizeof name - 1;

        if (strncmp(argv[i], name, sizeof name - 1) ||
            (*behind && *behind != '=')) {
            argv[kept++] = argv[i];
        } else if (*behind) {
            *unseen = behind + 1;
        } else if (i + 1 < *argc && argv[i + 1][0] != '-') {
            *unseen = argv[++i];
        } else {
            return false;
        }
    }
    argv[kept] = NULL;
    *argc = kept;
    return true;
}

/* True if `words` are what the action takes; else says what is wrong. */
static bool fits(const char *name, enum takes takes, const struct words *words)
{
    if (words->unseen && takes != UNSEEN)
        ocr_error("--unseen is for ocrfs cache gc, not for %s", name);
    else if (takes == PATHS && !words->count)
        ocr_error("what is to be forgotten? Name images, texts or folders: "
                  "ocrfs cache forget PATH...");
    else if (takes != PATHS && words->count)
        ocr_error("ocrfs cache %s takes no '%s'; for another cache than the "
                  "usual one: --cache DIR",
                  name, words->paths[0]);
    else
        return true;
    return false;
}

int cmd_cache(int argc, char **argv)
{
    enum {
        ACTIONS = sizeof actions / sizeof actions[0]
    };
    struct ocr_options options;
    struct words words;
    size_t action = 0;
    int status = 2;
    const bool has_age = take_unseen(&argc, argv, &words.unseen);

    if (!has_age) {
        ocr_error("--unseen needs an age: --unseen=90d");
        return 2;
    }
    if (cmd_options(&options, OCR_FOR_CACHE, &argc, argv))
        return 2;
    while (argc >= 2 && action < ACTIONS &&
           strcmp(argv[1], actions[action].name) != 0)
        action++;
    words.paths = argv + 2;
    words.count = argc - 2;
    if (argc < 2)
        ocr_error("usage: ocrfs cache stat|verify|clear [OPTIONS], ocrfs cache "
                  "forget PATH..., ocrfs cache gc [--unseen=90d]");
    else if (action == ACTIONS)
        ocr_error("there is no ocrfs cache '%s', only stat, verify, clear, "
                  "forget and gc (try ocrfs cache --help)",
                  argv[1]);
    else if (fits(actions[action].name, actions[action].takes, &words))
        status = run(&options, action, &words);
    ocr_options_release(&options);
    return status;
}
