/* ocr-cat [-l LANG] [-t] PLUGIN IMAGE... - the texts of images, without
 * mount or engine: decodes, has the plugin read, finishes, and writes to
 * standard output. With -t each text is followed by the seconds it took, on
 * standard error. */
#include "engine/finish.h"
#include "engine/recogniser.h"
#include "tests/lib/decode_file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct ocr_recogniser_ops *load(const char *path)
{
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ocr_recogniser_plugin_fn *plugin;
    void *symbol = so ? dlsym(so, OCR_RECOGNISER_PLUGIN_SYMBOL) : NULL;

    if (!symbol) {
        fprintf(stderr, "ocr-cat: %s\n", dlerror());
        exit(2);
    }
    memcpy(&plugin, &symbol, sizeof(plugin));
    return plugin();
}

static int print(const struct ocr_recognised *result, struct ocr_err *err)
{
    unsigned flags = 0;
    size_t len;
    char *text;
    int code = ocr_finish(&text, &len, &flags, result->text, result->len,
                          OCR_TABLES_PIPE, err);

    if (code)
        return code;
    fwrite(text, 1, len, stdout);
    free(text);
    return 0;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int read_one(const struct ocr_recogniser_ops *ops,
                    struct ocr_recogniser *r, const char *path,
                    const char *settings, struct ocr_err *err)
{
    struct ocr_page page = {.id = 1, .settings = settings};
    struct ocr_recognised result = {0};
    int code = decode_file(&page.image, path, err);

    if (code == 0 && page.image.blank) {
        free(page.image.pixels);
        return 0;
    }
    if (code == 0)
        code = ops->submit(r, &page, err);
    if (code == 0)
        code = ops->next(r, &result);
    if (code == 0 && result.kind)
        code = ocr_err_kind(err, result.kind, "%s", result.sentence);
    if (code == 0)
        code = print(&result, err);
    free(result.text);
    free(page.image.pixels);
    return code;
}

int main(int argc, char **argv)
{
    struct ocr_recogniser_config config = {
        .arguments = "", .device = "auto", .model = ""};
    struct ocr_err err = OCR_ERR_INIT;
    const struct ocr_recogniser_ops *ops;
    struct ocr_recogniser *r;
    char settings[128] = "";
    bool timed = false;
    int failed = 0;

    for (int c; (c = getopt(argc, argv, "l:t")) != -1;) {
        if (c == '?')
            return 2;
        timed = timed || c == 't';
        if (c == 'l')
            snprintf(settings, sizeof(settings), "lang=%s\n", optarg);
    }
    if (optind + 1 >= argc) {
        fprintf(stderr, "usage: ocr-cat [-l LANG] [-t] PLUGIN IMAGE...\n");
        return 2;
    }
    ops = load(argv[optind]);
    if (ops->open(&r, &config, &err)) {
        fprintf(stderr, "ocr-cat: %s\n", err.text);
        return 2;
    }
    for (int i = optind + 1; i < argc; i++) {
        struct ocr_err failure = OCR_ERR_INIT;
        double start = now();

        if (read_one(ops, r, argv[i], settings, &failure)) {
            fprintf(stderr, "ocr-cat: %s: %s\n", argv[i], failure.text);
            failed = 1;
        }
        if (timed)
            fprintf(stderr, "%.3f\n", now() - start);
    }
    ops->wake(r);
    ops->close(r);
    return failed;
}
