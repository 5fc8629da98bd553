#include "fs/warden.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs.h"
#include "fs/mounts.h"

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum {
    WAKE_SIGNAL = SIGUSR2,
    WAKE_EVERY_MS = 50,
    GRACE_S = 8,       /* after TERM, INT, a lazy unmount */
    GRACE_LOOP_S = 60, /* after the loop ended by itself */
    MOMENT_MS = 5,
    MOMENTS = 100, /* at most, for what the kernel has for us */
};

/* What the watchdog needs when all else hangs: static, so that it lives as
 * long as the process. Set by ocr_warden_start(). */
static struct {
    bool tracked;
    unsigned major, minor;
    int device;
} last;

static void wake_handler(int signal)
{
    (void)signal; /* it interrupts the loop's sleep, nothing else */
}

static void fill(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGUSR1);
}

int ocr_warden_init(struct ocr_err *err)
{
    /* No SA_RESTART: the handler is there to interrupt. */
    const struct sigaction wake = {.sa_handler = wake_handler};
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t set;

    fill(&set);
    if (sigaction(WAKE_SIGNAL, &wake, NULL) ||
        sigaction(SIGPIPE, &ignore, NULL) || sigprocmask(SIG_BLOCK, &set, NULL))
        return ocr_err_errno(err, "cannot set up signals");
    return 0;
}

bool ocr_warden_is_mounted(const struct ocr_warden *w)
{
    struct ocr_mounts mounts;
    bool there;

    if (!w->tracked || ocr_mounts_read(&mounts, NULL))
        return false;
    there = ocr_mounts_have(&mounts, w->major, w->minor);
    ocr_mounts_release(&mounts);
    return there;
}

bool ocr_warden_is_in_place(const struct ocr_warden *w)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *top;
    bool there;

    if (!w->tracked || ocr_mounts_read(&mounts, NULL))
        return false;
    top = ocr_mounts_at(&mounts, w->mountpoint);
    there = top && top->major == w->major && top->minor == w->minor;
    ocr_mounts_release(&mounts);
    return there;
}

void ocr_warden_detach(const struct ocr_warden *w)
{
    struct ocr_mounts mounts;

    if (!w->tracked || ocr_mounts_read(&mounts, NULL))
        return;
    ocr_mounts_detach(&mounts, w->major, w->minor);
    ocr_mounts_release(&mounts);
}

/* ---- watchdog ----------------------------------------------------------- */

/* A thread that notifies the kernel can wait for a folder whose lookup hangs,
 * and then neither it nor the device goes away: this ends all requests. */
static void abort_connection(void)
{
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/sys/fs/fuse/connections/%u/abort",
             last.minor);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "1", 1) != 1)
        ocr_warning("cannot write to %s: %s", path, strerror(errno));
    ocr_close(fd);
}

static void *watchdog_main(void *seconds)
{
    struct timespec left = {.tv_sec = (time_t)(intptr_t)seconds};
    struct ocr_mounts mounts;

    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        ;
    ocr_error("something hangs (SOURCE?): ending without it");
    if (last.tracked && ocr_mounts_read(&mounts, NULL) == 0)
        ocr_mounts_detach(&mounts, last.major, last.minor);
    if (last.tracked)
        abort_connection();
    /* A thread that hangs in the kernel keeps the descriptors of the process
     * open: readers would wait for it. */
    close(last.device);
    _exit(OCR_WARDEN_FORCED);
}

/* Ends the process in so many seconds, unless it has ended by then. */
static void start_watchdog(int seconds)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, watchdog_main,
                       (void *)(intptr_t)seconds) == 0)
        pthread_detach(thread);
    else
        ocr_warning("no watchdog: cannot start a thread");
}

/* ---- the thread --------------------------------------------------------- */

/* What the kernel has for us already is answered: a request that nobody takes
 * before the end fails with "connection aborted". */
static void serve_pending(const struct ocr_warden *w)
{
    struct pollfd device = {.fd = w->device, .events = POLLIN};
    const struct timespec moment = {.tv_nsec = MOMENT_MS * 1000000};

    for (int i = 0; i < MOMENTS && poll(&device, 1, 0) > 0; i++)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL);
}

static void stop(struct ocr_warden *w)
{
    start_watchdog(GRACE_S);
    ocr_fs_stop(w->fs);
    serve_pending(w);
    fuse_session_exit(w->session);
}

/* True if the mount shall stop. */
static bool take_signals(struct ocr_warden *w)
{
    struct signalfd_siginfo info;
    bool ends = false;

    while (read(w->signals, &info, sizeof info) == sizeof info) {
        switch (info.ssi_signo) {
        case SIGTERM:
        case SIGINT:
            ends = true;
            break;
        case SIGHUP:
            ocr_info("nothing to read again");
            break;
        case SIGUSR1:
            ocr_fs_log_statistics(w->fs);
            break;
        }
    }
    return ends;
}

/* A table that cannot be read for a moment says nothing. */
static bool is_gone(const struct ocr_warden *w)
{
    struct ocr_mounts mounts;
    bool gone;

    if (ocr_mounts_read(&mounts, NULL))
        return false;
    gone = !ocr_mounts_have(&mounts, w->major, w->minor);
    ocr_mounts_release(&mounts);
    return gone;
}

static void *warden_main(void *arg)
{
    struct ocr_warden *w = arg;
    struct pollfd polls[] = {
        {.fd = w->signals, .events = POLLIN},
        {.fd = w->wake, .events = POLLIN},
        {.fd = w->tracked ? w->table : -1, .events = POLLPRI},
    };
    bool stopping = false;

    for (;;) {
        const bool push = stopping && !atomic_load(&w->ended);
        const int n = poll(polls, 3, push ? WAKE_EVERY_MS : -1);

        if (push)
            pthread_kill(w->main, WAKE_SIGNAL);
        if (n <= 0)
            continue;
        if (polls[1].revents)
            return NULL;
        if ((polls[0].revents && take_signals(w)) ||
            /* Twice: it is read in pieces, while others mount and unmount. */
            (polls[2].revents && is_gone(w) && is_gone(w))) {
            if (!stopping)
                stop(w);
            stopping = true;
        }
        if (stopping)
            polls[2].fd = -1; /* gone: always ready */
    }
}

/* The table names the mount's device; a stat would ask our own mount. */
static void find_device(struct ocr_warden *w)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *top;

    w->tracked = false;
    if (ocr_mounts_read(&mounts, NULL))
        return;
    top = ocr_mounts_at(&mounts, w->mountpoint);
    if (top && ocr_mount_is_ours(top)) {
        w->tracked = true;
        w->major = top->major;
        w->minor = top->minor;
    }
    ocr_mounts_release(&mounts);
    last.tracked = w->tracked;
    last.major = w->major;
    last.minor = w->minor;
}

static void close_all(struct ocr_warden *w)
{
    w->signals = ocr_close(w->signals);
    w->wake = ocr_close(w->wake);
    w->table = ocr_close(w->table);
}

int ocr_warden_start(struct ocr_warden *w, struct ocr_err *err)
{
    sigset_t set;

    fill(&set);
    w->main = pthread_self();
    w->device = fuse_session_fd(w->session);
    w->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    w->wake = eventfd(0, EFD_CLOEXEC);
    w->table = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    atomic_init(&w->ended, false);
    find_device(w);
    last.device = w->device;
    if (w->signals < 0 || w->wake < 0 || w->table < 0) {
        ocr_err_errno(err, "cannot watch for signals");
    } else {
        errno = pthread_create(&w->thread, NULL, warden_main, w);
        if (!errno)
            return 0;
        ocr_err_errno(err, "cannot start a thread");
    }
    close_all(w);
    return -EIO;
}

void ocr_warden_loop_ended(struct ocr_warden *w)
{
    atomic_store(&w->ended, true);
    start_watchdog(GRACE_LOOP_S);
}

void ocr_warden_finish(struct ocr_warden *w)
{
    eventfd_write(w->wake, 1);
    pthread_join(w->thread, NULL);
    close_all(w);
}
