#include "fs/fs_i.h"

#include <string.h>
#include <strings.h>

bool names_is_image(const char *name)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".jpe",
                                          ".jfif"};
    const char *dot = strrchr(name, '.');

    /* ".png" alone is a hidden file without an extension. */
    if (!dot || dot == name)
        return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
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
