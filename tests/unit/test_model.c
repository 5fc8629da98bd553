/* A model folder: tensors by name, fingerprint, and everything that can be
 * wrong with one. */
#include "engine/model/model.h"
#include "tests/unit/model_help.h"

#define TINY "tests/data/tiny-reader"
#define ONE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static struct ocr_model_folder *open_folder(const char *path)
{
    struct ocr_model_folder *folder = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    if (ocr_model_folder_open(&folder, path, &err))
        fail_msg("%s", err.text);
    return folder;
}

static uint32_t number(const json_t *object, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(object, key));
}

/* Nothing here depends on its sizes: a better one will take its place. */
static void tiny_reader_opens(void **state)
{
    struct ocr_model_folder *f = open_folder(TINY);
    json_t *config = json_load_file(TINY "/config.json", 0, NULL);
    json_t *end = json_load_file(TINY "/generation_config.json", 0, NULL);
    const json_t *text = json_object_get(config, "text_config");
    const json_t *vision = json_object_get(config, "vision_config");
    const struct ocr_model *m = &f->model;
    const uint32_t last = m->text.layers - 1;

    (void)state;
    assert_int_equal(m->vision.layers, number(vision, "num_hidden_layers"));
    assert_int_equal(m->vision.head_dim, 64);
    assert_int_equal(m->vision.grid, 110);
    assert_int_equal(m->vision.patch_conv.cols, 588);
    assert_int_equal(m->text.layers, number(text, "num_hidden_layers"));
    assert_int_equal(m->text.layer[last].q.rows,
                     128 * number(text, "num_attention_heads"));
    assert_int_equal(m->text.layer[last].q_norm.cols, 128);
    assert_ptr_equal(m->text.head.data, m->text.embedding.data);
    assert_true(m->text.rope_theta == 1e6F);
    assert_true(m->text.norm_eps == 1e-6F);
    assert_int_equal(m->image_token, number(config, "image_token_id"));
    assert_int_equal(f->config.longest_edge, 1540);
    assert_int_equal(f->config.stop_count, 1);
    assert_int_equal(f->config.stop_ids[0], number(end, "eos_token_id"));
    assert_int_equal(strlen(f->fingerprint), 32);
    assert_int_equal(ocr_model_folder_check(f, NULL), 0);
    ocr_model_folder_close(f);
    json_decref(config);
    json_decref(end);
}

/* The data of a tensor is found through the header of the file, again and in
 * another way. */
static void expect_data(const char *dir, const char *file, const char *name,
                        const struct ocr_tensor *t, size_t bytes)
{
    size_t len, from;
    uint64_t header;
    char *text = read_whole(dir, file, &len), *at;
    char key[160];

    memcpy(&header, text, sizeof header);
    snprintf(key, sizeof key, "\"%s\"", name);
    at = strstr(text + 8, key);
    assert_non_null(at);
    assert_int_equal(sscanf(strstr(at, "offsets"), "offsets\":[%zu", &from), 1);
    assert_true(8 + header + from + bytes <= len);
    assert_memory_equal(t->data, text + 8 + header + from, bytes);
    free(text);
}

static void odd_sizes_and_odd_offsets(void **state)
{
    (void)state;
    for (unsigned padding = 0; padding < 4; padding++) {
        const struct spec spec = {
            .vision = "model.vision_encoder.",
            .projector = "model.vision_projection.",
            .text = "model.language_model.",
            .dtype = "BF16",
            .padding = padding,
        };
        const char *dir = write_model(&spec);
        struct ocr_model_folder *f = open_folder(dir);
        const struct ocr_model *m = &f->model;

        assert_int_equal(m->vision.head_dim, 8);
        assert_int_equal(m->vision.grid, 8);
        assert_int_equal(f->config.longest_edge, 112);
        assert_int_equal(m->projector.merging.cols, 128);
        expect_data(dir, ONE,
                    "model.language_model.layers.1.mlp.down_proj.weight",
                    &m->text.layer[1].down, 32 * 37 * 2);
        expect_data(dir, ONE, "model.vision_encoder.patch_conv.weight",
                    &m->vision.patch_conv, 32 * 588 * 2);
        ocr_model_folder_close(f);
        remove_model(dir);
    }
}

static void all_prefixes(void **state)
{
    static const char *const rows[][3] = {
        {"vision_encoder.", "vision_projection.", "language_model."},
        {"vision_tower.", "multi_modal_projector.", "language_model.model."},
        {"model.vision_tower.", "model.multi_modal_projector.",
         "model.language_model."},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct spec spec = {.vision = rows[i][0],
                                  .projector = rows[i][1],
                                  .text = rows[i][2],
                                  .dtype = "F16"};
        const char *dir = write_model(&spec);
        struct ocr_model_folder *f = open_folder(dir);

        assert_int_equal(f->model.text.embedding.dtype, OCR_DTYPE_FP16);
        ocr_model_folder_close(f);
        remove_model(dir);
    }
}

/* What config.json says with `tied` in its text_config. */
static const char *config_with(const char *tied)
{
    static char text[2048];
    const char *rest = strstr(odd_config, "\"hidden_size\":32");

    snprintf(text, sizeof text, "%.*s%s%s", (int)(rest - odd_config),
             odd_config, tied, rest);
    return text;
}

static void a_head_of_its_own(void **state)
{
    static const struct {
        const char *prefix, *tied;
        bool own;
    } rows[] = {
        {"", "", true},
        {"language_model.", "", true},
        {"", "\"tie_word_embeddings\":false,", true},
        {"", "\"tie_word_embeddings\":true,", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spec spec = SPEC;
        struct ocr_model_folder *f;
        const char *dir;

        spec.head = rows[i].prefix;
        spec.config = config_with(rows[i].tied);
        dir = write_model(&spec);
        f = open_folder(dir);
        assert_int_equal(f->model.text.head.data !=
                             f->model.text.embedding.data,
                         rows[i].own);
        assert_int_equal(f->model.text.head.rows, VOCAB);
        ocr_model_folder_close(f);
        remove_model(dir);
    }
}

static void two_files_with_an_index(void **state)
{
    struct spec spec = SPEC;
    struct ocr_model_folder *one, *two;
    const char *dir;
    char first[64];

    (void)state;
    spec.dtype = "F32";
    snprintf(first, sizeof first, "%s", write_model(&spec));
    one = open_folder(first);
    spec.two_files = true;
    dir = write_model(&spec);
    two = open_folder(dir);
    expect_data(dir, "two.safetensors",
                "model.language_model.layers.1.mlp.down_proj.weight",
                &two->model.text.layer[1].down, 32 * 37 * 4);
    /* Other bytes at other places. */
    assert_string_not_equal(one->fingerprint, two->fingerprint);
    ocr_model_folder_close(one);
    ocr_model_folder_close(two);
    remove_model(first);
    remove_model(dir);
}

static void fingerprint_of(const char *dir, char out[OCR_FINGERPRINT_SIZE])
{
    struct ocr_model_folder *f = open_folder(dir);

    memcpy(out, f->fingerprint, OCR_FINGERPRINT_SIZE);
    ocr_model_folder_close(f);
}

/* Changes one byte `before` bytes before the end of the file. */
static void flip(const char *dir, const char *name, size_t before)
{
    size_t len;
    char *text = read_whole(dir, name, &len);

    text[len - before] ^= 1;
    write_file(dir, name, text, len);
    free(text);
}

static void the_fingerprint_follows_the_content(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    char first[OCR_FINGERPRINT_SIZE], now[OCR_FINGERPRINT_SIZE];

    (void)state;
    fingerprint_of(dir, first);
    fingerprint_of(dir, now);
    assert_string_equal(first, now);
    flip(dir, ONE, 1);
    fingerprint_of(dir, now);
    assert_string_not_equal(first, now);
    flip(dir, ONE, 1);
    fingerprint_of(dir, now);
    assert_string_equal(first, now);
    patch(dir, "config.json", "\"eos_token_id\":301", "\"eos_token_id\":300");
    fingerprint_of(dir, now);
    assert_string_not_equal(first, now);
    remove_model(dir);
}

static void weights_in_other_files_are_the_same(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    char first[OCR_FINGERPRINT_SIZE], now[OCR_FINGERPRINT_SIZE];
    char path[128], to[128];

    (void)state;
    fingerprint_of(dir, first);
    snprintf(path, sizeof path, "%s/%s", dir, ONE);
    snprintf(to, sizeof to, "%s/one.safetensors", dir);
    assert_int_equal(rename(path, to), 0);
    {
        struct maker m = {.spec = &spec};

        make_vision(&m);
        make_projector(&m);
        make_text(&m);
        write_index(dir, &m, m.count);
    }
    fingerprint_of(dir, now);
    assert_string_equal(first, now);
    remove_model(dir);
}

/* The folder cannot be opened, and the sentence holds both words. */
static void expect_refused(const char *dir, const char *word, const char *other)
{
    struct ocr_model_folder *f = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    assert_true(ocr_model_folder_open(&f, dir, &err) < 0);
    assert_null(f);
    if (!strstr(err.text, word) || !strstr(err.text, other) ||
        !strstr(err.text, dir))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", err.text, word, other);
}

static void headers_that_lie(void **state)
{
#define NORM "model.language_model.norm.weight"
#define NORM_ENTRY "\"" NORM "\":{\"dtype\":\"BF16\",\"shape\":[32]"
    static const struct {
        const char *from, *to, *word, *other;
    } rows[] = {
        {NORM_ENTRY, "\"" NORM "\":{\"dtype\":\"BF16\",\"shape\":[33]",
         "tensor " NORM, "its shape needs 66"},
        {NORM_ENTRY, "\"" NORM "\":{\"dtype\":\"BF16\",\"shape\":[-2]",
         "tensor " NORM, "whole numbers"},
        {NORM_ENTRY, "\"" NORM "\":{\"dtype\":\"BF17\",\"shape\":[32]",
         "tensor " NORM, "unknown data type BF17"},
        {NORM_ENTRY, "\"" NORM "\":{\"dtype\":\"I16\" ,\"shape\":[32]",
         "tensor " NORM, "of type I16"},
        {NORM, "model.language_model.norm.wEight", "tensor " NORM, "missing"},
        {"[0,", "[2,", "tensor model.language_model.layers.1", "bytes of data"},
        {"[0,", "[-,", ONE, "bad JSON"},
        {"[304,32]", "[32,304]", "embed_tokens", "shape 32 x 304"},
        {"[32,3,14,14]", "[32,14,14,3]", "patch_conv", "by config.json"},
        {"\"__metadata__\"", "\"__metadatX__\"", "__metadatX__", "data type"},
        {"\"dtype\"", "\"Xtype\"", "tensor", "no data type"},
        {"\"shape\"", "\"sXape\"", "tensor", "no shape"},
        {"data_offsets", "Xata_offsets", "tensor", "data offsets"},
        {"layers.1.mlp.up_proj", "layers.0.mlp.up_proj", ONE, "duplicate"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spec spec = SPEC;
        const char *dir = write_model(&spec);

        patch(dir, ONE, rows[i].from, rows[i].to);
        expect_refused(dir, rows[i].word, rows[i].other);
        remove_model(dir);
    }
}

static void files_that_are_cut_or_too_long(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    size_t len;
    char *text = read_whole(dir, ONE, &len);

    (void)state;
    for (size_t i = 0; i < len; i += i < 16 ? 1 : i < 4096 ? 509 : 65537) {
        write_file(dir, ONE, text, i);
        expect_refused(dir, ONE, "");
    }
    write_file(dir, ONE, text, len - 1);
    expect_refused(dir, "tensor model.", "behind the end");
    text[len] = 'x';
    write_file(dir, ONE, text, len + 1);
    expect_refused(dir, ONE, "1 bytes at the end belong to no tensor");
    free(text);
    write_file(dir, ONE, "\0\0\0\0\1\0\0\0{}", 10); /* 4 GiB of header */
    expect_refused(dir, ONE, "header of 4294967296 bytes");
    write_file(dir, ONE, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    expect_refused(dir, ONE, "header of 18446744073709551615 bytes");
    remove_model(dir);
}

static void deep_json_is_refused(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    char deep[100000];

    (void)state;
    memset(deep, '[', sizeof deep);
    for (size_t i = 0; i < 5; i++)
        deep[i] = "{\"a\":"[i];
    write_file(dir, "config.json", deep, sizeof deep);
    expect_refused(dir, "config.json", "nested deeper");
    remove_model(dir);
}

static void indexes_that_lie(void **state)
{
    static const struct {
        const char *from, *to, *word, *other;
    } rows[] = {
        {"\"one.safetensors\"", "\"../.safetensors\"", "patch_conv",
         "../.safetensors"},
        {"\"one.safetensors\"", "\"two.safetensors\"", "patch_conv",
         "should be in two.safetensors"},
        {"\"one.safetensors\"", "\"six.safetensors\"", "six.safetensors",
         "No such file"},
        {"\"one.safetensors\"", "1                ", "patch_conv",
         "not the name"},
        {"weight_map", "Weight_map", INDEX, "no weight_map"},
        {"ln_pre", "ln_prX", "ln_prX", "should be in one.safetensors"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct spec spec = SPEC;
        const char *dir;

        spec.two_files = true;
        dir = write_model(&spec);
        patch(dir, INDEX, rows[i].from, rows[i].to);
        expect_refused(dir, rows[i].word, rows[i].other);
        remove_model(dir);
    }
}

static void an_index_that_names_itself(void **state)
{
    struct spec spec = SPEC;
    const char *dir;
    char path[128];

    (void)state;
    spec.two_files = true;
    dir = write_model(&spec);
    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"" INDEX "\"}}");
    expect_refused(dir, "tensor a", "not the name of a safetensors file");
    /* The same through links, and links in a circle. */
    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"a.safetensors\"}}");
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    assert_int_equal(symlink(INDEX, path), 0);
    expect_refused(dir, "a.safetensors", "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("a.safetensors", path), 0);
    expect_refused(dir, "a.safetensors", "symbolic links");
    remove_model(dir);
}

static void files_that_are_missing_or_no_files(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    char path[128];

    (void)state;
    expect_refused("/nonexistent/model", "cannot open the folder", "");
    snprintf(path, sizeof path, "%s/%s", dir, ONE);
    assert_int_equal(unlink(path), 0);
    expect_refused(dir, "no weights", INDEX);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(dir, ONE, "not a regular file");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(unlink(path), 0);
    expect_refused(dir, "tokenizer.json", "No such file");
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(unlink(path), 0);
    expect_refused(dir, "config.json", "");
    remove_model(dir);
}

static void a_tokenizer_of_another_model(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);

    (void)state;
    patch(dir, "config.json", "\"vocab_size\":304", "\"vocab_size\":302");
    patch(dir, "config.json", "\"image_token_id\":303",
          "\"image_token_id\":301");
    expect_refused(dir, "tokenizer.json has ids up to 302", "302");
    remove_model(dir);
}

static void sum_all(const struct ocr_tensor *t, size_t bytes, uint64_t *sum)
{
    for (size_t i = 0; i < bytes; i++)
        *sum += t->data[i];
}

/* Reading on is no crash, and the check tells. */
static void a_file_that_shrinks_while_it_is_read(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    struct ocr_model_folder *f = open_folder(dir);
    struct ocr_err err = OCR_ERR_INIT;
    uint64_t sum = 0;
    char path[128];

    (void)state;
    assert_int_equal(ocr_model_folder_check(f, NULL), 0);
    snprintf(path, sizeof path, "%s/%s", dir, ONE);
    assert_int_equal(truncate(path, 5000), 0);
    sum_all(&f->model.text.embedding, (size_t)VOCAB * HIDDEN * 2, &sum);
    sum_all(&f->model.vision.patch_conv, 32 * 588 * 2, &sum);
    assert_int_equal(sum, 0); /* both lie behind the cut */
    assert_int_equal(ocr_model_folder_check(f, &err), -EBUSY);
    assert_non_null(strstr(err.text, "model.safetensors shrank from"));
    ocr_model_folder_close(f);
    remove_model(dir);
}

/* Cut and made long again: only the pages that were missing tell. */
static void a_file_that_was_short_for_a_moment(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    struct ocr_model_folder *f = open_folder(dir);
    struct ocr_err err = OCR_ERR_INIT;
    struct stat stat;
    uint64_t sum = 0;
    char path[128];

    (void)state;
    snprintf(path, sizeof path, "%s/%s", dir, ONE);
    assert_int_equal(lstat(path, &stat), 0);
    assert_int_equal(truncate(path, 5000), 0);
    sum_all(&f->model.text.embedding, (size_t)VOCAB * HIDDEN * 2, &sum);
    assert_int_equal(sum, 0);
    assert_int_equal(truncate(path, stat.st_size), 0);
    assert_int_equal(utimensat(AT_FDCWD, path,
                               (struct timespec[]){stat.st_atim, stat.st_mtim},
                               0),
                     0);
    assert_int_equal(ocr_model_folder_check(f, &err), -EIO);
    assert_non_null(strstr(err.text, "could not be read in whole"));
    ocr_model_folder_close(f);
    remove_model(dir);
}

static void a_file_that_changes_while_it_is_read(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);
    struct ocr_model_folder *f = open_folder(dir);
    struct ocr_err err = OCR_ERR_INIT;
    char path[128];

    (void)state;
    snprintf(path, sizeof path, "%s/%s", dir, ONE);
    assert_int_equal(
        utimensat(AT_FDCWD, path, (struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
    assert_int_equal(ocr_model_folder_check(f, &err), -EBUSY);
    assert_non_null(strstr(err.text, "model.safetensors changed"));
    ocr_model_folder_close(f);
    remove_model(dir);
}

static void pages_are_given_back_and_read_again(void **state)
{
    struct ocr_model_folder *f = open_folder(TINY);
    const struct ocr_tensor *t = &f->model.text.embedding;
    uint64_t before = 0, after = 0;

    (void)state;
    sum_all(t, (size_t)t->rows * t->cols * 2, &before);
    f->model.forget(t);
    sum_all(t, (size_t)t->rows * t->cols * 2, &after);
    assert_true(before && before == after);
    ocr_model_folder_unmap(f);
    assert_int_equal(ocr_model_folder_check(f, NULL), 0);
    ocr_model_folder_close(f);
}

static void closing_gives_everything_back(void **state)
{
    struct spec spec = SPEC;
    const char *dir = write_model(&spec);

    (void)state;
    ocr_model_folder_close(NULL);
    for (int i = 0; i < 300; i++) /* more than there are slots for mappings */
        ocr_model_folder_close(open_folder(dir));
    remove_model(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_reader_opens),
        cmocka_unit_test(odd_sizes_and_odd_offsets),
        cmocka_unit_test(all_prefixes),
        cmocka_unit_test(a_head_of_its_own),
        cmocka_unit_test(two_files_with_an_index),
        cmocka_unit_test(the_fingerprint_follows_the_content),
        cmocka_unit_test(weights_in_other_files_are_the_same),
        cmocka_unit_test(headers_that_lie),
        cmocka_unit_test(files_that_are_cut_or_too_long),
        cmocka_unit_test(deep_json_is_refused),
        cmocka_unit_test(indexes_that_lie),
        cmocka_unit_test(an_index_that_names_itself),
        cmocka_unit_test(files_that_are_missing_or_no_files),
        cmocka_unit_test(a_tokenizer_of_another_model),
        cmocka_unit_test(a_file_that_shrinks_while_it_is_read),
        cmocka_unit_test(a_file_that_was_short_for_a_moment),
        cmocka_unit_test(a_file_that_changes_while_it_is_read),
        cmocka_unit_test(pages_are_given_back_and_read_again),
        cmocka_unit_test(closing_gives_everything_back),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
