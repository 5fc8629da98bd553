/* ocr-encode IMAGE... - decodes images, resizes them and makes the requests of
 * the recogniser `http`, on all cores, and sends them nowhere: what `ocrfs`
 * with a server can at most come near to. Prints pages, bytes and seconds. */
#include "engine/http/http_i.h"
#include "tests/lib/decode_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <time.h>

enum {
    THREADS_MAX = 64
};

static char **paths;
static int count;
static atomic_int next_path;
static atomic_ullong bytes_made;

static void *work(void *arg)
{
    int i;

    (void)arg;
    while ((i = atomic_fetch_add(&next_path, 1)) < count) {
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image image;
        char *body = NULL;
        size_t len = 0;

        if (decode_file(&image, paths[i], &err) ||
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
