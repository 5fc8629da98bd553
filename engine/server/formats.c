#include "engine/server/formats.h"

#include "engine/base/dynamic.h"
#include "engine/image/decoder.h"

#include <errno.h>
#include <stdio.h>

struct known {
    enum ocr_format format;
    const char *plugin;
    const char *endings;
    const char *package; /* Debian's, of the library */
    enum ocr_helper_kind helper;
};

static const struct known all[] = {
    {OCR_FORMAT_TIFF, "tiff", ".tif .tiff", "libtiff6", OCR_HELPER_PICTURES},
    {OCR_FORMAT_WEBP, "webp", ".webp", "libwebpdemux2", OCR_HELPER_PICTURES},
    {OCR_FORMAT_GIF, "gif", ".gif", "libgif7", OCR_HELPER_PICTURES},
    {OCR_FORMAT_BMP, "bmp", ".bmp", "liblept5", OCR_HELPER_PICTURES},
    {OCR_FORMAT_HEIC, "heif", ".heic .heif", "libheif1", OCR_HELPER_THREADS},
    {OCR_FORMAT_AVIF, "heif", ".avif", "libheif1", OCR_HELPER_THREADS},
    {OCR_FORMAT_PDF, "pdf", ".pdf", "libpoppler-glib8", OCR_HELPER_FONTS},
};

enum {
    KNOWN = sizeof all / sizeof *all
};

static const struct ocr_decoder *find(const char *plugin, struct ocr_err *err)
{
    char symbol[64];
    const struct ocr_decoder *decoder;

    snprintf(symbol, sizeof symbol, "ocr_decoder_%s", plugin);
    decoder = ocr_dynamic_symbol(plugin, symbol, err);
    if (!decoder || decoder->abi == OCR_DECODER_ABI)
        return decoder;
    ocr_err_set(err, -ENOEXEC,
                "ocrfs-%s.so is of another version than ocrfs-engine", plugin);
    return NULL;
}

enum ocr_helper_kind ocr_formats_helper(enum ocr_format format)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (all[i].format == format)
            return all[i].helper;
    return OCR_HELPER_PICTURES;
}

void ocr_formats_load(enum ocr_helper_kind kind)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (all[i].helper == kind)
            ocr_image_use(all[i].format, find(all[i].plugin, NULL));
}

int ocr_formats_say(void)
{
    for (size_t i = 0; i < KNOWN; i++) {
        const char *name = ocr_format_name(all[i].format);
        struct ocr_err err = OCR_ERR_INIT;
        const struct ocr_decoder *decoder = find(all[i].plugin, &err);

        if (decoder)
            printf("ok\t%s\t%s: %s\n", name, all[i].endings,
                   decoder->library());
        else if (err.code == -ENOENT)
            printf("note\t%s\tis not read: built without its library\n", name);
        else
            printf("note\t%s\tis not read: %s; run: apt-get install %s\n", name,
                   err.text, all[i].package);
    }
    return 0;
}
