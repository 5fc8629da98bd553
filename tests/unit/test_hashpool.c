/* The pool of threads that read SOURCE. */
#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <unistd.h>

static struct hashpool pool;
static sem_t done, gate;
static atomic_int order, dropped;

struct job {
    struct hash_task task;
    int place; /* in which it ran, from 1 */
};

static void run(struct hash_task *task)
{
    ((struct job *)task)->place = atomic_fetch_add(&order, 1) + 1;
    sem_post(&done);
}

static void block(struct hash_task *task)
{
    (void)task;
    sem_post(&done);
    sem_wait(&gate);
}

static void drop(struct hash_task *task)
{
    (void)task;
    atomic_fetch_add(&dropped, 1);
}

static int setup(void **state)
{
    (void)state;
    sem_init(&done, 0, 0);
    sem_init(&gate, 0, 0);
    atomic_store(&order, 0);
    atomic_store(&dropped, 0);
    hashpool_init(&pool);
    return hashpool_start(&pool, NULL);
}

static int teardown(void **state)
{
    (void)state;
    hashpool_release(&pool);
    sem_destroy(&done);
    sem_destroy(&gate);
    return 0;
}

/* Occupies all threads until open_gate. */
static void occupy(struct hash_task *tasks)
{
    for (int i = 0; i < HASH_THREADS; i++) {
        tasks[i] = (struct hash_task){.run = block};
        hashpool_submit(&pool, &tasks[i], 0, OCR_PRIORITY_INTERACTIVE);
    }
    for (int i = 0; i < HASH_THREADS; i++)
        sem_wait(&done);
}

static void interactive_tasks_run_first(void **state)
{
    struct hash_task blocks[HASH_THREADS];
    struct job jobs[3] = {
        {.task.run = run}, {.task.run = run}, {.task.run = run}};

    (void)state;
    occupy(blocks);
    hashpool_submit(&pool, &jobs[0].task, 0, OCR_PRIORITY_BACKGROUND);
    hashpool_submit(&pool, &jobs[1].task, 0, OCR_PRIORITY_READAHEAD);
    hashpool_submit(&pool, &jobs[2].task, 0, OCR_PRIORITY_INTERACTIVE);
    sem_post(&gate); /* one thread comes back and does all three */
    for (int i = 0; i < 3; i++)
        sem_wait(&done);
    assert_int_equal(jobs[2].place, 1);
    assert_int_equal(jobs[1].place, 2);
    assert_int_equal(jobs[0].place, 3);
    for (int i = 0; i < HASH_THREADS - 1; i++)
        sem_post(&gate);
    hashpool_stop(&pool);
    assert_true(hashpool_join(&pool, 10000));
}

static void a_task_waits_for_its_time(void **state)
{
    struct job late = {.task.run = run}, now = {.task.run = run};
    const int64_t begun = ocr_now_ms();

    (void)state;
    hashpool_submit(&pool, &late.task, begun + 100, OCR_PRIORITY_INTERACTIVE);
    hashpool_submit(&pool, &now.task, 0, OCR_PRIORITY_BACKGROUND);
    sem_wait(&done);
    sem_wait(&done);
    assert_int_equal(now.place, 1);
    assert_true(ocr_now_ms() - begun >= 100);
    hashpool_stop(&pool);
    assert_true(hashpool_join(&pool, 10000));
}

static void what_is_left_is_dropped(void **state)
{
    struct hash_task blocks[HASH_THREADS];
    struct hash_task left = {.run = run, .drop = drop},
                     after = {.run = run, .drop = drop};

    (void)state;
    occupy(blocks);
    hashpool_submit(&pool, &left, 0, OCR_PRIORITY_INTERACTIVE);
    hashpool_stop(&pool);
    hashpool_submit(&pool, &after, 0, OCR_PRIORITY_INTERACTIVE);
    assert_int_equal(atomic_load(&dropped), 2);
    assert_int_equal(atomic_load(&order), 0);
    for (int i = 0; i < HASH_THREADS; i++)
        sem_post(&gate);
    assert_true(hashpool_join(&pool, 10000));
}

static void threads_that_hang_are_told(void **state)
{
    static struct hash_task blocks[HASH_THREADS];

    (void)state;
    occupy(blocks);
    hashpool_stop(&pool);
    assert_false(hashpool_join(&pool, 50));
    for (int i = 0; i < HASH_THREADS; i++)
        sem_post(&gate);
    assert_true(hashpool_join(&pool, 10000));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(interactive_tasks_run_first),
        TEST(a_task_waits_for_its_time),
        TEST(what_is_left_is_dropped),
        TEST(threads_that_hang_are_told),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
