#include "fs/pattern.h"

#include <fnmatch.h>
#include <limits.h>
#include <string.h>

enum {
    PART_MAX = NAME_MAX
};

/* The part of a path or pattern at `at`, up to the next slash, as a string;
 * *next: behind the slash, or the end. */
static bool take_part(const char *at, char part[PART_MAX + 1],
                      const char **next)
{
    const size_t n = strcspn(at, "/");

    if (n > PART_MAX)
        return false;
    memcpy(part, at, n);
    part[n] = '\0';
    *next = at + n + strspn(at + n, "/");
    return true;
}

static bool same_part(const char *pattern, const char *path,
                      const char **pattern_next, const char **path_next)
{
    char glob[PART_MAX + 1], name[PART_MAX + 1];

    return *path && take_part(pattern, glob, pattern_next) &&
           take_part(path, name, path_next) && !fnmatch(glob, name, 0);
}

static bool is_any(const char *pattern)
{
    return !strncmp(pattern, "**", 2) && (pattern[2] == '/' || !pattern[2]);
}

/* Part by part; where a part does not fit, the last ** takes one folder more.
 */
static bool matches_path(const char *pattern, const char *path)
{
    const char *any = NULL, *tried = path;

    for (;;) {
        if (is_any(pattern)) {
            any = pattern + 2 + (pattern[2] == '/');
            tried = path;
            pattern = any;
        } else if (!*pattern) {
            return true; /* the path itself, or a folder on the way */
        } else if (!same_part(pattern, path, &pattern, &path)) {
            if (!any || !*tried)
                return false;
            tried += strcspn(tried, "/");
            tried += strspn(tried, "/");
            pattern = any;
            path = tried;
        }
    }
}

static bool matches_name(const char *pattern, const char *path)
{
    const char *unused;

    for (; *path; path += strcspn(path, "/"), path += strspn(path, "/")) {
        const char *rest;

        if (same_part(pattern, path, &unused, &rest))
            return true;
    }
    return false;
}

bool pattern_listed(const char *path, const char *list)
{
    char pattern[PATH_MAX];

    while (*list) {
        const size_t n = strcspn(list, ":");

        if (n && n < sizeof pattern) {
            memcpy(pattern, list, n);
            pattern[n] = '\0';
            if (strchr(pattern, '/')
                    ? matches_path(pattern + (*pattern == '/'), path)
                    : matches_name(pattern, path))
                return true;
        }
        list += n + (list[n] == ':');
    }
    return false;
}
