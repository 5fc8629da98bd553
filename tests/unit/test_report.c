/* How a start in the background is reported to its parent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/log.h"
#include "fs/report.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[1000]; /* on standard error by the parent */

/* Runs `child` behind ocr_report_fork(), returns the parent's status. */
static int start(void (*child)(struct ocr_report *r))
{
    char path[] = "/tmp/ocrfs-test-XXXXXX";
    const int file = mkstemp(path), old = dup(STDERR_FILENO);
    struct ocr_report r;
    int status = -1;
    ssize_t n;

    assert_true(file >= 0 && old >= 0);
    unlink(path);
    ocr_report_init(&r);
    dup2(file, STDERR_FILENO);
    if (!ocr_report_fork(&r, &status)) {
        child(&r);
        _exit(99);
    }
    dup2(old, STDERR_FILENO);
    close(old);
    n = pread(file, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    close(file);
    ocr_report_release(&r);
    return status;
}

static void live_on(struct ocr_report *r)
{
    ocr_report_ready(r);
    /* The parent must not wait for this. */
    for (;;)
        pause();
}

/* Ends the child that start() left behind: our only one. */
static void end_child(void)
{
    char command[100];

    snprintf(command, sizeof command, "/proc/self/task/%d/children", getpid());
    FILE *file = fopen(command, "r");
    int pid = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    assert_int_equal(getsid(pid), pid); /* it left our session */
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void success_does_not_wait_for_the_end(void **state)
{
    (void)state;
    assert_int_equal(start(live_on), 0);
    assert_string_equal(said, "");
    end_child();
}

static void fail_mount(struct ocr_report *r)
{
    ocr_report_failed(r, 4, "no way \033[1m");
}

static void failure_is_printed_and_returned(void **state)
{
    (void)state;
    assert_int_equal(start(fail_mount), 4);
    assert_string_equal(said, "ocrfs: error: no way \\x1b[1m\n");
    wait(NULL);
}

static void fail_long(struct ocr_report *r)
{
    char text[5000];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ocr_report_failed(r, 3, text);
}

static void a_long_reason_is_cut(void **state)
{
    (void)state;
    assert_int_equal(start(fail_long), 3);
    assert_true(strlen(said) > 500 && strlen(said) < sizeof said + 1);
    wait(NULL);
}

static void die(struct ocr_report *r)
{
    (void)r;
    kill(getpid(), SIGKILL);
}

static void leave(struct ocr_report *r)
{
    (void)r;
    _exit(0);
}

static void a_child_that_dies_is_a_failure(void **state)
{
    (void)state;
    assert_int_equal(start(die), 5);
    assert_non_null(strstr(said, "signal 9"));
    assert_int_equal(start(leave), 5);
    assert_non_null(strstr(said, "without a report"));
}

static void nobody_waits(struct ocr_report *r)
{
    int ends[2];

    /* As if the parent had been killed: nobody reads the pipe. */
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    dup2(ends[1], r->pipe);
    close(ends[1]);
    ocr_report_ready(r);
    pause();
}

static void a_start_that_was_called_off_gets_sigterm(void **state)
{
    (void)state;
    assert_int_equal(start(nobody_waits), 5);
    assert_non_null(strstr(said, "signal 15"));
}

static void notify(const char *socket_name, struct sockaddr_un *name,
                   socklen_t len)
{
    const int sock = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct ocr_report r;
    char got[50] = "";

    assert_int_equal(bind(sock, (struct sockaddr *)name, len), 0);
    setenv("NOTIFY_SOCKET", socket_name, 1);
    ocr_report_init(&r);
    ocr_report_use_notify(&r);
    assert_null(getenv("NOTIFY_SOCKET"));
    ocr_report_ready(&r);
    assert_int_equal(recv(sock, got, sizeof got, MSG_DONTWAIT), 7);
    assert_string_equal(got, "READY=1");
    ocr_report_release(&r);
    close(sock);
}

static void a_service_manager_is_told(void **state)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char abstract[60];
    socklen_t len;

    (void)state;
    snprintf(name.sun_path, sizeof name.sun_path, "/tmp/ocrfs-test-%d",
             getpid());
    notify(name.sun_path, &name, sizeof name);
    unlink(name.sun_path);

    snprintf(abstract, sizeof abstract, "@ocrfs-test-%d", getpid());
    snprintf(name.sun_path, sizeof name.sun_path, "%s", abstract);
    name.sun_path[0] = '\0';
    len =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(abstract));
    notify(abstract, &name, len);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(success_does_not_wait_for_the_end),
        cmocka_unit_test(failure_is_printed_and_returned),
        cmocka_unit_test(a_long_reason_is_cut),
        cmocka_unit_test(a_child_that_dies_is_a_failure),
        cmocka_unit_test(a_start_that_was_called_off_gets_sigterm),
        cmocka_unit_test(a_service_manager_is_told),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
