/* fs/words.h - words in option lists: which of several, which was meant, and
 * which of them mount(8) and libfuse know.
 *
 * Layer:   fs.
 * Threads: no state. */
#ifndef OCR_WORDS_H
#define OCR_WORDS_H
#include <stddef.h>

/* Index of `word` in `choices` ("pipe|html"), -1 if it is not there. */
int ocr_word_index(const char *choices, const char *word);

/* The one of `words` (n) that `word` was probably meant to be: at most two
 * letters wrong, or one begins with the other. NULL if none is near. */
const char *ocr_word_nearest(const char *word, const char *const *words,
                             size_t n);

enum ocr_word_owner {
    OCR_WORD_OURS,    /* not known to mount(8) or libfuse */
    OCR_WORD_FUSE,    /* for libfuse or the kernel */
    OCR_WORD_IGNORED, /* of fstab only, or without meaning on a mount that is
                         always ro,nosuid,nodev */
    OCR_WORD_DEBUG,   /* libfuse's -d */
    OCR_WORD_REFUSED, /* the mount sets it itself */
};

/* Whose word an element of a mount's option list is (NAME or NAME=VALUE). */
enum ocr_word_owner ocr_word_of_mount(const char *word);

#endif
