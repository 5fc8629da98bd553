#include "fs/trial.h"

#include "engine/base/buf.h"
#include "fs/program.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SAID_MAX = 16 << 10,
    DEEPEST = 16
};

int ocr_trial_begin(struct ocr_trial *t, struct ocr_err *err)
{
    const char *tmp = getenv("TMPDIR");
    char path[PATH_MAX];

    *t = (struct ocr_trial){.base = ""};
    snprintf(path, sizeof path, "%s/ocrfs-trial.XXXXXX",
             tmp && tmp[0] == '/' ? tmp : "/tmp");
    if (strlen(path) >= sizeof t->base || !mkdtemp(path))
        return ocr_err_errno(err, "cannot make the folder %s", path);
    snprintf(t->base, sizeof t->base, "%s", path);
    snprintf(t->point, sizeof t->point, "%s/texts", t->base);
    snprintf(path, sizeof path, "%s/source", t->base);
    if (mkdir(path, 0700) || mkdir(t->point, 0700))
        return ocr_err_errno(err, "cannot make folders in %s", t->base);
    return 0;
}

/* Its last line, without its own name: what went wrong. */
static const char *reason(struct ocr_buf *said)
{
    char *text = said->data, *line;
    size_t n = text ? strlen(text) : 0;

    while (n && text[n - 1] == '\n')
        text[--n] = '\0';
    if (!n)
        return "it said nothing";
    line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    return strncmp(line, "ocrfs: error: ", 14) ? line : line + 14;
}

int ocr_trial_mount(struct ocr_trial *t, const char *source,
                    const char *options, struct ocr_err *err)
{
    char own[PATH_MAX];
    const char *const argv[] = {
        "/proc/self/exe", source ? source : own, t->point, "-o", options, NULL};
    struct ocr_buf said;
    int rc;

    snprintf(own, sizeof own, "%s/source", t->base);
    ocr_buf_init(&said, SAID_MAX);
    rc = ocr_program_run(argv, &said, err);
    if (rc == -ENOENT)
        rc = ocr_err_set(err, rc, "cannot start ocrfs again");
    else if (rc > 0)
        rc = ocr_err_set(err, -EIO, "%s", reason(&said));
    t->mounted = rc == 0;
    ocr_buf_release(&said);
    return rc;
}

int ocr_trial_unmount(struct ocr_trial *t, struct ocr_err *err)
{
    const char *const argv[] = {"fusermount3", "-u", t->point, NULL};
    struct ocr_buf said;
    int rc;

    if (!t->mounted)
        return 0;
    ocr_buf_init(&said, SAID_MAX);
    rc = ocr_program_run(argv, &said, NULL);
    /* Root may do without the program. */
    if (rc && umount2(t->point, 0))
        rc = ocr_err_set(err, -EIO, "cannot unmount %s: %s", t->point,
                         rc > 0 ? reason(&said) : strerror(errno));
    else
        rc = 0;
    t->mounted = rc != 0;
    ocr_buf_release(&said);
    return rc;
}

static int take_away(const char *path, const struct stat *st, int kind,
                     struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    remove(path);
    return 0;
}

void ocr_trial_end(struct ocr_trial *t)
{
    /* Through a mount that stayed nothing is to be deleted: it is read-only,
     * and FTW_MOUNT keeps out of it. */
    ocr_trial_unmount(t, NULL);
    if (t->base[0])
        nftw(t->base, take_away, DEEPEST, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    t->base[0] = '\0';
}
