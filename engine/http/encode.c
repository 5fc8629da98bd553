/* The threads that make pages ready: resized, as PNG, in a request's body. */
#include "engine/http/http_i.h"

#include <stdio.h>
#include <string.h>

/* Called with the lock: the page that goes first, NULL if none waits. */
static struct http_page *first_queued(struct ocr_recogniser *r)
{
    struct http_page *best = NULL;

    for (unsigned i = 0; i < r->count; i++) {
        struct http_page *p = r->pages[i];

        if (p->state == HTTP_PAGE_QUEUED &&
            (!best || http_page_before(p, best)))
            best = p;
    }
    return best;
}

/* True if the page is ready to be sent; else its result is set. */
static bool encode(struct ocr_recogniser *r, struct http_page *p, bool cancel)
{
    struct ocr_err err = OCR_ERR_INIT;

    if (cancel)
        http_page_fail(p, OCR_KIND_CANCELLED, "nobody waited any more");
    else if (http_body_make(&p->body, &p->body_len, &p->page.image,
                            p->page.settings, r->model, &err))
        http_page_fail(p, err.kind ? err.kind : OCR_KIND_FAILED, err.text);
    return p->body != NULL;
}

void *http_encoder_run(void *arg)
{
    struct ocr_recogniser *r = arg;
    struct http_page *p;

    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        bool cancel, ready;

        if (!(p = first_queued(r))) {
            pthread_cond_wait(&r->queued, &r->lock);
            continue;
        }
        p->state = HTTP_PAGE_ENCODING;
        cancel = p->cancel;
        pthread_mutex_unlock(&r->lock);
        ready = encode(r, p, cancel);
        pthread_mutex_lock(&r->lock);
        r->unencoded--;
        p->state = ready ? HTTP_PAGE_READY : HTTP_PAGE_DONE;
        pthread_cond_signal(&r->done); /* at least the pixels are */
        if (ready)
            curl_multi_wakeup(r->multi);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}
