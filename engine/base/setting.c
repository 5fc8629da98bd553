#include "engine/base/setting.h"

#include <string.h>

static void copy(char *out, size_t size, const char *from, size_t len)
{
    if (size == 0)
        return;
    if (len > size - 1)
        len = size - 1;
    memcpy(out, from, len);
    out[len] = '\0';
}

const char *ocr_setting(const char *settings, const char *name,
                        const char *fallback, char *out, size_t size)
{
    size_t name_len = strlen(name);

    copy(out, size, fallback, strlen(fallback));
    for (const char *line = settings; line && *line;) {
        size_t len = strcspn(line, "\n");

        if (len > name_len && line[name_len] == '=' &&
            memcmp(line, name, name_len) == 0)
            copy(out, size, line + name_len + 1, len - name_len - 1);
        line += len + (line[len] == '\n');
    }
    return out;
}
