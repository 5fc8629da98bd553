/* A small model folder of odd sizes, written at test time. The bytes of its
 * weights are those of a counter: only their places matter here. */
#ifndef MODEL_HELP_H
#define MODEL_HELP_H
#include "engine/base/buf.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HIDDEN = 32,
    INNER = 37,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 8,
    LAYERS = 2,
    VOCAB = 304,
    TENSORS_MAX = 64,
    FILE_MAX = 4 << 20,
};

struct spec {
    const char *vision, *projector, *text; /* prefixes */
    const char *head;                      /* lm_head's prefix; NULL: none */
    const char *dtype;
    unsigned padding;   /* spaces behind the header */
    bool two_files;     /* with an index */
    const char *config; /* config.json; NULL: the usual one */
};

#define SPEC                                                                   \
    {                                                                          \
        "model.vision_encoder.", "model.vision_projection.",                   \
            "model.language_model.", NULL, "BF16", 0, false, NULL              \
    }

static const char odd_config[] =
    "{\"architectures\":[\"LightOnOcrForConditionalGeneration\"],"
    "\"model_type\":\"lighton_ocr\",\"image_token_id\":303,"
    "\"eos_token_id\":301,\"text_config\":{\"hidden_size\":32,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":37,"
    "\"vocab_size\":304},\"vision_config\":{\"hidden_size\":32,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"intermediate_size\":37,\"image_size\":112}}";

struct made {
    char name[128];
    unsigned rank, side[4];
};

struct maker {
    const struct spec *spec;
    struct made tensor[TENSORS_MAX];
    unsigned count;
};

__attribute__((format(printf, 4, 5))) static inline void
make(struct maker *m, const char *prefix, const char *shape, const char *format,
     ...)
{
    struct made *t = &m->tensor[m->count++];
    int at = snprintf(t->name, sizeof t->name, "%s", prefix);
    va_list args;

    assert_true(m->count <= TENSORS_MAX);
    va_start(args, format);
    vsnprintf(t->name + at, sizeof t->name - (size_t)at, format, args);
    va_end(args);
    t->rank = (unsigned)sscanf(shape, "%u,%u,%u,%u", &t->side[0], &t->side[1],
                               &t->side[2], &t->side[3]);
}

static inline void make_vision(struct maker *m)
{
    const char *p = m->spec->vision;

    make(m, p, "32,3,14,14", "patch_conv.weight");
    make(m, p, "32", "ln_pre.weight");
    for (unsigned i = 0; i < LAYERS; i++) {
        const char *at = "transformer.layers";

        make(m, p, "32", "%s.%u.attention_norm.weight", at, i);
        make(m, p, "32", "%s.%u.ffn_norm.weight", at, i);
        for (const char *c = "qkvo"; *c; c++)
            make(m, p, "32,32", "%s.%u.attention.%c_proj.weight", at, i, *c);
        make(m, p, "37,32", "%s.%u.feed_forward.gate_proj.weight", at, i);
        make(m, p, "37,32", "%s.%u.feed_forward.up_proj.weight", at, i);
        make(m, p, "32,37", "%s.%u.feed_forward.down_proj.weight", at, i);
    }
}

static inline void make_text(struct maker *m)
{
    const char *p = m->spec->text;

    make(m, p, "304,32", "embed_tokens.weight");
    make(m, p, "32", "norm.weight");
    for (unsigned i = 0; i < LAYERS; i++) {
        make(m, p, "32", "layers.%u.input_layernorm.weight", i);
        make(m, p, "32", "layers.%u.post_attention_layernorm.weight", i);
        make(m, p, "32,32", "layers.%u.self_attn.q_proj.weight", i);
        make(m, p, "16,32", "layers.%u.self_attn.k_proj.weight", i);
        make(m, p, "16,32", "layers.%u.self_attn.v_proj.weight", i);
        make(m, p, "32,32", "layers.%u.self_attn.o_proj.weight", i);
        make(m, p, "8", "layers.%u.self_attn.q_norm.weight", i);
        make(m, p, "8", "layers.%u.self_attn.k_norm.weight", i);
        make(m, p, "37,32", "layers.%u.mlp.gate_proj.weight", i);
        make(m, p, "37,32", "layers.%u.mlp.up_proj.weight", i);
        make(m, p, "32,37", "layers.%u.mlp.down_proj.weight", i);
    }
    if (m->spec->head)
        make(m, m->spec->head, "304,32", "lm_head.weight");
}

static inline void make_projector(struct maker *m)
{
    const char *p = m->spec->projector;

    make(m, p, "32", "norm.weight");
    make(m, p, "32,128", "patch_merger.merging_layer.weight");
    make(m, p, "32,32", "linear_1.weight");
    make(m, p, "32,32", "linear_2.weight");
}

static inline void write_file(const char *dir, const char *name,
                              const void *bytes, size_t len)
{
    const int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int fd =
        openat(at, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(at >= 0 && fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    close(fd);
    close(at);
}

static inline void write_text(const char *dir, const char *name,
                              const char *text)
{
    write_file(dir, name, text, strlen(text));
}

/* Tensors from .. to - 1 as one file, the last one first. */
static inline void write_weights(const char *dir, const char *name,
                                 const struct maker *m, unsigned from,
                                 unsigned to)
{
    const size_t width = strcmp(m->spec->dtype, "F32") ? 2 : 4;
    struct ocr_buf header, file;
    size_t at = 0;
    uint64_t len;

    ocr_buf_init(&header, FILE_MAX);
    ocr_buf_init(&file, FILE_MAX);
    ocr_buf_puts(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (unsigned i = to; i-- > from;) {
        const struct made *t = &m->tensor[i];
        size_t bytes = width;

        ocr_buf_printf(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                       t->name, m->spec->dtype);
        for (unsigned k = 0; k < t->rank; k++) {
            ocr_buf_printf(&header, "%s%u", k ? "," : "", t->side[k]);
            bytes *= t->side[k];
        }
        ocr_buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", at,
                       at + bytes);
        at += bytes;
    }
    ocr_buf_puts(&header, "}");
    for (unsigned i = 0; i < m->spec->padding; i++)
        ocr_buf_putc(&header, ' ');
    len = header.len;
    ocr_buf_add(&file, &len, sizeof len); /* on a little-endian machine */
    ocr_buf_add(&file, header.data, header.len);
    for (size_t i = 0; i < at; i++)
        ocr_buf_putc(&file, (char)(i * 31 >> 3));
    assert_false(file.failed);
    write_file(dir, name, file.data, file.len);
    ocr_buf_release(&header);
    ocr_buf_release(&file);
}

static inline void write_index(const char *dir, const struct maker *m,
                               unsigned half)
{
    struct ocr_buf text;

    ocr_buf_init(&text, FILE_MAX);
    ocr_buf_puts(&text, "{\"metadata\":{},\"weight_map\":{");
    for (unsigned i = 0; i < m->count; i++)
        ocr_buf_printf(&text, "%s\"%s\":\"%s\"", i ? "," : "",
                       m->tensor[i].name,
                       i < half ? "one.safetensors" : "two.safetensors");
    ocr_buf_puts(&text, "}}");
    write_text(dir, "model.safetensors.index.json", text.data);
    ocr_buf_release(&text);
}

/* Writes a folder below /tmp; its path is valid until the next call. */
static inline const char *write_model(const struct spec *spec)
{
    static char dir[64];
    char tokenizer[4096];
    struct maker m = {.spec = spec};

    snprintf(dir, sizeof dir, "/tmp/ocrfs-model-XXXXXX");
    assert_non_null(mkdtemp(dir));
    write_text(dir, "config.json", spec->config ? spec->config : odd_config);
    assert_non_null(realpath("tests/fuzz/seeds/tokenizer/words", tokenizer));
    {
        char link[128];

        snprintf(link, sizeof link, "%s/tokenizer.json", dir);
        assert_int_equal(symlink(tokenizer, link), 0);
    }
    make_vision(&m);
    make_projector(&m);
    make_text(&m);
    if (spec->two_files) {
        write_weights(dir, "one.safetensors", &m, 0, m.count / 2);
        write_weights(dir, "two.safetensors", &m, m.count / 2, m.count);
        write_index(dir, &m, m.count / 2);
    } else {
        write_weights(dir, "model.safetensors", &m, 0, m.count);
    }
    return dir;
}

/* Removes a folder of write_model(), which has no folders in it. */
static inline void remove_model(const char *dir)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* A whole file of the folder, NUL-terminated, to be freed. */
static inline char *read_whole(const char *dir, const char *name, size_t *len)
{
    char path[256];
    struct stat stat = {0};
    char *text;
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && !fstat(fd, &stat));
    text = malloc((size_t)stat.st_size + 1);
    assert_non_null(text);
    assert_int_equal(read(fd, text, (size_t)stat.st_size), stat.st_size);
    text[stat.st_size] = '\0';
    *len = (size_t)stat.st_size;
    close(fd);
    return text;
}

/* Puts `to` in the place of the first `from` of a file; both equally long, so
 * that lengths in the file stay right. */
static inline void patch(const char *dir, const char *name, const char *from,
                         const char *to)
{
    size_t len;
    char *text = read_whole(dir, name, &len);
    char *at = memmem(text, len, from, strlen(from));

    assert_int_equal(strlen(from), strlen(to));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    write_file(dir, name, text, len);
    free(text);
}

#endif
