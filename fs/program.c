#include "fs/program.h"

#include "engine/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int spawn(struct ocr_program *p, const char *const argv[], int into)
{
    posix_spawn_file_actions_t actions;
    int rc = posix_spawn_file_actions_init(&actions);

    if (rc)
        return rc;
    rc = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                          O_RDONLY, 0);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(&actions, into, STDOUT_FILENO);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(&actions, into, STDERR_FILENO);
    if (!rc)
        rc = posix_spawnp(&p->pid, argv[0], &actions, NULL,
                          (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

int ocr_program_start(struct ocr_program *p, const char *const argv[],
                      struct ocr_err *err)
{
    int ends[2], rc;

    *p = (struct ocr_program){.pid = -1, .out = -1};
    if (pipe2(ends, O_CLOEXEC))
        return ocr_err_errno(err, "cannot make a pipe");
    rc = spawn(p, argv, ends[1]);
    close(ends[1]);
    if (rc) {
        close(ends[0]);
        errno = rc;
        return rc == ENOENT ? -ENOENT
                            : ocr_err_errno(err, "cannot start %s", argv[0]);
    }
    p->out = ends[0];
    fcntl(p->out, F_SETFL, O_NONBLOCK);
    return 0;
}

static int wait_for(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool ocr_program_poll(struct ocr_program *p, int wait_ms, struct ocr_buf *out,
                      int *status)
{
    struct pollfd ready = {.fd = p->out, .events = POLLIN};
    char part[4096];
    ssize_t n;

    poll(&ready, 1, wait_ms);
    while ((n = read(p->out, part, sizeof part)) > 0)
        ocr_buf_add(out, part, (size_t)n);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    *status = wait_for(p->pid);
    p->out = ocr_close(p->out);
    return true;
}

void ocr_program_kill(struct ocr_program *p)
{
    kill(p->pid, SIGKILL);
    wait_for(p->pid);
    p->out = ocr_close(p->out);
}

int ocr_program_run(const char *const argv[], struct ocr_buf *out,
                    struct ocr_err *err)
{
    struct ocr_program p;
    int status, rc = ocr_program_start(&p, argv, err);

    if (rc)
        return rc;
    while (!ocr_program_poll(&p, -1, out, &status))
        continue;
    return status;
}
