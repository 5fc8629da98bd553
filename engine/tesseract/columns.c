/* Reading order: where a page divides into columns that are read one after
 * the other, and where the eye goes across (tables, forms, receipts).
 *
 * Every tall white rectangle with text on both sides is judged by that text.
 * Lines that share their baselines across the gap, or amounts on one side,
 * are rows of a table; prose on both sides, lines that do not meet, or blocks
 * set tight like addresses, are columns. The tallest that passes divides the
 * region into what stands above, left, right, and below; each part is divided
 * again. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 12
};

/* The text beside a gap: lines, and what they are like next to the gap. */
struct side {
    struct line *at;
    size_t n;
    float pitch;   /* from baseline to baseline, 0 with one line */
    float words;   /* in a line, on average */
    float prose;   /* share of lines that fill the column with words */
    float figures; /* share of lines that are amounts and the like */
    float labels;  /* share of lines that end with a colon */
    size_t items;  /* lines that begin with a bullet */
};

/* A band of the gap, parted from the next by white across both sides: lines
 * [l0, l1) of the left and [r0, r1) of the right. */
struct zone {
    size_t l0, l1, r0, r1;
    int y0, y1;
    bool across; /* one line on each side, on one baseline: a row */
};

struct zones {
    struct zone *at;
    size_t n;
};

/* ---- sides ---- */

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float side_pitch(const struct side *side)
{
    float *steps = malloc((side->n + 1) * sizeof(*steps)), pitch = 0;

    for (size_t i = 1; steps && i < side->n; i++)
        steps[i - 1] = side->at[i].base - side->at[i - 1].base;
    if (steps && side->n > 1) {
        qsort(steps, side->n - 1, sizeof(*steps), by_float);
        pitch = steps[(side->n - 1) / 2];
    }
    free(steps);
    return pitch;
}

/* The words of a line next to the gap, up to the first wide space: what is
 * behind that is another column. */
static void near_words(const struct line *line, bool left, float xh,
                       size_t *from, size_t *to)
{
    *from = 0;
    *to = line->n;
    for (size_t i = 1; i < line->n; i++) {
        int space = line->words[i]->box.x0 - line->words[i - 1]->box.x1;

        if ((float)space <= 2.2f * xh)
            continue;
        if (left) {
            *from = i;
        } else {
            *to = i;
            return;
        }
    }
}

static bool mostly_figures(const struct line *line, size_t from, size_t to)
{
    size_t n = 0;

    for (size_t i = from; i < to; i++)
        n += text_is_figure(line->words[i]->text);
    return 2 * n > to - from;
}

static int near_width(const struct line *line, size_t from, size_t to)
{
    return line->words[to - 1]->box.x1 - line->words[from]->box.x0;
}

static void side_measure(struct side *side, bool left, float xh)
{
    float prose = 0, words = 0, figures = 0, labels = 0, n = (float)side->n;
    int width = 0;
    size_t from, to;

    side->items = 0;
    for (size_t i = 0; i < side->n; i++) {
        near_words(&side->at[i], left, xh, &from, &to);
        if (near_width(&side->at[i], from, to) > width)
            width = near_width(&side->at[i], from, to);
    }
    for (size_t i = 0; i < side->n; i++) {
        const struct line *line = &side->at[i];
        const char *last;

        near_words(line, left, xh, &from, &to);
        last = line->words[to - 1]->text;
        side->items += line->words[from]->bullet && to - from > 1;
        prose += to - from >= 4 && !mostly_figures(line, from, to) &&
                 near_width(line, from, to) * 10 > width * 7;
        words += (float)(to - from);
        figures += mostly_figures(line, from, to);
        labels += last[strlen(last) - 1] == ':';
    }
    side->prose = prose / n;
    side->words = words / n;
    side->figures = figures / n;
    side->labels = labels / n;
    side->pitch = side_pitch(side);
}

static bool on_one_base(const struct line *a, const struct line *b)
{
    float xh = a->xh > b->xh ? a->xh : b->xh;

    return fabsf(a->base - b->base) < 0.4f * xh;
}

/* Share of the lines of `a` that have a line of `b` beside them. */
static float shared(const struct side *a, const struct side *b)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++)
        for (size_t j = 0; j < b->n; j++)
            if (on_one_base(&a->at[i], &b->at[j])) {
                n++;
                break;
            }
    return (float)n / (float)a->n;
}

/* Lines of `side` beside those of `other`, neither all above nor below. */
static size_t beside(const struct side *side, const struct side *other)
{
    int top = other->at[0].box.y0, end = other->at[other->n - 1].box.y1;
    size_t n = 0;

    for (size_t i = 0; i < side->n; i++)
        n += side->at[i].base > (float)top && side->at[i].box.y0 < end;
    return n;
}

static bool both_prose(const struct side *l, const struct side *r)
{
    return l->n >= 3 && r->n >= 3 && l->prose >= 0.5f && r->prose >= 0.5f;
}

/* True if the two sides are read one after the other. */
static bool is_column_gap(const struct side *l, const struct side *r, int width,
                          float xh)
{
    const struct side *few = l->n <= r->n ? l : r, *many = few == l ? r : l;
    float meet = shared(few, many), tight = 2.85f * xh;

    if (beside(few, many) >= 2 && beside(many, few) >= 2 && meet < 0.55f)
        return true;
    /* A tight block of which hardly a line has a partner. */
    if (few->n >= 2 && meet * (float)few->n < 1.5f && meet < 0.55f &&
        (float)width >= 3 * xh &&
        ((l->pitch < tight && beside(r, l)) ||
         (r->pitch < tight && beside(l, r))))
        return true;
    if (l->figures > 0.5f || r->figures > 0.5f || l->labels > 0.4f ||
        (float)width < 3 * xh)
        return false;
    /* Blocks like addresses, set tight beside each other. */
    if (many->n < 2 || many->pitch > tight)
        return false;
    if (few->n == 1)
        return many->n >= 3 && many->n <= 6;
    return few->n <= 6 && few->pitch < tight && l->words >= 1.5f;
}

/* ---- zones ---- */

static int center(const struct tess_word *word)
{
    return (word->box.y0 + word->box.y1) / 2;
}

/* The lines of the words within `box` on one side of the gap. */
static int side_init(struct side *side, const struct page *page,
                     struct tess_word **words, size_t n,
                     const struct tess_box *box, bool left)
{
    struct tess_word **mine = malloc((n + 1) * sizeof(*mine));
    size_t k = 0;
    int code = 0;

    memset(side, 0, sizeof(*side));
    if (!mine)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int y = center(words[i]), x = (words[i]->box.x0 + words[i]->box.x1) / 2;

        if (y >= box->y0 && y < box->y1 && (x < box->x0) == left)
            mine[k++] = words[i];
    }
    if (k)
        code = lines_make(&side->at, &side->n, mine, k, page);
    free(mine);
    return code;
}

/* Cuts the lines of both sides where there is white across. */
static int zones_init(struct zones *zones, const struct side *l,
                      const struct side *r, float xh)
{
    size_t i = 0, j = 0;

    zones->n = 0;
    zones->at = calloc(l->n + r->n, sizeof(*zones->at));
    if (!zones->at)
        return -ENOMEM;
    while (i < l->n || j < r->n) {
        bool left = j == r->n || (i < l->n && l->at[i].base < r->at[j].base);
        const struct line *line = left ? &l->at[i] : &r->at[j];
        struct zone *zone = zones->n ? &zones->at[zones->n - 1] : NULL;

        if (!zone || (float)(line->box.y0 - zone->y1) > 1.6f * xh) {
            zone = &zones->at[zones->n++];
            *zone = (struct zone){i, i, j, j, line->box.y0, line->box.y1, 0};
        }
        zone->y0 = line->box.y0 < zone->y0 ? line->box.y0 : zone->y0;
        zone->y1 = line->box.y1 > zone->y1 ? line->box.y1 : zone->y1;
        i += left;
        j += !left;
        zone->l1 = i;
        zone->r1 = j;
    }
    for (size_t k = 0; k < zones->n; k++) {
        struct zone *zone = &zones->at[k];

        zone->across = zone->l1 - zone->l0 == 1 && zone->r1 - zone->r0 == 1 &&
                       on_one_base(&l->at[zone->l0], &r->at[zone->r0]);
    }
    return 0;
}

static bool two_sided(const struct zone *zone)
{
    return zone->l1 > zone->l0 && zone->r1 > zone->r0;
}

/* Zones behind the last that has both sides still belong to the longer one if
 * they go on in its rhythm, or it is prose and the space is no wider than
 * between paragraphs. */
static size_t follow(const struct zones *zones, size_t end, bool prose,
                     float xh)
{
    int usual = 0;

    for (size_t k = 1; k < end; k++)
        if (zones->at[k].y0 - zones->at[k - 1].y1 > usual)
            usual = zones->at[k].y0 - zones->at[k - 1].y1;
    while (end < zones->n && !two_sided(&zones->at[end])) {
        int space = zones->at[end].y0 - zones->at[end - 1].y1;

        if (space * 10 > usual * 13 && !(prose && (float)space < 3.2f * xh))
            break;
        end++;
    }
    return end;
}

static bool has_list(const struct side *side)
{
    return side->items >= 2 && side->items * 5 >= side->n * 2;
}

/* What makes the two sides of a run of zones columns. */
enum test {
    PROSE,   /* running text on both, or bullets on one */
    ASTRAY,  /* lines that hardly ever meet: a side bar */
    ANY_TEST /* is_column_gap */
};

static bool passes(const struct side *l, const struct side *r, int width,
                   float xh, enum test test)
{
    const struct side *few = l->n <= r->n ? l : r, *many = few == l ? r : l;

    switch (test) {
    case PROSE:
        return both_prose(l, r) || has_list(l) || has_list(r);
    case ASTRAY:
        return beside(few, many) >= 3 && beside(many, few) >= 3 &&
               shared(few, many) < 0.4f;
    default:
        return is_column_gap(l, r, width, xh);
    }
}

/* False if zone `k` at the end of a run is no part of it: it has one side, or
 * is a row across and either far from the next or not what is looked for. */
static bool holds(const struct zones *zones, size_t k, size_t next,
                  enum test test, float xh)
{
    const struct zone *zone = &zones->at[k], *other;
    int space;

    if (!two_sided(zone) || !zone->across)
        return two_sided(zone);
    if (test == ASTRAY || next >= zones->n)
        return false;
    other = &zones->at[next];
    space = next > k ? other->y0 - zone->y1 : zone->y0 - other->y1;
    return (float)space < 3.2f * xh;
}

/* Judges zones [from, to): trims them to what has both sides. True: columns,
 * and *from, *to are theirs. */
static bool judge_run(const struct zones *zones, size_t *from, size_t *to,
                      const struct side *l, const struct side *r, int width,
                      float xh, enum test test)
{
    struct side a = *l, b = *r;
    const struct zone *first, *last;

    while (*from < *to && !holds(zones, *from, *from + 1, test, xh))
        ++*from;
    while (*to > *from && !holds(zones, *to - 1, *to - 2, test, xh))
        --*to;
    if (*from == *to)
        return false;
    first = &zones->at[*from];
    last = &zones->at[*to - 1];
    a.at += first->l0;
    a.n = last->l1 - first->l0;
    b.at += first->r0;
    b.n = last->r1 - first->r0;
    side_measure(&a, true, xh);
    side_measure(&b, false, xh);
    if (!beside(&a, &b) || !beside(&b, &a) || !passes(&a, &b, width, xh, test))
        return false;
    *to = follow(zones, *to,
                 (a.n >= 4 && a.prose > 0.4f) || (b.n >= 4 && b.prose > 0.4f),
                 xh);
    return true;
}

/* The longest run of zones that are columns. */
static bool judge_zones(const struct zones *zones, const struct side *l,
                        const struct side *r, int width, float xh, size_t *from,
                        size_t *to)
{
    bool yes = false;

    for (enum test test = PROSE; test <= ASTRAY; test++) {
        *from = 0;
        *to = zones->n;
        if (judge_run(zones, from, to, l, r, width, xh, test))
            return true;
    }
    *from = *to = 0;
    for (size_t a = 0, b; a < zones->n; a = b + 1) {
        size_t x = a, y;

        for (b = a; b < zones->n && !zones->at[b].across; b++)
            ;
        y = b;
        if (judge_run(zones, &x, &y, l, r, width, xh, ANY_TEST) &&
            zones->at[y - 1].y1 - zones->at[x].y0 >
                (yes ? zones->at[*to - 1].y1 - zones->at[*from].y0 : 0)) {
            *from = x;
            *to = y;
            yes = true;
        }
    }
    return yes;
}

/* Judges one white rectangle; trims it to the text that stands side by side.
 * 1: it divides the region, 0: it does not. */
static int judge(const struct page *page, struct tess_word **words, size_t n,
                 struct tess_box *box)
{
    struct side l = {0}, r = {0};
    struct zones zones = {0};
    size_t from, to;
    int code = side_init(&l, page, words, n, box, true);

    if (!code)
        code = side_init(&r, page, words, n, box, false);
    if (!code && l.n && r.n && !(code = zones_init(&zones, &l, &r, page->xh)) &&
        judge_zones(&zones, &l, &r, box->x1 - box->x0, page->xh, &from, &to)) {
        box->y0 = zones.at[from].y0;
        box->y1 = zones.at[to - 1].y1;
        code = 1;
    }
    free(zones.at);
    lines_free(l.at, l.n);
    lines_free(r.at, r.n);
    return code;
}

/* ---- dividing ---- */

/* Where a word belongs: 0 above, 1 left, 2 right, 3 below. */
static int part_of(const struct tess_word *word, const struct tess_box *gap)
{
    int y = center(word);

    if (y < gap->y0)
        return 0;
    if (y >= gap->y1)
        return 3;
    return (word->box.x0 + word->box.x1) / 2 < gap->x0 ? 1 : 2;
}

/* Sorts the words into the four parts, keeping their order. */
static int part(struct tess_word **words, size_t n, const struct tess_box *gap,
                size_t sizes[4])
{
    struct tess_word **copy = malloc(n * sizeof(*copy));
    size_t k = 0;

    if (!copy)
        return -ENOMEM;
    memcpy(copy, words, n * sizeof(*copy));
    for (int p = 0; p < 4; p++) {
        sizes[p] = k;
        for (size_t i = 0; i < n; i++)
            if (part_of(copy[i], gap) == p)
                words[k++] = copy[i];
        sizes[p] = k - sizes[p];
    }
    free(copy);
    return 0;
}

/* The best dividing gap; 1 found, 0 none. */
static int find_division(const struct page *page, struct tess_word **words,
                         size_t n, struct tess_box *out)
{
    struct white gaps[GAPS_MAX];
    size_t found;
    int code = gaps_find(gaps, &found, page, words, n);

    for (size_t i = 0; code == 0 && i < found; i++) {
        *out = gaps[i].box;
        code = judge(page, words, n, out);
    }
    return code;
}

int columns_divide(const struct page *page, struct tess_word **words, size_t n,
                   int depth,
                   int (*each)(void *arg, struct tess_word **words, size_t n),
                   void *arg)
{
    struct tess_box gap = {0};
    size_t sizes[4];
    int code;

    if (n == 0)
        return 0;
    code =
        depth < DEPTH_MAX && n >= 4 ? find_division(page, words, n, &gap) : 0;
    if (code <= 0)
        return code < 0 ? code : each(arg, words, n);
    if ((code = part(words, n, &gap, sizes)))
        return code;
    for (int p = 0; code == 0 && p < 4; words += sizes[p++])
        code = columns_divide(page, words, sizes[p],
                              sizes[p] == n ? DEPTH_MAX : depth + 1, each, arg);
    return code;
}
