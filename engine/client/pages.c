/* The pages of a document that has more than one: which were sent, what came
 * of them, and the one text they make. */
#include "engine/client/queue_i.h"

#include "engine/base/buf.h"
#include "engine/base/io.h"
#include "engine/finish.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pages_begin(struct ocr_job *job, unsigned count)
{
    struct job_pages *many =
        calloc(1, sizeof *many + count * sizeof many->page[0]);

    if (!many)
        return -ENOMEM;
    many->count = count;
    many->page[0].state = PAGE_SENT; /* how else would it be counted */
    job->many = many;
    return 0;
}

void pages_free(struct job_pages *many)
{
    for (unsigned i = 0; many && i < many->count; i++)
        free(many->page[i].text);
    free(many);
}

unsigned pages_next(const struct ocr_job *job)
{
    const struct job_pages *many = job->many;
    unsigned i;

    if (!many)
        return 0;
    /* One that may have brought an engine down goes alone, before others. */
    for (i = 0; job->suspect && i < many->count; i++)
        if (many->page[i].risky && many->page[i].state == PAGE_TODO)
            return i;
    for (i = many->first; i < many->count; i++)
        if (many->page[i].state == PAGE_TODO)
            break;
    return i;
}

static void skip_done(struct job_pages *many)
{
    while (many->first < many->count &&
           many->page[many->first].state == PAGE_DONE)
        many->first++;
}

static bool is_risky(const struct job_pages *many)
{
    for (unsigned i = 0; i < many->count; i++)
        if (many->page[i].risky)
            return true;
    return false;
}

/* The page is with the engine no more. */
static void leave_engine(struct engine *e, struct ocr_job *job,
                         struct job_page *page)
{
    struct job_pages *many = job->many;

    many->reading -= page->reading;
    page->reading = false;
    job->reading = many->reading > 0;
    job->out--;
    e->out--;
    if (!job->out)
        job->started = false;
}

void pages_done(struct ocr_queue *q, struct engine *e, struct ocr_job *job,
                unsigned index, char *text, size_t len)
{
    struct job_pages *many = job->many;
    struct job_page *page = &many->page[index];

    leave_engine(e, job, page);
    page->state = PAGE_DONE;
    page->risky = false;
    many->done++;
    many->bytes += len;
    if (many->bytes > OCR_DOCUMENT_TEXT_MAX) { /* it would be cut anyway */
        free(text);
        text = NULL;
        len = 0;
        many->flags |= OCR_TEXT_CUT;
    }
    page->text = text;
    page->len = len;
    skip_done(many);
    if (job->suspect && !is_risky(many)) {
        job->suspect = false;
        q->suspects--;
    }
}

void pages_again(struct engine *e, struct ocr_job *job, unsigned index)
{
    struct job_pages *many = job->many;

    leave_engine(e, job, &many->page[index]);
    many->page[index].state = PAGE_TODO;
    if (index < many->first)
        many->first = index;
}

void pages_come_back(struct ocr_job *job)
{
    struct job_pages *many = job->many;

    for (unsigned i = 0; many && i < many->count; i++) {
        struct job_page *page = &many->page[i];

        if (page->state == PAGE_TODO || page->state == PAGE_DONE)
            continue;
        page->risky = page->risky || job->started;
        page->reading = false;
        page->state = PAGE_TODO;
        if (i < many->first)
            many->first = i;
    }
    if (many)
        many->reading = 0;
}

bool pages_are_done(const struct ocr_job *job)
{
    return job->many->done == job->many->count;
}

/* Each page begins with a line that Markdown does not show. */
char *pages_text(struct ocr_job *job, size_t *len)
{
    struct job_pages *many = job->many;
    struct ocr_buf all;

    ocr_buf_init(&all, 2 * OCR_DOCUMENT_TEXT_MAX);
    for (unsigned i = 0; i < many->count; i++) {
        struct job_page *page = &many->page[i];
        const size_t before = all.len;

        ocr_buf_printf(&all, "%s<!-- page %u -->\n", i ? "\n" : "", i + 1);
        if (page->len)
            ocr_buf_add(&all, page->text, page->len);
        free(page->text);
        page->text = NULL;
        if (all.len > OCR_DOCUMENT_TEXT_MAX) {
            ocr_buf_truncate(&all, before);
            many->flags |= OCR_TEXT_CUT;
            break;
        }
    }
    return ocr_buf_detach(&all, len);
}
