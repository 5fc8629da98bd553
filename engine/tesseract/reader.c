/* One libtesseract instance. Creating and loading is serialised: the library
 * shares tables of its own between instances while it does so. */
#include "engine/tesseract/tesseract_i.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <tesseract/capi.h>

struct tess_reader {
    TessBaseAPI *api;    /* reads `lang` */
    TessBaseAPI *turner; /* loaded with osd when first needed */
    char lang[128];
    const char *datapath;
};

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

struct tess_reader *tess_reader_new(const char *datapath)
{
    struct tess_reader *reader = calloc(1, sizeof(*reader));

    if (reader)
        reader->datapath = datapath;
    return reader;
}

static void drop(TessBaseAPI **api)
{
    if (!*api)
        return;
    TessBaseAPIEnd(*api);
    TessBaseAPIDelete(*api);
    *api = NULL;
}

void tess_reader_free(struct tess_reader *reader)
{
    if (!reader)
        return;
    pthread_mutex_lock(&loading);
    drop(&reader->api);
    drop(&reader->turner);
    pthread_mutex_unlock(&loading);
    free(reader);
}

static TessBaseAPI *load(const char *datapath, const char *lang,
                         TessOcrEngineMode mode)
{
    TessBaseAPI *api;

    pthread_mutex_lock(&loading);
    api = TessBaseAPICreate();
    if (api) {
        TessBaseAPISetVariable(api, "debug_file", "/dev/null");
        if (TessBaseAPIInit2(api, datapath, lang, mode))
            drop(&api);
    }
    pthread_mutex_unlock(&loading);
    return api;
}

int tess_reader_language(struct tess_reader *reader, const char *lang,
                         struct ocr_err *err)
{
    if (reader->api && strcmp(reader->lang, lang) == 0)
        return 0;
    if (strlen(lang) >= sizeof(reader->lang))
        return ocr_err_set(err, -EINVAL, "too many languages: %s", lang);
    pthread_mutex_lock(&loading);
    drop(&reader->api);
    pthread_mutex_unlock(&loading);
    reader->api = load(reader->datapath, lang, OEM_LSTM_ONLY);
    if (!reader->api)
        return ocr_err_set(err, -EIO, "libtesseract cannot load %s from %s",
                           lang, reader->datapath);
    strcpy(reader->lang, lang);
    /* Dark ground is turned round before; trying it again costs time. */
    TessBaseAPISetVariable(reader->api, "tessedit_do_invert", "0");
    /* Columns of figures would be taken for text that runs downwards. */
    TessBaseAPISetVariable(reader->api, "textord_tabfind_vertical_text", "0");
    return 0;
}

static bool asked_to_stop(void *arg, int words)
{
    (void)words;
    return atomic_load((const atomic_bool *)arg);
}

static int add_word(struct tess_words *words, TessResultIterator *it)
{
    const TessPageIterator *page = TessResultIteratorGetPageIteratorConst(it);
    char *text = TessResultIteratorGetUTF8Text(it, RIL_WORD);
    struct tess_word *word;

    if (TessPageIteratorIsAtBeginningOf(page, RIL_TEXTLINE))
        words->lines++;
    if (!text || !*text || strcmp(text, " ") == 0) {
        TessDeleteText(text);
        return 0;
    }
    word = tess_words_add(words);
    if (word && (word->text = strdup(text))) {
        word->conf = TessResultIteratorConfidence(it, RIL_WORD);
        word->line = words->lines;
        TessPageIteratorBoundingBox(page, RIL_WORD, &word->box.x0,
                                    &word->box.y0, &word->box.x1,
                                    &word->box.y1);
    } else if (word) {
        words->n--;
    }
    TessDeleteText(text);
    return word && word->text ? 0 : -ENOMEM;
}

static int collect(TessBaseAPI *api, struct tess_words *words)
{
    TessResultIterator *it = TessBaseAPIGetIterator(api);
    int code = 0;

    if (!it)
        return 0;
    do
        code = add_word(words, it);
    while (code == 0 && TessResultIteratorNext(it, RIL_WORD));
    TessResultIteratorDelete(it);
    return code;
}

static int recognise(TessBaseAPI *api, const atomic_bool *cancel,
                     struct ocr_err *err)
{
    ETEXT_DESC *monitor = TessMonitorCreate();
    int failed;

    if (!monitor)
        return ocr_err_set(err, -ENOMEM, "no memory to read a page");
    TessMonitorSetCancelFunc(monitor, asked_to_stop);
    TessMonitorSetCancelThis(monitor, (void *)(uintptr_t)cancel);
    failed = TessBaseAPIRecognize(api, monitor);
    TessMonitorDelete(monitor);
    if (atomic_load(cancel))
        return ocr_err_kind(err, OCR_KIND_CANCELLED, "cancelled");
    if (failed)
        return ocr_err_kind(err, OCR_KIND_FAILED, "libtesseract gave up");
    return 0;
}

int tess_reader_read(struct tess_reader *reader, PIX *gray, int dpi, int mode,
                     const struct tess_box *box, const atomic_bool *cancel,
                     struct tess_words *words, struct ocr_err *err)
{
    TessBaseAPI *api = reader->api;
    int code;

    TessBaseAPISetImage2(api, gray);
    TessBaseAPISetSourceResolution(api, dpi);
    TessBaseAPISetPageSegMode(api, (TessPageSegMode)mode);
    if (box)
        TessBaseAPISetRectangle(api, box->x0, box->y0, box->x1 - box->x0,
                                box->y1 - box->y0);
    code = recognise(api, cancel, err);
    if (!code && (code = collect(api, words)))
        ocr_err_set(err, code, "no memory for the words of a page");
    TessBaseAPIClear(api);
    return code;
}

int tess_reader_turns(struct tess_reader *reader, PIX *gray, int dpi)
{
    int degrees = 0;
    float sure = 0, script_sure;
    const char *script;
    BOOL found;

    if (!reader->turner)
        reader->turner = load(reader->datapath, "osd", OEM_DEFAULT);
    if (!reader->turner)
        return -1;
    TessBaseAPISetPageSegMode(reader->turner, PSM_OSD_ONLY);
    TessBaseAPISetImage2(reader->turner, gray);
    TessBaseAPISetSourceResolution(reader->turner, dpi);
    found = TessBaseAPIDetectOrientationScript(reader->turner, &degrees, &sure,
                                               &script, &script_sure);
    TessBaseAPIClear(reader->turner);
    if (!found || sure < 1.0f)
        return -1;
    return (360 - degrees) / 90 % 4;
}
