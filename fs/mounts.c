#include "fs/mounts.h"
#include "fs/privileges.h"

#include "engine/base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TABLE_MAX = 64 << 20
};

/* Undoes \040 and its like, in place. */
static char *unescape(char *text)
{
    char *to = text;

    for (const char *at = text; *at; to++) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' &&
            at[2] <= '7' && at[3] >= '0' && at[3] <= '7') {
            *to =
                (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = '\0';
    return text;
}

/* "36 35 98:0 /root /point options tags... - type source options" */
static bool parse_line(char *line, struct ocr_mount *out)
{
    enum {
        DEVICE = 2,
        POINT = 4,
        TYPE = 0,
        SOURCE = 1,
        OPTIONS = 2
    };
    char *front[5], *back[3], *rest = line;
    char *split = strstr(line, " - ");

    if (!split)
        return false;
    *split = '\0';
    for (size_t i = 0; i < 5; i++)
        if (!(front[i] = strsep(&rest, " ")))
            return false;
    rest = split + 3;
    for (size_t i = 0; i < 3; i++)
        if (!(back[i] = strsep(&rest, " ")))
            return false;
    if (sscanf(front[DEVICE], "%u:%u", &out->major, &out->minor) != 2)
        return false;
    out->point = unescape(front[POINT]);
    out->type = unescape(back[TYPE]);
    out->source = unescape(back[SOURCE]);
    out->options = back[OPTIONS];
    return true;
}

int ocr_mounts_parse(struct ocr_mounts *out, char *text, struct ocr_err *err)
{
    size_t lines = 1;
    char *rest = text, *line;

    *out = (struct ocr_mounts){.text = text};
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    out->list = calloc(lines, sizeof *out->list);
    if (!out->list) {
        ocr_mounts_release(out);
        return ocr_err_set(err, -ENOMEM, "out of memory");
    }
    while ((line = strsep(&rest, "\n")))
        if (parse_line(line, &out->list[out->count]))
            out->count++;
    return 0;
}

int ocr_mounts_read(struct ocr_mounts *out, struct ocr_err *err)
{
    static const char path[] = "/proc/self/mountinfo";
    struct ocr_buf text;
    char part[4096];
    ssize_t n;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    *out = (struct ocr_mounts){0};
    if (fd < 0)
        return ocr_err_errno(err, "cannot read %s", path);
    ocr_buf_init(&text, TABLE_MAX);
    while ((n = read(fd, part, sizeof part)) > 0)
        ocr_buf_add(&text, part, (size_t)n);
    close(fd);
    if (n < 0 || text.failed || !text.len) {
        ocr_buf_release(&text);
        return ocr_err_set(err, -EIO, "cannot read %s", path);
    }
    return ocr_mounts_parse(out, ocr_buf_detach(&text, NULL), err);
}

void ocr_mounts_release(struct ocr_mounts *mounts)
{
    free(mounts->list);
    free(mounts->text);
    *mounts = (struct ocr_mounts){0};
}

const struct ocr_mount *ocr_mounts_at(const struct ocr_mounts *mounts,
                                      const char *point)
{
    for (size_t i = mounts->count; i-- > 0;)
        if (!strcmp(mounts->list[i].point, point))
            return &mounts->list[i];
    return NULL;
}

/* Of several in one place the last. */
const struct ocr_mount *ocr_mounts_over(const struct ocr_mounts *mounts,
                                        const char *path)
{
    const struct ocr_mount *best = NULL;

    for (size_t i = 0; i < mounts->count; i++)
        if (ocr_path_is_below(path, mounts->list[i].point) &&
            (!best || strlen(mounts->list[i].point) >= strlen(best->point)))
            best = &mounts->list[i];
    return best;
}

char *ocr_mount_name(const char *text)
{
    char *copy = strdup(text), *slash, *parent = NULL, *path = NULL;
    size_t n = copy ? strlen(copy) : 0;

    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = '\0';
    slash = copy ? strrchr(copy, '/') : NULL;
    if (!copy || !strcmp(copy, ".") || !strcmp(copy, "..")) {
        path = realpath(text, NULL);
    } else if (slash == copy) {
        path = strdup(copy);
    } else {
        if (slash)
            *slash = '\0';
        parent = realpath(slash ? copy : ".", NULL);
        if (parent &&
            asprintf(&path, "%s/%s", strcmp(parent, "/") ? parent : "",
                     slash ? slash + 1 : copy) < 0)
            path = NULL;
    }
    free(parent);
    free(copy);
    return path;
}

bool ocr_mount_is_ours(const struct ocr_mount *mount)
{
    return !strcmp(mount->type, "fuse.ocrfs");
}

static bool number_of(const char *options, const char *key, unsigned *out)
{
    const char *at = strstr(options, key);

    return at && sscanf(at + strlen(key), "%u", out) == 1;
}

bool ocr_mount_owner(const struct ocr_mount *mount, unsigned *uid,
                     unsigned *gid)
{
    return number_of(mount->options, "user_id=", uid) &&
           number_of(mount->options, "group_id=", gid);
}

bool ocr_mount_may_enter(const struct ocr_mount *mount)
{
    unsigned uid, gid;

    return geteuid() == 0 || strstr(mount->options, "allow_other") ||
           (ocr_mount_owner(mount, &uid, &gid) && uid == getuid());
}

const struct ocr_mount *ocr_mounts_next(const struct ocr_mounts *mounts,
                                        const struct ocr_mount *last)
{
    const struct ocr_mount *end = mounts->list + mounts->count;

    /* A mount below another one cannot be seen. */
    for (const struct ocr_mount *m = last ? last + 1 : mounts->list; m < end;
         m++)
        if (ocr_mount_is_ours(m) && ocr_mount_may_enter(m) &&
            ocr_mounts_at(mounts, m->point) == m)
            return m;
    return NULL;
}

bool ocr_mounts_have(const struct ocr_mounts *mounts, unsigned major,
                     unsigned minor)
{
    for (size_t i = 0; i < mounts->count; i++)
        if (mounts->list[i].major == major && mounts->list[i].minor == minor)
            return true;
    return false;
}

static int run_fusermount(const char *point, struct ocr_err *err)
{
    char program[] = "fusermount3", flags[] = "-uqz", end[] = "--";
    char *path = strdup(point);
    char *argv[] = {program, flags, end, path, NULL};
    pid_t pid;
    int status = -1;

    if (!path)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    errno = posix_spawnp(&pid, program, NULL, NULL, argv, environ);
    free(path);
    if (errno)
        return ocr_err_errno(err, "cannot run %s", program);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (status)
        return ocr_err_set(err, -EIO, "%s could not unmount %s", program,
                           point);
    return 0;
}

int ocr_mount_detach(const char *point, struct ocr_err *err)
{
    int rc;

    ocr_privileges_raise();
    rc = umount2(point, MNT_DETACH | UMOUNT_NOFOLLOW);
    ocr_privileges_lower();
    if (rc == 0)
        return 0;
    if (geteuid() == 0)
        return ocr_err_errno(err, "cannot unmount %s", point);
    return run_fusermount(point, err);
}

void ocr_mounts_detach(const struct ocr_mounts *mounts, unsigned major,
                       unsigned minor)
{
    for (size_t i = mounts->count; i-- > 0;) {
        const struct ocr_mount *m = &mounts->list[i];

        if (m->major == major && m->minor == minor &&
            ocr_mounts_at(mounts, m->point) == m)
            ocr_mount_detach(m->point, NULL);
    }
}

bool ocr_path_is_below(const char *path, const char *folder)
{
    size_t n = strlen(folder);

    while (n > 0 && folder[n - 1] == '/')
        n--;
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}
