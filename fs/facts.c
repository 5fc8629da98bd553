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

/* ---- as extended attributes -------------------------------------------- */

static void say_hash(const struct facts *facts, char *out, size_t size)
{
    const uint8_t *bytes = facts->key.digest.bytes;

    *out = '\0';
    for (size_t i = 0; facts->hashed && i < OCR_DIGEST_BYTES; i++)
        snprintf(out + 2 * i, size - 2 * i, "%02x", bytes[i]);
}

static void say_error(const struct facts *facts, char *out, size_t size)
{
    const char *kind = ocr_kind_name(facts->kind);

    *out = '\0';
    if (facts->state != TEXT_FAILED)
        return;
    if (*facts->cached.sentence)
        snprintf(out, size, "%s (%s)", facts->cached.sentence, kind);
    else
        snprintf(out, size, "%s", kind);
}

static void say_engine(const struct facts *facts, char *out, size_t size)
{
    const bool made = facts->state == TEXT_KNOWN;

    snprintf(out, size, "%s", made ? facts->cached.maker : "");
}

static void say_state(const struct facts *facts, char *out, size_t size)
{
    static const char *const states[] = {
        [TEXT_UNKNOWN] = "unknown",
        [TEXT_READING] = "reading",
        [TEXT_KNOWN] = "known",
        [TEXT_FAILED] = "failed",
    };

    snprintf(out, size, "%s", states[facts->state]);
}

static const struct attribute {
    const char *name;
    void (*say)(const struct facts *facts, char *out, size_t size);
} attributes[] = {
    {"user.ocrfs.state", say_state},
    {"user.ocrfs.engine", say_engine},
    {"user.ocrfs.hash", say_hash},
    {"user.ocrfs.error", say_error},
};

enum {
    ATTRIBUTES = sizeof attributes / sizeof attributes[0]
};

bool facts_attribute(struct ocr_fs *fs, struct node *n, const char *name,
                     char *out, size_t size)
{
    struct facts facts;

    if (n->kind != NODE_TEXT)
        return false;
    for (size_t i = 0; i < ATTRIBUTES; i++) {
        if (strcmp(name, attributes[i].name) != 0)
            continue;
        facts_of_text(fs, n, &facts);
        attributes[i].say(&facts, out, size);
        return *out;
    }
    return false;
}

size_t facts_list(struct ocr_fs *fs, struct node *n, char *out, size_t size)
{
    char value[REASON_BYTES];
    struct facts facts;
    size_t len = 0;

    if (n->kind != NODE_TEXT)
        return 0;
    facts_of_text(fs, n, &facts);
    for (size_t i = 0; i < ATTRIBUTES; i++) {
        attributes[i].say(&facts, value, sizeof value);
        if (*value)
            len += 1 + (size_t)snprintf(out + len, size - len, "%s",
                                        attributes[i].name);
    }
    return len;
}
