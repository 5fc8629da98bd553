#include "fs/pixels.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum {
    SEGMENTS_MAX = 64, /* of a JPEG in front of its size */
};

static uint32_t be16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

static uint32_t be32(const uint8_t *at)
{
    return be16(at) << 16 | be16(at + 2);
}

static uint64_t pixels_of_png(int fd)
{
    uint8_t head[24];

    if (pread(fd, head, sizeof head, 0) != sizeof head ||
        memcmp(head + 12, "IHDR", 4) != 0)
        return 0;
    return (uint64_t)be32(head + 16) * be32(head + 20);
}

/* SOF0 to SOF15 without DHT, JPG and DAC. */
static bool is_frame(uint8_t marker)
{
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 &&
           marker != 0xc8 && marker != 0xcc;
}

static uint64_t pixels_of_jpeg(int fd)
{
    uint8_t segment[9];
    off_t at = 2;

    for (int i = 0; i < SEGMENTS_MAX; i++) {
        if (pread(fd, segment, sizeof segment, at) != sizeof segment ||
            segment[0] != 0xff)
            return 0;
        if (is_frame(segment[1]))
            return (uint64_t)be16(segment + 5) * be16(segment + 7);
        if (segment[1] == 0xff) /* a fill byte */
            at += 1;
        else if (segment[1] == 0xda || segment[1] == 0xd9 ||
                 be16(segment + 2) < 2)
            return 0; /* the scan, or the end, before any size */
        else
            at += 2 + be16(segment + 2);
    }
    return 0;
}

uint64_t pixels_of(int fd)
{
    uint8_t head[8];

    if (pread(fd, head, sizeof head, 0) != sizeof head)
        return 0;
    if (!memcmp(head, "\x89PNG\r\n\x1a\n", 8))
        return pixels_of_png(fd);
    return head[0] == 0xff && head[1] == 0xd8 ? pixels_of_jpeg(fd) : 0;
}
