#include "engine/server/helper.h"

#include "engine/base/io.h"
#include "engine/content.h"
#include "engine/server/formats.h"
#include "engine/server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    /* Of 1000: killed long before the engine if memory runs out. */
    OOM_SCORE = 500,
    /* Standard ones, the socket, image and pixels, and some to spare. */
    DESCRIPTORS = 16,
};

/* ---- the process ------------------------------------------------------- */

static void limit(int resource, rlim_t value)
{
    const struct rlimit hard = {value, value};

    setrlimit(resource, &hard);
}

/* Limits on memory and time come from the pool, for each image its own. */
static void set_limits(enum ocr_helper_kind kind)
{
    limit(RLIMIT_CORE, 0);
    if (kind != OCR_HELPER_THREADS)
        limit(RLIMIT_NPROC, 0);
    limit(RLIMIT_MEMLOCK, 0);
    limit(RLIMIT_MSGQUEUE, 0);
    limit(RLIMIT_NOFILE,
          kind == OCR_HELPER_FONTS ? 4 * DESCRIPTORS : DESCRIPTORS);
    if (!OCR_SANITIZED)
        limit(RLIMIT_FSIZE, 0); /* does not count for mappings */
}

/* Until here it was of use to the loader; now it would carry an image's
 * control characters to a terminal. */
static void silence(void)
{
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (null >= 0 && !OCR_SANITIZED)
        dup2(null, STDERR_FILENO);
}

static unsigned needs_of(enum ocr_helper_kind kind)
{
    switch (kind) {
    case OCR_HELPER_THREADS:
        return OCR_SANDBOX_THREADS;
    case OCR_HELPER_FONTS:
        return OCR_SANDBOX_FONTS;
    default:
        return 0;
    }
}

/* What holds of the sandbox. */
static unsigned confine(int sock, enum ocr_helper_kind kind)
{
    FILE *f;

    /* If the engine died before this line, its end of the socket is closed
     * and the first receive ends this process. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "ocrfs-decode");
    f = fopen("/proc/self/oom_score_adj", "w");
    if (f) {
        fprintf(f, "%d\n", OOM_SCORE);
        fclose(f);
    }
    silence();
    close_range((unsigned)sock + 1, ~0u, 0);
    set_limits(kind);
    return ocr_sandbox_helper(sock, needs_of(kind));
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
    void *map;
    int rc;

    *bytes = (struct bytes){NULL, (size_t)size};
    if (size == 0)
        return 0; /* nothing to map; the decoder says so */
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
    int fd;
    uint64_t room;
    void *map; /* NULL: no pixels yet */
    size_t bytes;
};

static void *share(void *arg, size_t bytes)
{
    struct shared *shared = arg;
    void *map;

    if (bytes > shared->room)
        return NULL;
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    shared->map = map;
    shared->bytes = bytes;
    return map;
}

/* The pool seals them: nobody may have them mapped any more. */
static void unmap(struct shared *shared)
{
    if (shared->map)
        munmap(shared->map, shared->bytes);
    shared->map = NULL;
}

/* ---- requests ---------------------------------------------------------- */

struct helper {
    int sock;
    int (*decode)(struct ocr_image *out, const uint8_t *data, size_t len,
                  const struct ocr_image_limits *limits,
                  const struct ocr_image_alloc *alloc, struct ocr_err *err);
    /* A document of many pages stays open until another one comes. */
    uint64_t held; /* its number, 0: none */
    struct bytes bytes;
    struct ocr_document *document;
};

static void let_go(struct helper *h)
{
    ocr_document_close(h->document);
    unload(&h->bytes);
    h->document = NULL;
    h->held = 0;
}

/* Opens what is asked for, unless it is open already. */
static int hold(struct helper *h, const struct ocr_decode_request *request,
                int fd, struct ocr_err *err)
{
    int rc;

    if (h->held && h->held == request->document)
        return 0;
    let_go(h);
    rc = load(&h->bytes, fd, request->size, err);
    if (rc == 0 && request->checked)
        rc = check(&h->bytes, &request->check, err);
    if (rc == 0)
        rc = ocr_document_open(&h->document, h->bytes.data, h->bytes.len,
                               &request->limits, err);
    if (rc)
        let_go(h);
    else
        h->held = request->document;
    return rc;
}

static int decode(struct helper *h, const struct ocr_decode_request *request,
                  int fd, struct ocr_decode_response *response,
                  struct shared *shared, struct ocr_err *err)
{
    const struct ocr_image_alloc alloc = {share, shared};
    struct ocr_image *image = &response->image;
    bool many;
    int rc = hold(h, request, fd, err);

    if (rc)
        return rc;
    response->pages = ocr_document_pages(h->document);
    many = ocr_format_has_pages(ocr_image_sniff(h->bytes.data, h->bytes.len));
    if (many || request->page > 0)
        rc = ocr_document_decode(h->document, request->page, image,
                                 &request->limits, &alloc, err);
    else
        rc = h->decode(image, h->bytes.data, h->bytes.len, &request->limits,
                       &alloc, err);
    if (response->pages == 1)
        let_go(h);
    return rc;
}

/* Too little memory is a verdict on the image only if the limit was ours. */
static enum ocr_kind kind_of(const struct ocr_err *err, bool limited)
{
    if (err->code == -ENOMEM)
        return limited ? OCR_KIND_TOO_LARGE : OCR_KIND_FAILED;
    return err->kind ? err->kind : OCR_KIND_FAILED;
}

static int answer(struct helper *h, const struct ocr_decode_request *request,
                  const int fds[OCR_PACKET_FDS])
{
    struct ocr_decode_response response = {.id = request->id};
    struct shared shared = {.fd = fds[1], .room = request->room};
    struct ocr_err err = OCR_ERR_INIT;
    const int rc = decode(h, request, fds[0], &response, &shared, &err);

    unmap(&shared);
    if (rc) {
        response.kind = kind_of(&err, request->limited);
        snprintf(response.sentence, sizeof response.sentence, "%.*s",
                 (int)sizeof response.sentence - 1, err.text);
    }
    response.image.pixels = NULL;
    return ocr_packet_send(h->sock, &response, sizeof response, NULL, 0);
}

int ocr_decode_helper_serve(
    int sock, enum ocr_helper_kind kind,
    int (*decode_image)(struct ocr_image *out, const uint8_t *data, size_t len,
                        const struct ocr_image_limits *limits,
                        const struct ocr_image_alloc *alloc,
                        struct ocr_err *err))
{
    struct ocr_decode_response ready = {0};
    struct helper h = {.sock = sock, .decode = decode_image};
    struct ocr_decode_request request;
    int fds[OCR_PACKET_FDS], rc;

    ocr_formats_load(kind); /* what is not there now never will be */
    ready.sandbox = confine(sock, kind);
    rc = ocr_packet_send(sock, &ready, sizeof ready, NULL, 0);
    while (rc == 0) {
        rc = ocr_packet_receive(sock, &request, sizeof request, fds);
        if (rc <= 0)
            break;
        rc = answer(&h, &request, fds);
        ocr_packet_close(fds);
    }
    let_go(&h);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}

static const char *const kind_names[OCR_HELPER_KINDS] = {
    [OCR_HELPER_PICTURES] = "pictures",
    [OCR_HELPER_THREADS] = "heif",
    [OCR_HELPER_FONTS] = "pdf",
};

const char *ocr_helper_kind_name(enum ocr_helper_kind kind)
{
    return kind_names[kind];
}

int ocr_decode_helper_main(int sock, const char *kind)
{
    int i = 0;

    while (kind && i < OCR_HELPER_KINDS && strcmp(kind, kind_names[i]))
        i++;
    if (i == OCR_HELPER_KINDS)
        return EXIT_FAILURE;
    return ocr_decode_helper_serve(sock, (enum ocr_helper_kind)i,
                                   ocr_image_decode);
}
