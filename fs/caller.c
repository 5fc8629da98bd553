#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    COMM_BYTES = 15, /* what the kernel keeps of a name */
    STATUS_BYTES = 8192,
    FLAG_KTHREAD = 0x00200000, /* PF_KTHREAD in /proc/TID/stat */
};

/* The value behind "KEY:" at the beginning of a line, NULL if it is not there.
 * Also right if a process is named "x\nSigPnd:": the kernel escapes newlines.
 */
static const char *value_of(const char *status, const char *key)
{
    const size_t len = strlen(key);

    for (const char *line = status; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, len) && line[len] == ':')
            return line + len + 1 + strspn(line + len + 1, " \t");
    }
    return NULL;
}

static bool mask_of(const char *status, const char *key, uint64_t *mask)
{
    const char *value = value_of(status, key);

    if (!value)
        return false;
    *mask = strtoull(value, NULL, 16);
    return true;
}

static uint64_t bit(int signal)
{
    return (uint64_t)1 << (signal - 1);
}

bool caller_status_dying(const char *status)
{
    const uint64_t harmless = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) |
                              bit(SIGWINCH) | bit(SIGSTOP) | bit(SIGTSTP) |
                              bit(SIGTTIN) | bit(SIGTTOU);
    const char *state = value_of(status, "State");
    uint64_t thread, process, blocked, ignored, caught;

    if (!state || *state == 'Z' || *state == 'X' ||
        !mask_of(status, "SigPnd", &thread) ||
        !mask_of(status, "ShdPnd", &process) ||
        !mask_of(status, "SigBlk", &blocked) ||
        !mask_of(status, "SigIgn", &ignored) ||
        !mask_of(status, "SigCgt", &caught))
        return true; /* gone, or nothing to judge by (I7) */
    thread |= process;
    return (thread & bit(SIGKILL)) ||
           (thread & ~(blocked | ignored | caught | harmless));
}

/* Reads /proc/TID/FILE into a string; false if there is none. */
static bool read_proc(pid_t tid, const char *file, char *out, size_t size)
{
    char path[64];
    ssize_t n;
    int fd;

    if (tid <= 0) /* of another pid namespace */
        return false;
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)tid, file);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, out, size - 1);
    close(fd);
    if (n <= 0)
        return false;
    out[n] = '\0';
    return true;
}

bool caller_dying(pid_t tid)
{
    char status[STATUS_BYTES];

    return !read_proc(tid, "status", status, sizeof status) ||
           caller_status_dying(status);
}

bool caller_name_listed(const char *comm, const char *list)
{
    const size_t len = strnlen(comm, COMM_BYTES);

    while (*list) {
        const size_t n = strcspn(list, ":");
        const size_t compared = n < COMM_BYTES ? n : COMM_BYTES;

        if (n && compared == len && !strncmp(comm, list, len))
            return true;
        list += n + (list[n] == ':');
    }
    return false;
}

bool caller_listed(pid_t tid, const char *list)
{
    char status[STATUS_BYTES], comm[64];
    const char *tgid;

    if (!*list || !read_proc(tid, "status", status, sizeof status))
        return false;
    /* The name of the program, not of its thread. */
    tgid = value_of(status, "Tgid");
    if (!tgid || !read_proc((pid_t)atol(tgid), "comm", comm, sizeof comm))
        return false;
    comm[strcspn(comm, "\n")] = '\0';
    return caller_name_listed(comm, list);
}

bool caller_is_kthread(pid_t tid)
{
    char text[1024];
    const char *end;
    unsigned flags;

    if (!read_proc(tid, "stat", text, sizeof text))
        return false;
    /* The name in parentheses may hold anything. */
    end = strrchr(text, ')');
    return end && sscanf(end, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
           (flags & FLAG_KTHREAD);
}
