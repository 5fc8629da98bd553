#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <stdio.h>
#include <string.h>

/* The digest the index has for the image of a text; false: it may have changed
 * since it was hashed, or never was. */
static bool digest_of(struct ocr_fs *fs, struct node *n, struct facts *facts)
{
    struct ocr_file_id id;
    struct object o;
    const int fd = attr_open(fs, n, false, &o);

    if (fd < 0)
        return false;
    attr_file_id(fs, &o.st, fd, &id);
    facts->key.owner = owner_of(fs, o.st.st_uid);
    facts->hashed =
        ocr_cache_identify(fs->cache, &id, facts->key.digest.bytes) !=
        OCR_IDENTITY_NONE;
    ocr_close(fd);
    return facts->hashed;
}

static void ask_cache(struct ocr_fs *fs, struct facts *facts)
{
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = facts->key.owner};
    struct ocr_cached *cached = &facts->cached;

    memcpy(key.digest, facts->key.digest.bytes, sizeof key.digest);
    if (ocr_cache_size(fs->cache, &key, &maker, cached))
        return;
    if (cached->verdict != OCR_KIND_NONE) {
        facts->state = TEXT_FAILED;
        facts->kind = cached->verdict;
    } else if (cached->stored) {
        facts->state = TEXT_KNOWN;
    }
}

void facts_of_text(struct ocr_fs *fs, struct node *n, struct facts *out)
{
    bool reading;

    *out = (struct facts){.state = TEXT_UNKNOWN};
    if (digest_of(fs, n, out))
        ask_cache(fs, out);
    if (out->state != TEXT_UNKNOWN)
        return;
    pthread_mutex_lock(&fs->park.lock);
    reading = n->text.reading != NULL;
    pthread_mutex_unlock(&fs->park.lock);
    if (reading) {
        out->state = TEXT_READING;
    } else if (out->hashed) {
        out->kind = stats_recall(&fs->stats, &out->key);
        out->state = out->kind != OCR_KIND_NONE ? TEXT_FAILED : TEXT_UNKNOWN;
    }
}
