/* fs/cmd_cache.c - `ocrfs cache stat|verify|clear`: what the cache holds, is
 * it sound, away with it. Mounts may be using it meanwhile. */
#include "cache/cache.h"
#include "engine/base/log.h"
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

static int cache_stat(struct ocr_cache *c, struct ocr_err *err)
{
    struct ocr_cache_stat stat;
    char words[32];
    const int code = ocr_cache_stat(c, &stat, err);

    if (code)
        return code;
    printf("%-15s%s\n", "folder", ocr_cache_path(c));
    printf("%-15s%s\n", "on disk", size_words(stat.disk_bytes, words));
    printf("%-15s%" PRIu64 ", %s\n", "texts", stat.texts,
           size_words(stat.text_bytes, words));
    printf("%-15s%" PRIu64 "\n", "evicted", stat.sizes - stat.texts);
    printf("%-15s%" PRIu64 "\n", "verdicts", stat.verdicts);
    printf("%-15s%" PRIu64 "\n", "known files", stat.files);
    if (stat.texts)
        print_date("oldest use", stat.oldest_use_ns);
    return 0;
}

static int cache_verify(struct ocr_cache *c, struct ocr_err *err)
{
    uint64_t rows, bad;
    const int code = ocr_cache_verify(c, &rows, &bad, err);

    if (code)
        return code;
    printf("%" PRIu64 " rows checked, %" PRIu64 " damaged%s\n", rows, bad,
           bad ? " and removed" : "");
    return bad ? 1 : 0;
}

static int cache_clear(struct ocr_cache *c, struct ocr_err *err)
{
    const int code = ocr_cache_clear(c, err);

    if (code == 0)
        printf("%s is empty\n", ocr_cache_path(c));
    return code;
}

static const struct {
    const char *name;
    /* 0, 1 (damage was found), or a negative errno. */
    int (*run)(struct ocr_cache *c, struct ocr_err *err);
} actions[] = {
    {"stat", cache_stat},
    {"verify", cache_verify},
    {"clear", cache_clear},
};

static int run(const struct ocr_options *o, size_t action)
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
        code = actions[action].run(c, &err);
    if (code < 0)
        ocr_error("%s", err.text);
    ocr_cache_close(c);
    return code ? 1 : 0;
}

int cmd_cache(int argc, char **argv)
{
    enum {
        ACTIONS = sizeof actions / sizeof actions[0]
    };
    struct ocr_options options;
    size_t action = 0;
    int status = 2;

    if (cmd_options(&options, OCR_FOR_CACHE, &argc, argv))
        return 2;
    while (argc == 2 && action < ACTIONS &&
           strcmp(argv[1], actions[action].name) != 0)
        action++;
    if (argc == 2 && action < ACTIONS)
        status = run(&options, action);
    else
        ocr_error("usage: ocrfs cache stat|verify|clear [OPTIONS]");
    ocr_options_release(&options);
    return status;
}
