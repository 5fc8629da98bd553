#include "engine/protocol.h"

#include "engine/base/io.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The part of struct ocr_message that travels. */
enum {
    HEADER_BYTES = offsetof(struct ocr_message, fd)
};

int ocr_message_send(int sock, const struct ocr_message *header,
                     const void *payload)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct ocr_message copy; /* only its first HEADER_BYTES are set and sent */
    struct iovec parts[2] = {{&copy, HEADER_BYTES}};
    struct msghdr msg = {.msg_iov = parts, .msg_iovlen = 1};

    if (header->length > OCR_PAYLOAD_MAX)
        return -EMSGSIZE;
    memcpy(&copy, header, HEADER_BYTES);
    if (header->length) {
        /* sendmsg does not write through iov_base. */
        memcpy(&parts[1].iov_base, &payload, sizeof payload);
        parts[1].iov_len = header->length;
        msg.msg_iovlen = 2;
    }
    if (header->fd >= 0) {
        struct cmsghdr *c;

        msg.msg_control = control.room;
        msg.msg_controllen = sizeof control.room;
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &header->fd, sizeof(int));
    }
    for (;;) {
        if (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return 0;
        /* Too many descriptors of this user are under way: as if it were
         * full, for the receiver takes them out. The same if the kernel has
         * no memory just now: the message is not lost, and sent again. */
        if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM)
            return -EAGAIN;
        if (errno != EINTR)
            return -errno;
    }
}

static void take_sender(const struct cmsghdr *c, struct ocr_message *out)
{
    struct ucred sender;

    memcpy(&sender, CMSG_DATA(c), sizeof sender);
    out->pid = sender.pid;
}

/* Keeps the first descriptor of the message in out->fd and closes any other:
 * none may leak, whatever the peer sends. True if there was at most one. */
static bool take_control(struct msghdr *msg, struct ocr_message *out)
{
    bool single = true;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS)
            take_sender(c, out);
        if (c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (out->fd < 0) {
                out->fd = fd;
            } else {
                ocr_close(fd);
                single = false;
            }
        }
    }
    return single;
}

static bool well_formed(const struct ocr_message *m, size_t received)
{
    const bool may_carry_fd =
        m->type == OCR_MSG_OPEN || m->type == OCR_MSG_TEXT;

    return received >= HEADER_BYTES && m->length <= OCR_PAYLOAD_MAX &&
           received == HEADER_BYTES + m->length && m->type >= OCR_MSG_HELLO &&
           m->type <= OCR_MSG_DIGEST && (m->fd < 0 || may_carry_fd);
}

int ocr_message_receive(int sock, struct ocr_message *out)
{
    union {
        char room[CMSG_SPACE(4 * sizeof(int)) +
                  CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec parts[2] = {{out, HEADER_BYTES},
                             {out->payload, OCR_PAYLOAD_MAX}};
    struct msghdr msg = {
        .msg_iov = parts,
        .msg_iovlen = 2,
        .msg_control = control.room,
        .msg_controllen = sizeof control.room,
    };
    ssize_t n;
    bool single;

    do
        n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) /* without memory just now, the message stays where it is */
        return errno == ENOMEM || errno == ENOBUFS ? -EAGAIN : -errno;
    out->fd = -1;
    out->pid = 0;
    single = take_control(&msg, out);
    if (n == 0 && out->fd < 0)
        return 0;
    if (!single || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
        !well_formed(out, (size_t)n)) {
        out->fd = ocr_close(out->fd);
        return -EPROTO;
    }
    out->payload[out->length] = '\0';
    return 1;
}
