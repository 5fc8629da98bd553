/* tests/fuzz/targets.h - what is fed with bytes of unknown origin: one function
 * per target, with libFuzzer's contract. `make fuzz` runs each with new bytes,
 * tests/unit/test_fuzz.c with the seeds that are kept in tests/fuzz/seeds. */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H
#include "engine/model/config.h"
#include "engine/model/json.h"
#include "engine/model/safetensors.h"
#include "engine/model/tokenizer.h"

#include "tests/fuzz/images.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/protocol.h"
#include "tests/fuzz/texts.h"

static inline int fuzz_safetensors(const uint8_t *data, size_t size)
{
    unsigned char first[8] = {0};
    struct ocr_safetensors file;
    struct ocr_err err = OCR_ERR_INIT;
    uint64_t length, end = 0;
    int rc;

    memcpy(first, data, size < 8 ? size : 8);
    rc = ocr_safetensors_header(first, size, "x", &length, &err);
    if (!rc)
        rc = ocr_safetensors_parse(&file, (const char *)data + 8, length,
                                   size - 8 - length, "x", &err);
    must(rc == err.code && !rc == !*err.text);
    if (rc)
        return 0;
    for (size_t i = 0; i < file.count; i++) {
        const struct ocr_safetensor *t = &file.tensor[i];

        must(t->offset + t->bytes <= size - 8 - length);
        must(ocr_safetensors_find(&file, t->name) == t);
        end += t->bytes;
    }
    must(end == size - 8 - length);
    ocr_safetensors_release(&file);
    return 0;
}

/* The bytes are one object whose members are the files. */
static inline int fuzz_config(const uint8_t *data, size_t size)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_model_config config;
    struct ocr_model m = {0};
    json_t *all = ocr_json_parse((const char *)data, size, "x", &err);
    struct ocr_config_files files = {json_object_get(all, "config"),
                                     json_object_get(all, "generation"),
                                     json_object_get(all, "processor"),
                                     json_object_get(all, "preprocessor")};

    if (json_is_object(files.config) &&
        !ocr_model_config_read(&config, &m, &files, &err)) {
        must(m.text.heads && m.text.kv_heads && m.text.vocab);
        must(m.vision.head_dim * m.vision.heads == m.vision.hidden);
        must(m.vision.layers <= 512 && m.text.layers <= 512);
        must(m.image_token < m.text.vocab);
        must(config.longest_edge <= m.vision.grid * m.vision.patch);
        must(config.stop_count >= 1 && config.stop_count <= 8);
    } else {
        must(!all || !json_is_object(files.config) || *err.text);
    }
    json_decref(all);
    return 0;
}

/* Decodes every id and encodes the file itself. */
static inline int fuzz_tokenizer(const uint8_t *data, size_t size)
{
    struct ocr_tokenizer *t = NULL;
    struct ocr_detokenizer d;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_ids ids = {0};
    struct ocr_buf text;

    if (ocr_tokenizer_parse(&t, (const char *)data, size, &err)) {
        must(*err.text);
        return 0;
    }
    ocr_buf_init(&text, 64 << 20);
    ocr_detokenizer_init(&d, t);
    for (uint32_t id = 0; id < ocr_tokenizer_count(t) && id < 1000; id++)
        ocr_detokenizer_add(&d, id, &text);
    if (!ocr_tokenizer_encode(t, (const char *)data, size, &ids, &err))
        for (size_t i = 0; i < ids.count; i++)
            must(ids.id[i] < ocr_tokenizer_count(t));
    ids.count = 0;
    ocr_prompt_build(t, 1, 3, &ids, &err);
    free(ids.id);
    ocr_buf_release(&text);
    ocr_tokenizer_free(t);
    return 0;
}

#endif
