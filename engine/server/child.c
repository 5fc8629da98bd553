#include "engine/server/child.h"

#include "engine/base/io.h"
#include "engine/server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    START_MS = 30000, /* for loading the program from a slow disk */
};

/* A process group of its own keeps the ^C of a terminal away from it. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setpgroup(attributes, 0);
    return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETSIGDEF |
                                                    POSIX_SPAWN_SETPGROUP);
}

/* Standard error stays, for what the loader or a sanitizer has to say. */
static int set_descriptors(posix_spawn_file_actions_t *actions, int sock)
{
    int rc = posix_spawn_file_actions_adddup2(actions, sock, OCR_HELPER_SOCKET);

    for (int fd = 0; rc == 0 && fd < 2; fd++)
        rc = posix_spawn_file_actions_addopen(actions, fd, "/dev/null", O_RDWR,
                                              0);
    return rc;
}

/* 0 or a positive errno, as posix_spawn. */
static int spawn(pid_t *pid, const char *program, enum ocr_helper_kind kind,
                 int sock)
{
    char name[] = "ocrfs-engine", option[32];
    char *const argv[] = {name, option, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int rc = posix_spawn_file_actions_init(&actions);

    if (rc)
        return rc;
    snprintf(option, sizeof option, "--decode-helper=%s",
             ocr_helper_kind_name(kind));
    rc = posix_spawnattr_init(&attributes);
    if (rc == 0) {
        rc = set_attributes(&attributes);
        if (rc == 0)
            rc = set_descriptors(&actions, sock);
        if (rc == 0)
            rc =
                posix_spawn(pid, program, &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

enum ocr_child_event ocr_child_wait(const struct ocr_child *child, int wake,
                                    int timeout_ms)
{
    const int64_t end = ocr_now_ms() + timeout_ms;
    struct pollfd fds[2] = {{.fd = child->sock, .events = POLLIN},
                            {.fd = wake, .events = POLLIN}};

    for (;;) {
        const int64_t left = end - ocr_now_ms();
        const int n = poll(fds, 2, left > 0 ? (int)left : 0);

        if (n > 0)
            return fds[0].revents ? OCR_CHILD_ANSWER : OCR_CHILD_WAKE;
        if (left <= 0)
            return OCR_CHILD_SILENT;
    }
}

static int wait_until_ready(struct ocr_child *child, const char *program,
                            int wake, struct ocr_err *err)
{
    struct ocr_decode_response ready;
    int fds[OCR_PACKET_FDS];

    switch (ocr_child_wait(child, wake, START_MS)) {
    case OCR_CHILD_WAKE:
        return ocr_err_set(err, -ECANCELED, "no longer wanted");
    case OCR_CHILD_SILENT:
        return ocr_err_set(err, -ETIMEDOUT,
                           "the decode helper %s did not get ready in %d s",
                           program, START_MS / 1000);
    case OCR_CHILD_ANSWER:
        break;
    }
    if (ocr_packet_receive(child->sock, &ready, sizeof ready, fds) <= 0)
        return ocr_err_set(err, -EIO,
                           "the decode helper %s ended as it started", program);
    ocr_packet_close(fds);
    child->sandbox = ready.sandbox;
    return 0;
}

int ocr_child_start(struct ocr_child *child, const char *program,
                    enum ocr_helper_kind kind, int wake, struct ocr_err *err)
{
    int ends[2], rc;

    *child = (struct ocr_child)OCR_CHILD_INIT;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return ocr_err_errno(err, "cannot get a socket for a decode helper");
    rc = spawn(&child->pid, program, kind, ends[1]);
    close(ends[1]);
    child->sock = ends[0];
    if (rc) {
        child->pid = 0;
        child->sock = ocr_close(child->sock);
        return ocr_err_set(err, -rc, "cannot start the decode helper %s: %s",
                           program, strerror(rc));
    }
    rc = wait_until_ready(child, program, wake, err);
    if (rc)
        ocr_child_stop(child);
    return rc;
}

static int64_t cpu_seconds_used(pid_t pid)
{
    struct timespec used;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &used))
        return 0; /* dead: then it does not matter */
    return used.tv_sec;
}

/* Only soft limits, which the helper cannot raise by itself: the next image's
 * may be higher, and the one on time counts from the start of the process. */
bool ocr_child_limit(const struct ocr_child *child, uint64_t memory,
                     unsigned cpu_s)
{
    struct rlimit limit;

    if (prlimit(child->pid, RLIMIT_CPU, NULL, &limit) == 0) {
        limit.rlim_cur = (rlim_t)cpu_seconds_used(child->pid) + 2 + cpu_s;
        prlimit(child->pid, RLIMIT_CPU, &limit, NULL);
    }
    if (OCR_SANITIZED || prlimit(child->pid, RLIMIT_AS, NULL, &limit))
        return true;
    limit.rlim_cur = memory;
    return prlimit(child->pid, RLIMIT_AS, &limit, NULL) == 0;
}

int ocr_child_stop(struct ocr_child *child)
{
    int status = 0;

    if (!child->pid)
        return 0;
    ocr_close(child->sock);
    kill(child->pid, SIGKILL); /* does not change the status of the dead */
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    *child = (struct ocr_child)OCR_CHILD_INIT;
    return status;
}
