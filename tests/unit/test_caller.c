/* Whose signal ends a waiting open (rule I7), and whom noocr= names. */
#include "fs/fs_i.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long long bit(int signal)
{
    return signal ? 1ull << (signal - 1) : 0;
}

static bool dying(int thread, int process, int blocked, int ignored, int caught)
{
    char text[512];

    snprintf(text, sizeof text,
             "Name:\tcat\nState:\tD (disk sleep)\nTgid:\t7\nSigQ:\t1/95\n"
             "SigPnd:\t%016llx\nShdPnd:\t%016llx\nSigBlk:\t%016llx\n"
             "SigIgn:\t%016llx\nSigCgt:\t%016llx\n",
             bit(thread), bit(process), bit(blocked), bit(ignored),
             bit(caught));
    return caller_status_dying(text);
}

static void a_pending_kill_is_the_end(void **state)
{
    (void)state;
    assert_true(dying(SIGKILL, 0, 0, 0, 0));
    assert_true(dying(0, SIGKILL, 0, 0, 0));
}

static void a_signal_that_ends_the_process_is_the_end(void **state)
{
    (void)state;
    assert_true(dying(0, SIGTERM, 0, 0, 0));
    assert_true(dying(0, SIGINT, 0, 0, SIGALRM));
    assert_true(dying(0, SIGQUIT, 0, 0, 0));
    assert_true(dying(SIGSEGV, 0, 0, 0, 0));
    assert_true(dying(0, SIGRTMIN + 3, 0, 0, 0));
}

static void handled_signals_disturb_nobody(void **state)
{
    (void)state;
    assert_false(dying(0, SIGALRM, 0, 0, SIGALRM));
    assert_false(dying(0, SIGTERM, SIGTERM, 0, 0));
    assert_false(dying(0, SIGHUP, 0, SIGHUP, 0));
    assert_false(dying(0, SIGWINCH, 0, 0, 0));
    assert_false(dying(0, SIGTSTP, 0, 0, 0));
    assert_false(dying(SIGSTOP, 0, 0, 0, 0));
    assert_false(dying(0, SIGCONT, 0, 0, 0));
    assert_false(dying(0, SIGCHLD, 0, 0, 0));
    assert_false(dying(0, SIGURG, 0, 0, 0));
    assert_false(dying(0, 0, 0, 0, 0));
}

static void what_cannot_be_read_is_gone(void **state)
{
    (void)state;
    assert_true(caller_status_dying(""));
    assert_true(caller_status_dying("State:\tZ (zombie)\nSigPnd:\t0\n"));
    assert_true(caller_status_dying("State:\tS (sleeping)\nSigPnd:\t0\n"));
    assert_true(caller_dying(0));
    assert_false(caller_dying(getpid()));
}

/* Names may look like fields, but the kernel writes them on one line. */
static void a_name_is_no_field(void **state)
{
    (void)state;
    assert_false(caller_status_dying(
        "Name:\tSigPnd:\t0000000000000100\\nSigPnd:\nState:\tS\n"
        "SigPnd:\t0\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n"));
}

static void a_dead_process_is_gone(void **state)
{
    const pid_t child = fork();

    (void)state;
    if (child == 0)
        _exit(0);
    assert_true(child > 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_true(caller_dying(child)); /* a zombie */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(caller_dying(child)); /* nothing */
}

static void noocr_compares_15_bytes(void **state)
{
    const char *list = "baloo_file:tracker-miner-fs-3::x";

    (void)state;
    assert_true(caller_name_listed("baloo_file", list));
    assert_true(caller_name_listed("tracker-miner-f", list));
    assert_true(caller_name_listed("x", list));
    assert_false(caller_name_listed("baloo_fil", list));
    assert_false(caller_name_listed("baloo_file_x", list));
    assert_false(caller_name_listed("", list));
    assert_false(caller_name_listed("cat", ""));
}

static void the_name_is_read_from_proc(void **state)
{
    (void)state;
    prctl(PR_SET_NAME, "a quiet reader");
    assert_true(caller_listed(getpid(), "a quiet reader"));
    assert_false(caller_listed(getpid(), "a quiet"));
    assert_false(caller_listed(0, "a quiet reader"));
}

static void programs_are_no_kernel_threads(void **state)
{
    (void)state;
    prctl(PR_SET_NAME, ") S 1 2 3 4");
    assert_false(caller_is_kthread(getpid()));
    assert_false(caller_is_kthread(0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pending_kill_is_the_end),
        cmocka_unit_test(a_signal_that_ends_the_process_is_the_end),
        cmocka_unit_test(handled_signals_disturb_nobody),
        cmocka_unit_test(what_cannot_be_read_is_gone),
        cmocka_unit_test(a_name_is_no_field),
        cmocka_unit_test(a_dead_process_is_gone),
        cmocka_unit_test(noocr_compares_15_bytes),
        cmocka_unit_test(the_name_is_read_from_proc),
        cmocka_unit_test(programs_are_no_kernel_threads),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
