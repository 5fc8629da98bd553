/* What an open folder lists. */
#include "fs/fs_i.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ocr_fs *fs;
static struct ocr_options options;
static struct ocr_cache *cache;
static char path[64];

static void put_file(const char *name)
{
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);

    assert_true(fd >= 0);
    close(fd);
}

static int setup(void **state)
{
    const struct ocr_cache_options in_memory = {.dir = "memory"};
    struct ocr_fs_config config = {.options = &options, .mountpoint = "/"};

    (void)state;
    strcpy(path, "/tmp/ocrfs-dir-XXXXXX");
    assert_non_null(mkdtemp(path));
    assert_int_equal(chdir(path), 0);
    ocr_options_init(&options);
    assert_int_equal(ocr_cache_open(&cache, &in_memory, NULL), 0);
    config.source = path;
    config.source_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    config.cache = cache;
    return ocr_fs_create(&fs, &config, NULL);
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    close(fs->source.fd);
    ocr_fs_destroy(fs);
    ocr_cache_close(cache);
    ocr_options_release(&options);
    snprintf(command, sizeof command, "rm -rf %s", path);
    return system(command);
}

static struct dir *list(void)
{
    struct dir *d = dir_new();
    const int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_int_equal(dir_snapshot(fs, fs->nodes.root, d, fd), 0);
    close(fd);
    return d;
}

static bool listed(const struct dir *d, const char *name, mode_t *type)
{
    unsigned count = 0;
    struct stat st;

    for (size_t i = 0; i < dir_count(d); i++) {
        if (!strcmp(dir_entry(d, i, &st), name)) {
            *type = st.st_mode;
            count++;
        }
    }
    assert_true(count <= 1); /* nothing twice (N14) */
    return count == 1;
}

static void texts_stand_behind_their_images(void **state)
{
    struct stat st, next;
    struct dir *d;

    (void)state;
    put_file("b.png");
    put_file("note.txt");
    put_file("a.JPG");
    d = list();
    assert_int_equal(dir_count(d), 7);
    assert_string_equal(dir_entry(d, 0, &st), ".");
    assert_string_equal(dir_entry(d, 1, &st), "..");
    for (size_t i = 2; i < dir_count(d); i++) {
        const char *name = dir_entry(d, i, &st);

        if (!names_is_image(name))
            continue;
        assert_memory_equal(dir_entry(d, i + 1, &next), name, strlen(name));
        assert_int_equal(next.st_ino, st.st_ino + 1);
    }
    dir_free(d);
}

static void real_files_win(void **state)
{
    mode_t type;
    struct dir *d;

    (void)state;
    put_file("a.png");
    put_file("a.png.md");
    put_file("b.png");
    assert_int_equal(mkdir("b.png.md", 0755), 0);
    d = list();
    assert_int_equal(dir_count(d), 6);
    assert_true(listed(d, "b.png.md", &type) && S_ISDIR(type));
    dir_free(d);
}

static void only_regular_images_have_texts(void **state)
{
    mode_t type;
    struct dir *d;

    (void)state;
    assert_int_equal(mkdir("folder.png", 0755), 0);
    assert_int_equal(mkfifo("fifo.png", 0644), 0);
    assert_int_equal(symlink("b.png", "link.png"), 0);
    put_file("b.png");
    put_file("\x1b[31m\n\xff.png");
    d = list();
    assert_false(listed(d, "folder.png.md", &type));
    assert_false(listed(d, "fifo.png.md", &type));
    assert_false(listed(d, "link.png.md", &type));
    assert_true(listed(d, "b.png.md", &type) && S_ISREG(type));
    assert_true(listed(d, "\x1b[31m\n\xff.png.md", &type));
    assert_true(listed(d, "fifo.png", &type) && S_ISFIFO(type));
    dir_free(d);
    options.follow = true;
    d = list();
    assert_true(listed(d, "link.png.md", &type));
    dir_free(d);
}

static void long_names_have_no_texts(void **state)
{
    char name[256];
    mode_t type;
    struct dir *d;

    (void)state;
    memset(name, 'x', sizeof name);
    memcpy(name + 253 - 4, ".png", 5);
    put_file(name);
    memcpy(name + 252 - 4, ".png", 5);
    put_file(name);
    d = list();
    assert_int_equal(dir_count(d), 5);
    memcpy(name + 252, ".md", 4);
    assert_true(listed(d, name, &type));
    dir_free(d);
}

static void the_control_folder_hides_a_real_one(void **state)
{
    mode_t type;
    struct dir *d;

    (void)state;
    assert_int_equal(mkdir(options.control, 0755), 0);
    d = list();
    assert_false(listed(d, options.control, &type));
    dir_free(d);
}

static void our_own_mount_is_not_listed(void **state)
{
    mode_t type;
    struct dir *d;
    char mountpoint[80];

    (void)state;
    assert_int_equal(mkdir("here", 0755), 0);
    assert_int_equal(mkdir("there", 0755), 0);
    snprintf(mountpoint, sizeof mountpoint, "%s/here", path);
    source_find_own_mount(&fs->own, mountpoint);
    d = list();
    assert_false(listed(d, "here", &type));
    assert_true(listed(d, "there", &type));
    dir_free(d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(texts_stand_behind_their_images),
        TEST(real_files_win),
        TEST(only_regular_images_have_texts),
        TEST(long_names_have_no_texts),
        TEST(the_control_folder_hides_a_real_one),
        TEST(our_own_mount_is_not_listed),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
