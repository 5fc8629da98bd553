/* fs/cmd_status.c - `ocrfs status`: prints what mounts say of themselves in
 * their control folder. A mount may hang, so a child looks into it. */
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/commands.h"
#include "fs/mounts.h"
#include "fs/options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PATIENCE_MS = 2000,
    STATUS_MAX = 16 << 20,
};

/* The child: copies the status to `out`. It may hang for as long as the mount
 * does, and must not keep the terminal or a pipe of our caller's open. */
static int copy_status(const char *point, const char *control, int out)
{
    char path[PATH_MAX], part[4096];
    ssize_t n;
    int fd;

    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    snprintf(path, sizeof path, "%s/%s/status", point, control);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    while ((n = read(fd, part, sizeof part)) > 0)
        if (write(out, part, (size_t)n) != n)
            return EPIPE;
    return n < 0 ? errno : 0;
}

/* Reads the pipe to its end, PATIENCE_MS at most. */
static int collect(int from, struct ocr_buf *text)
{
    const int64_t until = ocr_now_ms() + PATIENCE_MS;
    struct pollfd ready = {.fd = from, .events = POLLIN};
    char part[4096];

    for (;;) {
        const int64_t left = until - ocr_now_ms();
        ssize_t n;

        if (left <= 0 || (n = poll(&ready, 1, (int)left)) == 0)
            return -ETIMEDOUT;
        if (n < 0)
            continue;
        n = read(from, part, sizeof part);
        if (n <= 0)
            return 0;
        ocr_buf_add(text, part, (size_t)n);
    }
}

/* The errno that the child met. One that hangs in the kernel is left alone:
 * not even a kill ends it before the mount does. */
static int child_errno(pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return EIO;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

static int ask(const char *point, const char *control, struct ocr_buf *text,
               struct ocr_err *err)
{
    int ends[2], rc;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC))
        return ocr_err_errno(err, "cannot make a pipe");
    fflush(NULL);
    child = fork();
    if (child == 0)
        _exit(copy_status(point, control, ends[1]));
    close(ends[1]);
    rc = child < 0 ? ocr_err_errno(err, "cannot start a process")
                   : collect(ends[0], text);
    close(ends[0]);
    if (rc == -ETIMEDOUT)
        kill(child, SIGKILL);
    if (rc)
        return rc;
    errno = child_errno(child);
    return errno ? ocr_err_errno(err, "%s/%s/status", point, control) : 0;
}

/* What to do about a mount that does not answer. */
static void say_hung(const char *point)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *mount;

    ocr_error("%s does not answer within %d s; it can be taken away with: "
              "fusermount3 -uz %s",
              point, PATIENCE_MS / 1000, point);
    if (ocr_mounts_read(&mounts, NULL))
        return;
    mount = ocr_mounts_at(&mounts, point);
    if (mount && ocr_mount_is_ours(mount))
        ocr_error("and programs that hang in it are freed, by root, with: "
                  "echo 1 > /sys/fs/fuse/connections/%u/abort",
                  mount->minor);
    ocr_mounts_release(&mounts);
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

static int show(const char *point, const char *control)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf text;
    int rc;

    ocr_buf_init(&text, STATUS_MAX);
    rc = ask(point, control, &text, &err);
    if (rc == 0 && text.len)
        fwrite(text.data, 1, text.len, stdout);
    ocr_buf_release(&text);
    if (rc == -ETIMEDOUT)
        say_hung(point);
    else if (rc)
        return say_failed(point, &err);
    return rc ? 1 : 0;
}

/* True if this user may look into the mount (rule S1). */
static bool may_enter(const struct ocr_mount *mount)
{
    char mine[32];
    const char *at;

    snprintf(mine, sizeof mine, "user_id=%u", (unsigned)getuid());
    at = strstr(mount->options, mine);
    return strstr(mount->options, "allow_other") ||
           (at && (at[strlen(mine)] == ',' || !at[strlen(mine)]));
}

static int show_all(const char *control)
{
    struct ocr_mounts mounts;
    struct ocr_err err = OCR_ERR_INIT;
    size_t shown = 0;
    int status = 0;

    if (ocr_mounts_read(&mounts, &err)) {
        ocr_error("%s", err.text);
        return 1;
    }
    for (size_t i = 0; i < mounts.count; i++) {
        const struct ocr_mount *mount = &mounts.list[i];

        /* A mount below another one cannot be seen. */
        if (!ocr_mount_is_ours(mount) || !may_enter(mount) ||
            ocr_mounts_at(&mounts, mount->point) != mount)
            continue;
        if (shown++)
            putchar('\n');
        status |= show(mount->point, control);
    }
    ocr_mounts_release(&mounts);
    if (!shown)
        puts("nothing is mounted");
    return status;
}

static int show_one_or_all(const char *point, const char *control)
{
    return point ? show(point, control) : show_all(control);
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
