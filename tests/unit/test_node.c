/* Nodes: identity, names, versions of a text, counts. */
#include "fs/fs_i.h"

#include <errno.h>
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

static const int64_t start_ns = 1700000000123456789;
static struct nodes t;

static struct object object(ino_t ino, mode_t mode)
{
    return (struct object){
        .st = {.st_dev = 5,
               .st_ino = ino,
               .st_mode = mode,
               .st_size = 100,
               .st_mtim = {.tv_sec = 1000},
               .st_ctim = {.tv_sec = 2000}},
        .born_ns = 77,
    };
}

static int setup(void **state)
{
    const struct object root = object(2, S_IFDIR | 0755);

    (void)state;
    return nodes_init(&t, &root, start_ns);
}

static int teardown(void **state)
{
    (void)state;
    nodes_release(&t);
    return 0;
}

static struct node *enter(struct node *parent, const char *name,
                          enum node_kind kind, const struct object *o)
{
    int rc;

    return node_enter(&t, parent, name, false, kind, o, &rc);
}

static void assert_path(struct node *n, unsigned nth, const char *expected)
{
    bool follow;
    char *path = node_path(&t, n, nth, &follow);

    if (expected)
        assert_string_equal(path, expected);
    else
        assert_null(path);
    free(path);
}

static struct ocr_digest digest(uint8_t byte)
{
    struct ocr_digest d;

    memset(&d, byte, sizeof d);
    return d;
}

static void ids_count_from_the_time(void **state)
{
    const struct object a = object(10, S_IFREG), b = object(11, S_IFREG);
    struct node *x = enter(t.root, "a", NODE_REAL, &a);
    struct node *y = enter(t.root, "b", NODE_REAL, &b);

    (void)state;
    assert_int_equal(t.root->id, FUSE_ROOT_ID);
    assert_true(x->id > (uint64_t)start_ns && y->id == x->id + 1);
    node_unref(&t, y);
    node_unref(&t, x);
    x = enter(t.root, "a", NODE_REAL, &a);
    assert_true(x->id > (uint64_t)start_ns + 2); /* never used twice */
    node_unref(&t, x);
}

static void one_object_is_one_node(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *a = enter(t.root, "a", NODE_REAL, &o);
    struct node *b = enter(t.root, "b", NODE_REAL, &o);
    struct node *text = enter(t.root, "a", NODE_TEXT, &o);

    (void)state;
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, text);
    assert_path(a, 0, "b"); /* newest first */
    assert_path(a, 1, "a");
    assert_path(a, 2, NULL);
    node_unref(&t, text);
    node_unref(&t, b);
    node_unref(&t, a);
}

static void a_reused_inode_number_is_another_node(void **state)
{
    struct object o = object(10, S_IFREG);
    struct node *a = enter(t.root, "a", NODE_REAL, &o), *b, *c;

    (void)state;
    o.born_ns++;
    b = enter(t.root, "b", NODE_REAL, &o);
    assert_ptr_not_equal(a, b);
    o.st.st_mode = S_IFLNK;
    c = enter(t.root, "c", NODE_REAL, &o);
    assert_ptr_not_equal(b, c);
    node_unref(&t, c);
    node_unref(&t, b);
    node_unref(&t, a);
}

static void paths_lead_up_to_the_root(void **state)
{
    const struct object d = object(10, S_IFDIR), e = object(11, S_IFDIR),
                        f = object(12, S_IFREG);
    struct node *a = enter(t.root, "a", NODE_REAL, &d);
    struct node *b = enter(a, "b", NODE_REAL, &e);
    struct node *c = enter(b, "c", NODE_REAL, &f), *up;

    (void)state;
    assert_path(t.root, 0, ".");
    assert_path(t.root, 1, NULL);
    assert_path(c, 0, "a/b/c");
    node_unref(&t, a); /* held by its child's name */
    node_unref(&t, b);
    assert_path(c, 0, "a/b/c");
    up = node_parent(&t, b);
    assert_ptr_equal(up, a);
    node_unref(&t, up);
    node_unref(&t, c); /* and all of them go */
    assert_int_equal(t.count, 1);
}

static void a_moved_folder_takes_its_children_along(void **state)
{
    const struct object d = object(10, S_IFDIR), e = object(11, S_IFDIR),
                        f = object(12, S_IFREG);
    struct node *a = enter(t.root, "a", NODE_REAL, &d);
    struct node *b = enter(a, "b", NODE_REAL, &e);
    struct node *c = enter(b, "c", NODE_REAL, &f);

    (void)state;
    assert_ptr_equal(enter(t.root, "moved", NODE_REAL, &e), b);
    assert_path(c, 0, "moved/c");
    assert_path(b, 1, NULL); /* a folder has one name */
    node_unref(&t, b);
    node_unref(&t, b);
    node_unref(&t, a);
    node_unref(&t, c);
}

static void a_folder_is_not_inside_itself(void **state)
{
    const struct object d = object(10, S_IFDIR), e = object(11, S_IFDIR),
                        root = object(2, S_IFDIR | 0755);
    struct node *a = enter(t.root, "a", NODE_REAL, &d);
    struct node *b = enter(a, "b", NODE_REAL, &e);
    int rc;

    (void)state;
    assert_null(node_enter(&t, b, "loop", false, NODE_REAL, &d, &rc));
    assert_int_equal(rc, -ELOOP);
    assert_null(node_enter(&t, b, "loop", false, NODE_REAL, &root, &rc));
    assert_int_equal(rc, -ELOOP);
    assert_path(b, 0, "a/b");
    node_unref(&t, b);
    node_unref(&t, a);
}

static void forget_frees_at_zero_only(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a", NODE_REAL, &o);
    const fuse_ino_t id = n->id;

    (void)state;
    node_count(&t, n);
    node_count(&t, n);
    node_unref(&t, n);
    node_forget(&t, id, 1);
    n = node_get(&t, id);
    assert_non_null(n);
    node_forget(&t, id, 1); /* we still have it */
    assert_ptr_equal(enter(t.root, "a", NODE_REAL, &o), n);
    node_unref(&t, n);
    node_unref(&t, n);
    assert_null(node_get(&t, id));
    node_forget(&t, id, 5); /* unknown: nothing happens */
    node_forget(&t, FUSE_ROOT_ID, 5);
    assert_ptr_equal(node_get(&t, FUSE_ROOT_ID), t.root);
}

static void many_nodes_are_found(void **state)
{
    enum {
        COUNT = 5000
    };
    static struct node *n[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        const struct object o = object((ino_t)i + 100, S_IFREG);

        n[i] = enter(t.root, "x", NODE_REAL, &o);
    }
    for (int i = 0; i < COUNT; i++) {
        const struct object o = object((ino_t)i + 100, S_IFREG);

        assert_ptr_equal(node_get(&t, n[i]->id), n[i]);
        assert_ptr_equal(enter(t.root, "x", NODE_REAL, &o), n[i]);
    }
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 3; k++)
            node_unref(&t, n[i]);
    assert_int_equal(t.count, 1);
}

static void an_unread_text_follows_its_image(void **state)
{
    struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o);

    (void)state;
    o.st.st_size++;
    assert_int_equal(node_check_version(&t, n, &o), 0);
    o.st.st_mtim.tv_nsec++;
    assert_ptr_equal(enter(t.root, "a.png", NODE_TEXT, &o), n);
    node_unref(&t, n);
    node_unref(&t, n);
}

/* An unread text of a file that is gone, whose inode number was used again. */
static void a_text_is_not_handed_to_another_file(void **state)
{
    struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o), *other;

    (void)state;
    o.born_ns++;
    o.st.st_ctim.tv_nsec++;
    other = enter(t.root, "a.png", NODE_TEXT, &o);
    assert_ptr_not_equal(n, other);
    assert_true(n->retired);
    node_unref(&t, other);
    node_unref(&t, n);
}

static void a_read_text_stays_when_its_image_changes(void **state)
{
    struct object o = object(10, S_IFREG);
    const struct object old = o;
    const struct ocr_digest d = digest(1);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o), *other;

    (void)state;
    assert_int_equal(node_fix(&t, n, &d), 0);
    o.st.st_ctim.tv_nsec++;
    other = enter(t.root, "a.png", NODE_TEXT, &o);
    assert_ptr_not_equal(n, other);
    assert_int_equal(node_check_version(&t, n, &old), -ESTALE);
    assert_int_equal(node_check_version(&t, other, &o), 0);
    node_unref(&t, other);
    node_unref(&t, n);
}

static void other_bytes_are_another_node(void **state)
{
    const struct object o = object(10, S_IFREG);
    const struct ocr_digest d = digest(1), e = digest(2);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o), *other;

    (void)state;
    assert_int_equal(node_fix(&t, n, &d), 0);
    assert_int_equal(node_fix(&t, n, &d), 0);
    assert_int_equal(node_fix(&t, n, &e), -ESTALE);
    other = enter(t.root, "a.png", NODE_TEXT, &o);
    assert_ptr_not_equal(n, other);
    assert_int_equal(node_fix(&t, other, &e), 0);
    node_unref(&t, other);
    node_unref(&t, n);
}

static struct text *text(const char *bytes)
{
    return text_new(strdup(bytes), strlen(bytes));
}

static void one_node_has_one_size(void **state)
{
    const struct object o = object(10, S_IFREG);
    const struct ocr_digest d = digest(1);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o);
    struct text *five = text("12345"), *six = text("123456");

    (void)state;
    /* shown as provisional: may change */
    assert_int_equal(node_set_size(&t, n, &d, 6, 0, false), 0);
    assert_int_equal(node_set_size(&t, n, &d, 5, 0, true), 0);
    assert_int_equal(node_serve(&t, n, five, 0), 0);
    assert_int_equal(node_serve(&t, n, six, 0), -ESTALE);
    assert_true(n->retired);
    text_unref(five);
    text_unref(six);
    node_unref(&t, n);
}

static void a_text_is_never_longer_than_what_was_shown(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o), *m;
    struct text *five = text("12345"), *six = text("123456");

    (void)state;
    assert_int_equal(node_set_size(&t, n, NULL, 5, 0, false), 0);
    assert_int_equal(node_serve(&t, n, six, 0), -ESTALE);
    m = enter(t.root, "a.png", NODE_TEXT, &o);
    assert_ptr_not_equal(n, m);
    assert_int_equal(node_set_size(&t, m, NULL, 6, 0, false), 0);
    assert_int_equal(node_serve(&t, m, five, 0), 0);
    text_unref(five);
    text_unref(six);
    node_unref(&t, m);
    node_unref(&t, n);
}

static void one_node_has_one_text(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o);
    struct text *a = text("12345"), *same = text("12345"), *b = text("54321");

    (void)state;
    assert_int_equal(node_serve(&t, n, a, 0), 0);
    assert_int_equal(node_serve(&t, n, same, 0), 0);
    assert_int_equal(node_serve(&t, n, b, 0), -ESTALE);
    text_unref(a);
    text_unref(same);
    text_unref(b);
    node_unref(&t, n);
}

/* ---- by name --------------------------------------------------------- */

static void a_name_leads_to_all_that_had_it(void **state)
{
    const struct object o = object(10, S_IFREG), p = object(11, S_IFREG),
                        d = object(12, S_IFDIR);
    struct node *image = enter(t.root, "a.png", NODE_REAL, &o);
    struct node *text = enter(t.root, "a.png", NODE_TEXT, &o);
    struct node *other = enter(t.root, "a.png", NODE_REAL, &p);
    struct node *folder = enter(t.root, "d", NODE_REAL, &d);
    struct known known[4];

    (void)state;
    assert_int_equal(node_named(&t, t.root->id, "a.png", 0, known, 4), 3);
    assert_int_equal(node_named(&t, t.root->id, "a.png", 0, known, 2), 2);
    assert_int_equal(node_named(&t, folder->id, "a.png", 0, known, 4), 0);
    assert_int_equal(node_named(&t, t.root->id, "d", 0, known, 4), 1);
    assert_true(known[0].folder && !known[0].text);
    assert_true(known[0].id == folder->id);
    node_unref(&t, image); /* with its name */
    node_unref(&t, other);
    assert_int_equal(node_named(&t, t.root->id, "a.png", 0, known, 4), 1);
    assert_true(known[0].text && known[0].id == text->id);
    node_unref(&t, text);
    node_unref(&t, folder);
    assert_int_equal(node_named(&t, t.root->id, "a.png", 0, known, 4), 0);
}

static void what_is_moved_has_its_new_name_at_once(void **state)
{
    const struct object d = object(10, S_IFDIR), e = object(11, S_IFDIR),
                        f = object(12, S_IFREG);
    struct node *a = enter(t.root, "a", NODE_REAL, &d);
    struct node *b = enter(a, "b", NODE_REAL, &e);
    struct node *c = enter(b, "c.png", NODE_REAL, &f);
    struct node *text = enter(b, "c.png", NODE_TEXT, &f);

    (void)state;
    node_moved(&t, a->id, "b", t.root->id, "moved");
    assert_path(c, 0, "moved/c.png");
    node_moved(&t, b->id, "c.png", a->id, "d.png");
    assert_path(c, 0, "a/d.png");
    assert_path(text, 0, "a/d.png");
    node_moved(&t, b->id, "nothing", a->id, "e");
    node_moved(&t, a->id, "d.png", 12345, "e"); /* nowhere */
    node_moved(&t, t.root->id, "moved", b->id, "loop");
    assert_path(b, 0, "moved");
    node_unref(&t, text);
    node_unref(&t, c);
    node_unref(&t, b);
    node_unref(&t, a);
    assert_int_equal(t.count, 1);
}

static void what_lasts_is_found(void **state)
{
    enum {
        COUNT = 3000,
        ROOM = 64
    };
    static struct node *n[COUNT];
    static struct lasting found[ROOM];
    struct known known;
    size_t bucket = 0, count, all = 0;
    char name[16];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        const struct object o = object((ino_t)i + 100, S_IFREG);

        snprintf(name, sizeof name, "%d", i);
        n[i] = enter(t.root, name, NODE_REAL, &o);
        n[i]->lasting_ms = i % 3 ? 1000 : 0;
    }
    for (int i = 0; i < COUNT; i += 2) {
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(node_named(&t, t.root->id, name, INT64_MAX, &known, 1),
                         1);
        assert_int_equal(known.lasting, i % 3 != 0);
        /* Told once is enough. */
        assert_int_equal(node_named(&t, t.root->id, name, INT64_MAX, &known, 1),
                         1);
        assert_false(known.lasting);
    }
    /* The names last all the same. */
    while ((count = node_lasting(&t, &bucket, 500, found, ROOM))) {
        for (size_t i = 0; i < count; i++) {
            const int k = atoi(found[i].name);

            assert_true(k % 3 && n[k]->id == found[i].id);
            assert_true(found[i].folder == t.root->id);
        }
        all += count;
    }
    assert_int_equal(all, COUNT / 3 * 2);
    bucket = 0;
    assert_int_equal(node_lasting(&t, &bucket, 1000, found, ROOM), 0);
    for (int i = 0; i < COUNT; i++)
        node_unref(&t, n[i]);
}

static void open_handles_keep_node_and_text(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o);
    struct text *a = text("12345");
    struct handle *h = handle_new(&t, n, -1, a, NULL);
    struct handle *k = handle_new(&t, n, -1, a, NULL);

    (void)state;
    text_unref(a);
    node_unref(&t, n);
    assert_ptr_equal(node_open_text(&t, n), a);
    text_unref(a);
    handle_free(&t, h);
    assert_ptr_equal(node_open_text(&t, n), a);
    text_unref(a);
    handle_free(&t, k);
    assert_int_equal(t.count, 1);
}

/* The leak checker judges: an unmount sends neither FORGET nor RELEASE. */
static void what_is_open_at_the_end_is_closed(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a.png", NODE_TEXT, &o);
    struct text *a = text("12345");

    (void)state;
    assert_non_null(handle_new(&t, n, -1, a, NULL));
    assert_non_null(handle_new(&t, n, dup(0), NULL, NULL));
    node_count(&t, n);
    text_unref(a);
}

static void an_unlinked_open_file_can_be_asked(void **state)
{
    const struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a", NODE_REAL, &o);
    struct handle *h;
    int fd;

    (void)state;
    assert_int_equal(node_open_fd(&t, n), -ESTALE);
    h = handle_new(&t, n, open("/dev/null", O_RDONLY | O_CLOEXEC), NULL, NULL);
    fd = node_open_fd(&t, n);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    handle_free(&t, h);
    node_unref(&t, n);
}

static void cached_pages_are_kept_for_settled_files_only(void **state)
{
    const int64_t second = 1000000000;
    struct object o = object(10, S_IFREG);
    struct node *n = enter(t.root, "a", NODE_REAL, &o);

    (void)state;
    assert_false(node_keep_cache(&t, n, &o.st, 2001 * second)); /* first */
    assert_false(node_keep_cache(&t, n, &o.st, 2003 * second)); /* was young */
    assert_true(node_keep_cache(&t, n, &o.st, 2004 * second));
    o.st.st_size++;
    assert_false(node_keep_cache(&t, n, &o.st, 2010 * second));
    assert_true(node_keep_cache(&t, n, &o.st, 2010 * second));
    node_unref(&t, n);
}

static void numbers_keep_the_order_of_inodes(void **state)
{
    uint64_t last = 0;

    (void)state;
    for (ino_t ino = 1; ino < 1000; ino++) {
        const uint64_t image = node_st_ino(5, 5, ino, false);

        assert_true(image > last);
        last = node_st_ino(5, 5, ino, true);
        assert_int_equal(last, image + 1);
    }
    assert_true(node_st_ino(5, 6, 1, false) != node_st_ino(5, 5, 1, false));
    assert_true(node_st_ino(5, 6, 1, false) < node_st_ino(5, 6, 2, false));
    /* numbers that do not fit: no order, but still a pair of neighbours */
    const ino_t huge = (ino_t)1 << 60;
    assert_int_equal(node_st_ino(5, 5, huge, true),
                     node_st_ino(5, 5, huge, false) + 1);
    assert_true(node_st_ino(5, 5, huge, false) !=
                node_st_ino(5, 5, huge + 1, false));
    assert_false(node_st_ino(5, 5, huge, false) >> 63);
}

/* Lookups, forgets and walks at once; the sanitizers judge. */
static void *churn(void *arg)
{
    const unsigned seed = *(unsigned *)arg;

    for (unsigned i = 0; i < 3000; i++) {
        const struct object d = object(20, S_IFDIR);
        const struct object o = object(30 + (i * seed) % 7, S_IFREG);
        struct node *dir = enter(t.root, i % 2 ? "d" : "e", NODE_REAL, &d);
        struct node *n = enter(dir, "f", i % 3 ? NODE_REAL : NODE_TEXT, &o);
        const fuse_ino_t id = n->id;
        bool follow;

        node_count(&t, n);
        node_unref(&t, n);
        free(node_path(&t, n, 0, &follow)); /* counted: it is still there */
        node_unref(&t, dir);
        node_forget(&t, id, 1);
    }
    return NULL;
}

static void lookups_and_forgets_may_race(void **state)
{
    unsigned seeds[4] = {1, 2, 3, 5};
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, churn, &seeds[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(t.count, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(ids_count_from_the_time),
        TEST(one_object_is_one_node),
        TEST(a_reused_inode_number_is_another_node),
        TEST(paths_lead_up_to_the_root),
        TEST(a_moved_folder_takes_its_children_along),
        TEST(a_folder_is_not_inside_itself),
        TEST(forget_frees_at_zero_only),
        TEST(many_nodes_are_found),
        TEST(an_unread_text_follows_its_image),
        TEST(a_text_is_not_handed_to_another_file),
        TEST(a_read_text_stays_when_its_image_changes),
        TEST(other_bytes_are_another_node),
        TEST(one_node_has_one_size),
        TEST(a_text_is_never_longer_than_what_was_shown),
        TEST(one_node_has_one_text),
        TEST(a_name_leads_to_all_that_had_it),
        TEST(what_is_moved_has_its_new_name_at_once),
        TEST(what_lasts_is_found),
        TEST(open_handles_keep_node_and_text),
        TEST(what_is_open_at_the_end_is_closed),
        TEST(an_unlinked_open_file_can_be_asked),
        TEST(cached_pages_are_kept_for_settled_files_only),
        TEST(numbers_keep_the_order_of_inodes),
        TEST(lookups_and_forgets_may_race),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
