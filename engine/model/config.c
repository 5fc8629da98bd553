#include "engine/model/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* An object of a file, and the first error, after which everything reads as
 * 0: a sequence of reads is checked once, at the end. */
struct reader {
    const char *file, *where; /* "config.json", "text_config." */
    const json_t *object;
    struct ocr_err *err;
    int *rc;
};

__attribute__((format(printf, 3, 4))) static void
bad(const struct reader *r, const char *key, const char *format, ...)
{
    char why[160];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (!*r->rc)
        *r->rc = ocr_err_set(r->err, -EINVAL, "%s: %s%s %s", r->file, r->where,
                             key, why);
}

/* NULL if it is not there, or null. */
static const json_t *get(const struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->object, key);

    return json_is_null(value) ? NULL : value;
}

/* The object `key` of `r`; without it one where everything is absent. */
static struct reader inside(const struct reader *r, const char *key,
                            const char *where)
{
    struct reader in = *r;

    in.object = get(r, key);
    in.where = where;
    if (in.object && !json_is_object(in.object))
        bad(r, key, "is not an object");
    return in;
}

/* A whole number from 1 to max; `fallback` if it is absent, an error then if
 * that is 0. Never 0, so that one may divide by it. */
static uint32_t count(const struct reader *r, const char *key, uint32_t max,
                      uint32_t fallback)
{
    const json_t *value = get(r, key);
    const json_int_t number = json_integer_value(value);

    if (!value && fallback)
        return fallback;
    if (!value) {
        bad(r, key, "is missing");
        return 1;
    }
    if (!json_is_integer(value) || number < 1 || number > max) {
        bad(r, key, "is not a whole number from 1 to %u", max);
        return 1;
    }
    return (uint32_t)number;
}

static double real(const struct reader *r, const char *key, double min,
                   double max, double fallback)
{
    const json_t *value = get(r, key);
    const double number = json_number_value(value);

    if (!value)
        return fallback;
    if (!json_is_number(value) || !(number >= min && number <= max)) {
        bad(r, key, "is not a number from %g to %g", min, max);
        return fallback;
    }
    return number;
}

/* A switch that must be off, or absent. */
static void must_be_off(const struct reader *r, const char *key)
{
    const json_t *value = get(r, key);

    if (value && !json_is_false(value))
        bad(r, key, "is set, which this engine does not compute");
}

/* A word that must be one of two (which may be the same), or absent. */
static void must_be(const struct reader *r, const char *key, const char *one,
                    const char *other)
{
    const json_t *value = get(r, key);
    const char *word = json_string_value(value);

    if (value && (!word || (strcmp(word, one) && strcmp(word, other))))
        bad(r, key, "is %.60s, only %s is supported", word ? word : "no word",
            one);
}

/* An integer, or {height, width} or [height, width] of two equal ones. */
static uint32_t square(const struct reader *r, const char *key, uint32_t max,
                       uint32_t fallback)
{
    const json_t *value = get(r, key);
    struct reader in = *r;
    uint32_t side;

    if (json_is_array(value)) {
        const json_int_t a = json_integer_value(json_array_get(value, 0));

        if (json_array_size(value) != 2 || a < 1 || a > max ||
            !json_equal(json_array_get(value, 0), json_array_get(value, 1)))
            bad(r, key, "is not the side of a square");
        return (uint32_t)a;
    }
    if (!json_is_object(value))
        return count(r, key, max, fallback);
    in.object = value;
    side = count(&in, "height", max, 0);
    if (side != count(&in, "width", max, 0))
        bad(r, key, "is not square");
    return side;
}

/* Flat, or within rope_parameters or rope_scaling, whose type must be the
 * plain one. */
static float rope_theta(const struct reader *r, const char *type,
                        double fallback)
{
    const double min = 1, max = 1e12;
    struct reader scaling = inside(r, "rope_scaling", "rope_scaling.");
    struct reader parameters = inside(r, "rope_parameters", "rope_parameters.");

    must_be(&scaling, "type", "default", type);
    must_be(&scaling, "rope_type", "default", type);
    must_be(&parameters, "rope_type", "default", type);
    fallback = real(r, "rope_theta", min, max, fallback);
    return (float)real(&parameters, "rope_theta", min, max, fallback);
}

static void read_layer_types(const struct reader *r)
{
    const json_t *types = get(r, "layer_types"), *type;
    size_t i;

    json_array_foreach(types, i, type)
    {
        const char *word = json_string_value(type);

        if (!word || strcmp(word, "full_attention"))
            bad(r, "layer_types",
                "holds %.60s, only full_attention is "
                "supported",
                word ? word : "no word");
    }
}

static void read_text(struct ocr_text *text, const struct reader *r)
{
    must_be(r, "model_type", "qwen3", "qwen3");
    must_be(r, "hidden_act", "silu", "silu");
    must_be_off(r, "attention_bias");
    must_be_off(r, "use_sliding_window");
    read_layer_types(r);
    text->layers = count(r, "num_hidden_layers", 512, 0);
    text->hidden = count(r, "hidden_size", 32768, 0);
    text->heads = count(r, "num_attention_heads", 512, 0);
    text->kv_heads = count(r, "num_key_value_heads", 512, text->heads);
    text->head_dim = count(r, "head_dim", 1024, 128);
    text->intermediate = count(r, "intermediate_size", 262144, 0);
    text->vocab = count(r, "vocab_size", 4000000, 0);
    text->max_positions = count(r, "max_position_embeddings", 1 << 24, 40960);
    text->rope_theta = rope_theta(r, "default", 1e6);
    text->norm_eps = (float)real(r, "rms_norm_eps", 1e-12, 1, 1e-6);
    if (text->heads % text->kv_heads)
        bad(r, "num_key_value_heads", "does not divide num_attention_heads");
    if (text->head_dim % 2)
        bad(r, "head_dim", "is odd");
}

static void read_vision(struct ocr_vision *vision, const struct reader *r)
{
    uint32_t side;

    must_be(r, "model_type", "pixtral", "pixtral");
    must_be(r, "hidden_act", "silu", "silu");
    if (count(r, "num_channels", 4, 3) != 3)
        bad(r, "num_channels", "is not 3");
    vision->layers = count(r, "num_hidden_layers", 512, 0);
    vision->hidden = count(r, "hidden_size", 32768, 0);
    vision->heads = count(r, "num_attention_heads", 512, 0);
    vision->head_dim = vision->hidden / vision->heads;
    vision->intermediate = count(r, "intermediate_size", 262144, 0);
    vision->patch = square(r, "patch_size", 256, 14);
    side = square(r, "image_size", 16384, 1540);
    vision->grid = side / vision->patch;
    vision->rope_theta = rope_theta(r, "axial", 1e4);
    vision->norm_eps = 1e-5F;
    if (vision->hidden % vision->heads)
        bad(r, "num_attention_heads", "does not divide hidden_size");
    if (vision->head_dim % 4 || !vision->head_dim)
        bad(r, "head_dim", "is no multiple of 4");
    if (count(r, "head_dim", 1024, vision->head_dim) != vision->head_dim)
        bad(r, "head_dim", "is not hidden_size / num_attention_heads");
    if (!vision->grid)
        bad(r, "image_size", "is smaller than a patch");
}

static void read_mean_std(const struct reader *r, const char *key, double min,
                          double max, float out[3])
{
    const json_t *list = get(r, key);

    if (!list)
        return;
    if (json_array_size(list) != 3) {
        bad(r, key, "is not a list of three numbers");
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        const json_t *value = json_array_get(list, i);
        const double number = json_number_value(value);

        if (!json_is_number(value) || !(number >= min && number <= max))
            bad(r, key, "is not made of numbers from %g to %g", min, max);
        out[i] = (float)number;
    }
}

static void must_be_number(const struct reader *r, const char *key,
                           double value)
{
    if (fabs(real(r, key, -1e6, 1e6, value) - value) > 1e-9)
        bad(r, key, "is not %g, which alone is supported", value);
}

static void read_image(struct ocr_model_config *out, struct ocr_model *model,
                       const struct reader *r)
{
    static const float mean[3] = {0.48145466F, 0.4578275F, 0.40821073F};
    static const float std[3] = {0.26862954F, 0.26130258F, 0.27577711F};
    const uint32_t multiple = model->vision.patch * model->projector.merge;
    const uint32_t side =
        model->vision.grid * model->vision.patch / multiple * multiple;
    struct reader size = inside(r, "size", "size.");

    memcpy(model->image_mean, mean, sizeof mean);
    memcpy(model->image_std, std, sizeof std);
    read_mean_std(r, "image_mean", -10, 10, model->image_mean);
    read_mean_std(r, "image_std", 1e-3, 100, model->image_std);
    must_be_number(r, "resample", 3);
    must_be_number(r, "rescale_factor", 1.0 / 255);
    out->longest_edge =
        count(&size, "longest_edge", 16384, side < 1540 ? side : 1540);
    if (!*r->rc && out->longest_edge > side)
        bad(&size, "longest_edge",
            "is %u, but the vision encoder knows positions up to %u pixels",
            out->longest_edge, side);
}

static void read_stop_ids(struct ocr_model_config *out, uint32_t vocab,
                          const struct reader *r)
{
    const json_t *value = get(r, "eos_token_id");
    const size_t n = json_is_array(value) ? json_array_size(value) : !!value;

    if (out->stop_count)
        return;
    if (n > OCR_STOP_IDS_MAX) {
        bad(r, "eos_token_id", "holds more than %d ids", OCR_STOP_IDS_MAX);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id =
            json_is_array(value) ? json_array_get(value, i) : value;
        const json_int_t number = json_integer_value(id);

        if (!json_is_integer(id) || number < 0 || number >= vocab)
            bad(r, "eos_token_id", "is not an id below %u", vocab);
        else
            out->stop_ids[out->stop_count++] = (uint32_t)number;
    }
}

/* config.json of other models must not get as far as strange sizes. */
static void check_kind(const struct reader *r)
{
    const json_t *list = get(r, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const char *type = json_string_value(get(r, "model_type"));

    if (name && !strncasecmp(name, "LightOnOCR", strlen("LightOnOCR")))
        return;
    if (type && !strcmp(type, "lighton_ocr"))
        return;
    bad(r, "architectures",
        "names %.80s (model_type %.60s): only LightOnOCR models are supported",
        name ? name : "nothing", type ? type : "not given");
}

static void read_top(struct ocr_model_config *out, struct ocr_model *model,
                     const struct reader *top, const struct reader *text)
{
    const json_t *tied = get(text, "tie_word_embeddings");
    const json_t *layer = get(top, "vision_feature_layer");

    must_be_off(top, "multimodal_projector_bias");
    must_be(top, "projector_hidden_act", "gelu", "gelu");
    if (layer && json_integer_value(layer) != -1)
        bad(top, "vision_feature_layer", "is not -1, which alone is supported");
    if (!tied)
        tied = get(top, "tie_word_embeddings");
    if (tied)
        out->tied = json_is_true(tied) ? OCR_TIED_YES : OCR_TIED_NO;
    model->projector.merge = count(top, "spatial_merge_size", 8, 2);
    model->projector.norm_eps = model->text.norm_eps;
    model->image_token =
        count(top, "image_token_id", UINT32_MAX,
              count(top, "image_token_index", UINT32_MAX, 151655));
    if (model->image_token >= model->text.vocab)
        bad(top, "image_token_id", "%u is not below vocab_size %u",
            model->image_token, model->text.vocab);
}

int ocr_model_config_read(struct ocr_model_config *out, struct ocr_model *model,
                          const struct ocr_config_files *files,
                          struct ocr_err *err)
{
    int rc = 0;
    struct reader top = {"config.json", "", files->config, err, &rc};
    struct reader text, vision, image, generation, nested;

    *out = (struct ocr_model_config){0};
    check_kind(&top);
    text = inside(&top, "text_config", "text_config.");
    vision = inside(&top, "vision_config", "vision_config.");
    generation = (struct reader){"generation_config.json", "",
                                 files->generation, err, &rc};
    image = (struct reader){"processor_config.json", "", files->processor, err,
                            &rc};
    nested = inside(&image, "image_processor", "image_processor.");
    if (!nested.object)
        nested = (struct reader){"preprocessor_config.json", "",
                                 files->preprocessor, err, &rc};
    if (!rc)
        read_text(&model->text, &text);
    if (!rc)
        read_vision(&model->vision, &vision);
    if (!rc)
        read_top(out, model, &top, &text);
    if (!rc)
        read_image(out, model, &nested);
    read_stop_ids(out, model->text.vocab, &generation);
    read_stop_ids(out, model->text.vocab, &top);
    read_stop_ids(out, model->text.vocab, &text);
    if (!rc && !out->stop_count)
        bad(&top, "eos_token_id", "is missing, in generation_config.json too");
    return rc;
}
