#include "engine/server/helper.h"

#include "engine/base/io.h"
#include "engine/content.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    SANITIZED = 1 /* its shadow needs terabytes of address space */
};
#else
enum {
    SANITIZED = 0
};
#endif

enum {
    /* Of 1000: killed long before the engine if memory runs out. */
    OOM_SCORE = 500,
};

/* ---- the process ------------------------------------------------------- */

static void confine(void)
{
    const struct rlimit none = {0, 0};
    FILE *f;

    /* If the engine died before this line, its end of the socket is closed
     * and the first receive ends this process. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "ocrfs-decode");
    close_range(OCR_HELPER_SOCKET + 1, ~0u, 0);
    f = fopen("/proc/self/oom_score_adj", "w");
    if (f) {
        fprintf(f, "%d\n", OOM_SCORE);
        fclose(f);
    }
    setrlimit(RLIMIT_CORE, &none);
    /* RLIMIT_NOFILE stays: by it the kernel also judges how many descriptors
     * the user has on their way through sockets, those of the mounts counted,
     * and would refuse to send the pixels. */
}

/* Limits for one image. Only soft ones: the next image's may be higher, and
 * the limit on time counts from the start of the process. False if whoever
 * started the engine allowed less memory: then it is no fault of an image. */
static bool limit(const struct ocr_decode_request *request)
{
    struct rlimit memory, cpu;
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    getrlimit(RLIMIT_CPU, &cpu);
    cpu.rlim_cur = (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 2) +
                   request->cpu_s;
    setrlimit(RLIMIT_CPU, &cpu);
    getrlimit(RLIMIT_AS, &memory);
    memory.rlim_cur = request->memory;
    return SANITIZED || setrlimit(RLIMIT_AS, &memory) == 0;
}

/* ---- the bytes of the image -------------------------------------------- */

struct bytes {
    uint8_t *data;
    size_t len;
};

static bool is_sealed(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_WRITE) && (seals & F_SEAL_SHRINK);
}

/* A file that may change or shrink is copied first: what is hashed must be
 * what is decoded, and a mapping of it could end in SIGBUS. */
static int read_copy(struct bytes *bytes, int fd, struct ocr_err *err)
{
    const ssize_t n = ocr_pread_full(fd, bytes->data, bytes->len, 0);

    if (n < 0)
        return ocr_err_kind(err, OCR_KIND_FAILED, "cannot read the image: %s",
                            strerror((int)-n));
    if ((size_t)n < bytes->len)
        return ocr_err_kind(err, OCR_KIND_CHANGING,
                            "the image became shorter while it was read");
    return 0;
}

static void unload(struct bytes *bytes)
{
    if (bytes->data)
        munmap(bytes->data, bytes->len);
    bytes->data = NULL;
}

static int load(struct bytes *bytes, int fd, uint64_t size, struct ocr_err *err)
{
    const bool sealed = is_sealed(fd);
    struct stat st;
    void *map;
    int rc;

    *bytes = (struct bytes){NULL, (size_t)size};
    if (fstat(fd, &st))
        return ocr_err_errno(err, "cannot look at the image");
    if (size == 0)
        return 0; /* nothing to map; the decoder says so */
    if ((uint64_t)st.st_size < size)
        return ocr_err_kind(err, OCR_KIND_CHANGING,
                            "the image became shorter while it was read");
    map = mmap(NULL, bytes->len, sealed ? PROT_READ : PROT_READ | PROT_WRITE,
               sealed ? MAP_PRIVATE : MAP_PRIVATE | MAP_ANONYMOUS,
               sealed ? fd : -1, 0);
    if (map == MAP_FAILED)
        return ocr_err_set(err, -ENOMEM, "no memory for an image of %llu bytes",
                           (unsigned long long)size);
    bytes->data = map;
    rc = sealed ? 0 : read_copy(bytes, fd, err);
    if (rc)
        unload(bytes);
    return rc;
}

static int check(const struct bytes *bytes,
                 const struct ocr_open_check *expected, struct ocr_err *err)
{
#if HAVE_XXHASH
    struct ocr_digest digest;

    ocr_digest_of(&digest, bytes->data, bytes->len, expected->secret);
    if (!memcmp(digest.bytes, expected->digest, sizeof digest.bytes))
        return 0;
    return ocr_err_kind(err, OCR_KIND_CHANGING,
                        "the image changed after it was hashed");
#else
    (void)bytes;
    (void)expected;
    return ocr_err_kind(err, OCR_KIND_FAILED,
                        "images above 64 MiB need an engine built with xxhash");
#endif
}

/* ---- the pixels -------------------------------------------------------- */

struct shared {
    int fd; /* -1: no pixels yet */
    void *map;
    size_t bytes;
};

static void *share(void *arg, size_t bytes)
{
    struct shared *shared = arg;

    shared->fd = ocr_memfd("ocrfs-pixels", NULL);
    if (shared->fd < 0 || ftruncate(shared->fd, (off_t)bytes))
        return NULL;
    shared->map =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
    if (shared->map == MAP_FAILED)
        shared->map = NULL;
    shared->bytes = bytes;
    return shared->map;
}

static void unmap(struct shared *shared)
{
    if (shared->map)
        munmap(shared->map, shared->bytes);
    shared->map = NULL;
}

/* Exactly the pixels, and never other ones. */
static int seal(struct shared *shared, const struct ocr_image *image,
                struct ocr_err *err)
{
    unmap(shared);
    if (ftruncate(shared->fd, (off_t)ocr_image_bytes(image)))
        return ocr_err_errno(err, "cannot cut the pixels to their size");
    return ocr_memfd_seal(shared->fd, err);
}

/* ---- requests ---------------------------------------------------------- */

struct helper {
    int sock;
    int (*decode)(struct ocr_image *out, const uint8_t *data, size_t len,
                  const struct ocr_image_limits *limits,
                  const struct ocr_image_alloc *alloc, struct ocr_err *err);
};

static int decode(const struct helper *h,
                  const struct ocr_decode_request *request, int fd,
                  struct ocr_image *image, struct shared *shared,
                  struct ocr_err *err)
{
    const struct ocr_image_alloc alloc = {share, shared};
    struct bytes bytes;
    int rc;

    if (request->page > 0)
        return ocr_err_kind(err, OCR_KIND_FAILED, "there is no page %u",
                            request->page + 1);
    rc = load(&bytes, fd, request->size, err);
    if (rc == 0 && request->checked)
        rc = check(&bytes, &request->check, err);
    if (rc == 0)
        rc = h->decode(image, bytes.data, bytes.len, &request->limits, &alloc,
                       err);
    if (rc == 0)
        rc = seal(shared, image, err);
    unload(&bytes);
    return rc;
}

/* Too little memory is a verdict on the image only if the limit was ours. */
static enum ocr_kind kind_of(const struct ocr_err *err, bool limited)
{
    if (err->code == -ENOMEM)
        return limited ? OCR_KIND_TOO_LARGE : OCR_KIND_FAILED;
    return err->kind ? err->kind : OCR_KIND_FAILED;
}

static int answer(const struct helper *h,
                  const struct ocr_decode_request *request, int fd)
{
    struct ocr_decode_response response = {.id = request->id};
    struct shared shared = {.fd = -1};
    struct ocr_err err = OCR_ERR_INIT;
    const bool limited = limit(request);
    int rc = decode(h, request, fd, &response.image, &shared, &err);
    unmap(&shared);
    if (rc) {
        shared.fd = ocr_close(shared.fd);
        response.kind = kind_of(&err, limited);
        snprintf(response.sentence, sizeof response.sentence, "%.*s",
                 (int)sizeof response.sentence - 1, err.text);
    }
    response.image.pixels = NULL;
    rc = ocr_packet_send(h->sock, &response, sizeof response, shared.fd);
    ocr_close(shared.fd);
    return rc;
}

int ocr_decode_helper_serve(
    int sock,
    int (*decode_image)(struct ocr_image *out, const uint8_t *data, size_t len,
                        const struct ocr_image_limits *limits,
                        const struct ocr_image_alloc *alloc,
                        struct ocr_err *err))
{
    const struct ocr_decode_response ready = {0};
    const struct helper h = {sock, decode_image};
    struct ocr_decode_request request;
    int fd, rc;

    confine();
    rc = ocr_packet_send(sock, &ready, sizeof ready, -1);
    while (rc == 0) {
        rc = ocr_packet_receive(sock, &request, sizeof request, &fd);
        if (rc <= 0)
            break;
        rc = answer(&h, &request, fd);
        ocr_close(fd);
    }
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}

int ocr_decode_helper_main(int sock)
{
    return ocr_decode_helper_serve(sock, ocr_image_decode);
}
