/* engine/tesseract/text.h - what the letters of a word tell.
 *
 * Layer:   engine, plugin.
 * Threads: no state. */
#ifndef OCR_TESSERACT_TEXT_H
#define OCR_TESSERACT_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The next code point; *text moves behind it. 0 at the end. */
uint32_t text_next(const char **text);
/* Code points, and those that are letters or digits. */
size_t text_letters(const char *text);
size_t text_alnum(const char *text);
bool text_is_letter(uint32_t c);
bool text_is_lower(uint32_t c);
bool text_is_upper(uint32_t c);
bool text_has_digit(const char *text);
/* Height of the word in x-heights, by its letters; 0 if they do not tell. */
float text_height(const char *text);
/* How far the word reaches below the baseline, in x-heights. */
float text_depth(const char *text);
/* "•", "-", "*" and their like, alone. */
bool text_is_bullet(const char *text);
/* "1.", "a)", "(iv)", "12)", alone: the number of a list item. */
bool text_is_number(const char *text);
/* Only dashes, underscores, equal signs: a line somebody drew. */
bool text_is_rule(const char *text);
/* An amount, a date, a time, a share: what stands in columns. */
bool text_is_figure(const char *text);

#endif
