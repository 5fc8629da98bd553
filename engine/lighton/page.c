#include "engine/lighton/lighton_i.h"

#include "engine/base/setting.h"
#include "engine/image/resize.h"
#include "engine/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void page_append(struct page_list *list, struct lighton_page *p)
{
    p->next = NULL;
    if (list->last)
        list->last->next = p;
    else
        list->first = p;
    list->last = p;
}

void page_remove(struct page_list *list, struct lighton_page *p)
{
    struct lighton_page **at = &list->first, *before = NULL;

    while (*at != p) {
        before = *at;
        at = &before->next;
    }
    *at = p->next;
    if (list->last == p)
        list->last = before;
}

struct lighton_page *page_take(struct page_list *list)
{
    struct lighton_page *p = list->first;

    if (p)
        page_remove(list, p);
    return p;
}

struct lighton_page *page_best(const struct page_list *list)
{
    struct lighton_page *best = list->first;

    for (struct lighton_page *p = best; p; p = p->next) {
        const bool urgent = atomic_load(&p->urgent),
                   best_urgent = atomic_load(&best->urgent);

        if (urgent != best_urgent ? urgent : p->turn < best->turn)
            best = p;
    }
    return best;
}

/* ---- before
 * ------------------------------------------------------------------ */

static double number(const struct lighton_page *p, const char *name,
                     double fallback)
{
    char text[32], *end;
    double value;

    ocr_setting(p->page.settings, name, "", text, sizeof text);
    value = strtod(text, &end);
    return end == text ? fallback : value;
}

static int prepare_pixels(struct ocr_recogniser *r, struct lighton_page *p,
                          struct ocr_err *err)
{
    const struct ocr_image *image = &p->page.image;
    const uint32_t patch = r->folder->model.vision.patch;

    ocr_resize_size(image->width, image->height, r->folder->config.longest_edge,
                    r->multiple, &p->width, &p->height);
    if ((uint64_t)(p->width / patch) * (p->height / patch) >
        r->plan.max_patches)
        return ocr_err_set(err, -EFBIG,
                           "the page has %u x %u pixels when resized, more "
                           "than the model was loaded for",
                           p->width, p->height);
    p->rgb = malloc((size_t)p->width * p->height * 3);
    if (!p->rgb)
        return ocr_err_set(err, -ENOMEM, "no memory to resize the page");
    return ocr_resize_page(image, p->width, p->height, p->rgb, err);
}

/* FNV-1a over the pixels: only to give each page a random sequence that
 * depends on nothing but the page. */
static uint64_t hash_pixels(const struct lighton_page *p)
{
    const size_t bytes = (size_t)p->width * p->height * 3;
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p->rgb[i]) * 0x100000001b3u;
    return hash;
}

static void prepare_sampler(struct lighton_page *p)
{
    struct ocr_sampler *s = &p->sampler;

    s->temperature = (float)number(p, "temperature", 0);
    s->top_p = (float)number(p, "top_p", 1);
    s->repetition_penalty = (float)number(p, "repetition_penalty", 1);
    s->page_hash = s->temperature > 0 ? hash_pixels(p) : 0;
}

/* The tokens a page may write: what was asked for, but no more than the
 * model's positions and the slot's blocks hold. */
static int prepare_limit(struct ocr_recogniser *r, struct lighton_page *p,
                         struct ocr_err *err)
{
    const uint32_t positions = r->folder->model.text.max_positions;
    const uint64_t room = (uint64_t)r->plan.slot_blocks * OCR_BLOCK_TOKENS;
    const uint32_t held = room < positions ? (uint32_t)room : positions;
    const uint32_t used = (uint32_t)p->prompt.count + 1;
    const double asked = number(p, "max_tokens", TOKENS_DEFAULT);

    if (used >= held)
        return ocr_err_set(err, -EFBIG,
                           "the page takes %u tokens before the first word, "
                           "and there is room for %u",
                           used, held);
    p->lowered = asked > (double)(held - used);
    p->max_tokens = p->lowered ? held - used : asked < 1 ? 1 : (uint32_t)asked;
    return 0;
}

/* "500-1500:7": as many tokens as the seed 7 draws for the page's number, past
 * every stop: for measurements, where the model's weights are drawn, too. */
static void prepare_length(struct lighton_page *p)
{
    unsigned least = 0, most = 0, seed = 0;
    char text[48];
    uint64_t x;

    ocr_setting(p->page.settings, "forced_length", "", text, sizeof text);
    if (sscanf(text, "%u-%u:%u", &least, &most, &seed) != 3 || !least ||
        least > most)
        return;
    x = p->id + (uint64_t)seed * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    p->forced_length =
        least + (uint32_t)((x ^ x >> 31) % ((uint64_t)most - least + 1));
    if (p->forced_length < p->max_tokens)
        p->max_tokens = p->forced_length;
}

int page_prepare(struct ocr_recogniser *r, struct lighton_page *p,
                 struct ocr_err *err)
{
    const struct ocr_model *m = &r->folder->model;
    const uint32_t side = m->vision.patch * m->projector.merge;
    int rc = prepare_pixels(r, p, err);

    if (rc)
        return rc;
    rc = ocr_prompt_build(r->folder->tokenizer, m->image_token,
                          (p->width / side) * (p->height / side), &p->prompt,
                          err);
    if (rc)
        return rc;
    p->repeat = ocr_repeat_new();
    if (!p->repeat)
        return ocr_err_set(err, -ENOMEM, "no memory for another page");
    prepare_sampler(p);
    rc = prepare_limit(r, p, err);
    prepare_length(p);
    return rc;
}

/* ---- after
 * -------------------------------------------------------------------- */

bool page_add_ids(struct lighton_page *p, const uint32_t *ids, uint32_t count)
{
    bool loops = false; /* random weights do, and are not ended for it */

    if (p->ids.count + count > p->ids.size) {
        const size_t size = 2 * p->ids.size + count + 256;
        uint32_t *more = realloc(p->ids.id, size * sizeof *more);

        if (!more)
            return true; /* as good an end as any */
        p->ids.id = more;
        p->ids.size = size;
    }
    for (uint32_t i = 0; i < count; i++) {
        p->ids.id[p->ids.count++] = ids[i];
        loops = ocr_repeat_add(p->repeat, ids[i]);
    }
    return loops && !p->forced_length;
}

void page_finish(struct ocr_recogniser *r, struct lighton_page *p,
                 unsigned flags)
{
    struct ocr_detokenizer d;
    struct ocr_buf text;
    size_t count = p->ids.count;

    if (flags & OCR_TEXT_LOOP)
        count = ocr_repeat_keep(p->repeat);
    ocr_buf_init(&text, (size_t)16 << 20);
    ocr_detokenizer_init(&d, r->folder->tokenizer);
    for (size_t i = 0; i < count; i++)
        ocr_detokenizer_add(&d, p->ids.id[i], &text);
    ocr_detokenizer_finish(&d, &text);
    p->result.text = ocr_buf_detach(&text, &p->result.len);
    p->result.flags = flags | (p->lowered ? OCR_TEXT_LOWERED : 0);
    if (!p->result.text)
        page_fail(p, OCR_KIND_FAILED, "no memory for the text");
}

void page_fail(struct lighton_page *p, enum ocr_kind kind, const char *sentence)
{
    p->result.kind = kind;
    snprintf(p->result.sentence, sizeof p->result.sentence, "%s", sentence);
}

void page_give_up(struct lighton_page *p)
{
    page_fail(p, OCR_KIND_CANCELLED, "nobody waited any more");
}

void page_free(struct lighton_page *p)
{
    free(p->rgb);
    free(p->prompt.id);
    free(p->ids.id);
    free(p->blocks);
    ocr_repeat_free(p->repeat);
    free(p);
}
