/* fs/cmd_status.c - `ocrfs status`: prints what mounts say of themselves in
 * their control folder. A mount may hang, so a child looks into it. */
#include "engine/base/log.h"
#include "fs/ask.h"
#include "fs/commands.h"
#include "fs/mounts.h"
#include "fs/options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int show(const char *point, const char *control,
                const struct ocr_mount *mount)
{
    const struct place place = {point, control, mount};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf text;
    int rc;

    ocr_buf_init(&text, STATUS_MAX);
    rc = ocr_ask(copy_status, &place, OCR_ASK_MS, point, &text, &err);
    if (rc == 0 && text.len)
        fwrite(text.data, 1, text.len, stdout);
    ocr_buf_release(&text);
    if (rc == -ETIMEDOUT)
        ocr_ask_say_hung(point);
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
        status |= show(mount->point, control, mount);
    }
    ocr_mounts_release(&mounts);
    if (!shown)
        puts("nothing is mounted");
    return status;
}

static int show_one_or_all(const char *point, const char *control)
{
    return point ? show(point, control, NULL) : show_all(control);
}

/* Every second, over itself on a terminal, as long as there is something to
 * show. */
static int show_for_ever(const char *point, const char *control)
{
    static const char clear[] = "\033[H\033[2J";
    int status;

    do {
        if (isatty(STDOUT_FILENO))
            fputs(clear, stdout);
        status = show_one_or_all(point, control);
        if (fflush(stdout) || ferror(stdout))
            return 1; /* the reader of a pipe has gone */
        sleep(1);
    } while (status == 0);
    return status;
}

int cmd_status(int argc, char **argv)
{
    const bool watch = cmd_take("--watch", &argc, argv);
    struct ocr_options options;
    int status;

    if (cmd_options(&options, OCR_FOR_STATUS, &argc, argv))
        return 2;
    if (argc > 2) {
        ocr_error("one mount point at a time (try ocrfs status --help)");
        status = 2;
    } else if (!*options.control) {
        ocr_error("without a control folder there is no status");
        status = 2;
    } else if (watch) {
        status = show_for_ever(argv[1], options.control);
    } else {
        status = show_one_or_all(argv[1], options.control);
    }
    ocr_options_release(&options);
    return status;
}
