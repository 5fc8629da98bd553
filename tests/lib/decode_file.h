/* tests/lib/decode_file.h - an image of a file, decoded in this process; its
 * pixels are the caller's to free. */
#ifndef TEST_DECODE_FILE_H
#define TEST_DECODE_FILE_H
#include "engine/image/image.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static inline void *zeroed(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

static inline int decode_file(struct ocr_image *image, const char *path,
                              struct ocr_err *err)
{
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {.alloc = zeroed};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *data;
    int rc;

    if (fd < 0 || fstat(fd, &st))
        return ocr_err_errno(err, "cannot read");
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return ocr_err_errno(err, "cannot map");
    rc =
        ocr_image_decode(image, data, (size_t)st.st_size, &limits, &alloc, err);
    munmap(data, (size_t)st.st_size);
    return rc;
}

#endif
