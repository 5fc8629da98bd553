#include "fs/fs_i.h"

#include <string.h>
#include <strings.h>

enum {
    ENDINGS_MAX = 32,
    ENDING_BYTES = 8
};

/* Those of formats that every engine reads, and those that were added. */
static char endings[ENDINGS_MAX][ENDING_BYTES] = {".png", ".jpg", ".jpeg",
                                                  ".jpe", ".jfif"};
static unsigned endings_count = 5;

void names_add(const char *ending)
{
    if (endings_count < ENDINGS_MAX && strlen(ending) < ENDING_BYTES)
        strcpy(endings[endings_count++], ending);
}

bool names_is_image(const char *name)
{
    const char *dot = strrchr(name, '.');

    /* ".png" alone is a hidden file without an extension. */
    if (!dot || dot == name)
        return false;
    for (unsigned i = 0; i < endings_count; i++)
        if (!strcasecmp(dot, endings[i]))
            return true;
    return false;
}

bool names_has_text(const char *name, mode_t type, const char *suffix,
                    bool taken)
{
    return S_ISREG(type) && !taken && names_is_image(name) &&
           strlen(name) + strlen(suffix) <= NAME_BYTES;
}

bool names_has_pages(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && (!strcasecmp(dot, ".pdf") || !strcasecmp(dot, ".tif") ||
                   !strcasecmp(dot, ".tiff"));
}

size_t names_image_len(const char *text, const char *suffix)
{
    const size_t len = strlen(text), end = strlen(suffix);
    char image[NAME_BYTES + 1];

    if (len <= end || len > NAME_BYTES || strcmp(text + len - end, suffix))
        return 0;
    memcpy(image, text, len - end);
    image[len - end] = '\0';
    return names_is_image(image) ? len - end : 0;
}
