#include "engine/server/helper.h"

#include "engine/base/io.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

union control {
    char room[CMSG_SPACE(sizeof(int) * OCR_PACKET_FDS)];
    struct cmsghdr align;
};

int ocr_packet_send(int sock, const void *packet, size_t len, const int *fds,
                    unsigned count)
{
    union control control = {{0}};
    struct iovec part = {.iov_len = len};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    /* sendmsg does not write through iov_base. */
    memcpy(&part.iov_base, &packet, sizeof packet);
    if (count) {
        struct cmsghdr *c;

        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(sizeof *fds * count);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof *fds * count);
        memcpy(CMSG_DATA(c), fds, sizeof *fds * count);
    }
    while (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

void ocr_packet_close(int fds[OCR_PACKET_FDS])
{
    for (unsigned i = 0; i < OCR_PACKET_FDS; i++)
        fds[i] = ocr_close(fds[i]);
}

/* The kernel closes what there is no room for. */
static void take_descriptors(struct msghdr *msg, int fds[OCR_PACKET_FDS])
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    size_t bytes;

    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
        return;
    bytes = c->cmsg_len - CMSG_LEN(0);
    if (bytes > sizeof *fds * OCR_PACKET_FDS)
        bytes = sizeof *fds * OCR_PACKET_FDS;
    memcpy(fds, CMSG_DATA(c), bytes);
}

int ocr_packet_receive(int sock, void *packet, size_t len,
                       int fds[OCR_PACKET_FDS])
{
    union control control = {{0}};
    struct iovec part = {packet, len};
    struct msghdr msg = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof control.room};
    ssize_t n;

    for (unsigned i = 0; i < OCR_PACKET_FDS; i++)
        fds[i] = -1;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return 0;
    if (n < 0)
        return -errno;
    take_descriptors(&msg, fds);
    if ((size_t)n != len || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        ocr_packet_close(fds);
        return -EPROTO;
    }
    return 1;
}
