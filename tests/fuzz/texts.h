/* tests/fuzz/texts.h - what a model writes, and what a user does. */
#ifndef FUZZ_TEXTS_H
#define FUZZ_TEXTS_H
#include "engine/base/io.h"
#include "engine/base/utf8.h"
#include "engine/finish.h"
#include "fs/options.h"
#include "tests/fuzz/must.h"

#include <stdio.h>
#include <unistd.h>

static inline void fuzz_is_finished(const char *text, size_t len)
{
    must(len <= OCR_PAGE_TEXT_MAX && text[len] == '\0');
    must(len == 0 || text[len - 1] == '\n');
    for (size_t at = 0; at < len;) {
        uint32_t cp = 0;
        const size_t n = ocr_utf8_next(text + at, len - at, &cp);

        must(n > 0); /* valid */
        must(cp >= 32 ? cp != 127 && (cp < 128 || cp > 159)
                      : cp == '\n' || cp == '\t');
        at += n;
    }
}

/* Finishing what is finished changes nothing. */
static inline void fuzz_finish_with(const char *text, size_t size,
                                    enum ocr_tables tables)
{
    struct ocr_err err = OCR_ERR_INIT;
    char *once, *twice;
    size_t len, again;
    unsigned flags;

    must(ocr_finish(&once, &len, &flags, text, size, tables, &err) == 0);
    fuzz_is_finished(once, len);
    must(ocr_finish(&twice, &again, &flags, once, len, tables, &err) == 0);
    must(again == len && memcmp(once, twice, len) == 0);
    free(once);
    free(twice);
}

static inline int fuzz_finish(const uint8_t *data, size_t size)
{
    fuzz_finish_with((const char *)data, size, OCR_TABLES_PIPE);
    fuzz_finish_with((const char *)data, size, OCR_TABLES_HTML);
    return 0;
}

/* Mostly inside of a table: each byte below 32 stands for a piece of HTML. */
static inline int fuzz_html(const uint8_t *data, size_t size)
{
    static const char *const pieces[] = {"<table>",
                                         "</table>",
                                         "<tr>",
                                         "</tr>",
                                         "<td>",
                                         "</td>",
                                         "<th>",
                                         "</th>",
                                         "<thead>",
                                         "</thead>",
                                         "<tbody>",
                                         "<td colspan=\"3\">",
                                         "<td rowspan=\"2\">",
                                         "<td colspan='70000' rowspan=9>",
                                         "<br>",
                                         "&amp;",
                                         "&#124;",
                                         "&#x7c;",
                                         "&nbsp",
                                         "<!--",
                                         "-->",
                                         "<caption>",
                                         "</caption>",
                                         "<b>",
                                         "</b>",
                                         "\n",
                                         "\t",
                                         "|",
                                         "<td",
                                         "<table border=1>",
                                         "&#0;",
                                         "</tbody>"};
    struct ocr_buf text;

    ocr_buf_init(&text, 1 << 20);
    for (size_t i = 0; i < size; i++)
        if (data[i] < 32)
            ocr_buf_add(&text, pieces[data[i]], strlen(pieces[data[i]]));
        else
            ocr_buf_add(&text, data + i, 1);
    if (text.len)
        fuzz_finish_with(text.data, text.len, OCR_TABLES_PIPE);
    ocr_buf_release(&text);
    return 0;
}

static inline void fuzz_options_file(struct ocr_options *o, const char *text,
                                     size_t size)
{
    struct ocr_err err = OCR_ERR_INIT;
    const int fd = ocr_memfd("options", NULL);
    char path[64];
    int rc;

    must(fd >= 0 && ocr_pwrite_full(fd, text, size, 0) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    rc = ocr_options_load_file(o, path, &err);
    must(!rc == !*err.text);
    close(fd);
}

/* The first byte chooses where they come from. */
static inline int fuzz_options(const uint8_t *data, size_t size)
{
    enum {
        ARGS_MAX = 16
    };
    struct fuzz_input in = {data, size};
    const unsigned way = fuzz_byte(&in);
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_options o;
    char *text = malloc(in.size + 1), *rest = text, *argv[ARGS_MAX + 2];
    char name[] = "ocrfs";
    int argc = 1, rc = 0;

    must(text);
    memcpy(text, in.data, in.size);
    text[in.size] = '\0';
    ocr_options_init(&o);
    o.command = 1u << way / 3 % 5;
    if (way % 3 == 0) {
        rc = ocr_options_apply_list(&o, text, &err);
    } else if (way % 3 == 1) {
        argv[0] = name;
        while (argc <= ARGS_MAX && rest)
            argv[argc++] = strsep(&rest, "\n");
        argv[argc] = NULL;
        rc = ocr_options_apply_args(&o, &argc, argv, &err);
        must(rc || (argc >= 1 && argc <= ARGS_MAX + 1));
    } else {
        fuzz_options_file(&o, text, in.size);
    }
    must(!rc == !*err.text);
    must(o.engine && o.lang && o.cache && o.suffix && o.control);
    ocr_options_release(&o);
    free(text);
    return 0;
}

#endif
