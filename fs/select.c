#include "engine/base/io.h"
#include "fs/fs_i.h"
#include "fs/pattern.h"
#include "fs/pixels.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool select_shown(const struct ocr_fs *fs, const char *name, mode_t type)
{
    const size_t len = strlen(name), end = strlen(fs->suffix);

    return !fs->options->show_texts || S_ISDIR(type) ||
           (len > end && !strcmp(name + len - end, fs->suffix));
}

char *select_folder(struct ocr_fs *fs, struct node *folder)
{
    const struct ocr_options *o = fs->options;
    bool follow;

    if (!*o->include && !*o->exclude && !(o->min_pixels && o->follow))
        return NULL;
    return node_path(&fs->nodes, folder, 0, &follow);
}

/* Path of `name` below SOURCE, as patterns see it. */
static const char *path_of(const char *folder, const char *name, char *out,
                           size_t size)
{
    if (!folder || !strcmp(folder, "."))
        return name;
    snprintf(out, size, "%s/%s", folder, name);
    return out;
}

/* include= and exclude=. */
static bool is_chosen(const struct ocr_fs *fs, const char *path)
{
    const struct ocr_options *o = fs->options;

    return (!*o->include || pattern_listed(path, o->include)) &&
           !pattern_listed(path, o->exclude);
}

/* -o min_pixels. A file is opened only if it is as short as one with so few
 * pixels would be. */
static bool is_icon(struct ocr_fs *fs, int dir, const char *name,
                    const char *path, bool follow, const struct stat *st)
{
    const uint64_t least = fs->options->min_pixels;
    const int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    uint64_t pixels;
    int fd;

    if ((uint64_t)st->st_size > 8 * least + ((uint64_t)64 << 10))
        return false;
    fd = follow ? source_open_follow(&fs->source, path, O_RDONLY)
                : openat(dir, name, flags | O_NOFOLLOW | O_NOATIME);
    if (fd < 0 && !follow && errno == EPERM)
        fd = openat(dir, name, flags | O_NOFOLLOW);
    if (fd < 0)
        return false;
    pixels = pixels_of(fd);
    ocr_close(fd);
    return pixels && pixels < least;
}

/* errors=hide: the index is sure that there is no text for these bytes. */
static bool is_hopeless(struct ocr_fs *fs, int dir, const struct stat *st)
{
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = owner_of(fs, st->st_uid)};
    struct ocr_file_id id;
    struct ocr_cached cached;

    attr_file_id(fs, st, dir, &id);
    return ocr_cache_identify(fs->cache, &id, key.digest) ==
               OCR_IDENTITY_EXACT &&
           !ocr_cache_size(fs->cache, &key, &maker, &cached) &&
           cached.verdict != OCR_KIND_NONE;
}

bool select_text(struct ocr_fs *fs, const char *folder, int dir,
                 const char *name, bool follow, const struct stat *st)
{
    const bool hide = fs->errors == ERRORS_HIDE;
    char buffer[PATH_MAX];
    const char *path = path_of(folder, name, buffer, sizeof buffer);
    struct object o;

    if (!is_chosen(fs, path))
        return false;
    if (!hide && !fs->options->min_pixels)
        return true;
    if (!st && source_stat_at(dir, name, &o))
        return true; /* what is wrong is said elsewhere */
    st = st ? st : &o.st;
    if (fs->options->min_pixels && is_icon(fs, dir, name, path, follow, st))
        return false;
    return !hide || !is_hopeless(fs, dir, st);
}
