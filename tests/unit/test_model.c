/* A model folder: numbers, tensors by name, fingerprint. */
#include "engine/model/model.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#define TINY "tests/data/tiny-reader"

static struct ocr_model_folder *open_folder(const char *path)
{
    struct ocr_model_folder *folder = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    if (ocr_model_folder_open(&folder, path, &err))
        fail_msg("%s", err.text);
    return folder;
}

static void tiny_reader_opens(void **state)
{
    struct ocr_model_folder *f = open_folder(TINY);
    const struct ocr_model *m = &f->model;

    (void)state;
    assert_int_equal(m->vision.layers, 8);
    assert_int_equal(m->vision.head_dim, 64);
    assert_int_equal(m->vision.grid, 110);
    assert_int_equal(m->vision.patch_conv.cols, 588);
    assert_int_equal(m->text.layers, 4);
    assert_int_equal(m->text.layer[3].q.rows, 512);
    assert_int_equal(m->text.layer[3].q_norm.cols, 128);
    assert_ptr_equal(m->text.head.data, m->text.embedding.data);
    assert_true(m->text.rope_theta == 1e6F);
    assert_true(m->text.norm_eps == 1e-6F);
    assert_int_equal(m->image_token, 4095);
    assert_int_equal(f->config.longest_edge, 1540);
    assert_int_equal(f->config.stop_count, 1);
    assert_int_equal(f->config.stop_ids[0], 4091);
    assert_int_equal(strlen(f->fingerprint), 32);
    assert_int_equal(ocr_model_folder_check(f, NULL), 0);
    ocr_model_folder_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_reader_opens),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
