#include "fs/ask.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reads the pipe to its end, patience_ms at most. */
static int collect(int from, int patience_ms, struct ocr_buf *text)
{
    const int64_t until = ocr_now_ms() + patience_ms;
    struct pollfd ready = {.fd = from, .events = POLLIN};
    char part[4096];

    for (;;) {
        const int64_t left = until - ocr_now_ms();
        const int rc = patience_ms && left <= 0
                           ? 0
                           : poll(&ready, 1, patience_ms ? (int)left : -1);
        ssize_t n;

        if (rc == 0)
            return -ETIMEDOUT;
        if (rc < 0)
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

/* It may hang for as long as the mount does, and must not keep the terminal or
 * a pipe of our caller's open. */
static void be_child(ocr_ask_job *job, const void *arg, int out)
{
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    _exit(job(arg, out));
}

int ocr_ask(ocr_ask_job *job, const void *arg, int patience_ms,
            const char *what, struct ocr_buf *text, struct ocr_err *err)
{
    int ends[2], rc;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC))
        return ocr_err_errno(err, "cannot make a pipe");
    fflush(NULL);
    child = fork();
    if (child == 0)
        be_child(job, arg, ends[1]);
    close(ends[1]);
    rc = child < 0 ? ocr_err_errno(err, "cannot start a process")
                   : collect(ends[0], patience_ms, text);
    close(ends[0]);
    if (rc == -ETIMEDOUT)
        kill(child, SIGKILL);
    if (rc)
        return rc;
    errno = child_errno(child);
    return errno ? ocr_err_errno(err, "%s", what) : 0;
}

int ocr_ask_become(const struct ocr_mount *mount)
{
    unsigned uid, gid;

    if (geteuid() != 0 || !ocr_mount_owner(mount, &uid, &gid) || uid == 0)
        return 0;
    if (setgroups(0, NULL) || setresgid(gid, gid, gid) ||
        setresuid(uid, uid, uid))
        return errno;
    return 0;
}

void ocr_ask_say_hung(const char *point, int patience_ms)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *mount;

    ocr_error("%s does not answer within %d s; it may only be busy. If it "
              "stays so, this ends the mount: fusermount3 -uz %s",
              point, patience_ms / 1000, point);
    if (ocr_mounts_read(&mounts, NULL))
        return;
    mount = ocr_mounts_at(&mounts, point);
    if (mount && ocr_mount_is_ours(mount))
        ocr_error("and this, by root, ends it at once for all who use it, and "
                  "frees programs that hang in it: "
                  "echo 1 > /sys/fs/fuse/connections/%u/abort",
                  mount->minor);
    ocr_mounts_release(&mounts);
}
