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

static uint32_t le16(const uint8_t *at)
{
    return (uint32_t)at[1] << 8 | at[0];
}

static uint32_t le24(const uint8_t *at)
{
    return (uint32_t)at[2] << 16 | le16(at);
}

static uint32_t le32(const uint8_t *at)
{
    return le16(at + 2) << 16 | le16(at);
}

static uint64_t pixels_of_gif(int fd)
{
    uint8_t size[4];

    if (pread(fd, size, sizeof size, 6) != sizeof size)
        return 0;
    return (uint64_t)le16(size) * le16(size + 2);
}

static uint64_t pixels_of_bmp(int fd)
{
    uint8_t head[12]; /* length of what follows, then width and height */
    uint32_t height;

    if (pread(fd, head, sizeof head, 14) != sizeof head)
        return 0;
    if (le32(head) == 12) /* of OS/2 */
        return (uint64_t)le16(head + 4) * le16(head + 6);
    height = le32(head + 8);
    if (height > INT32_MAX) /* negative: from top to bottom */
        height = 0 - height;
    return (uint64_t)le32(head + 4) * height;
}

static uint64_t pixels_of_webp(int fd)
{
    uint8_t chunk[18]; /* name, length, the beginning of the data */
    uint32_t bits;

    if (pread(fd, chunk, sizeof chunk, 12) != sizeof chunk)
        return 0;
    if (!memcmp(chunk, "VP8X", 4))
        return ((uint64_t)le24(chunk + 12) + 1) * (le24(chunk + 15) + 1);
    if (!memcmp(chunk, "VP8 ", 4) && !memcmp(chunk + 11, "\x9d\x01\x2a", 3))
        return (uint64_t)(le16(chunk + 14) & 0x3fff) *
               (le16(chunk + 16) & 0x3fff);
    if (memcmp(chunk, "VP8L", 4) != 0 || chunk[8] != 0x2f)
        return 0;
    bits = le32(chunk + 9);
    return ((uint64_t)(bits & 0x3fff) + 1) * ((bits >> 14 & 0x3fff) + 1);
}

uint64_t pixels_of(int fd)
{
    uint8_t head[12];

    if (pread(fd, head, sizeof head, 0) != sizeof head)
        return 0;
    if (!memcmp(head, "\x89PNG\r\n\x1a\n", 8))
        return pixels_of_png(fd);
    if (!memcmp(head, "GIF8", 4))
        return pixels_of_gif(fd);
    if (!memcmp(head, "BM", 2))
        return pixels_of_bmp(fd);
    if (!memcmp(head, "RIFF", 4) && !memcmp(head + 8, "WEBP", 4))
        return pixels_of_webp(fd);
    return head[0] == 0xff && head[1] == 0xd8 ? pixels_of_jpeg(fd) : 0;
}
