#include "engine/model/safetensors.h"
#include "engine/base/io.h"
#include "engine/model/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bits of a value. What we cannot compute with may stand in a file, too. */
static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    {"BF16", 16},   {"F16", 16},    {"F32", 32},    {"F64", 64},
    {"I8", 8},      {"U8", 8},      {"BOOL", 8},    {"I16", 16},
    {"U16", 16},    {"I32", 32},    {"U32", 32},    {"I64", 64},
    {"U64", 64},    {"C64", 64},    {"F4", 4},      {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
};

/* The tensor that is looked at, for messages. */
struct entry {
    const char *file, *name;
    const json_t *json;
    struct ocr_err *err;
};

__attribute__((format(printf, 2, 3))) static int fail(const struct entry *e,
                                                      const char *format, ...)
{
    char why[160];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return ocr_err_set(e->err, -EINVAL, "%s: tensor %.120s: %s", e->file,
                       e->name, why);
}

/* A whole number from 0 up. */
static bool whole(const json_t *json, uint64_t *out)
{
    const json_int_t value = json_integer_value(json);

    *out = (uint64_t)value;
    return json_is_integer(json) && value >= 0;
}

static int take_dtype(struct ocr_safetensor *t, unsigned *bits,
                      const struct entry *e)
{
    const char *name = json_string_value(json_object_get(e->json, "dtype"));

    if (!name)
        return fail(e, "no data type");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name))
            continue;
        snprintf(t->dtype, sizeof t->dtype, "%s", name);
        *bits = dtypes[i].bits;
        return 0;
    }
    return fail(e, "unknown data type %.40s", name);
}

static int take_shape(struct ocr_safetensor *t, uint64_t *values,
                      const struct entry *e)
{
    const json_t *shape = json_object_get(e->json, "shape");

    if (!json_is_array(shape))
        return fail(e, "no shape");
    if (json_array_size(shape) > OCR_SAFETENSORS_RANK)
        return fail(e, "more than %d dimensions", OCR_SAFETENSORS_RANK);
    t->rank = (unsigned)json_array_size(shape);
    *values = 1;
    for (unsigned i = 0; i < t->rank; i++) {
        if (!whole(json_array_get(shape, i), &t->shape[i]))
            return fail(e, "its shape is not made of whole numbers");
        if (__builtin_mul_overflow(*values, t->shape[i], values))
            return fail(e, "its shape overflows");
    }
    return 0;
}

static int take_offsets(struct ocr_safetensor *t, uint64_t data_bytes,
                        const struct entry *e)
{
    const json_t *offsets = json_object_get(e->json, "data_offsets");
    uint64_t end;

    if (json_array_size(offsets) != 2 ||
        !whole(json_array_get(offsets, 0), &t->offset) ||
        !whole(json_array_get(offsets, 1), &end))
        return fail(e, "its data offsets are not two numbers from 0 up");
    if (end < t->offset)
        return fail(e, "its data ends before it begins");
    if (end > data_bytes)
        return fail(e,
                    "its data ends at byte %llu, behind the end of the file's "
                    "data (%llu bytes)",
                    (unsigned long long)end, (unsigned long long)data_bytes);
    t->bytes = end - t->offset;
    return 0;
}

static int take_tensor(struct ocr_safetensor *t, uint64_t data_bytes,
                       const struct entry *e)
{
    uint64_t values = 0, size;
    unsigned bits = 0;
    int rc;

    if (!json_is_object(e->json))
        return fail(e, "its entry is not an object");
    if ((rc = take_dtype(t, &bits, e)) || (rc = take_shape(t, &values, e)) ||
        (rc = take_offsets(t, data_bytes, e)))
        return rc;
    if (__builtin_mul_overflow(values, bits, &size) || size % 8)
        return fail(e, "its size overflows");
    if (size / 8 != t->bytes)
        return fail(e, "%llu bytes of data, but its shape needs %llu",
                    (unsigned long long)t->bytes,
                    (unsigned long long)(size / 8));
    t->name = strdup(e->name);
    return t->name ? 0 : ocr_err_set(e->err, -ENOMEM, "out of memory");
}

static int by_offset(const void *a, const void *b)
{
    const struct ocr_safetensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ocr_safetensor *)a)->name,
                  ((const struct ocr_safetensor *)b)->name);
}

/* Each byte of the data belongs to one tensor. */
static int check_layout(const struct ocr_safetensors *out, const char *file,
                        struct ocr_err *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < out->count; i++) {
        const struct ocr_safetensor *t = &out->tensor[i];
        const struct entry e = {file, t->name, NULL, err};

        if (t->offset < at)
            return fail(&e, "its data overlaps that of %.80s",
                        out->tensor[i - 1].name);
        if (t->offset > at)
            return fail(&e, "%llu bytes before its data belong to nothing",
                        (unsigned long long)(t->offset - at));
        at += t->bytes;
    }
    if (at != out->data_bytes)
        return ocr_err_set(err, -EINVAL,
                           "%s: %llu bytes at the end belong to no tensor",
                           file, (unsigned long long)(out->data_bytes - at));
    return 0;
}

static int take_all(struct ocr_safetensors *out, json_t *header,
                    const char *file, struct ocr_err *err)
{
    struct entry e = {file, NULL, NULL, err};
    const char *name;
    json_t *value;
    int rc;

    out->tensor = calloc(json_object_size(header) + 1, sizeof *out->tensor);
    if (!out->tensor)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    json_object_foreach(header, name, value)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        e.name = name;
        e.json = value;
        rc = take_tensor(&out->tensor[out->count], out->data_bytes, &e);
        if (rc)
            return rc;
        out->count++;
    }
    qsort(out->tensor, out->count, sizeof *out->tensor, by_offset);
    rc = check_layout(out, file, err);
    qsort(out->tensor, out->count, sizeof *out->tensor, by_name);
    return rc;
}

int ocr_safetensors_parse(struct ocr_safetensors *out, const char *header,
                          size_t length, uint64_t data_bytes, const char *name,
                          struct ocr_err *err)
{
    json_t *json = ocr_json_parse(header, length, name, err);
    int rc;

    *out = (struct ocr_safetensors){.header_bytes = length,
                                    .data_bytes = data_bytes};
    if (!json)
        return -EINVAL;
    rc = take_all(out, json, name, err);
    json_decref(json);
    if (rc)
        ocr_safetensors_release(out);
    return rc;
}

int ocr_safetensors_header(const unsigned char first[8], uint64_t size,
                           const char *name, uint64_t *length,
                           struct ocr_err *err)
{
    *length = 0;
    for (int i = 0; i < 8; i++)
        *length |= (uint64_t)first[i] << 8 * i;
    if (size < 8)
        return ocr_err_set(err, -EINVAL, "%s is cut off: %llu bytes", name,
                           (unsigned long long)size);
    if (*length > OCR_SAFETENSORS_HEADER_MAX)
        return ocr_err_set(err, -EFBIG,
                           "%s: no safetensors file, or one with a header of "
                           "%llu bytes",
                           name, (unsigned long long)*length);
    if (*length > size - 8)
        return ocr_err_set(err, -EINVAL,
                           "%s is cut off within its header: %llu bytes", name,
                           (unsigned long long)size);
    return 0;
}

static int read_exactly(int fd, void *buf, size_t len, off_t at,
                        const char *name, struct ocr_err *err)
{
    const ssize_t n = ocr_pread_full(fd, buf, len, at);

    if (n < 0) {
        errno = (int)-n;
        return ocr_err_errno(err, "cannot read %s", name);
    }
    if ((size_t)n < len)
        return ocr_err_set(err, -EBUSY, "%s shrank while it was read", name);
    return 0;
}

/* The header, malloc'd. */
static int read_header(int fd, uint64_t size, const char *name, char **out,
                       uint64_t *length, struct ocr_err *err)
{
    unsigned char first[8] = {0};
    int rc = 0;

    if (size >= 8)
        rc = read_exactly(fd, first, 8, 0, name, err);
    if (!rc)
        rc = ocr_safetensors_header(first, size, name, length, err);
    if (rc)
        return rc;
    *out = malloc(*length + 1);
    if (!*out)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    rc = read_exactly(fd, *out, *length, 8, name, err);
    if (rc)
        free(*out);
    return rc;
}

int ocr_safetensors_open(struct ocr_safetensors *out, int dir, const char *name,
                         struct ocr_err *err)
{
    struct stat stat;
    uint64_t length, size;
    char *header;
    int rc, fd = ocr_file_open(dir, name, &stat, err);

    if (fd < 0)
        return fd;
    size = (uint64_t)stat.st_size;
    rc = read_header(fd, size, name, &header, &length, err);
    if (rc) {
        ocr_close(fd);
        return rc;
    }
    rc = ocr_safetensors_parse(out, header, length, size - 8 - length, name,
                               err);
    if (rc) {
        free(header);
        ocr_close(fd);
        return rc;
    }
    out->header = header;
    rc = ocr_mapping_open(&out->mapping, fd, &stat, name, err);
    if (rc)
        ocr_safetensors_release(out);
    return rc;
}

const struct ocr_safetensor *
ocr_safetensors_find(const struct ocr_safetensors *file, const char *tensor)
{
    struct ocr_safetensor key;

    key.name = (char *)(uintptr_t)tensor;
    return bsearch(&key, file->tensor, file->count, sizeof key, by_name);
}

const unsigned char *ocr_safetensors_data(const struct ocr_safetensors *file,
                                          const struct ocr_safetensor *tensor)
{
    return file->mapping.bytes + 8 + file->header_bytes + tensor->offset;
}

void ocr_safetensors_release(struct ocr_safetensors *file)
{
    for (size_t i = 0; i < file->count; i++)
        free(file->tensor[i].name);
    free(file->tensor);
    free(file->header);
    ocr_mapping_close(&file->mapping);
    *file = (struct ocr_safetensors){0};
}
