/* config.json and its companions: the spellings that are met, and what is
 * refused by name. */
#include "engine/model/config.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* As the first generation was published. */
static const char first[] =
    "{'architectures':['LightOnOCRForConditionalGeneration'],"
    "'model_type':'mistral3','image_token_id':151655,"
    "'multimodal_projector_bias':false,'projector_hidden_act':'gelu',"
    "'spatial_merge_size':2,'vision_feature_layer':-1,'torch_dtype':'bfloat16',"
    "'text_config':{'model_type':'qwen3','attention_bias':false,"
    "'head_dim':128,'hidden_act':'silu','hidden_size':1024,"
    "'intermediate_size':3072,'max_position_embeddings':8192,"
    "'num_attention_heads':16,'num_hidden_layers':28,'num_key_value_heads':8,"
    "'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':1000000,"
    "'sliding_window':null,'tie_word_embeddings':true,"
    "'use_sliding_window':false,'layer_types':['full_attention'],"
    "'vocab_size':151936},"
    "'vision_config':{'model_type':'pixtral','head_dim':64,"
    "'hidden_act':'silu','hidden_size':1024,'image_size':1540,"
    "'intermediate_size':4096,'num_attention_heads':16,'num_channels':3,"
    "'num_hidden_layers':24,'patch_size':14,'rope_theta':10000.0}}";

/* As transformers 5 saves it. */
static const char saved[] =
    "{'architectures':['LightOnOcrForConditionalGeneration'],"
    "'model_type':'lighton_ocr','image_token_index':151655,"
    "'tie_word_embeddings':true,'eos_token_id':151645,"
    "'text_config':{'hidden_size':1024,'eos_token_id':null,"
    "'intermediate_size':3072,'max_position_embeddings':16384,"
    "'num_attention_heads':16,'num_hidden_layers':28,'num_key_value_heads':8,"
    "'rope_parameters':{'rope_theta':1000000.0,'rope_type':'default'},"
    "'vocab_size':151936},"
    "'vision_config':{'hidden_size':1024,'image_size':[1540,1540],"
    "'intermediate_size':4096,'num_attention_heads':16,"
    "'num_hidden_layers':24,'patch_size':{'height':14,'width':14},"
    "'rope_parameters':{'rope_theta':10000.0,'rope_type':'axial'}}}";

static const char generation[] = "{'eos_token_id':[151645,151643]}";

static json_t *parse(const char *text)
{
    char quoted[4096];
    json_t *json;

    snprintf(quoted, sizeof quoted, "%s", text);
    for (char *p = quoted; *p; p++)
        if (*p == '\'')
            *p = '"';
    json = json_loads(quoted, 0, NULL);
    assert_non_null(json);
    return json;
}

/* Reads `config` with `member` set by a path "text_config.hidden_size". */
static int read_with(struct ocr_model_config *out, struct ocr_model *model,
                     const char *config, const char *path, const char *value,
                     struct ocr_err *err)
{
    json_t *top = parse(config), *object = top, *end = parse(generation);
    const char *dot = strchr(path, '.');
    char wrapped[256];
    int rc;

    if (dot) {
        char folder[64];

        snprintf(folder, sizeof folder, "%.*s", (int)(dot - path), path);
        object = json_object_get(top, folder);
    }
    snprintf(wrapped, sizeof wrapped, "{'v':%s}", *value ? value : "null");
    if (*path) {
        json_t *member = parse(wrapped);

        json_object_set(object, dot ? dot + 1 : path,
                        json_object_get(member, "v"));
        json_decref(member);
    }
    *model = (struct ocr_model){0};
    rc = ocr_model_config_read(
        out, model,
        &(struct ocr_config_files){.config = top, .generation = end}, err);
    json_decref(top);
    json_decref(end);
    return rc;
}

static void both_generations_say_the_same(void **state)
{
    const char *const configs[] = {first, saved};

    (void)state;
    for (size_t i = 0; i < COUNT(configs); i++) {
        struct ocr_model_config c;
        struct ocr_model m;
        struct ocr_err err = OCR_ERR_INIT;

        if (read_with(&c, &m, configs[i], "", "", &err))
            fail_msg("%s", err.text);
        assert_int_equal(m.text.layers, 28);
        assert_int_equal(m.text.head_dim, 128);
        assert_int_equal(m.text.kv_heads, 8);
        assert_int_equal(m.text.vocab, 151936);
        assert_int_equal(m.text.max_positions, i ? 16384 : 8192);
        assert_true(m.text.rope_theta == 1e6F && m.text.norm_eps == 1e-6F);
        assert_int_equal(m.vision.layers, 24);
        assert_int_equal(m.vision.head_dim, 64);
        assert_int_equal(m.vision.patch, 14);
        assert_int_equal(m.vision.grid, 110);
        assert_true(m.vision.rope_theta == 1e4F && m.vision.norm_eps == 1e-5F);
        assert_int_equal(m.projector.merge, 2);
        assert_int_equal(m.image_token, 151655);
        assert_int_equal(c.tied, OCR_TIED_YES);
        assert_int_equal(c.longest_edge, 1540);
        assert_int_equal(c.stop_count, 2);
        assert_int_equal(c.stop_ids[1], 151643);
        assert_true(m.image_mean[0] == 0.48145466F);
        assert_true(m.image_std[2] == 0.27577711F);
    }
}

static void what_is_not_computed_is_refused(void **state)
{
    static const struct {
        const char *path, *value, *sentence;
    } rows[] = {
        {"architectures", "['Qwen2VLForConditionalGeneration']",
         "names Qwen2VLForConditionalGeneration (model_type mistral3)"},
        {"architectures", "", "names nothing"},
        {"text_config", "", "text_config.num_hidden_layers is missing"},
        {"text_config", "[]", "text_config is not an object"},
        {"text_config.hidden_size", "", "text_config.hidden_size is missing"},
        {"text_config.hidden_size", "0", "whole number from 1"},
        {"text_config.hidden_size", "1024.0", "whole number from 1"},
        {"text_config.hidden_size", "-1024", "whole number from 1"},
        {"text_config.hidden_size", "9223372036854775807", "whole number"},
        {"text_config.hidden_size", "'1024'", "whole number"},
        {"text_config.num_hidden_layers", "100000", "from 1 to 512"},
        {"text_config.vocab_size", "4000001", "from 1 to 4000000"},
        {"text_config.num_key_value_heads", "5", "does not divide"},
        {"text_config.head_dim", "127", "head_dim is odd"},
        {"text_config.model_type", "'llama'", "is llama, only qwen3"},
        {"text_config.hidden_act", "'gelu'", "is gelu, only silu"},
        {"text_config.attention_bias", "true", "attention_bias is set"},
        {"text_config.use_sliding_window", "true", "use_sliding_window is set"},
        {"text_config.layer_types", "['full_attention','sliding_attention']",
         "sliding_attention, only full_attention"},
        {"text_config.rope_scaling", "{'rope_type':'yarn','factor':4}",
         "rope_scaling.rope_type is yarn"},
        {"text_config.rope_scaling", "{'type':'linear'}", "type is linear"},
        {"text_config.rope_theta", "0", "rope_theta is not a number"},
        {"text_config.rms_norm_eps", "0", "rms_norm_eps is not a number"},
        {"text_config.rope_parameters", "{'rope_type':'yarn'}",
         "rope_parameters.rope_type is yarn"},
        {"vision_config.model_type", "'siglip'", "is siglip, only pixtral"},
        {"vision_config.hidden_act", "'gelu'", "is gelu, only silu"},
        {"vision_config.num_channels", "1", "num_channels is not 3"},
        {"vision_config.num_attention_heads", "15", "does not divide"},
        {"vision_config.head_dim", "128", "is not hidden_size"},
        {"vision_config.hidden_size", "16", "no multiple of 4"},
        {"vision_config.patch_size", "{'height':14,'width':16}", "not square"},
        {"vision_config.patch_size", "[14,16]", "side of a square"},
        {"vision_config.patch_size", "0", "whole number"},
        {"vision_config.image_size", "13", "smaller than a patch"},
        {"vision_config.image_size", "1000000", "from 1 to 16384"},
        {"multimodal_projector_bias", "true", "is set"},
        {"projector_hidden_act", "'gelu_tanh'", "only gelu"},
        {"vision_feature_layer", "-2", "is not -1"},
        {"spatial_merge_size", "0", "whole number"},
        {"image_token_id", "151936", "is not below vocab_size 151936"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ocr_model_config c;
        struct ocr_model m;
        struct ocr_err err = OCR_ERR_INIT;

        if (!read_with(&c, &m, first, rows[i].path, rows[i].value, &err))
            fail_msg("%s = %s was taken", rows[i].path, rows[i].value);
        if (strncmp(err.text, "config.json: ", 13) ||
            !strstr(err.text, rows[i].sentence))
            fail_msg("\"%s\" instead of \"%s\"", err.text, rows[i].sentence);
    }
}

static void what_makes_no_difference_is_taken(void **state)
{
    static const struct {
        const char *path, *value;
    } rows[] = {
        {"text_config.rope_scaling", "{'rope_type':'default'}"},
        {"text_config.layer_types", ""},
        {"text_config.num_key_value_heads", ""},
        {"text_config.max_position_embeddings", ""},
        {"text_config.model_type", ""},
        {"vision_config.head_dim", ""},
        {"vision_config.rope_parameters", "{'rope_type':'axial'}"},
        {"architectures", "['LightOnOcrModel']"},
        {"model_type", "'lighton_ocr'"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ocr_model_config c;
        struct ocr_model m;
        struct ocr_err err = OCR_ERR_INIT;

        if (read_with(&c, &m, first, rows[i].path, rows[i].value, &err))
            fail_msg("%s", err.text);
        assert_true(m.vision.head_dim == 64 && m.text.rope_theta == 1e6F);
    }
}

static void whether_the_head_is_tied(void **state)
{
    static const struct {
        const char *config, *path, *value;
        enum ocr_tied tied;
    } rows[] = {
        {first, "text_config.tie_word_embeddings", "true", OCR_TIED_YES},
        {first, "text_config.tie_word_embeddings", "false", OCR_TIED_NO},
        {first, "text_config.tie_word_embeddings", "", OCR_TIED_UNSAID},
        {saved, "tie_word_embeddings", "false", OCR_TIED_NO},
        {saved, "text_config.tie_word_embeddings", "false", OCR_TIED_NO},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ocr_model_config c;
        struct ocr_model m;

        assert_int_equal(read_with(&c, &m, rows[i].config, rows[i].path,
                                   rows[i].value, NULL),
                         0);
        assert_int_equal(c.tied, rows[i].tied);
    }
}

/* The processor's files, `nested` within image_processor or alone. */
static int read_images(struct ocr_model_config *c, struct ocr_model *m,
                       const char *processor, const char *preprocessor,
                       struct ocr_err *err)
{
    json_t *top = parse(saved), *a = processor ? parse(processor) : NULL;
    json_t *b = preprocessor ? parse(preprocessor) : NULL;
    int rc;

    *m = (struct ocr_model){0};
    rc = ocr_model_config_read(c, m,
                               &(struct ocr_config_files){.config = top,
                                                          .processor = a,
                                                          .preprocessor = b},
                               err);
    json_decref(top);
    json_decref(a);
    json_decref(b);
    return rc;
}

static void images_by_either_file(void **state)
{
    struct ocr_model_config c;
    struct ocr_model m;

    (void)state;
    assert_int_equal(
        read_images(&c, &m, NULL,
                    "{'size':{'longest_edge':1120},'image_mean':[0.5,0.25,0],"
                    "'image_std':[1,0.5,0.25],'resample':3,"
                    "'rescale_factor':0.00392156862745098}",
                    NULL),
        0);
    assert_int_equal(c.longest_edge, 1120);
    assert_true(m.image_mean[1] == 0.25F && m.image_std[2] == 0.25F);
    assert_int_equal(c.stop_count, 1); /* that of config.json */
    assert_int_equal(
        read_images(&c, &m,
                    "{'patch_size':14,"
                    "'image_processor':{'size':{'longest_edge':1400}}}",
                    "{'size':{'longest_edge':1120}}", NULL),
        0);
    assert_int_equal(c.longest_edge, 1400);
    /* Without image_processor the other file counts. */
    assert_int_equal(read_images(&c, &m, "{'patch_size':14}",
                                 "{'size':{'longest_edge':1120}}", NULL),
                     0);
    assert_int_equal(c.longest_edge, 1120);
}

static void images_that_are_refused(void **state)
{
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"{'size':{'longest_edge':1541}}", "positions up to 1540"},
        {"{'size':{'longest_edge':0}}", "size.longest_edge"},
        {"{'size':14}", "size is not an object"},
        {"{'image_mean':[1,2]}", "image_mean is not a list of three"},
        {"{'image_std':[0,1,1]}", "image_std is not made of numbers"},
        {"{'image_std':['1',1,1]}", "image_std is not made of numbers"},
        {"{'resample':2}", "resample is not 3"},
        {"{'rescale_factor':1}", "rescale_factor"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ocr_model_config c;
        struct ocr_model m;
        struct ocr_err err = OCR_ERR_INIT;

        assert_int_equal(read_images(&c, &m, NULL, rows[i].text, &err),
                         -EINVAL);
        if (!strstr(err.text, rows[i].sentence) ||
            !strstr(err.text, "preprocessor_config.json: "))
            fail_msg("\"%s\" instead of \"%s\"", err.text, rows[i].sentence);
    }
}

static void stop_ids(void **state)
{
    static const struct {
        const char *value;
        uint32_t count; /* 0: refused */
    } rows[] = {
        {"3", 1},      {"[1,2,3,4,5,6,7,8]", 8},
        {"151936", 0}, {"[1,2,3,4,5,6,7,8,9]", 0},
        {"-1", 0},     {"[1,'2']", 0},
        {"'end'", 0},  {"", 0},
        {"[]", 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ocr_model_config c;
        struct ocr_model m = {0};
        struct ocr_err err = OCR_ERR_INIT;
        char text[64];
        json_t *top = parse(first), *end;
        int rc;

        snprintf(text, sizeof text, "{'eos_token_id':%s}",
                 *rows[i].value ? rows[i].value : "null");
        end = parse(text);
        rc = ocr_model_config_read(
            &c, &m,
            &(struct ocr_config_files){.config = top, .generation = end}, &err);
        assert_int_equal(!rc, rows[i].count > 0);
        if (!rc)
            assert_int_equal(c.stop_count, rows[i].count);
        else
            assert_non_null(strstr(err.text, "eos_token_id"));
        json_decref(top);
        json_decref(end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_generations_say_the_same),
        cmocka_unit_test(what_is_not_computed_is_refused),
        cmocka_unit_test(what_makes_no_difference_is_taken),
        cmocka_unit_test(whether_the_head_is_tied),
        cmocka_unit_test(images_by_either_file),
        cmocka_unit_test(images_that_are_refused),
        cmocka_unit_test(stop_ids),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
