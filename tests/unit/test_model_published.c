/* LightOnOCR-2-1B as it is published, but for the weights: they are a hole in
 * a file. The size of that file says that the list of tensors is right. */
#include "engine/model/model.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#define PUBLISHED_SIZE 2011367489U

static const char config[] =
    "{\"architectures\":[\"LightOnOCRForConditionalGeneration\"],"
    "\"model_type\":\"mistral3\",\"image_token_id\":151655,"
    "\"eos_token_id\":151645,\"text_config\":{\"model_type\":\"qwen3\","
    "\"hidden_size\":1024,\"num_hidden_layers\":28,"
    "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,"
    "\"intermediate_size\":3072,\"max_position_embeddings\":16384,"
    "\"tie_word_embeddings\":true,\"vocab_size\":151936},"
    "\"vision_config\":{\"model_type\":\"pixtral\",\"hidden_size\":1024,"
    "\"num_hidden_layers\":24,\"num_attention_heads\":16,"
    "\"intermediate_size\":4096}}";

struct entry {
    char name[96];
    const char *shape;
    uint64_t bytes;
};

/* All tensors, and the header of their file. */
struct header {
    struct entry entry[532];
    unsigned count;
};

__attribute__((format(printf, 4, 5))) static void
add(struct header *h, uint64_t values, const char *shape, const char *name, ...)
{
    struct entry *e = &h->entry[h->count++];
    va_list args;

    assert_true(h->count <= 532);
    va_start(args, name);
    vsnprintf(e->name, sizeof e->name, name, args);
    va_end(args);
    e->shape = shape;
    e->bytes = 2 * values;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name,
                  ((const struct entry *)b)->name);
}

/* Appends the header, in the order of names; returns the bytes of data. */
static uint64_t print(struct header *h, struct ocr_buf *out)
{
    uint64_t from = 0;

    qsort(h->entry, h->count, sizeof *h->entry, by_name);
    ocr_buf_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (unsigned i = 0; i < h->count; i++) {
        const struct entry *e = &h->entry[i];
        const unsigned long long to = from + e->bytes;

        ocr_buf_printf(out,
                       ",\"model.%s.weight\":{\"dtype\":\"BF16\","
                       "\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                       e->name, e->shape, (unsigned long long)from, to);
        from = to;
    }
    ocr_buf_puts(out, "}");
    return from;
}

static void add_text(struct header *h)
{
    const uint64_t square = 1024 * 1024;

    add(h, 151936 * 1024, "151936,1024", "language_model.embed_tokens");
    for (unsigned i = 0; i < 28; i++) {
        char at[64];

        snprintf(at, sizeof at, "language_model.layers.%u", i);
        add(h, 1024, "1024", "%s.input_layernorm", at);
        add(h, 1024, "1024", "%s.post_attention_layernorm", at);
        add(h, 2 * square, "2048,1024", "%s.self_attn.q_proj", at);
        add(h, square, "1024,1024", "%s.self_attn.k_proj", at);
        add(h, square, "1024,1024", "%s.self_attn.v_proj", at);
        add(h, 2 * square, "1024,2048", "%s.self_attn.o_proj", at);
        add(h, 128, "128", "%s.self_attn.q_norm", at);
        add(h, 128, "128", "%s.self_attn.k_norm", at);
        add(h, 3 * square, "3072,1024", "%s.mlp.gate_proj", at);
        add(h, 3 * square, "3072,1024", "%s.mlp.up_proj", at);
        add(h, 3 * square, "1024,3072", "%s.mlp.down_proj", at);
    }
    add(h, 1024, "1024", "language_model.norm");
}

static void add_vision(struct header *h)
{
    const uint64_t square = 1024 * 1024;

    add(h, 602112, "1024,3,14,14", "vision_encoder.patch_conv");
    add(h, 1024, "1024", "vision_encoder.ln_pre");
    for (unsigned i = 0; i < 24; i++) {
        char at[64];

        snprintf(at, sizeof at, "vision_encoder.transformer.layers.%u", i);
        add(h, 1024, "1024", "%s.attention_norm", at);
        add(h, 1024, "1024", "%s.ffn_norm", at);
        for (const char *c = "qkvo"; *c; c++)
            add(h, square, "1024,1024", "%s.attention.%c_proj", at, *c);
        add(h, 4 * square, "4096,1024", "%s.feed_forward.gate_proj", at);
        add(h, 4 * square, "4096,1024", "%s.feed_forward.up_proj", at);
        add(h, 4 * square, "1024,4096", "%s.feed_forward.down_proj", at);
    }
}

static int at(const char *dir, const char *name)
{
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void put(int fd, const void *bytes, size_t len)
{
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
}

static void put_weights(const char *dir)
{
    const int fd = at(dir, "model.safetensors");
    static struct header h;
    struct ocr_buf text;
    uint64_t len, data;

    add_text(&h);
    add_vision(&h);
    add(&h, 1024, "1024", "vision_projection.norm");
    add(&h, 4 * 1024 * 1024, "1024,4096",
        "vision_projection.patch_merger.merging_layer");
    add(&h, 1024 * 1024, "1024,1024", "vision_projection.linear_1");
    add(&h, 1024 * 1024, "1024,1024", "vision_projection.linear_2");
    assert_int_equal(h.count, 532);
    ocr_buf_init(&text, 1 << 20);
    data = print(&h, &text);
    len = text.len;
    assert_int_equal(8 + len + data, PUBLISHED_SIZE);
    put(fd, &len, sizeof len);
    put(fd, text.data, text.len);
    assert_int_equal(ftruncate(fd, PUBLISHED_SIZE), 0);
    close(fd);
    ocr_buf_release(&text);
}

static void put_tokenizer(const char *dir)
{
    const int fd = at(dir, "tokenizer.json");
    gzFile file = gzopen("tests/data/qwen3-tokenizer.json.gz", "rb");
    char chunk[65536];
    int n;

    assert_non_null(file);
    while ((n = gzread(file, chunk, sizeof chunk)) > 0)
        put(fd, chunk, (size_t)n);
    gzclose(file);
    close(fd);
}

/* Opening looks at all tensors, but leaves only a little of them in memory. */
static void the_published_model_opens(void **state)
{
    char dir[] = "/tmp/ocrfs-published-XXXXXX", command[64];
    struct ocr_model_folder *f = NULL;
    struct ocr_err err = OCR_ERR_INIT;
    struct rusage use;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(dir));
    fd = at(dir, "config.json");
    put(fd, config, strlen(config));
    close(fd);
    put_weights(dir);
    put_tokenizer(dir);
    if (ocr_model_folder_open(&f, dir, &err))
        fail_msg("%s", err.text);
    assert_int_equal((uintptr_t)f->model.text.embedding.data % 2, 1);
    assert_int_equal(f->model.text.layer[27].down.cols, 3072);
    assert_int_equal(f->model.vision.layer[23].down.cols, 4096);
    assert_int_equal(f->model.vision.patch_conv.cols, 588);
    getrusage(RUSAGE_SELF, &use);
    print_message("# %ld MiB at most\n", use.ru_maxrss >> 10);
    assert_true(use.ru_maxrss < 600 << 10);
    ocr_model_folder_close(f);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_model_opens),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
