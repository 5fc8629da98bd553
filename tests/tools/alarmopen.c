/* alarmopen FILE: opens FILE once while a timer rings every 50 ms, and copies
 * it to standard output. Exit 1 with the error of open if there is one. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>

static void ring(int number)
{
    (void)number;
}

int main(int argc, char **argv)
{
    const struct sigaction action = {.sa_handler = ring};
    const struct itimerval often = {{0, 50000}, {0, 50000}};
    const struct itimerval never = {{0, 0}, {0, 0}};
    char data[1 << 16];
    ssize_t n = 0;
    int fd = -1;

    if (argc != 2 || sigaction(SIGALRM, &action, NULL) != 0 ||
        setitimer(ITIMER_REAL, &often, NULL) != 0)
        return 2;
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        perror("open");
        return 1;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    while ((n = read(fd, data, sizeof data)) > 0)
        if (write(STDOUT_FILENO, data, (size_t)n) != n)
            return 2;
    return n < 0 ? 2 : 0;
}
