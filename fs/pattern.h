/* fs/pattern.h - lists of globs, as in exclude=*.gif:private:2019/[ab]*.png
 *
 * A pattern without a slash is for a name, of an image or of a folder on the
 * way to it; one with a slash for the path below SOURCE, where * and ? match
 * no slash and a part ** matches any number of folders, also none. What a
 * folder matches, all in it does. Case counts; a backslash takes the next
 * byte as it is; hidden files are like others.
 *
 * Layer:   fs.
 * Threads: no state. */
#ifndef OCR_PATTERN_H
#define OCR_PATTERN_H
#include <stdbool.h>

/* True if one of the patterns in `list`, parted by ':', matches `path`
 * ("2019/a.png"); false for an empty list. */
bool pattern_listed(const char *path, const char *list);

#endif
