#include "fs/words.h"

#include <stdbool.h>
#include <string.h>

enum {
    WORD_MAX = 63,
    NEAR = 2
};

int ocr_word_index(const char *choices, const char *word)
{
    const size_t len = strlen(word);
    int index = 0;

    for (const char *at = choices;; at++, index++) {
        const size_t n = strcspn(at, "|");

        if (n == len && !memcmp(at, word, len))
            return index;
        at += n;
        if (!*at)
            return -1;
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, delete or change to make b of a; row by row. */
static size_t distance(const char *a, const char *b)
{
    const size_t len = strlen(b);
    size_t row[WORD_MAX + 1];

    for (size_t j = 0; j <= len; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];

        row[0] = i;
        for (size_t j = 1; j <= len; j++) {
            const size_t above = row[j];
            const size_t change = corner + (a[i - 1] != b[j - 1]);

            row[j] = smaller(change, 1 + smaller(above, row[j - 1]));
            corner = above;
        }
    }
    return row[len];
}

static bool begins(const char *word, const char *start)
{
    return !strncmp(word, start, strlen(start));
}

const char *ocr_word_nearest(const char *word, const char *const *words,
                             size_t n)
{
    const char *best = NULL;
    size_t least = NEAR + 1;

    if (strlen(word) < 2 || strlen(word) > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, words[i]);

        if (begins(word, words[i]) || begins(words[i], word))
            d = smaller(d, NEAR);
        /* Two letters wrong of three is another word. */
        if (d < least && d * 2 <= strlen(words[i])) {
            best = words[i];
            least = d;
        }
    }
    return best;
}

enum ocr_word_owner ocr_word_of_mount(const char *word)
{
    static const struct {
        const char *name; /* with =: the beginning of NAME=VALUE */
        enum ocr_word_owner owner;
    } known[] = {
        {"allow_root", OCR_WORD_FUSE},
        {"auto_unmount", OCR_WORD_FUSE},
        {"default_permissions", OCR_WORD_IGNORED}, /* always set */
        {"debug", OCR_WORD_DEBUG},
        {"fsname=", OCR_WORD_REFUSED},
        {"subtype=", OCR_WORD_REFUSED},
        {"max_read=", OCR_WORD_REFUSED},
        {"blkdev", OCR_WORD_REFUSED},
        {"fd=", OCR_WORD_REFUSED},
        {"rootmode=", OCR_WORD_REFUSED},
        {"user_id=", OCR_WORD_REFUSED},
        {"group_id=", OCR_WORD_REFUSED},
        {"exec", OCR_WORD_FUSE},
        {"noexec", OCR_WORD_FUSE},
        {"atime", OCR_WORD_FUSE},
        {"noatime", OCR_WORD_FUSE},
        {"sync", OCR_WORD_FUSE},
        {"async", OCR_WORD_FUSE},
        {"dirsync", OCR_WORD_FUSE},
        {"context=", OCR_WORD_FUSE},
        {"fscontext=", OCR_WORD_FUSE},
        {"defcontext=", OCR_WORD_FUSE},
        {"rootcontext=", OCR_WORD_FUSE},
        {"ro", OCR_WORD_IGNORED},
        {"rw", OCR_WORD_IGNORED},
        {"dev", OCR_WORD_IGNORED},
        {"nodev", OCR_WORD_IGNORED},
        {"suid", OCR_WORD_IGNORED},
        {"nosuid", OCR_WORD_IGNORED},
        {"diratime", OCR_WORD_IGNORED},
        {"nodiratime", OCR_WORD_IGNORED},
        {"relatime", OCR_WORD_IGNORED},
        {"norelatime", OCR_WORD_IGNORED},
        {"strictatime", OCR_WORD_IGNORED},
        {"nostrictatime", OCR_WORD_IGNORED},
        {"lazytime", OCR_WORD_IGNORED},
        {"nolazytime", OCR_WORD_IGNORED},
        {"defaults", OCR_WORD_IGNORED},
        {"auto", OCR_WORD_IGNORED},
        {"noauto", OCR_WORD_IGNORED},
        {"nofail", OCR_WORD_IGNORED},
        {"_netdev", OCR_WORD_IGNORED},
        {"user", OCR_WORD_IGNORED},
        {"users", OCR_WORD_IGNORED},
        {"nouser", OCR_WORD_IGNORED},
        {"owner", OCR_WORD_IGNORED},
        {"group", OCR_WORD_IGNORED},
        {"user=", OCR_WORD_IGNORED},
        {"comment=", OCR_WORD_IGNORED},
    };

    if (begins(word, "x-") || begins(word, "X-"))
        return OCR_WORD_IGNORED;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *name = known[i].name;
        const bool open = name[strlen(name) - 1] == '=';

        if (open ? begins(word, name) : !strcmp(word, name))
            return known[i].owner;
    }
    return OCR_WORD_OURS;
}
