#include "fs/report.h"

#include "engine/base/io.h"
#include "engine/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CANNOT_DAEMONIZE = 5,
    REASON_MAX = 1024,
};

void ocr_report_init(struct ocr_report *r)
{
    *r = (struct ocr_report){.pipe = -1};
}

void ocr_report_release(struct ocr_report *r)
{
    ocr_close(r->pipe);
    free(r->notify);
    ocr_report_init(r);
}

/* ---- the parent --------------------------------------------------------- */

/* Reads until `size` bytes or the end. */
static size_t read_full(int fd, char *out, size_t size)
{
    size_t len = 0;

    while (len < size) {
        const ssize_t n = read(fd, out + len, size - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    return len;
}

static int say_death(pid_t child)
{
    int status = 0;

    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        ocr_error("the start was ended by signal %d (%s)", WTERMSIG(status),
                  strsignal(WTERMSIG(status)));
    else
        ocr_error("the start ended without a report");
    return CANNOT_DAEMONIZE;
}

static int wait_for_report(int pipe, pid_t child)
{
    char status, reason[REASON_MAX + 1];

    /* The byte alone first: after a success the child keeps the pipe. */
    if (read_full(pipe, &status, 1) == 0)
        return say_death(child);
    if (status) {
        reason[read_full(pipe, reason, REASON_MAX)] = '\0';
        ocr_error("%s", reason);
    }
    return status;
}

bool ocr_report_fork(struct ocr_report *r, int *status)
{
    int ends[2];
    pid_t child;

    *status = CANNOT_DAEMONIZE;
    if (pipe2(ends, O_CLOEXEC)) {
        ocr_error("cannot make a pipe: %s", strerror(errno));
        return true;
    }
    fflush(NULL);
    child = fork();
    if (child == 0) {
        close(ends[0]);
        r->pipe = ends[1];
        return false;
    }
    close(ends[1]);
    if (child < 0)
        ocr_error("cannot start a process: %s", strerror(errno));
    else
        *status = wait_for_report(ends[0], child);
    close(ends[0]);
    return true;
}

/* ---- the child ---------------------------------------------------------- */

static void leave_terminal(void)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    ocr_log_to_syslog();
    setsid();
    if (null < 0)
        return;
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        dup2(null, fd);
    if (null > STDERR_FILENO)
        close(null);
}

void ocr_report_ready(struct ocr_report *r)
{
    ocr_report_notify(r, "READY=1");
    if (r->pipe < 0)
        return;
    leave_terminal();
    if (write(r->pipe, "", 1) != 1)
        kill(getpid(), SIGTERM);
    r->pipe = ocr_close(r->pipe);
}

void ocr_report_failed(struct ocr_report *r, int status, const char *text)
{
    char message[REASON_MAX + 1];
    int len;

    if (r->pipe < 0) {
        ocr_error("%s", text);
        return;
    }
    /* One write, so that a report is whole or not there. */
    len = snprintf(message, sizeof message, "%c%s", status, text);
    if (len > REASON_MAX)
        len = REASON_MAX;
    if (write(r->pipe, message, (size_t)len) != len)
        ocr_error("%s", text);
    r->pipe = ocr_close(r->pipe);
}

void ocr_report_use_notify(struct ocr_report *r)
{
    const char *path = getenv("NOTIFY_SOCKET");

    if (path && (path[0] == '/' || path[0] == '@'))
        r->notify = strdup(path);
    /* Not for the engine: it is no part of this service's protocol. */
    unsetenv("NOTIFY_SOCKET");
}

void ocr_report_notify(const struct ocr_report *r, const char *state)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len;
    int sock;

    if (!r->notify || (len = strlen(r->notify)) >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, r->notify, len);
    if (to.sun_path[0] == '@')
        to.sun_path[0] = '\0';
    sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return;
    if (sendto(sock, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
        ocr_warning("cannot tell %s: %s", r->notify, strerror(errno));
    close(sock);
}
