/* tests/lib/formats.h - the decoders of this build, for tests that decode
 * without a helper. */
#ifndef TEST_FORMATS_H
#define TEST_FORMATS_H
#include "engine/image/decoder.h"

/* fontconfig, by way of poppler, keeps what nobody asked it to free; dav1d, by
 * way of libheif, what was damaged. Named by the sanitizer, which looks for
 * it. */
const char *__lsan_default_suppressions(void); /* NOLINT */
const char *__lsan_default_suppressions(void)  /* NOLINT */
{
    return "leak:libfontconfig\nleak:libdav1d\n";
}

static inline void use_formats(void)
{
#ifdef HAVE_FORMAT_tiff
    ocr_image_use(OCR_FORMAT_TIFF, &ocr_decoder_tiff);
#endif
#ifdef HAVE_FORMAT_webp
    ocr_image_use(OCR_FORMAT_WEBP, &ocr_decoder_webp);
#endif
#ifdef HAVE_FORMAT_gif
    ocr_image_use(OCR_FORMAT_GIF, &ocr_decoder_gif);
#endif
#ifdef HAVE_FORMAT_bmp
    ocr_image_use(OCR_FORMAT_BMP, &ocr_decoder_bmp);
#endif
#ifdef HAVE_FORMAT_heif
    ocr_image_use(OCR_FORMAT_HEIC, &ocr_decoder_heif);
    ocr_image_use(OCR_FORMAT_AVIF, &ocr_decoder_heif);
#endif
#ifdef HAVE_FORMAT_pdf
    ocr_image_use(OCR_FORMAT_PDF, &ocr_decoder_pdf);
#endif
}

#endif
