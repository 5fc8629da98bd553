/* Messages between ocrfs and ocrfs-engine: what is sent arrives, and nothing
 * malformed gets through or leaks a descriptor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/io.h"
#include "engine/protocol.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct ocr_message in;

static void socket_pair(int pair[2])
{
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static unsigned open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void header_payload_and_descriptor_arrive(void **state)
{
    struct ocr_message out = {.type = OCR_MSG_OPEN,
                              .page = 7,
                              .document = 1234567890123u,
                              .value = 42,
                              .flags = 3,
                              .length = 5};
    int pair[2];
    char byte = 0;

    (void)state;
    socket_pair(pair);
    out.fd = ocr_memfd("test", NULL);
    assert_true(out.fd >= 0);
    assert_int_equal(ocr_pwrite_full(out.fd, "x", 1, 0), 0);
    assert_int_equal(ocr_message_send(pair[0], &out, "hello"), 0);
    assert_int_equal(ocr_message_receive(pair[1], &in), 1);
    assert_int_equal(in.type, OCR_MSG_OPEN);
    assert_int_equal(in.page, 7);
    assert_true(in.document == 1234567890123u);
    assert_true(in.value == 42);
    assert_int_equal(in.flags, 3);
    assert_string_equal(in.payload, "hello");
    assert_true(in.fd >= 0 && in.fd != out.fd);
    assert_int_equal(ocr_pread_full(in.fd, &byte, 1, 0), 1);
    assert_int_equal(byte, 'x');
    ocr_close(in.fd);
    ocr_close(out.fd);
    ocr_close(pair[0]);
    ocr_close(pair[1]);
}

static void empty_socket_closed_peer_and_full_socket_differ(void **state)
{
    static char payload[OCR_PAYLOAD_MAX];
    const struct ocr_message big = {
        .type = OCR_MSG_TEXT, .length = sizeof payload, .fd = -1};
    int pair[2], rc = 0;

    (void)state;
    socket_pair(pair);
    assert_int_equal(ocr_message_receive(pair[1], &in), -EAGAIN);
    for (int i = 0; i < 10000 && rc == 0; i++)
        rc = ocr_message_send(pair[0], &big, payload);
    assert_int_equal(rc, -EAGAIN);
    ocr_close(pair[0]);
    while ((rc = ocr_message_receive(pair[1], &in)) == 1)
        assert_int_equal(in.length, sizeof payload);
    assert_int_equal(rc, 0);
    assert_int_equal(ocr_message_send(pair[1], &big, payload), -EPIPE);
    ocr_close(pair[1]);
}

static void a_payload_above_the_limit_is_not_sent(void **state)
{
    const struct ocr_message out = {
        .type = OCR_MSG_TEXT, .length = OCR_PAYLOAD_MAX + 1, .fd = -1};
    int pair[2];

    (void)state;
    socket_pair(pair);
    assert_int_equal(ocr_message_send(pair[0], &out, ""), -EMSGSIZE);
    ocr_close(pair[0]);
    ocr_close(pair[1]);
}

/* Sends raw bytes with `count` descriptors. */
static void send_raw(int sock, const void *bytes, size_t len, unsigned count)
{
    union {
        char room[CMSG_SPACE(8 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part;
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    memcpy(&part.iov_base, &bytes, sizeof bytes);
    part.iov_len = len;
    if (count) {
        struct cmsghdr *c;

        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (unsigned i = 0; i < count; i++) {
            const int fd = STDIN_FILENO;

            memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
        }
    }
    assert_true(sendmsg(sock, &msg, 0) >= 0);
}

static void garbage_is_refused_and_leaks_nothing(void **state)
{
    const size_t header = offsetof(struct ocr_message, fd);
    struct ocr_message m = {.type = OCR_MSG_OPEN, .document = 1};
    const unsigned before = open_descriptors();
    char bytes[sizeof(struct ocr_message)] = {0};
    int pair[2];

    (void)state;
    socket_pair(pair);
    send_raw(pair[0], bytes, 3, 0);      /* shorter than a header */
    send_raw(pair[0], bytes, header, 0); /* type 0 */
    memcpy(bytes, &m, header);
    send_raw(pair[0], bytes, header + 1, 0); /* longer than it says */
    send_raw(pair[0], bytes, header, 2);     /* two descriptors */
    send_raw(pair[0], bytes, header, 8);     /* more than there is room for */
    m.length = 9;
    memcpy(bytes, &m, header);
    send_raw(pair[0], bytes, header + 3, 1); /* shorter than it says */
    m.type = OCR_MSG_READ;
    m.length = 0;
    memcpy(bytes, &m, header);
    send_raw(pair[0], bytes, header, 1); /* a type without descriptor */
    m.type = 99;
    memcpy(bytes, &m, header);
    send_raw(pair[0], bytes, header, 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(ocr_message_receive(pair[1], &in), -EPROTO);
    assert_int_equal(ocr_message_receive(pair[1], &in), -EAGAIN);
    ocr_close(pair[0]);
    ocr_close(pair[1]);
    assert_int_equal(open_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_payload_and_descriptor_arrive),
        cmocka_unit_test(empty_socket_closed_peer_and_full_socket_differ),
        cmocka_unit_test(a_payload_above_the_limit_is_not_sent),
        cmocka_unit_test(garbage_is_refused_and_leaks_nothing),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
