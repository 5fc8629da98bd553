#include "engine/model/model.h"
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/model/json.h"
#include "engine/model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    CONFIG_BYTES_MAX = 1 << 20,
    SAMPLES = 4,
    SAMPLE_BYTES = 4096,
};

/* Collects the tensors. The first error stays, what follows does nothing. */
struct loader {
    const struct ocr_weights *weights;
    const char *prefix;
    XXH3_state_t *hash;
    struct ocr_err *err;
    int rc;
};

struct shape {
    unsigned rank;
    uint64_t side[4];
};

static void forget(const struct ocr_tensor *t)
{
    static const size_t value[] = {
        [OCR_DTYPE_BF16] = 2, [OCR_DTYPE_FP16] = 2, [OCR_DTYPE_FP32] = 4};
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t data = (uintptr_t)t->data;
    const uintptr_t begin = (data + page - 1) / page * page;
    const uintptr_t end =
        (data + (size_t)t->rows * t->cols * value[t->dtype]) / page * page;

    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static void hash_samples(XXH3_state_t *hash, const unsigned char *data,
                         uint64_t bytes)
{
    if (bytes <= (uint64_t)SAMPLES * SAMPLE_BYTES) {
        XXH3_128bits_update(hash, data, bytes);
        return;
    }
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const uint64_t at = (bytes - SAMPLE_BYTES) * i / (SAMPLES - 1);

        XXH3_128bits_update(hash, data + at, SAMPLE_BYTES);
    }
}

static void print_shape(char *out, size_t size, const uint64_t *side,
                        unsigned rank)
{
    size_t at = 0;

    out[0] = '\0';
    for (unsigned i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%llu", i ? " x " : "",
                               (unsigned long long)side[i]);
}

static bool same_shape(const struct ocr_safetensor *t, const struct shape *want)
{
    return t->rank == want->rank &&
           !memcmp(t->shape, want->side, want->rank * sizeof *want->side);
}

static int dtype_of(const struct ocr_safetensor *t, enum ocr_dtype *out)
{
    static const char *const names[] = {[OCR_DTYPE_BF16] = "BF16",
                                        [OCR_DTYPE_FP16] = "F16",
                                        [OCR_DTYPE_FP32] = "F32"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], t->dtype))
            continue;
        *out = (enum ocr_dtype)i;
        return 0;
    }
    return -EINVAL;
}

static int check_tensor(const struct loader *l, const struct ocr_found *found,
                        const char *name, const struct shape *want,
                        enum ocr_dtype *dtype)
{
    char is[128], wanted[96];

    if (!found->tensor)
        return ocr_err_set(l->err, -EINVAL, "%s: tensor %s is missing",
                           ocr_weights_file(l->weights), name);
    if (dtype_of(found->tensor, dtype))
        return ocr_err_set(l->err, -EINVAL,
                           "%s: tensor %s is of type %s: only BF16, F16 and "
                           "F32 are supported",
                           found->file, name, found->tensor->dtype);
    if (same_shape(found->tensor, want))
        return 0;
    print_shape(is, sizeof is, found->tensor->shape, found->tensor->rank);
    print_shape(wanted, sizeof wanted, want->side, want->rank);
    return ocr_err_set(l->err, -EINVAL,
                       "%s: tensor %s has the shape %s, but by config.json it "
                       "is %s",
                       found->file, name, is, wanted);
}

__attribute__((format(printf, 4, 0))) static void
take(struct loader *l, struct ocr_tensor *out, struct shape want,
     const char *format, va_list args)
{
    char suffix[96], name[160];
    struct ocr_found found;
    uint64_t cols = 1;

    if (l->rc)
        return;
    vsnprintf(suffix, sizeof suffix, format, args);
    snprintf(name, sizeof name, "%s%s", l->prefix, suffix);
    found = ocr_weights_find(l->weights, name);
    l->rc = check_tensor(l, &found, name, &want, &out->dtype);
    if (l->rc)
        return;
    for (unsigned i = want.rank > 1; i < want.rank; i++)
        cols *= want.side[i];
    out->data = found.data;
    out->rows = want.rank > 1 ? (uint32_t)want.side[0] : 1;
    out->cols = (uint32_t)cols;
    XXH3_128bits_update(l->hash, suffix, strlen(suffix) + 1);
    XXH3_128bits_update(l->hash, &out->dtype, sizeof out->dtype);
    XXH3_128bits_update(l->hash, want.side, sizeof want.side);
    hash_samples(l->hash, found.data, found.tensor->bytes);
    forget(out);
}

__attribute__((format(printf, 4, 5))) static void
vector(struct loader *l, struct ocr_tensor *out, uint64_t cols,
       const char *format, ...)
{
    va_list args;

    va_start(args, format);
    take(l, out, (struct shape){1, {cols}}, format, args);
    va_end(args);
}

__attribute__((format(printf, 5, 6))) static void
matrix(struct loader *l, struct ocr_tensor *out, uint64_t rows, uint64_t cols,
       const char *format, ...)
{
    va_list args;

    va_start(args, format);
    take(l, out, (struct shape){2, {rows, cols}}, format, args);
    va_end(args);
}

__attribute__((format(printf, 4, 5))) static void
picture(struct loader *l, struct ocr_tensor *out, struct shape shape,
        const char *format, ...)
{
    va_list args;

    va_start(args, format);
    take(l, out, shape, format, args);
    va_end(args);
}

/* The one of `prefixes` (NULL at the end) under which `key` is there; the
 * first, so that messages name it, if none is. */
static void choose_prefix(struct loader *l, const char *const *prefixes,
                          const char *key)
{
    char name[160];

    l->prefix = prefixes[0];
    for (size_t i = 0; prefixes[i]; i++) {
        snprintf(name, sizeof name, "%s%s", prefixes[i], key);
        if (!ocr_weights_find(l->weights, name).tensor)
            continue;
        l->prefix = prefixes[i];
        return;
    }
}

static void take_vision_layer(struct loader *l, struct ocr_vision_layer *y,
                              const struct ocr_vision *v, unsigned i)
{
    const uint64_t hidden = v->hidden, inner = (uint64_t)v->heads * v->head_dim;
    const char *at = "transformer.layers";

    vector(l, &y->attention_norm, hidden, "%s.%u.attention_norm.weight", at, i);
    matrix(l, &y->q, inner, hidden, "%s.%u.attention.q_proj.weight", at, i);
    matrix(l, &y->k, inner, hidden, "%s.%u.attention.k_proj.weight", at, i);
    matrix(l, &y->v, inner, hidden, "%s.%u.attention.v_proj.weight", at, i);
    matrix(l, &y->o, hidden, inner, "%s.%u.attention.o_proj.weight", at, i);
    vector(l, &y->ffn_norm, hidden, "%s.%u.ffn_norm.weight", at, i);
    matrix(l, &y->gate, v->intermediate, hidden,
           "%s.%u.feed_forward.gate_proj.weight", at, i);
    matrix(l, &y->up, v->intermediate, hidden,
           "%s.%u.feed_forward.up_proj.weight", at, i);
    matrix(l, &y->down, hidden, v->intermediate,
           "%s.%u.feed_forward.down_proj.weight", at, i);
}

static void take_vision(struct loader *l, struct ocr_vision *v)
{
    static const char *const prefixes[] = {
        "model.vision_encoder.", "vision_encoder.", "model.vision_tower.",
        "vision_tower.", NULL};
    const struct shape conv = {4, {v->hidden, 3, v->patch, v->patch}};

    choose_prefix(l, prefixes, "patch_conv.weight");
    picture(l, &v->patch_conv, conv, "patch_conv.weight");
    vector(l, &v->ln_pre, v->hidden, "ln_pre.weight");
    for (unsigned i = 0; i < v->layers && !l->rc; i++)
        take_vision_layer(l, &v->layer[i], v, i);
}

static void take_projector(struct loader *l, struct ocr_model *m)
{
    static const char *const prefixes[] = {
        "model.vision_projection.", "vision_projection.",
        "model.multi_modal_projector.", "multi_modal_projector.", NULL};
    const uint64_t in = m->vision.hidden, out = m->text.hidden;
    struct ocr_projector *p = &m->projector;

    choose_prefix(l, prefixes, "linear_1.weight");
    vector(l, &p->norm, in, "norm.weight");
    matrix(l, &p->merging, in, in * p->merge * p->merge,
           "patch_merger.merging_layer.weight");
    matrix(l, &p->linear_1, out, in, "linear_1.weight");
    matrix(l, &p->linear_2, out, out, "linear_2.weight");
}

static void take_text_layer(struct loader *l, struct ocr_text_layer *y,
                            const struct ocr_text *t, unsigned i)
{
    const uint64_t hidden = t->hidden, q = (uint64_t)t->heads * t->head_dim;
    const uint64_t kv = (uint64_t)t->kv_heads * t->head_dim;

    vector(l, &y->input_norm, hidden, "layers.%u.input_layernorm.weight", i);
    matrix(l, &y->q, q, hidden, "layers.%u.self_attn.q_proj.weight", i);
    matrix(l, &y->k, kv, hidden, "layers.%u.self_attn.k_proj.weight", i);
    matrix(l, &y->v, kv, hidden, "layers.%u.self_attn.v_proj.weight", i);
    matrix(l, &y->o, hidden, q, "layers.%u.self_attn.o_proj.weight", i);
    vector(l, &y->q_norm, t->head_dim, "layers.%u.self_attn.q_norm.weight", i);
    vector(l, &y->k_norm, t->head_dim, "layers.%u.self_attn.k_norm.weight", i);
    vector(l, &y->post_norm, hidden,
           "layers.%u.post_attention_layernorm.weight", i);
    matrix(l, &y->gate, t->intermediate, hidden,
           "layers.%u.mlp.gate_proj.weight", i);
    matrix(l, &y->up, t->intermediate, hidden, "layers.%u.mlp.up_proj.weight",
           i);
    matrix(l, &y->down, hidden, t->intermediate,
           "layers.%u.mlp.down_proj.weight", i);
}

/* A head of its own counts unless the configuration says that it is the
 * embedding. */
static void take_head(struct loader *l, struct ocr_text *t, enum ocr_tied tied)
{
    static const char *const prefixes[] = {"", "language_model.", "model.",
                                           NULL};
    static const char key[] = "lm_head.weight";
    char name[64];

    choose_prefix(l, prefixes, key);
    snprintf(name, sizeof name, "%s%s", l->prefix, key);
    t->head = t->embedding;
    if (tied == OCR_TIED_NO ||
        (tied == OCR_TIED_UNSAID && ocr_weights_find(l->weights, name).tensor))
        matrix(l, &t->head, t->vocab, t->hidden, "%s", key);
}

static void take_text(struct loader *l, struct ocr_text *t, enum ocr_tied tied)
{
    static const char *const prefixes[] = {"model.language_model.",
                                           "language_model.model.",
                                           "language_model.", NULL};

    choose_prefix(l, prefixes, "embed_tokens.weight");
    matrix(l, &t->embedding, t->vocab, t->hidden, "embed_tokens.weight");
    for (unsigned i = 0; i < t->layers && !l->rc; i++)
        take_text_layer(l, &t->layer[i], t, i);
    vector(l, &t->norm, t->hidden, "norm.weight");
    take_head(l, t, tied);
}

static int take_tensors(struct ocr_model_folder *f, XXH3_state_t *hash,
                        struct ocr_err *err)
{
    struct loader l = {f->weights, "", hash, err, 0};
    struct ocr_model *m = &f->model;

    m->vision.layer = calloc(m->vision.layers, sizeof *m->vision.layer);
    m->text.layer = calloc(m->text.layers, sizeof *m->text.layer);
    if (!m->vision.layer || !m->text.layer)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    m->forget = forget;
    take_vision(&l, &m->vision);
    take_projector(&l, m);
    take_text(&l, &m->text, f->config.tied);
    if (l.rc)
        return l.rc;
    /* What was sampled must have been there. */
    return ocr_weights_check(f->weights, err);
}

/* Reads a JSON file into the empty `text`, and hashes it. */
static int read_text(struct ocr_buf *text, int dir, const char *name,
                     XXH3_state_t *hash, struct ocr_err *err)
{
    const int rc = ocr_file_read(text, dir, name, err);

    XXH3_128bits_update(hash, name, strlen(name) + 1);
    XXH3_128bits_update(hash, &text->len, sizeof text->len);
    if (text->len)
        XXH3_128bits_update(hash, text->data, text->len);
    return rc;
}

/* *out is NULL if there is no such file. */
static int read_json(json_t **out, int dir, const char *name,
                     XXH3_state_t *hash, struct ocr_err *err)
{
    struct ocr_err why = OCR_ERR_INIT;
    struct ocr_buf text;
    int rc;

    *out = NULL;
    ocr_buf_init(&text, CONFIG_BYTES_MAX);
    rc = read_text(&text, dir, name, hash, &why);
    if (!rc)
        *out = ocr_json_parse(text.data, text.len, name, &why);
    ocr_buf_release(&text);
    if (*out || rc == -ENOENT)
        return 0;
    return ocr_err_set(err, why.code, "%s", why.text);
}

static int read_config(struct ocr_model_folder *f, int dir, XXH3_state_t *hash,
                       struct ocr_err *err)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "processor_config.json",
                                        "preprocessor_config.json"};
    json_t *json[4] = {0};
    int rc = 0;

    for (int i = 0; i < 4 && !rc; i++)
        rc = read_json(&json[i], dir, names[i], hash, err);
    if (!rc && !json[0])
        rc = ocr_err_set(err, -ENOENT, "there is no config.json");
    if (!rc)
        rc = ocr_model_config_read(
            &f->config, &f->model,
            &(struct ocr_config_files){json[0], json[1], json[2], json[3]},
            err);
    for (int i = 0; i < 4; i++)
        json_decref(json[i]);
    return rc;
}

/* Ids that the prompt can hold must be rows of the embedding. */
static int check_tokenizer(const struct ocr_model_folder *f,
                           struct ocr_err *err)
{
    const uint32_t count = ocr_tokenizer_count(f->tokenizer);
    struct ocr_ids prompt = {0};
    int rc;

    if (count > f->model.text.vocab)
        return ocr_err_set(err, -EINVAL,
                           "tokenizer.json has ids up to %u, but by "
                           "config.json there are %u",
                           count - 1, f->model.text.vocab);
    rc = ocr_prompt_build(f->tokenizer, f->model.image_token, 1, &prompt, err);
    free(prompt.id);
    return rc;
}

static int read_tokenizer(struct ocr_model_folder *f, int dir,
                          XXH3_state_t *hash, struct ocr_err *err)
{
    struct ocr_buf text;
    int rc;

    ocr_buf_init(&text, OCR_TOKENIZER_BYTES_MAX);
    rc = read_text(&text, dir, "tokenizer.json", hash, err);
    if (!rc)
        rc = ocr_tokenizer_parse(&f->tokenizer, text.data, text.len, err);
    ocr_buf_release(&text);
    return rc ? rc : check_tokenizer(f, err);
}

static int load(struct ocr_model_folder *f, int dir, XXH3_state_t *hash,
                struct ocr_err *err)
{
    XXH128_canonical_t digest;
    int rc;

    XXH3_128bits_reset(hash);
    rc = read_config(f, dir, hash, err);
    if (!rc)
        rc = read_tokenizer(f, dir, hash, err);
    if (!rc)
        rc = ocr_weights_open(&f->weights, dir, err);
    if (!rc)
        rc = take_tensors(f, hash, err);
    if (rc)
        return rc;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(hash));
    for (size_t i = 0; i < sizeof digest.digest; i++)
        snprintf(f->fingerprint + 2 * i, 3, "%02x", digest.digest[i]);
    return 0;
}

/* The sentence of `why` behind the folder, as one printable line: names of
 * tensors are other people's bytes. */
static int blame(struct ocr_err *err, int rc, const char *path,
                 const struct ocr_err *why)
{
    char safe[sizeof why->text];

    ocr_log_escape(safe, sizeof safe, why->text, strlen(why->text));
    return ocr_err_set(err, rc, "model %.200s: %s", path, safe);
}

int ocr_model_folder_open(struct ocr_model_folder **out, const char *path,
                          struct ocr_err *err)
{
    struct ocr_err why = OCR_ERR_INIT;
    struct ocr_model_folder *f = calloc(1, sizeof *f);
    XXH3_state_t *hash = XXH3_createState();
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc;

    if (dir < 0)
        rc = ocr_err_errno(&why, "cannot open the folder");
    else if (!f || !hash)
        rc = ocr_err_set(&why, -ENOMEM, "out of memory");
    else
        rc = load(f, dir, hash, &why);
    ocr_close(dir);
    XXH3_freeState(hash);
    if (rc) {
        ocr_model_folder_close(f);
        return blame(err, rc, path, &why);
    }
    *out = f;
    return 0;
}

int ocr_model_folder_check(const struct ocr_model_folder *f,
                           struct ocr_err *err)
{
    return f->weights ? ocr_weights_check(f->weights, err) : 0;
}

void ocr_model_folder_unmap(struct ocr_model_folder *f)
{
    ocr_weights_close(f->weights);
    f->weights = NULL;
}

void ocr_model_folder_close(struct ocr_model_folder *f)
{
    if (!f)
        return;
    ocr_model_folder_unmap(f);
    ocr_tokenizer_free(f->tokenizer);
    free(f->model.vision.layer);
    free(f->model.text.layer);
    free(f);
}
