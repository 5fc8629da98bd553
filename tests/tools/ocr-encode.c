/* ocr-encode IMAGE... - decodes images, resizes them and makes the requests of
 * the recogniser `http`, on all cores, and sends them nowhere: what `ocrfs`
 * with a server can at most come near to. Prints pages, bytes and seconds. */
#include "engine/http/http_i.h"
#include "engine/image/image.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS_MAX = 64
};

static char **paths;
static int count;
static atomic_int next_path;
static atomic_ullong bytes_made;

static void *zeroed(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

static int decode(struct ocr_image *image, const char *path,
                  struct ocr_err *err)
{
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {.alloc = zeroed};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *data;
    int rc;

    if (fd < 0 || fstat(fd, &st))
        return ocr_err_errno(err, "cannot read");
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return ocr_err_errno(err, "cannot map");
    rc =
        ocr_image_decode(image, data, (size_t)st.st_size, &limits, &alloc, err);
    munmap(data, (size_t)st.st_size);
    return rc;
}

static void *work(void *arg)
{
    int i;

    (void)arg;
    while ((i = atomic_fetch_add(&next_path, 1)) < count) {
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image image;
        char *body = NULL;
        size_t len = 0;

        if (decode(&image, paths[i], &err) ||
            http_body_make(&body, &len, &image, "", "a model", &err)) {
            fprintf(stderr, "ocr-encode: %s: %s\n", paths[i], err.text);
            exit(1);
        }
        atomic_fetch_add(&bytes_made, len);
        free(image.pixels);
        free(body);
    }
    return NULL;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    const int cores = get_nprocs(),
              threads = cores < THREADS_MAX ? cores : THREADS_MAX;
    pthread_t thread[THREADS_MAX];
    double begin;

    paths = argv + 1;
    count = argc - 1;
    begin = now();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, work, NULL))
            return 2;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%d %llu %.3f\n", count, atomic_load(&bytes_made), now() - begin);
    return 0;
}
