#include "engine/server/helper.h"

#include "engine/base/io.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

union control {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

int ocr_packet_send(int sock, const void *packet, size_t len, int fd)
{
    union control control = {{0}};
    struct iovec part = {.iov_len = len};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    /* sendmsg does not write through iov_base. */
    memcpy(&part.iov_base, &packet, sizeof packet);
    if (fd >= 0) {
        struct cmsghdr *c;

        msg.msg_control = control.room;
        msg.msg_controllen = sizeof control.room;
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    while (sendmsg(sock, &msg, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

/* There is room for one descriptor: the kernel closes what is beyond it. */
static int take_descriptor(struct msghdr *msg)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    int fd = -1;

    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

int ocr_packet_receive(int sock, void *packet, size_t len, int *fd)
{
    union control control = {{0}};
    struct iovec part = {packet, len};
    struct msghdr msg = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof control.room};
    ssize_t n;

    *fd = -1;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return 0;
    if (n < 0)
        return -EPROTO;
    *fd = take_descriptor(&msg);
    if ((size_t)n != len || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        *fd = ocr_close(*fd);
        return -EPROTO;
    }
    return 1;
}
