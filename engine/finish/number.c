#include "engine/finish/finish_i.h"

#include <string.h>

struct span {
    const char *at, *end;
};

static bool take(struct span *s, const char *word)
{
    const size_t n = strlen(word);

    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool take_back(struct span *s, const char *word)
{
    const size_t n = strlen(word);

    if ((size_t)(s->end - s->at) < n || memcmp(s->end - n, word, n) != 0)
        return false;
    s->end -= n;
    return true;
}

/* What may stand before or behind the digits, in any number and order. */
/* clang-format off */
static const char *const around[] = {
    ",-", ".-", ",\xe2\x80\x93",                       /* 12,- is twelve */
    " ", "\xc2\xa0", "\xe2\x80\xaf", "\xe3\x80\x80", /* blanks */
    "*", "_", "+", "-", "\xe2\x88\x92", "\xe2\x80\x93", "\xc2\xb1",
    "(", ")", "%", "\xe2\x80\xb0",                     /* per mille */
    "<", ">", "~", "\xe2\x89\xa4", "\xe2\x89\xa5", "\xe2\x89\x88",
    /* Currencies: dollar, euro, pound, yen, cent, rupee, won, shekel, rouble,
     * lira, hryvnia; yen, yuan and won as words. */
    "$", "\xe2\x82\xac", "\xc2\xa3", "\xc2\xa5", "\xef\xbf\xa5", "\xc2\xa2",
    "\xe2\x82\xb9", "\xe2\x82\xa9", "\xe2\x82\xaa", "\xe2\x82\xbd",
    "\xe2\x82\xba", "\xe2\x82\xb4", "\xe5\x86\x86", "\xe5\x85\x83",
    "\xec\x9b\x90",
    "EUR", "USD", "GBP", "CHF", "JPY", "CNY", "RMB", "SEK", "NOK", "DKK", "ISK",
    "PLN", "CZK", "HUF", "RON", "BGN", "TRY", "RUB", "UAH", "INR", "KRW", "AUD",
    "CAD", "NZD", "BRL", "MXN", "ZAR", "SGD", "HKD", "kr", "Kr", "Fr.",
    "z\xc5\x82", "K\xc4\x8d", "Ft", "lei", "R$", "Rs.",
};
/* clang-format on */

static void strip(struct span *s)
{
    bool again = true;

    while (again) {
        again = false;
        for (size_t i = 0; i < sizeof around / sizeof *around; i++)
            again = again || take(s, around[i]) || take_back(s, around[i]);
    }
}

static size_t digits(struct span *s)
{
    const char *from = s->at;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return (size_t)(s->at - from);
}

enum separator {
    NO_SEPARATOR,
    DOT,
    COMMA,
    APOSTROPHE,
    SPACE
};

static enum separator take_separator(struct span *s)
{
    if (take(s, "."))
        return DOT;
    if (take(s, ","))
        return COMMA;
    if (take(s, "'") || take(s, "\xe2\x80\x99"))
        return APOSTROPHE;
    if (take(s, " ") || take(s, "\xc2\xa0") || take(s, "\xe2\x80\xaf"))
        return SPACE;
    return NO_SEPARATOR;
}

/* Digits with separators: groups of three (of two too with commas, as in
 * India), then a decimal part behind another separator. So that dates,
 * versions and telephone numbers stay text: 01.02.2026, 0555 010 4471. */
static bool grouped(struct span *s)
{
    enum separator first = NO_SEPARATOR;
    size_t n = digits(s), groups = 0;

    if (n == 0) /* .50 */
        return (take(s, ".") || take(s, ",")) && digits(s) && s->at == s->end;
    while (s->at < s->end) {
        const enum separator now = take_separator(s);
        const size_t before = n;

        if (now == NO_SEPARATOR || (n = digits(s)) == 0)
            return false;
        if ((first == NO_SEPARATOR || now != first) && now <= COMMA &&
            s->at == s->end)
            return true; /* decimals */
        if (first != NO_SEPARATOR && now != first)
            return false;
        if (groups == 0 && before > 3)
            return false;
        if (n != 3 && !(n == 2 && now == COMMA && s->at < s->end))
            return false;
        first = now;
        groups++;
    }
    return true;
}

/* Only dashes, dots or blanks: nothing stands there. */
static bool nothing(struct span s)
{
    static const char *const words[] = {
        " ",
        "-",
        ".",
        "*",
        "\xe2\x80\x93",
        "\xe2\x80\x94",
        "\xe2\x88\x92",
        "\xc2\xa0",
    };

    while (s.at < s.end) {
        size_t i = 0;
        while (i < sizeof words / sizeof *words && !take(&s, words[i]))
            i++;
        if (i == sizeof words / sizeof *words)
            return false;
    }
    return true;
}

enum ocr_quantity ocr_quantity(const char *text, size_t len)
{
    struct span s = {text, text + len};

    if (nothing(s))
        return OCR_QUANTITY_NONE;
    if (len > 64) /* no number is so long; keeps hostile cells cheap */
        return OCR_QUANTITY_TEXT;
    strip(&s);
    if (s.at == s.end)
        return OCR_QUANTITY_TEXT;
    return grouped(&s) ? OCR_QUANTITY_NUMBER : OCR_QUANTITY_TEXT;
}
