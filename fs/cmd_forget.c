/* fs/cmd_forget.c - `ocrfs cache forget PATH...` and `gc [--unseen=90d]`: what
 * the cache must not, or need not, know any more. */
#include "fs/cmd_cache_i.h"

#include "engine/base/log.h"
#include "engine/content.h"
#include "fs/fileid.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- forget ------------------------------------------------------------- */

struct victims {
    struct ocr_cache *cache;
    uint8_t (*digest)[OCR_CACHE_DIGEST_BYTES];
    size_t count, room;
    unsigned images, failed;
};

static int add(struct victims *v, const uint8_t *digest)
{
    if (v->count == v->room) {
        const size_t room = v->room ? 2 * v->room : 256;
        void *more = realloc(v->digest, room * sizeof *v->digest);

        if (!more)
            return -ENOMEM;
        v->digest = more;
        v->room = room;
    }
    memcpy(v->digest[v->count++], digest, sizeof *v->digest);
    return 0;
}

static int fail(struct victims *v, const char *path, const char *why)
{
    v->failed++;
    ocr_error("%s: %s", path, why);
    return 0;
}

/* What it holds now, and what it held when its text was made. 0, or -ENOMEM:
 * another failure is told and counted. */
static int add_image(struct victims *v, const char *path)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_content content;
    struct ocr_file_id id;
    uint8_t digest[OCR_CACHE_DIGEST_BYTES];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int rc;

    if (fd < 0)
        return fail(v, path, strerror(errno));
    rc = ocr_content_load(&content, fd, ocr_cache_secret(v->cache), false, NULL,
                          &err);
    if (rc) {
        close(fd);
        return fail(v, path, err.text);
    }
    ocr_file_id_fill(&id, &content.stat, fd);
    close(fd);
    v->images++;
    rc = add(v, content.digest.bytes);
    if (!rc && ocr_cache_last_digest(v->cache, &id, digest) == 0)
        rc = add(v, digest);
    ocr_content_release(&content);
    return rc;
}

/* The image of a text: the name without its last ending, if that names one. */
static bool image_of_text(const char *path, char *image, size_t size)
{
    const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    if (!dot || dot < name || (size_t)(dot - path) >= size)
        return false;
    snprintf(image, size, "%.*s", (int)(dot - path), path);
    return names_is_image(image + (name - path)) && access(image, F_OK) == 0;
}

static int add_found(struct victims *v, const FTSENT *entry)
{
    char image[PATH_MAX];

    switch (entry->fts_info) {
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return fail(v, entry->fts_path, strerror(entry->fts_errno));
    case FTS_F:
    case FTS_SL:
        break;
    default:
        return 0;
    }
    if (names_is_image(entry->fts_name))
        return entry->fts_info == FTS_F || entry->fts_level == 0
                   ? add_image(v, entry->fts_accpath)
                   : 0;
    if (entry->fts_level > 0)
        return 0;
    if (image_of_text(entry->fts_path, image, sizeof image))
        return add_image(v, image);
    return fail(v, entry->fts_path, "this is neither an image nor a text");
}

static int add_all(struct victims *v, char **paths)
{
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    const FTSENT *entry;
    int rc = 0;

    if (!tree)
        return -errno;
    while (!rc && (entry = fts_read(tree)))
        rc = add_found(v, entry);
    fts_close(tree);
    return rc;
}

int cmd_cache_forget(struct ocr_cache *c, char **paths, struct ocr_err *err)
{
    const uint8_t(*digest)[OCR_CACHE_DIGEST_BYTES];
    struct victims v = {.cache = c};
    uint64_t texts = 0;
    int rc = add_all(&v, paths);

    digest = (const uint8_t(*)[OCR_CACHE_DIGEST_BYTES])v.digest;
    if (rc)
        ocr_err_set(err, rc, "cannot look for images: %s", strerror(-rc));
    else if (v.count)
        rc = ocr_cache_forget(c, digest, v.count, &texts, err);
    if (!rc)
        printf("%" PRIu64 " text%s of %u image%s forgotten\n", texts,
               texts == 1 ? "" : "s", v.images, v.images == 1 ? "" : "s");
    free(v.digest);
    return rc ? rc : v.failed ? 1 : 0;
}

/* ---- gc ----------------------------------------------------------------- */

/* "90d", "12h", "2w": seconds; 0 if it is none of these. */
static int64_t parse_age(const char *text)
{
    static const struct {
        char letter;
        int64_t seconds;
    } units[] = {{'h', 3600}, {'d', 86400}, {'w', 7 * 86400}};
    char *end;
    const unsigned long n = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || n > 100000 || !*end || end[1])
        return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (*end == units[i].letter)
            return (int64_t)n * units[i].seconds;
    return 0;
}

int cmd_cache_gc(struct ocr_cache *c, const char *unseen, struct ocr_err *err)
{
    const int64_t age = parse_age(unseen);
    struct ocr_cache_collected gone;
    struct timespec now;
    int code;

    clock_gettime(CLOCK_REALTIME, &now);
    if (age <= 0 || age > now.tv_sec)
        return ocr_err_set(err, -EINVAL,
                           "'%s' is no age: --unseen=90d drops what nobody "
                           "read for 90 days (also 12h, 8w)",
                           unseen);
    code = ocr_cache_collect(c, (int64_t)(now.tv_sec - age) * 1000000000, &gone,
                             err);
    if (!code)
        printf("%" PRIu64 " texts, %" PRIu64 " sizes and verdicts and %" PRIu64
               " known files dropped\n",
               gone.texts, gone.rows - gone.texts, gone.files);
    return code;
}
