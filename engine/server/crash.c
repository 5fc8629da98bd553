/* When the engine crashes, its clients must know that it was not killed from
 * outside, and with how many pages in it: only then may a page be blamed. The
 * handler does nothing but send() on sockets it was given, and dies. */
#include "engine/server/server_i.h"

#include <string.h>
#include <sys/socket.h>

enum {
    SOCKETS_MAX = 256
};

/* Written by the main thread, read by the handler on any thread. */
static atomic_int sockets[SOCKETS_MAX]; /* descriptor + 1, 0: free */
static atomic_uint pages_in_work;

static void on_crash(int signo)
{
    struct ocr_message m;

    memset(&m, 0, offsetof(struct ocr_message, fd));
    m.type = OCR_MSG_CRASHED;
    m.value = (uint64_t)signo;
    m.flags = atomic_load(&pages_in_work);
    for (int i = 0; i < SOCKETS_MAX; i++) {
        const int fd = atomic_load(&sockets[i]) - 1;

        if (fd >= 0)
            send(fd, &m, offsetof(struct ocr_message, fd),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    raise(signo); /* SA_RESETHAND: the default action now */
}

void crash_install(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static char stack[64 << 10]; /* for a crash by stack overflow */
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {
        .sa_handler = on_crash,
        .sa_flags = (int)(SA_RESETHAND | SA_ONSTACK | SA_NODEFER)};

    sigaltstack(&alternate, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

void crash_watch(int sock, bool watch)
{
    const int from = watch ? 0 : sock + 1, to = watch ? sock + 1 : 0;

    for (int i = 0; i < SOCKETS_MAX; i++) {
        int expected = from;

        if (atomic_compare_exchange_strong(&sockets[i], &expected, to))
            return;
    }
}

void crash_count(unsigned pages)
{
    atomic_store(&pages_in_work, pages);
}
