/* lighton on a GPU that is played: who comes first, what is kept, what a page
 * that is given up leaves behind, and what is said of a device that fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/gpu/gpu.h"
#include "engine/lighton/lighton_i.h"
#include "engine/protocol.h"
#include "tests/plugin/played.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOLDER "tests/data/tiny-reader"

enum {
    SIDE = 84, /* pixels of a page: of 36 patches, so 9 tokens */
    PAGES_MAX = 256,
};

static const struct ocr_recogniser_ops *const ops = &ocr_recogniser_lighton;

/* ---- the GPU ------------------------------------------------------------ */

static int init(unsigned flags)
{
    return (int)flags;
}

static int version(int *out)
{
    *out = 13000;
    return 0;
}

static int cards(int *out)
{
    *out = 1;
    return 0;
}

static void *driver(const char *symbol)
{
    int (*start)(unsigned) = init;
    int (*get)(int *) = strcmp(symbol, "cuDeviceGetCount") ? version : cards;
    void *address;

    if (!strcmp(symbol, "cuInit"))
        memcpy(&address, &start, sizeof address);
    else
        memcpy(&address, &get, sizeof address);
    return address;
}

static const struct ocr_backend_ops *plugin(struct ocr_err *err)
{
    (void)err;
    return played_backend();
}

const struct ocr_gpu_source ocr_gpu_system = {driver, plugin};

/* ---- a recogniser on it ------------------------------------------------- */

static struct {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    uint32_t tokens[PAGES_MAX]; /* by page */
    bool lost;
    struct ocr_loss loss;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .changed = PTHREAD_COND_INITIALIZER};

static void on_wrote(void *arg, uint64_t id, uint32_t count)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    seen.tokens[id % PAGES_MAX] += count;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

static void on_lost(void *arg, const struct ocr_loss *loss)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    seen.lost = true;
    seen.loss = *loss;
    pthread_cond_broadcast(&seen.changed);
    pthread_mutex_unlock(&seen.lock);
}

/* Until `count` pages have been given a token. */
static void wait_for_writers(unsigned count)
{
    unsigned writers = 0;

    pthread_mutex_lock(&seen.lock);
    for (;;) {
        writers = 0;
        for (unsigned i = 0; i < PAGES_MAX; i++)
            writers += seen.tokens[i] > 0;
        if (writers >= count)
            break;
        pthread_cond_wait(&seen.changed, &seen.lock);
    }
    pthread_mutex_unlock(&seen.lock);
    assert_int_equal(writers, count);
}

static struct ocr_loss wait_for_loss(void)
{
    struct ocr_loss loss;

    pthread_mutex_lock(&seen.lock);
    while (!seen.lost)
        pthread_cond_wait(&seen.changed, &seen.lock);
    loss = seen.loss;
    pthread_mutex_unlock(&seen.lock);
    return loss;
}

static struct ocr_recogniser *open_it(const char *arguments)
{
    const struct ocr_recogniser_config config = {.arguments = arguments,
                                                 .device = "cuda",
                                                 .model = FOLDER,
                                                 .lost = on_lost,
                                                 .wrote = on_wrote};
    struct ocr_recogniser *r = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    memset(seen.tokens, 0, sizeof seen.tokens);
    seen.lost = false;
    if (ops->open(&r, &config, &err))
        fail_msg("%s", err.text);
    assert_string_equal(ops->device(r), "cuda:0");
    return r;
}

/* Every block is where it was, and no slot is open. */
static void close_it(struct ocr_recogniser *r)
{
    struct ocr_recognised out;

    assert_int_equal(r->free_count, r->plan.blocks);
    assert_int_equal(played_count(&played.pages), 0);
    ops->wake(r);
    assert_int_equal(ops->next(r, &out), -ESHUTDOWN);
    ops->close(r);
}

static int fresh(void **state)
{
    (void)state;
    memset(&played, 0, sizeof played);
    return 0;
}

/* Pixels that are another picture for each number; the same for all time. */
static uint8_t *pixels_of(unsigned number, uint32_t width, uint32_t height)
{
    const size_t bytes = (size_t)width * height;
    uint8_t *pixels = malloc(bytes);
    uint32_t x = 0x9e3779b9u * (number + 1);

    assert_non_null(pixels);
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        pixels[i] = (uint8_t)(x >> 24);
    }
    return pixels;
}

struct sent {
    uint8_t *pixels[PAGES_MAX];
};

static void send(struct ocr_recogniser *r, struct sent *sent, uint64_t id,
                 uint32_t width, uint32_t height, const char *settings,
                 bool urgent)
{
    struct ocr_page page = {.id = id, .settings = settings, .urgent = urgent};
    struct ocr_err err = OCR_ERR_INIT;

    sent->pixels[id] = pixels_of((unsigned)id, width, height);
    page.image.pixels = sent->pixels[id];
    page.image.width = width;
    page.image.height = height;
    page.image.channels = 1;
    if (ops->submit(r, &page, &err))
        fail_msg("%s", err.text);
}

static struct ocr_recognised take(struct ocr_recogniser *r, struct sent *sent)
{
    struct ocr_recognised out;

    do {
        assert_int_equal(ops->next(r, &out), 0);
        free(sent->pixels[out.id]);
        sent->pixels[out.id] = NULL;
    } while (out.pixels_done);
    return out;
}

static void drop(struct sent *sent)
{
    for (unsigned i = 0; i < PAGES_MAX; i++)
        free(sent->pixels[i]);
}

/* ---- who comes first ---------------------------------------------------- */

static void a_slot_is_kept_for_a_page_that_somebody_waits_for(void **state)
{
    enum {
        SLOTS = 8
    };
    struct sent sent = {{0}};
    struct ocr_recogniser *r = open_it("slots=8");
    struct ocr_recognised out;

    (void)state;
    for (uint64_t id = 1; id < 2 * SLOTS; id++)
        send(r, &sent, id, SIDE, SIDE, "forced_length=120-120:1\n", false);
    wait_for_writers(SLOTS - 1);
    send(r, &sent, 99, SIDE, SIDE, "forced_length=3-3:1\n", true);
    out = take(r, &sent);
    assert_int_equal(out.id, 99);
    free(out.text);
    for (unsigned i = 1; i < 2 * SLOTS; i++)
        free(take(r, &sent).text);
    assert_int_equal(played.most_pages, SLOTS);
    drop(&sent);
    close_it(r);
}

static void a_page_that_somebody_comes_to_wait_for_overtakes(void **state)
{
    struct sent sent = {{0}};
    struct ocr_recogniser *r = open_it("slots=8");
    struct ocr_recognised out;

    (void)state;
    for (uint64_t id = 11; id <= 17; id++)
        send(r, &sent, id, SIDE, SIDE, "forced_length=120-120:1\n", false);
    wait_for_writers(7);
    for (uint64_t id = 1; id <= 7; id++)
        send(r, &sent, id, SIDE, SIDE, "forced_length=3-3:1\n", false);
    ops->urge(r, 99); /* nobody */
    ops->urge(r, 5);
    for (unsigned i = 0; i < 14; i++) {
        out = take(r, &sent);
        if (i == 0)
            assert_int_equal(out.id, 5);
        free(out.text);
    }
    drop(&sent);
    close_it(r);
}

/* ---- memory ------------------------------------------------------------- */

static void pages_come_in_as_their_blocks_fit(void **state)
{
    struct sent sent = {{0}};
    struct ocr_recogniser *r;

    (void)state;
    played.blocks = 20; /* 9 + prompt + 60 + 1 tokens: 6 blocks a page */
    r = open_it("slots=8");
    for (uint64_t id = 1; id <= 12; id++)
        send(r, &sent, id, SIDE, SIDE, "max_tokens=60\nforced_length=60-60:1\n",
             false);
    for (unsigned i = 0; i < 12; i++) {
        struct ocr_recognised out = take(r, &sent);

        assert_int_equal(out.kind, OCR_KIND_NONE);
        free(out.text);
    }
    assert_in_range(played.most_pages, 2, 4);
    drop(&sent);
    close_it(r);
}

static void a_page_that_can_never_fit_says_what_it_needs(void **state)
{
    struct sent sent = {{0}};
    struct ocr_recogniser *r;
    struct ocr_recognised out;

    (void)state;
    played.blocks = 20;
    r = open_it("slots=8");
    send(r, &sent, 1, SIDE, SIDE, "max_tokens=1000\n", false);
    send(r, &sent, 2, SIDE, SIDE, "forced_length=9-9:1\nmax_tokens=9\n", false);
    for (int i = 0; i < 2; i++) {
        out = take(r, &sent);
        assert_int_equal(out.kind, out.id == 1 ? OCR_KIND_FAILED : 0);
        if (out.id == 1 && !strstr(out.sentence, "and the model was given 20"))
            fail_msg("%s", out.sentence);
        free(out.text);
    }
    drop(&sent);
    close_it(r);
}

static void a_small_card_is_said_with_the_number(void **state)
{
    const struct ocr_recogniser_config config = {
        .arguments = "", .device = "cuda", .model = FOLDER};
    struct ocr_recogniser *r = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    played.memory_mib = 40;
    assert_int_equal(ops->open(&r, &config, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "one page with this model needs"));
}

/* The other process came in between: fewer pages at once, no failure. */
static void memory_that_is_taken_meanwhile_makes_a_smaller_plan(void **state)
{
    struct ocr_recogniser *r;
    struct sent sent = {{0}};
    unsigned before;

    (void)state;
    played.memory_mib = 2000;
    r = open_it("");
    before = r->plan.blocks;
    close_it(r);
    played.stolen_mib = 1000;
    r = open_it("");
    assert_true(r->plan.blocks < before);
    assert_true(r->plan.weight_bytes + r->plan.kv_bytes +
                    r->plan.workspace_bytes <=
                (uint64_t)1000 << 20);
    send(r, &sent, 1, SIDE, SIDE, "max_tokens=9\n", false);
    free(take(r, &sent).text);
    drop(&sent);
    close_it(r);
}

/* ---- given up ----------------------------------------------------------- */

static void a_cancelled_page_holds_its_slot_for_two_steps_at_most(void **state)
{
    struct sent sent = {{0}};
    struct ocr_recogniser *r = open_it("");
    struct ocr_recognised out;
    unsigned steps;

    (void)state;
    for (uint64_t id = 1; id <= 20; id++) {
        memset(seen.tokens, 0, sizeof seen.tokens);
        send(r, &sent, id, SIDE, SIDE, "forced_length=4000-4000:1\n", false);
        wait_for_writers(1);
        ops->cancel(r, id);
        steps = played_count(&played.steps);
        out = take(r, &sent);
        assert_int_equal(out.kind, OCR_KIND_CANCELLED);
        assert_int_equal(played_count(&played.pages), 0);
        assert_in_range(played_count(&played.steps) - steps, 0, 2);
    }
    drop(&sent);
    close_it(r);
}

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 16;
}

static const char *length_of(uint64_t id)
{
    static char text[64];

    snprintf(text, sizeof text, "forced_length=4-24:%u\nmax_tokens=60\n",
             (unsigned)id);
    return text;
}

/* The text of each page as it is when nobody else is there. */
static void read_alone(char *texts[], unsigned count)
{
    struct ocr_recogniser *r = open_it("slots=1");
    struct sent sent = {{0}};

    for (uint64_t id = 1; id <= count; id++) {
        struct ocr_recognised out;
        char settings[64];

        snprintf(settings, sizeof settings, "%s", length_of(id));
        send(r, &sent, id, SIDE + 28 * (id % 5), SIDE, settings, false);
        out = take(r, &sent);
        assert_int_equal(out.kind, OCR_KIND_NONE);
        texts[id] = out.text;
    }
    drop(&sent);
    close_it(r);
}

static void two_hundred_pages_of_which_some_are_given_up(void **state)
{
    enum {
        PAGES = 200
    };
    static char *alone[PAGES + 1], settings[PAGES + 1][64];
    struct ocr_recogniser *r;
    struct sent sent = {{0}};
    unsigned given_up = 0, read = 0;
    uint32_t x = 7;
    uint64_t next = 1;

    (void)state;
    read_alone(alone, PAGES);
    played.blocks = 90;
    r = open_it("slots=12");
    for (unsigned answered = 0; answered < PAGES;) {
        struct ocr_recognised out;

        while (next <= PAGES && next - answered <= ops->capacity(r)) {
            snprintf(settings[next], sizeof *settings, "%s", length_of(next));
            send(r, &sent, next, SIDE + 28 * (next % 5), SIDE, settings[next],
                 next % 7 == 0);
            if (next_random(&x) % 3 == 0)
                ops->cancel(r, next - next_random(&x) % ops->capacity(r) / 2);
            next++;
        }
        out = take(r, &sent);
        answered++;
        given_up += out.kind == OCR_KIND_CANCELLED;
        read += out.kind == OCR_KIND_NONE;
        if (!out.kind)
            assert_string_equal(out.text, alone[out.id]);
        free(out.text);
    }
    assert_int_equal(given_up + read, PAGES);
    assert_in_range(given_up, 5, PAGES - 50);
    print_message("# %u given up, %u read, %u at once\n", given_up, read,
                  played.most_pages);
    for (unsigned i = 1; i <= PAGES; i++)
        free(alone[i]);
    drop(&sent);
    close_it(r);
}

/* ---- faults ------------------------------------------------------------- */

enum {
    PAGES = 9,
    GUILTY_PAGE = 5, /* 10 x 3 tokens; no other page has as many */
    GUILTY_TOKENS = 30,
};

static void send_all(struct ocr_recogniser *r, struct sent *sent)
{
    static char settings[PAGES + 1][64];

    for (uint64_t id = 1; id <= PAGES; id++) {
        snprintf(settings[id], sizeof *settings, "%s", length_of(id));
        send(r, sent, id, id == GUILTY_PAGE ? 10 * 28 : SIDE + 28 * (id % 5),
             SIDE, settings[id], false);
    }
}

/* Their texts without a fault. */
static void learn(char *texts[])
{
    struct ocr_recogniser *r = open_it("slots=1");
    struct sent sent = {{0}};

    for (uint64_t id = 1; id <= PAGES; id++) {
        char settings[64];

        snprintf(settings, sizeof settings, "%s", length_of(id));
        send(r, &sent, id, id == GUILTY_PAGE ? 10 * 28 : SIDE + 28 * (id % 5),
             SIDE, settings, false);
        texts[id] = take(r, &sent).text;
    }
    drop(&sent);
    close_it(r);
}

static void a_page_of_nan_fails_alone(void **state)
{
    char *texts[PAGES + 1] = {0};
    struct sent sent = {{0}};
    struct ocr_recogniser *r;

    (void)state;
    learn(texts);
    played.fault = OCR_FAULT_NAN;
    played.fault_at = 2;
    played.fault_tokens = GUILTY_TOKENS;
    r = open_it("slots=8");
    send_all(r, &sent);
    for (unsigned i = 0; i < PAGES; i++) {
        struct ocr_recognised out = take(r, &sent);

        if (out.id == GUILTY_PAGE)
            assert_non_null(strstr(out.sentence, "not finite"));
        else
            assert_string_equal(out.text, texts[out.id]);
        free(out.text);
    }
    for (unsigned i = 1; i <= PAGES; i++)
        free(texts[i]);
    drop(&sent);
    close_it(r);
}

/* The recogniser is not told how the process ends: here it goes on. */
static struct ocr_loss lose(enum ocr_fault fault, bool device_fault)
{
    char *texts[PAGES + 1] = {0};
    struct sent sent = {{0}};
    struct ocr_recogniser *r;
    struct ocr_recognised out;
    struct ocr_loss loss;

    learn(texts);
    played.fault = fault;
    played.fault_tokens = GUILTY_TOKENS;
    played.device_fault = device_fault;
    r = open_it("slots=8");
    send_all(r, &sent);
    loss = wait_for_loss();
    ops->wake(r);
    while (ops->next(r, &out) == 0)
        free(out.text);
    ops->close(r);
    for (unsigned i = 1; i <= PAGES; i++)
        free(texts[i]);
    drop(&sent);
    return loss;
}

static void of_a_lost_device_the_guilty_page_is_told(void **state)
{
    const struct ocr_loss loss = lose(OCR_FAULT_LOST, false);

    (void)state;
    assert_int_equal(loss.count, 1);
    assert_int_equal(loss.suspects[0], GUILTY_PAGE);
    assert_string_equal(loss.sentence, "cuda:0: the device is gone");
}

static void a_fault_of_the_device_blames_no_page(void **state)
{
    const struct ocr_loss loss = lose(OCR_FAULT_LOST, true);

    (void)state;
    assert_int_equal(loss.count, 0);
    assert_true(loss.device_fault);
}

/* The processor does one after the other, so that the steps of others stand,
 * too; a GPU does not. */
static void a_device_that_hangs_is_noticed(void **state)
{
    const struct ocr_loss loss = lose(OCR_FAULT_HANG, false);
    bool guilty = false;

    (void)state;
    for (unsigned i = 0; i < loss.count; i++)
        guilty = guilty || loss.suspects[i] == GUILTY_PAGE;
    assert_true(guilty);
    assert_non_null(strstr(loss.sentence, "nothing was finished for 5 s"));
}

static double processor_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void without_pages_it_does_nothing(void **state)
{
    struct ocr_recogniser *r = open_it("");
    struct sent sent = {{0}};
    struct ocr_beat first, second;
    double used;

    (void)state;
    send(r, &sent, 1, SIDE, SIDE, "forced_length=20-20:1\n", false);
    free(take(r, &sent).text);
    ops->beat(r, &first);
    assert_true(first.finished >= 20);
    assert_in_range(first.limit_ms, 5000, 3600 * 1000);
    used = processor_time();
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    used = processor_time() - used;
    ops->beat(r, &second);
    assert_true(second.finished > first.finished); /* idle is no silence */
    print_message("# %.4f s of processor time in 1 s without pages\n", used);
    assert_true(used < 0.02);
    drop(&sent);
    close_it(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(
            a_slot_is_kept_for_a_page_that_somebody_waits_for, fresh),
        cmocka_unit_test_setup(a_page_that_somebody_comes_to_wait_for_overtakes,
                               fresh),
        cmocka_unit_test_setup(pages_come_in_as_their_blocks_fit, fresh),
        cmocka_unit_test_setup(a_page_that_can_never_fit_says_what_it_needs,
                               fresh),
        cmocka_unit_test_setup(a_small_card_is_said_with_the_number, fresh),
        cmocka_unit_test_setup(
            memory_that_is_taken_meanwhile_makes_a_smaller_plan, fresh),
        cmocka_unit_test_setup(
            a_cancelled_page_holds_its_slot_for_two_steps_at_most, fresh),
        cmocka_unit_test_setup(two_hundred_pages_of_which_some_are_given_up,
                               fresh),
        cmocka_unit_test_setup(a_page_of_nan_fails_alone, fresh),
        cmocka_unit_test_setup(of_a_lost_device_the_guilty_page_is_told, fresh),
        cmocka_unit_test_setup(a_fault_of_the_device_blames_no_page, fresh),
        cmocka_unit_test_setup(a_device_that_hangs_is_noticed, fresh),
        cmocka_unit_test_setup(without_pages_it_does_nothing, fresh),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
