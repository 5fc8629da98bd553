/* What is said about a GPU that is not there or cannot be used: the driver and
 * the plugin are played. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/gpu/gpu.h"
#include "kernels/gpu_trouble.h"
#include "tests/lib/device.h"
#include "tests/lib/skip.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct {
    bool driver, plugin;
    int init, version, count, count_rc, probe;
} fake;

static int fake_init(unsigned flags)
{
    assert_int_equal(flags, 0);
    return fake.init;
}

static int fake_version(int *out)
{
    *out = fake.version;
    return 0;
}

static int fake_count(int *out)
{
    *out = fake.count;
    return fake.count_rc;
}

static void *fake_driver(const char *symbol)
{
    int (*init)(unsigned) = fake_init;
    int (*call)(int *) =
        strcmp(symbol, "cuDeviceGetCount") ? fake_version : fake_count;
    void *address;

    if (!fake.driver)
        return NULL;
    if (!strcmp(symbol, "cuInit"))
        memcpy(&address, &init, sizeof address);
    else
        memcpy(&address, &call, sizeof address);
    return address;
}

static int fake_probe(const char *device, char *out, size_t size,
                      struct ocr_err *err)
{
    if (fake.probe)
        return ocr_gpu_err(err, fake.probe, device, "it does not start");
    snprintf(out, size, "NVIDIA T1, 24.0 GiB (%s)", device);
    return 0;
}

static const struct ocr_backend_ops *fake_plugin(struct ocr_err *err)
{
    static const struct ocr_backend_ops ops = {.probe = fake_probe};

    if (fake.plugin)
        return &ops;
    ocr_gpu_err(err, OCR_GPU_NO_PLUGIN, NULL, "");
    return NULL;
}

static const struct ocr_gpu_source source = {fake_driver, fake_plugin};

static int fresh(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.driver = fake.plugin = true;
    fake.version = 13000;
    fake.count = 2;
    return 0;
}

/* The sentence holds `words`. */
static void expect(const char *device, int rc, const char *words)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_gpu gpu;

    assert_int_equal(ocr_gpu_find(&gpu, &source, device, &err), rc);
    assert_null(gpu.ops);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void a_good_gpu_is_found(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_gpu gpu;

    (void)state;
    assert_int_equal(ocr_gpu_find(&gpu, &source, "auto", &err), 0);
    assert_non_null(gpu.ops);
    assert_string_equal(gpu.card, "NVIDIA T1, 24.0 GiB (cuda:0)");
    assert_int_equal(ocr_gpu_find(&gpu, &source, "cuda:1", &err), 0);
    assert_string_equal(gpu.card, "NVIDIA T1, 24.0 GiB (cuda:1)");
}

static void a_missing_driver_is_said(void **state)
{
    (void)state;
    fake.driver = false;
    expect("auto", -ENODEV, "libcuda.so.1");
}

static void an_old_driver_is_said(void **state)
{
    (void)state;
    fake.version = 12040;
    expect("auto", -ENODEV, "580 or later");
    fake.init = 999; /* the version explains more than the failure */
    expect("auto", -ENODEV, "580 or later");
}

static void no_gpu_is_said(void **state)
{
    (void)state;
    fake.count = 0;
    expect("auto", -ENODEV, "no GPU that CUDA may use");
    fake.init = 100;
    expect("auto", -ENODEV, "no GPU that CUDA may use");
}

static void a_wrong_number_is_said(void **state)
{
    (void)state;
    expect("cuda:2", -ENODEV, "no GPU with this number");
    expect("cuda:", -EINVAL, "no device");
    expect("cuda:-1", -EINVAL, "no device");
    expect("gpu", -EINVAL, "no device");
}

static void a_missing_plugin_is_said(void **state)
{
    (void)state;
    fake.plugin = false;
    expect("cuda", -ENODEV, "ocrfs-cuda.so");
}

/* Codes that the driver and the plugin give, and what must be in the
 * sentence. */
static const struct {
    int code, rc;
    bool lost;
    const char *words;
} codes[] = {
    {OCR_GPU_NO_CUBLASLT, -ENODEV, false, "libcublasLt.so.13"},
    {OCR_GPU_TOO_OLD, -ENODEV, false, "compute capability 7.5"},
    {2, -ENOMEM, false, "free memory"},
    {35, -ENODEV, false, "580 or later"},
    {46, -ENODEV, false, "another program"},
    {100, -ENODEV, false, "no GPU that CUDA may use"},
    {209, -ENODEV, false, "no code for this GPU"},
    {214, -EIO, true, "cannot be corrected"},
    {222, -ENODEV, false, "too old to make code"},
    {700, -EIO, true, "report it"},
    {702, -EIO, true, "ran too long"},
    {719, -EIO, true, "ended with an error"},
    {802, -ENODEV, false, "fabricmanager"},
    {803, -ENODEV, false, "different versions"},
    {717, -EIO, true, "it does not start (CUDA error 717)"},
    {999, -EIO, false, "it does not start (CUDA error 999)"},
};

static void every_code_has_its_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        fake.probe = codes[i].code;
        expect("auto", codes[i].rc, codes[i].words);
        assert_int_equal(ocr_gpu_is_lost(codes[i].code), codes[i].lost);
    }
}

/* What a kernel can cause may be a page's; the rest is the card's. */
static void faults_of_the_card_are_no_pages(void **state)
{
    (void)state;
    assert_true(ocr_gpu_is_fault(OCR_GPU_ECC));
    assert_true(ocr_gpu_is_fault(OCR_GPU_NOT_READY));
    assert_true(ocr_gpu_is_fault(999));
    assert_false(ocr_gpu_is_fault(OCR_GPU_ADDRESS));
    assert_false(ocr_gpu_is_fault(OCR_GPU_LAUNCH));
    assert_false(ocr_gpu_is_fault(0));
}

static void codes_of_the_driver_have_the_same_sentences(void **state)
{
    (void)state;
    fake.init = 803;
    expect("auto", -ENODEV, "different versions");
    fake.init = 0;
    fake.count_rc = 214;
    expect("auto", -EIO, "cannot be corrected");
    fake.count_rc = 7;
    expect("auto", -EIO, "the driver does not start (CUDA error 7)");
}

static void a_small_card_is_said(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    assert_int_equal(
        ocr_gpu_err_small(&err, "NVIDIA T4", 1ull << 30, 3ull << 30), -ENOMEM);
    assert_non_null(strstr(err.text, "the GPU NVIDIA T4 has 1.0 GiB"));
    assert_non_null(strstr(err.text, "needs 3.0"));
    ocr_err_clear(&err);
    ocr_gpu_err_small(&err, "NVIDIA A100 MIG 1g.5gb", 1ull << 30, 3ull << 30);
    assert_non_null(strstr(err.text, "the MIG slice NVIDIA A100 MIG 1g.5gb"));
}

static void report(const char *device, const char *expected)
{
    struct ocr_buf text;

    ocr_buf_init(&text, 4096);
    ocr_gpu_report(&source, device, &text);
    assert_string_equal(text.data, expected);
    ocr_buf_release(&text);
}

static void doctor_is_told(void **state)
{
    (void)state;
    report("auto", "ok\tGPU driver\tfor CUDA 13.0, 2 GPUs\n"
                   "ok\tGPU\tNVIDIA T1, 24.0 GiB (cuda:0)\n");
    report("cpu", "ok\tGPU driver\tfor CUDA 13.0, 2 GPUs\n"
                  "ok\tGPU\tNVIDIA T1, 24.0 GiB (cuda:0); not used, since "
                  "device=cpu\n");
    fake.count = 1;
    fake.probe = 46;
    report("auto", "ok\tGPU driver\tfor CUDA 13.0, 1 GPU\n"
                   "note\tGPU\tcuda:0: the GPU is taken by another program "
                   "(compute mode exclusive); models read on the CPU\n");
}

/* It loads without a driver or a GPU, and says what is wrong. */
static void the_built_plugin_answers(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;
    const struct ocr_backend_ops *ops;
    char card[160] = "", path[PATH_MAX];
    int rc;

    (void)state;
    device_plugin_path(path, sizeof path);
    if (access(path, R_OK))
        SKIP("built without the plugin");
    ops = device_load();
    assert_int_equal(ops->abi, OCR_BACKEND_ABI);
    assert_string_equal(ops->name, "cuda");
    rc = ops->probe("cuda:0", card, sizeof card, &err);
    print_message("# %s\n", rc ? err.text : card);
    if (rc) {
        assert_true(rc == -ENODEV || rc == -ENOMEM || rc == -EIO);
        assert_null(strstr(err.text, "CUDA error"));
    } else {
        assert_non_null(strstr(card, "GiB"));
    }
    rc = ops->probe("cuda:1000", card, sizeof card, &err);
    assert_int_equal(rc, -ENODEV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_good_gpu_is_found, fresh),
        cmocka_unit_test_setup(a_missing_driver_is_said, fresh),
        cmocka_unit_test_setup(an_old_driver_is_said, fresh),
        cmocka_unit_test_setup(no_gpu_is_said, fresh),
        cmocka_unit_test_setup(a_wrong_number_is_said, fresh),
        cmocka_unit_test_setup(a_missing_plugin_is_said, fresh),
        cmocka_unit_test_setup(every_code_has_its_sentence, fresh),
        cmocka_unit_test(faults_of_the_card_are_no_pages),
        cmocka_unit_test_setup(codes_of_the_driver_have_the_same_sentences,
                               fresh),
        cmocka_unit_test_setup(a_small_card_is_said, fresh),
        cmocka_unit_test_setup(doctor_is_told, fresh),
        cmocka_unit_test(the_built_plugin_answers),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
