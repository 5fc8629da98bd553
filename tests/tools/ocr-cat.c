/* ocr-cat [-l LANG] [-t] PLUGIN IMAGE... - the texts of images, without
 * mount or engine: loads the plugin, decodes, reads, writes the text to
 * standard output. With -t each text is followed by the seconds it took, on
 * standard error. */
#include "engine/recogniser.h"

#include <dlfcn.h>
#include <leptonica/allheaders.h>
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

static int decode(struct ocr_image *image, const char *path)
{
    PIX *any = pixRead(path), *pix = any ? pixConvertTo32(any) : NULL;

    if (!pix)
        return -1;
    memset(image, 0, sizeof(*image));
    image->width = (uint32_t)pixGetWidth(pix);
    image->height = (uint32_t)pixGetHeight(pix);
    image->channels = 3;
    image->dpi = (uint32_t)pixGetXRes(any);
    image->pixels = malloc(ocr_image_bytes(image));
    for (uint32_t y = 0; y < image->height; y++)
        for (uint32_t x = 0; x < image->width; x++) {
            l_int32 r, g, b;
            uint8_t *at = image->pixels + 3 * ((size_t)y * image->width + x);

            pixGetRGBPixel(pix, (int)x, (int)y, &r, &g, &b);
            at[0] = (uint8_t)r;
            at[1] = (uint8_t)g;
            at[2] = (uint8_t)b;
        }
    pixDestroy(&any);
    pixDestroy(&pix);
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
                    const char *settings, bool timed)
{
    struct ocr_page page = {.id = 1, .settings = settings};
    struct ocr_recognised result;
    struct ocr_err err = OCR_ERR_INIT;
    double start;

    if (decode(&page.image, path)) {
        fprintf(stderr, "ocr-cat: %s: not decoded\n", path);
        return 1;
    }
    start = now();
    if (ops->submit(r, &page, &err) || ops->next(r, &result)) {
        fprintf(stderr, "ocr-cat: %s: %s\n", path, err.text);
        free(page.image.pixels);
        return 1;
    }
    if (result.text)
        fwrite(result.text, 1, result.len, stdout);
    else
        fprintf(stderr, "ocr-cat: %s: %s\n", path, result.sentence);
    if (timed)
        fprintf(stderr, "%.3f\n", now() - start);
    free(result.text);
    free(page.image.pixels);
    return result.kind != OCR_KIND_NONE;
}

int main(int argc, char **argv)
{
    struct ocr_recogniser_config config = {"", "auto", ""};
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
    for (int i = optind + 1; i < argc; i++)
        failed |= read_one(ops, r, argv[i], settings, timed);
    ops->wake(r);
    ops->close(r);
    return failed;
}
