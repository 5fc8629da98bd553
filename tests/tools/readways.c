/* readways WAY FILE: copies FILE to standard output in one of the ways that
 * programs use and shells cannot show. Exit 1 with a message if it failed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 1 << 16
};

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int put(const char *data, size_t len)
{
    while (len > 0) {
        const ssize_t n = write(STDOUT_FILENO, data, len);

        if (n < 0)
            return fail("write");
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Without asking for the size first. */
static int by_sendfile(int fd, size_t size)
{
    ssize_t n = 0;

    (void)size;
    while ((n = sendfile(STDOUT_FILENO, fd, NULL, CHUNK)) > 0)
        continue;
    return n < 0 ? fail("sendfile") : 0;
}

/* Standard output must be a pipe. */
static int by_splice(int fd, size_t size)
{
    ssize_t n = 0;

    (void)size;
    while ((n = splice(fd, NULL, STDOUT_FILENO, NULL, CHUNK, 0)) > 0)
        continue;
    return n < 0 ? fail("splice") : 0;
}

/* `size` is what stat said before the file was opened. */
static int by_mmap(int fd, size_t size)
{
    const size_t len = size ? size : 1;
    char *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    char *copy = NULL;
    int status = 1;

    if (map == MAP_FAILED)
        return fail("mmap");
    copy = malloc(len);
    if (copy) {
        memcpy(copy, map, size); /* a page behind the end is a SIGBUS */
        status = put(copy, size);
    }
    free(copy);
    munmap(map, len);
    return status;
}

/* One buffer of the size that stat gave before, filled once; its address and
 * size are what O_DIRECT asks for. */
static int by_statread(int fd, size_t size)
{
    const size_t room = (size / 4096 + 1) * 4096;
    char *data = aligned_alloc(4096, room);
    size_t have = 0;
    ssize_t n = 1;
    int status = 1;

    if (!data)
        return fail("aligned_alloc");
    while (have < size && n > 0) {
        n = read(fd, data + have, room - have);
        have += n > 0 ? (size_t)n : 0;
    }
    status = n < 0 ? fail("read") : put(data, have < size ? have : size);
    free(data);
    return status;
}

/* The size that lseek knows after opening. */
static int by_seek(int fd, size_t size)
{
    const off_t end = lseek(fd, 0, SEEK_END);

    (void)size;
    if (end < 0 || lseek(fd, 0, SEEK_SET) != 0)
        return fail("lseek");
    return by_statread(fd, (size_t)end);
}

static int by_direct(int fd, size_t size)
{
    (void)size;
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0)
        return fail("O_DIRECT");
    return by_seek(fd, 0);
}

static const struct {
    const char *name;
    int (*copy)(int fd, size_t size);
} ways[] = {
    {"sendfile", by_sendfile}, {"splice", by_splice}, {"mmap", by_mmap},
    {"statread", by_statread}, {"seek", by_seek},     {"direct", by_direct},
};

int main(int argc, char **argv)
{
    struct stat st;
    int fd = -1;

    for (size_t i = 0; argc == 3 && i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(argv[1], ways[i].name) != 0)
            continue;
        if (stat(argv[2], &st) != 0)
            return fail("stat");
        fd = open(argv[2], O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return fail("open");
        return ways[i].copy(fd, (size_t)st.st_size);
    }
    fprintf(stderr, "usage: readways sendfile|splice|mmap|statread|seek|direct"
                    " FILE\n");
    return 2;
}
