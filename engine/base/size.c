#include "engine/base/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ocr_parse_size(const char *text, uint64_t *bytes, struct ocr_err *err)
{
    static const char units[] = "KMGT";
    char *end;
    unsigned long long n;
    unsigned shift = 0;
    const char *unit;

    errno = 0;
    n = strtoull(text, &end, 10);
    if (errno || text[0] < '0' || text[0] > '9')
        goto bad;
    unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (!strcmp(end, "iB") || !strcmp(end, "B"))
            end += strlen(end);
    }
    if (*end || (shift && n >> (64 - shift)))
        goto bad;
    *bytes = (uint64_t)n << shift;
    return 0;
bad:
    return ocr_err_set(err, -EINVAL, "'%s' is no size (like 64K, 10G)", text);
}
