/* tests/fuzz/must.h - what holds whatever the bytes are. */
#ifndef FUZZ_MUST_H
#define FUZZ_MUST_H
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline void must(bool holds)
{
    if (!holds)
        abort();
}

/* Takes bytes off the front; 0 when there are none left. */
struct fuzz_input {
    const uint8_t *data;
    size_t size;
};

static inline unsigned fuzz_byte(struct fuzz_input *in)
{
    if (!in->size)
        return 0;
    in->size--;
    return *in->data++;
}

static inline const uint8_t *fuzz_bytes(struct fuzz_input *in, size_t n)
{
    const uint8_t *at = in->data;

    must(n <= in->size);
    in->data += n;
    in->size -= n;
    return at;
}

#endif
