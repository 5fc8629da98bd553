#include "engine/content.h"

#include "engine/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if HAVE_XXHASH
#include <xxhash.h>

enum {
    CHUNK_BYTES = 256 << 10,
    TRIES = 3
};

static void put_digest(struct ocr_digest *out, XXH128_hash_t hash)
{
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(out->bytes, canonical.digest, sizeof out->bytes);
}

void ocr_digest_of(struct ocr_digest *out, const void *data, size_t len,
                   const uint8_t secret[OCR_SECRET_BYTES])
{
    put_digest(out,
               XXH3_128bits_withSecret(data, len, secret, OCR_SECRET_BYTES));
}

/* One pass over the file: hashes out->stat.st_size bytes and copies them into
 * out->fd if it is a memfd. */
static int read_once(struct ocr_content *out, int file, XXH3_state_t *state,
                     char *chunk, const uint8_t *secret,
                     const atomic_bool *stop, struct ocr_err *err)
{
    const uint64_t size = (uint64_t)out->stat.st_size;
    uint64_t at = 0;

    XXH3_128bits_reset_withSecret(state, secret, OCR_SECRET_BYTES);
    while (at < size) {
        const uint64_t left = size - at;
        const size_t want = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        ssize_t n;
        int rc;

        if (stop && atomic_load(stop))
            return ocr_err_set(err, -ECANCELED, "no longer wanted");
        n = ocr_pread_full(file, chunk, want, (off_t)at);
        if (n < 0) {
            errno = (int)-n;
            return ocr_err_errno(err, "cannot read the image");
        }
        if (n == 0)
            break; /* shorter than it was: the second fstat tells */
        XXH3_128bits_update(state, chunk, (size_t)n);
        rc = out->sealed ? ocr_pwrite_full(out->fd, chunk, (size_t)n, (off_t)at)
                         : 0;
        if (rc) {
            errno = -rc;
            return ocr_err_errno(err, "no memory for a copy of the image");
        }
        at += (uint64_t)n;
    }
    out->size = at;
    put_digest(&out->digest, XXH3_128bits_digest(state));
    return 0;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool moved(const struct stat *a, const struct stat *b)
{
    return a->st_size != b->st_size || !same_time(a->st_mtim, b->st_mtim) ||
           !same_time(a->st_ctim, b->st_ctim);
}

static int check_file(const struct stat *st, struct ocr_err *err)
{
    if (!S_ISREG(st->st_mode))
        return ocr_err_kind(err, OCR_KIND_NOT_IMAGE, "not a regular file");
    if ((uint64_t)st->st_size > OCR_CONTENT_MAX)
        return ocr_err_kind(err, OCR_KIND_TOO_LARGE,
                            "the file has %lld bytes, more than the limit of "
                            "%lld",
                            (long long)st->st_size, (long long)OCR_CONTENT_MAX);
    return 0;
}

/* out->fd for what will be read: a memfd, the file itself, or none. */
static int choose_descriptor(struct ocr_content *out, int file, bool keep,
                             struct ocr_err *err)
{
    out->sealed = false;
    if (!keep)
        return 0;
    if ((uint64_t)out->stat.st_size > OCR_CONTENT_MEMFD_MAX) {
        out->fd = fcntl(file, F_DUPFD_CLOEXEC, 0);
        return out->fd < 0 ? ocr_err_errno(err, "cannot keep the image open")
                           : 0;
    }
    out->fd = ocr_memfd("ocrfs-image", err);
    if (out->fd < 0)
        return out->fd;
    out->sealed = true;
    return 0;
}

/* 0: *out is whole; 1: the file moved meanwhile, try again. */
static int load_once(struct ocr_content *out, int file, XXH3_state_t *state,
                     char *chunk, const uint8_t *secret, bool keep,
                     const atomic_bool *stop, struct ocr_err *err)
{
    struct stat after;
    int rc;

    out->read_ns = ocr_wall_ns();
    if (fstat(file, &out->stat))
        return ocr_err_errno(err, "cannot read the image");
    rc = check_file(&out->stat, err);
    if (!rc)
        rc = choose_descriptor(out, file, keep, err);
    if (!rc)
        rc = read_once(out, file, state, chunk, secret, stop, err);
    if (rc)
        return rc;
    if (fstat(file, &after))
        return ocr_err_errno(err, "cannot read the image");
    if (moved(&out->stat, &after) || out->size != (uint64_t)after.st_size)
        return 1;
    return out->sealed ? ocr_memfd_seal(out->fd, err) : 0;
}

int ocr_content_load(struct ocr_content *out, int file,
                     const uint8_t secret[OCR_SECRET_BYTES], bool keep,
                     const atomic_bool *stop, struct ocr_err *err)
{
    XXH3_state_t *state = XXH3_createState();
    char *chunk = malloc(CHUNK_BYTES);
    int rc = 1;

    *out = (struct ocr_content){.fd = -1};
    if (!state || !chunk)
        rc = ocr_err_set(err, -ENOMEM, "no memory to read the image");
    for (int i = 0; rc == 1 && i < TRIES; i++) {
        ocr_content_release(out);
        rc = load_once(out, file, state, chunk, secret, keep, stop, err);
    }
    if (rc == 1)
        rc = ocr_err_kind(err, OCR_KIND_CHANGING,
                          "the image kept changing while it was read");
    if (rc)
        ocr_content_release(out);
    free(chunk);
    XXH3_freeState(state);
    return rc;
}
#endif

void ocr_content_release(struct ocr_content *content)
{
    content->fd = ocr_close(content->fd);
}
