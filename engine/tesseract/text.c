#include "engine/tesseract/text.h"

#include <string.h>

uint32_t text_next(const char **text)
{
    const unsigned char *s = (const unsigned char *)*text;
    uint32_t c = *s;
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;

    if (!c)
        return 0;
    if (more)
        c &= 0x3fu >> more;
    for (s++; more > 0 && (*s & 0xc0) == 0x80; more--, s++)
        c = c << 6 | (*s & 0x3f);
    *text = (const char *)s;
    return c;
}

size_t text_letters(const char *text)
{
    size_t n = 0;

    while (text_next(&text))
        n++;
    return n;
}

static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

bool text_is_upper(uint32_t c)
{
    if (c >= 'A' && c <= 'Z')
        return true;
    if (c >= 0xc0 && c <= 0xde)
        return c != 0xd7;
    return (c >= 0x100 && c <= 0x137 && c % 2 == 0) ||
           (c >= 0x14a && c <= 0x177 && c % 2 == 0) || c == 0x178 ||
           (c >= 0x391 && c <= 0x3a9) || (c >= 0x400 && c <= 0x42f);
}

bool text_is_letter(uint32_t c)
{
    if (c < 0xaa)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c < 0xc0)
        return c == 0xaa || c == 0xba;
    return c != 0xd7 && c != 0xf7 && (c < 0x2000 || c > 0x2bff) &&
           (c < 0x3000 || c > 0x3004) && c < 0xe000;
}

bool text_is_lower(uint32_t c)
{
    return text_is_letter(c) && !text_is_upper(c) && c < 0x530;
}

size_t text_alnum(const char *text)
{
    size_t n = 0;

    for (uint32_t c; (c = text_next(&text));)
        n += text_is_letter(c) || is_digit(c);
    return n;
}

bool text_has_digit(const char *text)
{
    return strpbrk(text, "0123456789") != NULL;
}

float text_depth(const char *text)
{
    float depth = 0;

    for (uint32_t c; (c = text_next(&text));) {
        if (c < 0x80 && strchr("gjpqy()[]{}|$@/", (int)c))
            return 0.36f;
        if (c == ',' || c == ';' || c == 'Q' || c == 0xe7 || c == 0xc7)
            depth = 0.24f; /* commas and cedillas */
    }
    return depth;
}

float text_height(const char *text)
{
    float depth = text_depth(text);
    bool above = false, any = false;

    for (uint32_t c; (c = text_next(&text));) {
        if (c < 0x80 && strchr("acemnorsuvwxzgpqy", (int)c)) {
            any = true;
        } else if (is_digit(c) || text_is_upper(c) ||
                   (c < 0x80 && strchr("bdfhkltij", (int)c))) {
            any = above = true;
        } else if (c < 0x80 && strchr("()[]{}|/$", (int)c)) {
            above = true;
        } else if (text_is_letter(c)) {
            any = true;
            above = above || c != 0xe7;
        }
    }
    return any ? 1 + (above ? 0.40f : 0) + depth : 0;
}

bool text_is_bullet(const char *text)
{
    uint32_t c = text_next(&text);

    if (*text)
        return false;
    switch (c) {
    case '-':
    case '*':
    case 0xb7:   /* middle dot */
    case 0x2022: /* bullet */
    case 0x2013: /* dashes */
    case 0x2014:
    case 0x25cf: /* black circle */
    case 0x25a0: /* black square */
    case 0x25aa:
    case 0x25e6: /* white bullet */
    case 0x2023: /* triangular bullet */
        return true;
    default:
        return false;
    }
}

/* "iv", "12", "a": at most four digits, roman figures or one letter. */
static size_t counter(const char *text)
{
    size_t n = strspn(text, "0123456789");

    if (n)
        return n <= 3 ? n : 0;
    n = strspn(text, "ivxIVX");
    if (n)
        return n <= 4 ? n : 0;
    return (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z');
}

bool text_is_number(const char *text)
{
    bool open = *text == '(';
    size_t n = counter(text + open);

    text += open + n;
    return n && (*text == ')' || (*text == '.' && !open)) && !text[1];
}

bool text_is_rule(const char *text)
{
    size_t n = 0;

    for (uint32_t c; (c = text_next(&text)); n++)
        if (!(c < 0x80 && strchr("-_=~.", (int)c)) && c != 0x2014 &&
            c != 0x2013 && c != 0x2026)
            return false;
    return n >= 4;
}

bool text_is_figure(const char *text)
{
    size_t digits = 0, letters = 0;

    for (uint32_t c; (c = text_next(&text));) {
        digits += is_digit(c);
        letters += text_is_letter(c);
    }
    return digits > 0 && letters <= digits;
}
