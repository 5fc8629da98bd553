/* Pages are brought to the size that the model reads by threads of their own,
 * before there is a slot for them. */
#include "engine/lighton/lighton_i.h"

#include "engine/protocol.h"

#include <errno.h>
#include <string.h>

/* Left with the lock held; NULL: no more pages come. */
static struct lighton_page *take_incoming(struct ocr_recogniser *r)
{
    struct lighton_page *p = NULL;

    pthread_mutex_lock(&r->lock);
    while (!r->stop && !(p = page_best(&r->incoming)))
        pthread_cond_wait(&r->arrived, &r->lock);
    if (p)
        page_remove(&r->incoming, p);
    return p;
}

/* False: its result is set. */
static bool prepare(struct ocr_recogniser *r, struct lighton_page *p)
{
    struct ocr_err err = OCR_ERR_INIT;

    if (atomic_load(&p->cancel)) {
        page_give_up(p);
        return false;
    }
    if (page_prepare(r, p, &err) == 0)
        return true;
    page_fail(p, err.kind ? err.kind : OCR_KIND_FAILED, err.text);
    return false;
}

static void *run(void *arg)
{
    struct ocr_recogniser *r = arg;
    struct lighton_page *p;

    while ((p = take_incoming(r))) {
        bool ready;

        pthread_mutex_unlock(&r->lock);
        ready = prepare(r, p);
        if (!ready) {
            page_deliver(r, p);
            continue;
        }
        pthread_mutex_lock(&r->lock);
        r->seen[r->seen_count++] = p->id;
        pthread_cond_signal(&r->done);
        page_append(&r->ready, p);
        pthread_mutex_unlock(&r->lock);
        driver_wake(r);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int prepare_start(struct ocr_recogniser *r, unsigned threads,
                  struct ocr_err *err)
{
    while (r->preparers < threads && r->preparers < PREPARERS_MAX) {
        const int rc = pthread_create(&r->preparer[r->preparers], NULL, run, r);

        if (rc)
            return ocr_err_set(err, -rc, "cannot start a thread: %s",
                               strerror(rc));
        r->preparers++;
    }
    return 0;
}

void prepare_join(struct ocr_recogniser *r)
{
    for (; r->preparers; r->preparers--)
        pthread_join(r->preparer[r->preparers - 1], NULL);
}
