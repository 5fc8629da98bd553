/* fs/cmd_status.c - `ocrfs status`: prints what mounts say of themselves in
 * their control folder. A mount may hang, so a child looks into it. */
#include "engine/base/log.h"
#include "fs/ask.h"
#include "fs/commands.h"
#include "fs/count.h"
#include "fs/mounts.h"
#include "fs/options.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STATUS_MAX = 16 << 20,
};

struct place {
    const char *point, *control;
    const struct ocr_mount *mount; /* NULL: not in the table under this name */
};

/* The child's. */
static int copy_status(const void *arg, int out)
{
    const struct place *place = arg;
    char path[PATH_MAX], part[4096];
    int fd, rc = place->mount ? ocr_ask_become(place->mount) : 0;
    ssize_t n;

    if (rc)
        return rc;
    snprintf(path, sizeof path, "%s/%s/status", place->point, place->control);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    while ((n = read(fd, part, sizeof part)) > 0)
        if (write(out, part, (size_t)n) != n)
            return EPIPE;
    return n < 0 ? errno : 0;
}

/* ---- the texts below a folder ---------------------------------------- */

struct tally {
    unsigned long long folders, texts, known, failed, closed;
};

static int tally_folder(const char *path, dev_t dev, struct tally *t);

/* The folders in it. */
static int tally_below(DIR *stream, const char *path, dev_t dev,
                       struct tally *t)
{
    const struct dirent *e;
    int rc = 0;

    while (!rc && (e = readdir(stream))) {
        char *below;

        if (e->d_type != DT_DIR || !strcmp(e->d_name, ".") ||
            !strcmp(e->d_name, ".."))
            continue;
        if (asprintf(&below, "%s/%s", path, e->d_name) < 0)
            return ENOMEM;
        rc = tally_folder(below, dev, t);
        free(below);
        if (rc == EACCES) {
            t->closed++;
            rc = 0;
        } else if (rc == ENOENT || rc == ESTALE) {
            rc = 0; /* it went meanwhile */
        }
    }
    return rc;
}

/* 0 or an errno; what is mounted in there is not this mount's. */
static int tally_folder(const char *path, dev_t dev, struct tally *t)
{
    struct ocr_texts_count count;
    DIR *stream = opendir(path);
    struct stat st;
    int rc = 0;

    if (!stream)
        return errno;
    if (fstat(dirfd(stream), &st) || st.st_dev != dev) {
        closedir(stream);
        return 0;
    }
    if (ioctl(dirfd(stream), OCR_COUNT_IOCTL, &count))
        rc = errno;
    if (!rc) {
        t->folders++;
        t->texts += count.texts;
        t->known += count.known;
        t->failed += count.failed;
        rc = tally_below(stream, path, dev, t);
    }
    closedir(stream);
    return rc;
}

/* " (12.5 %)"; of nothing there is no share. */
static void share_text(unsigned long long part, unsigned long long all,
                       char *out, size_t size)
{
    *out = '\0';
    if (all)
        snprintf(out, size, " (%.1f %%)", 100.0 * (double)part / (double)all);
}

/* The child's: counts, and says it. */
static int count_texts(const void *arg, int out)
{
    const struct place *place = arg;
    struct tally t = {0};
    char share[32];
    struct stat st;
    int rc = ocr_ask_become(place->mount);

    if (!rc && stat(place->point, &st))
        rc = errno;
    if (!rc)
        rc = tally_folder(place->point, st.st_dev, &t);
    if (rc)
        return rc;
    share_text(t.known, t.texts, share, sizeof share);
    dprintf(out,
            "folder      %s\n"
            "images      %llu in %llu folder%s\n"
            "known       %llu%s\n"
            "failed      %llu\n"
            "not read    %llu\n",
            place->point, t.texts, t.folders, t.folders == 1 ? "" : "s",
            t.known, share, t.failed, t.texts - t.known - t.failed);
    if (t.closed)
        dprintf(out, "closed      %llu folders may not be read\n", t.closed);
    return 0;
}

/* ---- what is said ---------------------------------------------------- */

static int say_failed(const char *point, const struct ocr_err *err)
{
    if (err->code == -ENOTCONN)
        ocr_error("%s is a dead mount, its program has ended; take it away: "
                  "fusermount3 -u %s",
                  point, point);
    else if (err->code == -ENOENT)
        ocr_error("%s is no mount of ocrfs (or has another control folder, "
                  "see --control)",
                  point);
    else
        ocr_error("%s", err->text);
    return 1;
}

/* How many bytes of a line go onto a row of `columns`: to behind its last comma
 * or semicolon, else its last space, in what does not belong to the indent;
 * all if it fits, or cannot be broken. */
static size_t row_bytes(const char *line, size_t len, size_t indent,
                        size_t columns)
{
    size_t comma = 0, space = 0, column = 0;

    for (size_t i = 0; i < len; i++) {
        if (((unsigned char)line[i] & 0xc0) != 0x80 && ++column > columns)
            return comma ? comma : space ? space : len;
        if (i <= indent || line[i] != ' ')
            continue;
        space = i;
        if (line[i - 1] == ',' || line[i - 1] == ';')
            comma = i;
    }
    return len;
}

/* Rows of a terminal break between words, and are indented like the figures. */
static void print_rows(const char *text, size_t columns)
{
    enum {
        INDENT = 12
    };

    while (*text) {
        size_t len = strcspn(text, "\n"), indent = 0;

        while (len) {
            const size_t n =
                row_bytes(text, len, indent ? 0 : INDENT, columns - indent);

            printf("%*s%.*s\n", (int)indent, "", (int)n, text);
            text += n;
            len -= n;
            for (; len && *text == ' '; len--)
                text++;
            indent = INDENT;
        }
        text += *text == '\n';
        if (!indent)
            putchar('\n');
    }
}

/* Programs get lines as they are. */
static void print_text(const struct ocr_buf *text)
{
    enum {
        COLUMNS_LEAST = 40
    };
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
        size.ws_col >= COLUMNS_LEAST)
        print_rows(text->data, size.ws_col);
    else
        fwrite(text->data, 1, text->len, stdout);
}

static int show(const char *point, const char *control,
                const struct ocr_mount *mount, bool texts)
{
    const struct place place = {point, control, mount};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf text;
    int rc;

    ocr_buf_init(&text, STATUS_MAX);
    rc = texts ? ocr_ask(count_texts, &place, 0, point, &text, &err)
               : ocr_ask(copy_status, &place, OCR_ASK_MS, point, &text, &err);
    if (rc == 0 && text.len)
        print_text(&text);
    ocr_buf_release(&text);
    if (rc == -ETIMEDOUT)
        ocr_ask_say_hung(point, OCR_ASK_MS);
    else if (rc)
        return say_failed(point, &err);
    return rc ? 1 : 0;
}

static int show_all(const char *control)
{
    const struct ocr_mount *mount = NULL;
    struct ocr_mounts mounts;
    struct ocr_err err = OCR_ERR_INIT;
    size_t shown = 0;
    int status = 0;

    if (ocr_mounts_read(&mounts, &err)) {
        ocr_error("%s", err.text);
        return 1;
    }
    while ((mount = ocr_mounts_next(&mounts, mount))) {
        if (shown++)
            putchar('\n');
        status |= show(mount->point, control, mount, false);
    }
    ocr_mounts_release(&mounts);
    if (!shown)
        puts("nothing is mounted");
    return status;
}

/* A folder below a mount has no status, but texts. */
static int show_below(const struct ocr_mounts *mounts, const char *text,
                      const char *control)
{
    char *path = realpath(text, NULL);
    const struct ocr_mount *mount = path ? ocr_mounts_over(mounts, path) : NULL;
    int status = 1;

    if (!path)
        ocr_error("%s: %s", text, strerror(errno));
    else if (!mount || !ocr_mount_is_ours(mount))
        ocr_error("%s is in no mount of ocrfs (ocrfs status lists them)", text);
    else
        status = show(path, control, mount, true);
    free(path);
    return status;
}

static int show_one(const char *text, const char *control, bool texts)
{
    struct ocr_err err = OCR_ERR_INIT;
    const struct ocr_mount *mount;
    struct ocr_mounts mounts;
    char *name;
    int status;

    if (ocr_mounts_read(&mounts, &err)) {
        ocr_error("%s", err.text);
        return 1;
    }
    name = ocr_mount_name(text);
    mount = name ? ocr_mounts_at(&mounts, name) : NULL;
    if (mount && ocr_mount_is_ours(mount))
        status = show(mount->point, control, mount, texts);
    else
        status = show_below(&mounts, text, control);
    free(name);
    ocr_mounts_release(&mounts);
    return status;
}

/* The texts of the current folder. */
static int show_here(const char *control)
{
    char *path = realpath(".", NULL);
    const struct ocr_mount *mount;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_mounts mounts;
    int status = 2;

    if (!path || ocr_mounts_read(&mounts, &err)) {
        ocr_error("%s", path ? err.text : "there is no current folder");
        free(path);
        return 1;
    }
    mount = ocr_mounts_over(&mounts, path);
    if (mount && ocr_mount_is_ours(mount))
        status = show(path, control, mount, true);
    else
        ocr_error("%s, the current folder, is in no mount of ocrfs; name one: "
                  "ocrfs status --texts DIR",
                  path);
    ocr_mounts_release(&mounts);
    free(path);
    return status;
}

static int show_one_or_all(const char *point, const char *control, bool texts)
{
    if (point)
        return show_one(point, control, texts);
    return texts ? show_here(control) : show_all(control);
}

/* Every second, over itself on a terminal, as long as there is something to
 * show. */
static int show_for_ever(const char *point, const char *control, bool texts)
{
    static const char clear[] = "\033[H\033[2J";
    int status;

    do {
        if (isatty(STDOUT_FILENO))
            fputs(clear, stdout);
        status = show_one_or_all(point, control, texts);
        if (fflush(stdout) || ferror(stdout))
            return 1; /* the reader of a pipe has gone */
        sleep(1);
    } while (status == 0);
    return status;
}

int cmd_status(int argc, char **argv)
{
    const bool watch = cmd_take("--watch", &argc, argv);
    const bool texts = cmd_take("--texts", &argc, argv);
    struct ocr_options options;
    int status;

    if (cmd_options(&options, OCR_FOR_STATUS, &argc, argv))
        return 2;
    if (argc > 2) {
        ocr_error("one folder at a time (try ocrfs status --help)");
        status = 2;
    } else if (!*options.control) {
        ocr_error("without a control folder there is no status");
        status = 2;
    } else if (watch) {
        status = show_for_ever(argv[1], options.control, texts);
    } else {
        status = show_one_or_all(argv[1], options.control, texts);
    }
    ocr_options_release(&options);
    return status;
}
