/* The table of options: lists, command lines, files, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/size.h"
#include "fs/options.h"
#include "fs/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ocr_options o;
static struct ocr_err err;

static int setup(void **state)
{
    (void)state;
    ocr_options_init(&o);
    o.command = OCR_FOR_MOUNT;
    ocr_err_clear(&err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ocr_options_release(&o);
    return 0;
}

static void accepts(const char *list)
{
    ocr_err_clear(&err);
    if (ocr_options_apply_list(&o, list, &err))
        fail_msg("%s: %s", list, err.text);
}

static void refuses(const char *list, const char *words)
{
    ocr_err_clear(&err);
    assert_int_equal(ocr_options_apply_list(&o, list, &err), -EINVAL);
    if (!strstr(err.text, words))
        fail_msg("%s: '%s' does not say '%s'", list, err.text, words);
}

static void defaults_are_those_of_the_design(void **state)
{
    (void)state;
    assert_string_equal(o.engine, "auto");
    assert_string_equal(ocr_options_recogniser(&o), "tesseract");
    assert_string_equal(o.lang, "eng");
    assert_string_equal(o.tables, "pipe");
    assert_string_equal(o.suffix, ".md");
    assert_string_equal(o.control, ".ocrfs");
    assert_string_equal(o.cache, "");
    assert_int_equal(o.engine_idle_s, 600);
    assert_int_equal(o.size, OCR_SIZE_BOUND);
    assert_non_null(strstr(o.noocr, "tracker-miner-f"));
    assert_false(o.stale_redo || o.share_all || o.allow_other || o.intr);
}

static void a_list_sets_every_type(void **state)
{
    char engine[64];

    (void)state;
    accepts("engine=null:200ms,lang=deu+eng,tables=html,jobs=3,partial,"
            "size=wait,stale=redo,share=all,cache=memory,cache_size=10G,"
            "control=off,suffix=.txt,intr=yes,follow,ocr_timeout=30,"
            "engine_required,verify,runtime=/run/x,noocr=a:b,allow_other");
    assert_string_equal(ocr_options_recogniser(&o), "null");
    ocr_options_engine(&o, engine, sizeof engine);
    assert_string_equal(engine, "null:200ms");
    assert_string_equal(o.lang, "deu+eng");
    assert_string_equal(o.tables, "html");
    assert_int_equal(o.jobs, 3);
    assert_int_equal(o.size, OCR_SIZE_WAIT);
    assert_true(o.partial && o.stale_redo && o.share_all && o.intr);
    assert_true(o.follow && o.engine_required && o.verify && o.allow_other);
    assert_string_equal(o.cache, "memory");
    assert_true(o.cache_size == (uint64_t)10 << 30);
    assert_string_equal(o.control, "");
    assert_string_equal(o.suffix, ".txt");
    assert_int_equal(o.ocr_timeout_s, 30);
    assert_string_equal(o.runtime, "/run/x");
    assert_string_equal(o.noocr, "a:b");
    assert_string_equal(o.size_names, "");
    accepts("url=http://a:1/v1//;;https://b/");
    assert_string_equal(o.url, "http://a:1/v1;https://b");
    accepts("url=http://a:1/v1");
    assert_string_equal(o.url, "http://a:1/v1");
    accepts("url=");
    assert_string_equal(o.url, "");
    accepts("size=wait:tar:git,show=texts,include=*.png,exclude=x:y/*,"
            "min_pixels=10000,errors=hide,xattr");
    assert_int_equal(o.size, OCR_SIZE_WAIT);
    assert_string_equal(o.size_names, "tar:git");
    assert_true(o.show_texts && o.xattr && o.min_pixels == 10000);
    assert_string_equal(o.include, "*.png");
    assert_string_equal(o.exclude, "x:y/*");
    assert_string_equal(o.errors, "hide");
    accepts("size=bound");
    assert_int_equal(o.size, OCR_SIZE_BOUND);
    assert_string_equal(o.size_names, "");
    assert_int_equal(o.fuse.len, 0);
}

static void a_later_word_wins(void **state)
{
    (void)state;
    accepts("lang=deu,,lang=fra,");
    assert_string_equal(o.lang, "fra");
    accepts("partial,partial=no");
    assert_false(o.partial);
}

static void a_backslash_keeps_the_next_byte(void **state)
{
    (void)state;
    accepts("cache=/a\\,b\\\\c,jobs=2");
    assert_string_equal(o.cache, "/a,b\\c");
    assert_int_equal(o.jobs, 2);
}

static void folders_become_absolute(void **state)
{
    char cwd[4096], want[4200];

    (void)state;
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(want, sizeof want, "%s/texts", cwd);
    accepts("cache=texts");
    assert_string_equal(o.cache, want);
    setenv("HOME", "/home/somebody", 1);
    accepts("cache=~/texts");
    assert_string_equal(o.cache, "/home/somebody/texts");
}

static void unknown_words_are_named_with_the_nearest(void **state)
{
    (void)state;
    refuses("sufix=.txt", "unknown option 'sufix' (did you mean 'suffix'?)");
    refuses("cachesize=1G", "did you mean 'cache_size'?");
    refuses("zebra", "unknown option 'zebra'");
    assert_null(strstr(err.text, "mean"));
    refuses("poll", "unknown option 'poll'"); /* of no version yet */
    refuses("Lang=deu", "did you mean 'lang'?");
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    refuses("size=exact", "option 'size': 'exact' is not one of bound|wait");
    refuses("size=wait:", "'wait:' is not one of bound|wait|zero or wait:");
    refuses("show=images", "'images' is not one of all|texts");
    refuses("errors=none", "'none' is not one of errno|hide|text");
    refuses("min_pixels=10x10", "'10x10' is no whole number");
    refuses("jobs=-1", "'-1' is no whole number");
    refuses("jobs=", "is no whole number");
    refuses("jobs", "option 'jobs' needs a value");
    refuses("partial=maybe", "neither yes nor no");
    refuses("lang=../x", "is no list of languages");
    refuses("lang=deu+", "is no list of languages");
    refuses("lang=deu;eng", "a + parts them, as in deu+eng");
    refuses("lang=deu\\,eng", "a + parts them, as in deu+eng");
    refuses("lang=deu,eng", "unknown option 'eng' (if it is a language: a + ");
    refuses("lang=deu,chi_sim,verify", "'chi_sim' (if it is a language");
    refuses("lang=deu,suffx", "did you mean 'suffix'?");
    refuses("lang=deu,foo=1", "unknown option 'foo'");
    assert_null(strstr(err.text, "language"));
    accepts("lang=eng");
    refuses("verify,eng", "unknown option 'eng'");
    assert_null(strstr(err.text, "language"));
    refuses("lang=", "is no list of languages");
    refuses("precision=fp8", "is not one of auto|bf16|fp16|fp32|int8");
    refuses("temperature=-1", "'-1' is no number from 0 to 2");
    refuses("top_p=0", "'0' is no number from 0.01 to 1");
    refuses("repetition_penalty=nan", "'nan' is no number");
    refuses("patch_multiple=7", "is not one of 28|14");
    refuses("suffix=md", "begins with a dot");
    refuses("suffix=./x", "no slash");
    refuses("suffix=..", "more than dots");
    refuses("suffix=.", "more than dots");
    refuses("cache=", "'cache' is empty");
    refuses("runtime=", "'runtime' is empty");
    accepts("model=,noocr=");
    refuses("control=..", "is no name");
    refuses("cache=/a\nb", "control character");
    refuses("cache_size=10X", "is no size");
    refuses("device=gpu", "is no device");
    refuses("device=cuda:", "is no device");
    refuses("device=cuda:0,0", "is no device");
    refuses("device=cuda:0,1x", "is no device");
    refuses("device=cpu,1", "unknown option '1'");
    accepts("device=cuda:0,12,3,engine_idle=7");
    assert_string_equal(o.device, "cuda:0,12,3");
    assert_int_equal(o.engine_idle_s, 7);
    assert_string_equal(o.lang, "eng");
}

static void words_of_mount_and_libfuse_are_sorted(void **state)
{
    (void)state;
    accepts("rw,noatime,dev,suid,user,user=bob,nofail,_netdev,x-systemd.auto,"
            "noexec,allow_root,auto_unmount,defaults,noauto,comment=x");
    assert_string_equal(o.fuse.data, "noatime,noexec,allow_root,auto_unmount");
    refuses("fsname=x", "set by ocrfs itself");
    refuses("subtype=x", "set by ocrfs itself");
    accepts("debug");
    assert_true(o.debug && o.foreground);
}

static void passed_words_are_escaped_again(void **state)
{
    (void)state;
    accepts("context=a\\,b");
    assert_string_equal(o.fuse.data, "context=a\\,b");
}

static void words_of_libfuse_are_for_the_mount_only(void **state)
{
    (void)state;
    o.command = OCR_FOR_READ;
    refuses("noexec", "unknown option 'noexec'");
    refuses("suffix=.txt", "'suffix' is not for this command");
}

static void a_command_line_is_taken_apart(void **state)
{
    char a0[] = "ocrfs", a1[] = "--engine", a2[] = "null", a3[] = "src",
         a4[] = "--ocr-timeout=5", a5[] = "-o", a6[] = "lang=deu,noexec",
         a7[] = "-fs", a8[] = "--partial", a9[] = "--", a10[] = "-mnt";
    char *argv[] = {a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, NULL};
    int argc = 11;

    (void)state;
    assert_int_equal(ocr_options_apply_args(&o, &argc, argv, &err), 0);
    assert_int_equal(argc, 3);
    assert_string_equal(argv[1], "src");
    assert_string_equal(argv[2], "-mnt");
    assert_null(argv[3]);
    assert_string_equal(o.engine, "null");
    assert_int_equal(o.ocr_timeout_s, 5);
    assert_string_equal(o.lang, "deu");
    assert_true(o.foreground && o.single_thread && o.partial && !o.debug);
}

static void refuse_args(char *first, char *second, const char *words)
{
    char name[] = "ocrfs";
    char *argv[] = {name, first, second, NULL};
    int argc = second ? 3 : 2;

    ocr_err_clear(&err);
    assert_int_equal(ocr_options_apply_args(&o, &argc, argv, &err), -EINVAL);
    assert_non_null(strstr(err.text, words));
}

static void wrong_command_lines_are_refused(void **state)
{
    char o_[] = "-o", lang[] = "--lang", x[] = "-x", f[] = "-f",
         engin[] = "--engin=x";

    (void)state;
    refuse_args(o_, NULL, "'-o' needs a list");
    refuse_args(lang, NULL, "'lang' needs a value");
    refuse_args(x, NULL, "unknown option '-x'");
    refuse_args(engin, NULL, "did you mean 'engine'?");
    o.command = OCR_FOR_READ;
    refuse_args(f, NULL, "unknown option '-f'");
}

static char *write_file(const char *text)
{
    char *path = strdup("/tmp/ocrfs-test-XXXXXX");
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
    return path;
}

static void a_file_is_read(void **state)
{
    char *path = write_file("# ours\n"
                            "lang = deu+eng   # both\n"
                            "\n"
                            "  partial\n"
                            "cache=/tmp/a#b\r\n"
                            "suffix=.txt");

    (void)state;
    assert_int_equal(ocr_options_load_file(&o, path, &err), 0);
    assert_string_equal(o.lang, "deu+eng");
    assert_true(o.partial);
    assert_string_equal(o.cache, "/tmp/a#b");
    assert_string_equal(o.suffix, ".txt");
    unlink(path);
    free(path);
    assert_int_equal(ocr_options_load_file(&o, "/nowhere/ocrfs.conf", &err), 0);
}

static void refuse_file(const char *text, const char *words)
{
    char *path = write_file(text);
    char want[400];

    ocr_err_clear(&err);
    snprintf(want, sizeof want, "%s:%s", path, words);
    assert_int_equal(ocr_options_load_file(&o, path, &err), -EINVAL);
    assert_string_equal(err.text, want);
    unlink(path);
    free(path);
}

/* As editors of other systems write them. */
static void marks_and_nuls_in_a_file(void **state)
{
    static const char nul[] = "jobs = 3\nlang = deu\0eng\n";
    char *path = write_file("\xef\xbb\xbfjobs = 5\r\n");
    char want[400];
    FILE *file;

    (void)state;
    assert_int_equal(ocr_options_load_file(&o, path, &err), 0);
    assert_int_equal(o.jobs, 5);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(nul, 1, sizeof nul - 1, file), sizeof nul - 1);
    fclose(file);
    assert_int_equal(ocr_options_load_file(&o, path, &err), -EINVAL);
    snprintf(want, sizeof want, "%s:2: there is a NUL byte", path);
    assert_non_null(strstr(err.text, want));
    assert_string_equal(o.lang, "eng");
    unlink(path);
    free(path);
    refuse_file("jobs = 4\n\xef\xbb\xbflang = deu\n",
                "2: unknown option '\xef\xbb\xbflang'");
}

static void errors_in_a_file_name_file_and_line(void **state)
{
    (void)state;
    refuse_file("\nlang = eng\nlangs = deu\n",
                "3: unknown option 'langs' (did you mean 'lang'?)");
    refuse_file("jobs = many\n", "1: option 'jobs': 'many' is no whole number");
    refuse_file("cache = here\n",
                "1: option 'cache': 'here' must begin with / or ~/");
    refuse_file("lang\n", "1: option 'lang' needs a value");
}

static void command_line_over_user_over_system(void **state)
{
    char folder[] = "/tmp/ocrfs-test-XXXXXX", path[200];
    FILE *file;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "mkdir %s/ocrfs", folder);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/ocrfs/config", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("lang = fra\njobs = 7\n", file);
    fclose(file);
    setenv("XDG_CONFIG_HOME", folder, 1);
    assert_int_equal(ocr_options_load(&o, &err), 0);
    accepts("lang=ita");
    assert_string_equal(o.lang, "ita");
    assert_int_equal(o.jobs, 7);
    unsetenv("XDG_CONFIG_HOME");
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(folder);
}

static void settings_hold_what_decides_about_the_text(void **state)
{
    struct ocr_buf text;

    (void)state;
    ocr_buf_init(&text, 1000);
    ocr_options_settings(&o, &text);
    assert_string_equal(text.data, "lang=eng\ntables=pipe\n");
    ocr_buf_reset(&text);
    accepts("lang=deu,partial,tables=html,jobs=4,cache=memory,suffix=.x");
    ocr_options_settings(&o, &text);
    assert_string_equal(text.data, "lang=deu\npartial=1\ntables=html\n");
    ocr_buf_release(&text);
}

static void a_model_changes_recogniser_and_settings(void **state)
{
    struct ocr_buf text;
    char engine[64];

    (void)state;
    ocr_buf_init(&text, 1000);
    ocr_options_engine(&o, engine, sizeof engine);
    assert_string_equal(engine, "tesseract");
    accepts("model=/m,lang=deu,precision=int8,temperature=0.20,top_p=.9");
    assert_string_equal(ocr_options_recogniser(&o), "lighton");
    ocr_options_engine(&o, engine, sizeof engine);
    assert_string_equal(engine, "lighton:precision=int8:patch_multiple=28");
    accepts("max_tokens=5000");
    ocr_options_engine(&o, engine, sizeof engine);
    assert_string_equal(
        engine, "lighton:precision=int8:patch_multiple=28:max_tokens=5000");
    accepts("max_tokens=4096");
    ocr_options_settings(&o, &text);
    assert_string_equal(text.data,
                        "max_tokens=4096\npatch_multiple=28\nprecision=int8\n"
                        "repetition_penalty=1\ntables=pipe\ntemperature=0.2\n"
                        "top_p=0.9\n");
    accepts("engine=tesseract");
    assert_string_equal(ocr_options_recogniser(&o), "tesseract");
    ocr_buf_release(&text);
}

/* A folder that holds a model NAME. */
static void make_model(const char *folder, const char *name)
{
    char path[300];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/config.json", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

static void a_model_is_found_where_models_are(void **state)
{
    char data[] = "/tmp/ocrfs-data-XXXXXX", path[300], command[300];
    struct ocr_buf places;

    (void)state;
    assert_non_null(mkdtemp(data));
    snprintf(path, sizeof path, "mkdir -p %s/ocrfs/models/empty", data);
    assert_int_equal(system(path), 0);
    setenv("XDG_DATA_HOME", data, 1);
    unsetenv("OCRFS_MODEL");
    assert_int_equal(ocr_options_settle(&o, &err), 0);
    assert_string_equal(o.model, "");
    accepts("engine=lighton");
    assert_int_equal(ocr_options_settle(&o, &err), -ENOENT);
    assert_non_null(strstr(err.text, "model=DIR"));
    snprintf(path, sizeof path, "%s/ocrfs/models", data);
    make_model(path, "b");
    make_model(path, "a");
    accepts("engine=tesseract");
    assert_int_equal(ocr_options_settle(&o, &err), 0);
    assert_string_equal(o.model, "");
    accepts("engine=auto");
    assert_int_equal(ocr_options_settle(&o, &err), 0);
    assert_non_null(strstr(o.model, "/ocrfs/models/a"));
    accepts("model=");
    make_model(data, "named");
    snprintf(path, sizeof path, "%s/named", data);
    setenv("OCRFS_MODEL", path, 1);
    assert_int_equal(ocr_options_settle(&o, &err), 0);
    assert_string_equal(o.model, path);
    assert_true(o.model_found);
    /* What is named counts, even if it is no model: its loader says why. */
    accepts("model=");
    setenv("OCRFS_MODEL", "/nowhere/at/all", 1);
    assert_int_equal(ocr_options_settle(&o, &err), 0);
    assert_string_equal(o.model, "/nowhere/at/all");
    accepts("model=");
    setenv("OCRFS_MODEL", "models/mine", 1);
    assert_int_equal(ocr_options_settle(&o, &err), -EINVAL);
    ocr_err_clear(&err);
    ocr_buf_init(&places, 1 << 16);
    ocr_options_model_places(&places);
    assert_non_null(strstr(places.data, "$OCRFS_MODEL (models/mine)"));
    assert_non_null(strstr(
        places.data, "/ocrfs/models (a), /usr/local/share/ocrfs/models ("));
    ocr_buf_release(&places);
    unsetenv("OCRFS_MODEL");
    unsetenv("XDG_DATA_HOME");
    snprintf(command, sizeof command, "rm -r %s", data);
    assert_int_equal(system(command), 0);
}

static void help_names_what_a_command_takes_within_80_columns(void **state)
{
    struct ocr_buf text;

    (void)state;
    ocr_buf_init(&text, 1 << 16);
    ocr_options_help(&text, OCR_FOR_ALL);
    assert_non_null(strstr(text.data, "  size=bound|wait|zero"));
    assert_non_null(strstr(text.data, "  engine=NAME"));
    assert_non_null(strstr(text.data, "  runtime=DIR"));
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) < 80);
    ocr_buf_reset(&text);
    ocr_options_help(&text, OCR_FOR_STATUS);
    assert_null(strstr(text.data, "engine"));
    assert_non_null(strstr(text.data, "  control=NAME"));
    ocr_buf_release(&text);
}

static void sizes_have_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},           {"1048576", 1 << 20},
                {"64K", 64 << 10},  {"64k", 64 << 10},
                {"3M", 3 << 20},    {"10GiB", 10ull << 30},
                {"1TB", 1ull << 40}};
    static const char *const bad[] = {"",
                                      "-1",
                                      "K",
                                      "1KK",
                                      "1.5G",
                                      " 1",
                                      "0x10",
                                      "99999999999999999999",
                                      "18446744073709551615K"};
    uint64_t bytes;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(ocr_parse_size(good[i].text, &bytes, &err), 0);
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(ocr_parse_size(bad[i], &bytes, NULL), -EINVAL);
}

static void long_and_empty_words_have_no_neighbour(void **state)
{
    const char *const names[] = {"engine", "lang"};
    char word[300];

    (void)state;
    memset(word, 'e', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_null(ocr_word_nearest(word, names, 2));
    assert_null(ocr_word_nearest("", names, 2));
    assert_string_equal(ocr_word_nearest("lagn", names, 2), "lang");
    assert_null(ocr_word_nearest("xy", names, 2));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(defaults_are_those_of_the_design),
        TEST(a_list_sets_every_type),
        TEST(a_later_word_wins),
        TEST(a_backslash_keeps_the_next_byte),
        TEST(folders_become_absolute),
        TEST(unknown_words_are_named_with_the_nearest),
        TEST(wrong_values_are_named),
        TEST(words_of_mount_and_libfuse_are_sorted),
        TEST(passed_words_are_escaped_again),
        TEST(words_of_libfuse_are_for_the_mount_only),
        TEST(a_command_line_is_taken_apart),
        TEST(wrong_command_lines_are_refused),
        TEST(a_file_is_read),
        TEST(marks_and_nuls_in_a_file),
        TEST(errors_in_a_file_name_file_and_line),
        TEST(command_line_over_user_over_system),
        TEST(settings_hold_what_decides_about_the_text),
        TEST(a_model_changes_recogniser_and_settings),
        TEST(a_model_is_found_where_models_are),
        TEST(help_names_what_a_command_takes_within_80_columns),
        TEST(sizes_have_units),
        TEST(long_and_empty_words_have_no_neighbour),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
