/* Access below SOURCE: what is opened, what is refused, what is shown. */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct tree {
    char path[64];
    struct source source;
};

static void put_file(const char *name)
{
    const int fd = open(name, O_WRONLY | O_CREAT, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

static int setup(void **state)
{
    static struct tree t;

    strcpy(t.path, "/tmp/ocrfs-source-XXXXXX");
    assert_non_null(mkdtemp(t.path));
    assert_int_equal(chdir(t.path), 0);
    put_file("outside");
    assert_int_equal(mkdir("root", 0755), 0);
    assert_int_equal(chdir("root"), 0);
    assert_int_equal(mkdir("a", 0755), 0);
    assert_int_equal(mkdir("a/b", 0755), 0);
    put_file("a/b/file");
    assert_int_equal(symlink("a", "link"), 0);
    assert_int_equal(symlink("../../../outside", "a/b/out"), 0);
    assert_int_equal(symlink("../../a/b/file", "a/b/in"), 0);
    assert_int_equal(symlink("/etc/passwd", "absolute"), 0);
    assert_int_equal(mkfifo("fifo", 0644), 0);
    t.source =
        (struct source){.fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    struct tree *t = *state;
    char command[128];

    close(t->source.fd);
    snprintf(command, sizeof command, "rm -rf %s", t->path);
    return system(command);
}

static int try_open(struct source *s, const char *path, int flags)
{
    const int fd = source_open(s, path, flags);

    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

static void walk(struct source *s)
{
    assert_int_equal(try_open(s, ".", O_PATH | O_DIRECTORY), 0);
    assert_int_equal(try_open(s, "a/b/file", O_RDONLY), 0);
    assert_int_equal(try_open(s, "a/b/none", O_RDONLY), -ENOENT);
    assert_int_equal(try_open(s, "a/b/file/x", O_RDONLY), -ENOTDIR);
    assert_int_equal(try_open(s, "link", O_PATH), 0);
    assert_true(try_open(s, "link/b/file", O_RDONLY) < 0);
    assert_int_equal(try_open(s, "a/b/in", O_RDONLY), -ELOOP);
    assert_int_equal(try_open(s, "a/b/out", O_RDONLY), -ELOOP);
    assert_int_equal(try_open(s, "absolute", O_RDONLY), -ELOOP);
    assert_int_equal(try_open(s, "../outside", O_RDONLY), -EXDEV);
    assert_int_equal(try_open(s, "fifo", O_RDONLY), 0); /* does not block */
}

static void nothing_outside_is_reached(void **state)
{
    struct tree *t = *state;

    walk(&t->source);
}

static void nothing_outside_is_reached_without_openat2(void **state)
{
    struct tree *t = *state;

    atomic_store(&t->source.no_openat2, true);
    walk(&t->source);
    assert_int_equal(source_open_follow(&t->source, "a/b/in", O_PATH),
                     -ENOTSUP);
}

static void links_are_followed_inside_only(void **state)
{
    struct source *s = &((struct tree *)*state)->source;
    int fd = source_open_follow(s, "a/b/in", O_RDONLY);

    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(source_open_follow(s, "a/b/out", O_RDONLY), -EXDEV);
    assert_int_equal(source_open_follow(s, "absolute", O_RDONLY), -EXDEV);
}

static void paths_longer_than_the_kernel_takes_are_walked(void **state)
{
    struct source *s = &((struct tree *)*state)->source;
    char name[201], path[30 * 201 + 8] = "", *at = path;

    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (int i = 0; i < 30; i++) {
        assert_int_equal(mkdir(name, 0755), 0);
        assert_int_equal(chdir(name), 0);
        at += sprintf(at, "%s/", name);
    }
    put_file("end");
    memcpy(at, "end", 4);
    assert_true(strlen(path) > PATH_MAX);
    assert_int_equal(try_open(s, path, O_RDONLY), 0);
    atomic_store(&s->no_openat2, true);
    assert_int_equal(try_open(s, path, O_RDONLY), 0);
}

static void files_are_read_without_nonblock(void **state)
{
    struct source *s = &((struct tree *)*state)->source;
    const int fd = source_open_file(s, "a/b/file", false);

    assert_true(fd >= 0);
    assert_false(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
}

/* version 2, then tag, permissions, id */
#define ACL(...) ((const uint16_t[]){2, 0, __VA_ARGS__})
#define ENTRY(tag, perm) (tag), (perm), 0, 0
enum {
    USER_OBJ = 1,
    USER = 2,
    GROUP_OBJ = 4,
    GROUP = 8,
    MASK = 16,
    OTHER = 32
};

static void an_acl_never_grants_more(void **state)
{
    (void)state;
    /* group:: ---, mask rwx: the group bits lie */
    const uint16_t *acl =
        ACL(ENTRY(USER_OBJ, 6), ENTRY(USER, 7), ENTRY(GROUP_OBJ, 0),
            ENTRY(MASK, 7), ENTRY(OTHER, 4));
    assert_int_equal(source_acl_mode(S_IFREG | 0674, acl, 4 + 5 * 8),
                     S_IFREG | 0604);
    /* a user who is shut out must not come in with all others */
    acl = ACL(ENTRY(USER_OBJ, 6), ENTRY(USER, 0), ENTRY(GROUP_OBJ, 4),
              ENTRY(MASK, 4), ENTRY(OTHER, 4));
    assert_int_equal(source_acl_mode(0644, acl, 4 + 5 * 8), 0600);
    /* the mask cuts what a named group gets */
    acl = ACL(ENTRY(USER_OBJ, 6), ENTRY(GROUP_OBJ, 4), ENTRY(GROUP, 7),
              ENTRY(MASK, 4), ENTRY(OTHER, 5));
    assert_int_equal(source_acl_mode(0645, acl, 4 + 5 * 8), 0604);
}

static void the_device_of_a_mount_is_in_mountinfo(void **state)
{
    static const char text[] =
        "22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n"
        "30 22 0:41 / /mnt/a\\040b rw - fuse.ocrfs /src rw\n"
        "31 22 0:42 / /mnt/a rw - fuse.ocrfs /src rw\n"
        "32 30 0:43 / /mnt/a rw - fuse.ocrfs /src rw\n";

    (void)state;
    assert_int_equal(source_mount_dev(text, "/mnt/a b"), makedev(0, 41));
    assert_int_equal(source_mount_dev(text, "/mnt/a"), makedev(0, 43));
    assert_int_equal(source_mount_dev(text, "/mnt"), 0);
    assert_int_equal(source_mount_dev("", "/mnt"), 0);
    assert_int_equal(source_mount_dev("garbage\n\n1 2 3\n", "/mnt"), 0);
}

static void the_place_of_a_mount_is_known_beforehand(void **state)
{
    struct own_mount own = {0};
    struct stat st;
    char path[128];

    snprintf(path, sizeof path, "%s/root/a", ((struct tree *)*state)->path);
    source_find_own_mount(&own, path);
    assert_true(own.below);
    assert_string_equal(own.name, "a");
    assert_int_equal(stat(".", &st), 0);
    assert_int_equal(own.parent_ino, st.st_ino);
    own = (struct own_mount){0};
    source_find_own_mount(&own, "/dev/fd/999999");
    assert_false(own.below);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(nothing_outside_is_reached),
        TEST(nothing_outside_is_reached_without_openat2),
        TEST(links_are_followed_inside_only),
        TEST(paths_longer_than_the_kernel_takes_are_walked),
        TEST(files_are_read_without_nonblock),
        cmocka_unit_test(an_acl_never_grants_more),
        cmocka_unit_test(the_device_of_a_mount_is_in_mountinfo),
        TEST(the_place_of_a_mount_is_known_beforehand),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
