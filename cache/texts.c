#include "cache/cache_i.h"
#include "engine/base/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How good the texts of a recogniser are; 0: not to be compared. */
static int rank(const char *recogniser)
{
    static const char *const order[] = {"tesseract", "http", "lighton"};

    for (int i = 0; i < 3; i++)
        if (strcmp(recogniser, order[i]) == 0)
            return i + 1;
    return 0;
}

static bool same_work(const struct cache_result *r,
                      const struct ocr_maker *maker)
{
    return strcmp(r->recogniser, maker->recogniser) == 0 &&
           strcmp(r->settings, maker->settings) == 0;
}

static bool same_version(const struct cache_result *r,
                         const struct ocr_maker *maker)
{
    return !*maker->fingerprint ||
           strcmp(r->fingerprint, maker->fingerprint) == 0;
}

/* How well the row serves; 0: not at all. */
static int fitness(const struct cache_result *r, const struct ocr_maker *maker)
{
    const bool same = same_work(r, maker);
    const int own = rank(maker->recogniser);

    if (same && same_version(r, maker))
        return 3;
    if (r->kind != OCR_KIND_NONE || !r->text)
        return 0;
    if (same)
        return maker->redo_stale ? 0 : 2;
    return own && rank(r->recogniser) > own;
}

/* The row that serves best: SQLITE_ROW, SQLITE_DONE, or an error. Strings of
 * *best are gone but for the sentence and the maker, copied into *out. */
static int find_best(struct ocr_cache *c, struct cache_conn *conn,
                     const struct ocr_cache_key *key,
                     const struct ocr_maker *maker, struct cache_result *best,
                     struct ocr_cached *out, bool *bad)
{
    sqlite3_stmt *s = cache_results_of(conn, key);
    struct cache_result r;
    int best_fit = 0, rc;

    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (!cache_result_load(c, s, &r)) {
            *bad = true;
            continue;
        }
        const int fit = fitness(&r, maker);
        if (fit < best_fit || !fit ||
            (fit == best_fit && r.made_ns <= best->made_ns))
            continue;
        *best = r;
        best_fit = fit;
        snprintf(out->sentence, sizeof out->sentence, "%s", r.sentence);
        snprintf(out->maker, sizeof out->maker, "%s: %s", r.recogniser,
                 r.fingerprint);
    }
    cache_reset(s);
    if (rc != SQLITE_DONE)
        return rc;
    return best_fit ? SQLITE_ROW : SQLITE_DONE;
}

static void fill(struct ocr_cached *out, const struct cache_result *r)
{
    out->size = r->size;
    out->stored = r->text != 0;
    out->redone_ns = r->redone_ns;
    out->verdict = (enum ocr_kind)r->kind;
}

int ocr_cache_size(struct ocr_cache *c, const struct ocr_cache_key *key,
                   const struct ocr_maker *maker, struct ocr_cached *out)
{
    struct cache_conn *conn = cache_enter(c, CACHE_READ);
    struct cache_result best;
    bool bad = false;
    int rc;

    *out = (struct ocr_cached){0};
    if (!conn)
        return -ENOENT;
    rc = find_best(c, conn, key, maker, &best, out, &bad);
    cache_leave(c, conn, rc, "look a size up", NULL);
    if (bad)
        cache_sweep(c, key);
    if (rc != SQLITE_ROW)
        return -ENOENT;
    fill(out, &best);
    return 0;
}

static char *copy_text(sqlite3_stmt *s, size_t len)
{
    char *text = malloc(len + 1);

    if (!text)
        return NULL;
    if (len)
        memcpy(text, sqlite3_column_blob(s, 0), len);
    text[len] = '\0';
    return text;
}

/* One snapshot for row and text: between them the text could be evicted. */
static int get(struct ocr_cache *c, struct cache_conn *conn,
               const struct ocr_cache_key *key, const struct ocr_maker *maker,
               struct cache_result *best, struct ocr_cached *out, bool *bad)
{
    sqlite3_stmt *s;
    bool bad_text = false;
    int rc = find_best(c, conn, key, maker, best, out, bad);

    if (rc != SQLITE_ROW || best->kind != OCR_KIND_NONE || !best->text)
        return rc;
    rc = cache_text_find(c, conn, best, &s, &bad_text);
    if (rc == SQLITE_ROW) {
        out->text = copy_text(s, best->size);
        if (!out->text)
            rc = SQLITE_NOMEM;
    }
    cache_reset(s);
    *bad = *bad || bad_text;
    return rc;
}

int ocr_cache_get(struct ocr_cache *c, const struct ocr_cache_key *key,
                  const struct ocr_maker *maker, struct ocr_cached *out)
{
    struct cache_conn *conn = cache_enter(c, CACHE_READ);
    struct cache_result best = {0};
    bool bad = false;
    int rc;

    *out = (struct ocr_cached){0};
    if (!conn)
        return -ENOENT;
    rc = cache_run(cache_statement(conn, CACHE_BEGIN));
    if (rc == SQLITE_OK)
        rc = get(c, conn, key, maker, &best, out, &bad);
    if (!sqlite3_get_autocommit(conn->db))
        cache_run(cache_statement(conn, CACHE_COMMIT));
    cache_leave(c, conn, rc, "look a text up", NULL);
    if (bad)
        cache_sweep(c, key);
    if (rc == SQLITE_ROW)
        fill(out, &best);
    if (rc != SQLITE_ROW || (!out->text && out->verdict == OCR_KIND_NONE)) {
        c->misses++;
        return -ENOENT;
    }
    c->hits++;
    if (out->text)
        cache_keeper_stamp(c, key, best.maker);
    return 0;
}

/* ---- storing ------------------------------------------------------------ */

struct entry {
    const struct ocr_cache_key *key;
    const struct ocr_maker *maker;
    enum ocr_kind kind;
    const char *sentence;
    const char *text; /* NULL: a verdict */
    size_t len;
};

static int bind_maker(sqlite3_stmt *s, const struct ocr_maker *maker)
{
    sqlite3_bind_text(s, 1, maker->recogniser, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, maker->settings, -1, SQLITE_STATIC);
    return sqlite3_bind_text(s, 3, maker->fingerprint, -1, SQLITE_STATIC);
}

static int find_maker(struct ocr_cache *c, struct cache_conn *conn,
                      const struct ocr_maker *maker, int64_t *id)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_FIND_MAKER);
    int rc;

    bind_maker(s, maker);
    rc = sqlite3_step(s);
    *id = sqlite3_column_int64(s, 0);
    cache_reset(s);
    if (rc == SQLITE_ROW)
        return SQLITE_OK;
    if (rc != SQLITE_DONE)
        return rc;
    s = cache_statement(conn, CACHE_PUT_MAKER);
    bind_maker(s, maker);
    sqlite3_bind_int64(s, 4,
                       (int64_t)cache_maker_sum(c, maker->recogniser,
                                                maker->settings,
                                                maker->fingerprint));
    rc = cache_run(s);
    *id = sqlite3_last_insert_rowid(conn->db);
    return rc;
}

/* Both have been, or could have been, the text of this image to a reader. */
static bool comparable(const struct cache_result *old,
                       const struct ocr_maker *maker)
{
    return same_work(old, maker) ||
           (rank(old->recogniser) && rank(maker->recogniser));
}

/* Rule U12: 0 for the first text of an image; a text that was made before and
 * comes again keeps its time; any other one counts from now. */
static int set_redone(struct ocr_cache *c, struct cache_conn *conn,
                      const struct entry *e, struct cache_result *r)
{
    sqlite3_stmt *s = cache_results_of(conn, e->key);
    struct cache_result old;
    bool again = false;
    int rc;

    while ((rc = sqlite3_step(s)) == SQLITE_ROW && !again) {
        if (!cache_result_load(c, s, &old) || old.kind != OCR_KIND_NONE)
            continue;
        again = old.maker == r->maker && old.size == r->size;
        if (again)
            r->redone_ns = old.redone_ns;
        else if (comparable(&old, e->maker))
            r->redone_ns = r->made_ns;
    }
    cache_reset(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* An older version's work goes when a text of this one is there; a verdict
 * only replaces its own maker's row. */
static bool replaced(const struct entry *e, const struct cache_result *old,
                     const struct cache_result *r)
{
    return old->maker == r->maker || (e->text && same_work(old, e->maker));
}

/* SQLITE_ROW with a row to drop: replaced, or damaged (good is false). */
static int next_replaced(struct ocr_cache *c, struct cache_conn *conn,
                         const struct entry *e, const struct cache_result *r,
                         struct cache_result *old, bool *good)
{
    sqlite3_stmt *s = cache_results_of(conn, e->key);
    int rc;

    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        *good = cache_result_load(c, s, old);
        if (!*good)
            break;
        if (replaced(e, old, r))
            break;
    }
    cache_reset(s);
    return rc;
}

static int drop_replaced(struct ocr_cache *c, struct cache_conn *conn,
                         const struct entry *e, const struct cache_result *r)
{
    struct cache_result old;
    bool good = false;
    int rc;

    while ((rc = next_replaced(c, conn, e, r, &old, &good)) == SQLITE_ROW) {
        old.key = *e->key;
        rc = good ? cache_result_drop(c, conn, &old)
                  : cache_result_purge(c, conn, &old);
        if (rc != SQLITE_OK)
            return rc;
    }
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int put_text(struct ocr_cache *c, struct cache_conn *conn,
                    const struct entry *e, struct cache_result *r)
{
    sqlite3_stmt *s;
    int rc = cache_make_room(c, conn, e->len);

    if (rc != SQLITE_OK)
        return rc;
    s = cache_statement(conn, CACHE_NEXT_TEXT);
    rc = sqlite3_step(s);
    r->text = sqlite3_column_int64(s, 0);
    cache_reset(s);
    if (rc != SQLITE_ROW)
        return rc;
    s = cache_statement(conn, CACHE_PUT_TEXT);
    sqlite3_bind_int64(s, 1, r->text);
    sqlite3_bind_blob64(s, 2, e->text, e->len, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, (int64_t)cache_text_sum(c, r, e->text, e->len));
    rc = cache_run(s);
    if (rc == SQLITE_OK)
        rc = cache_total_add(c, conn, (int64_t)e->len);
    return rc;
}

static int put(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    const struct entry *e = arg;
    const int64_t now = ocr_wall_ns();
    struct cache_result r = {
        .key = *e->key,
        .kind = e->kind,
        .size = e->len,
        .made_ns = now,
        .used_ns = now,
        .sentence = e->sentence,
        .recogniser = e->maker->recogniser,
        .settings = e->maker->settings,
        .fingerprint = e->maker->fingerprint,
    };
    int rc = find_maker(c, conn, e->maker, &r.maker);

    if (rc == SQLITE_OK && e->text)
        rc = set_redone(c, conn, e, &r);
    if (rc == SQLITE_OK)
        rc = drop_replaced(c, conn, e, &r);
    if (rc == SQLITE_OK && e->text && !cache_too_long(c, e->len))
        rc = put_text(c, conn, e, &r);
    if (rc == SQLITE_OK)
        rc = cache_result_store(c, conn, &r);
    if (rc == SQLITE_OK)
        rc = cache_shrink(c, conn);
    return rc;
}

int ocr_cache_put(struct ocr_cache *c, const struct ocr_cache_key *key,
                  const struct ocr_maker *maker, const char *text, size_t len,
                  struct ocr_err *err)
{
    struct entry e = {
        .key = key,
        .maker = maker,
        .sentence = "",
        .text = len ? text : "",
        .len = len,
    };

    return cache_write(c, put, &e, "keep a text", err);
}

int ocr_cache_put_verdict(struct ocr_cache *c, const struct ocr_cache_key *key,
                          const struct ocr_maker *maker, enum ocr_kind kind,
                          const char *sentence, struct ocr_err *err)
{
    struct entry e = {
        .key = key,
        .maker = maker,
        .kind = kind,
        .sentence = sentence,
    };

    if (!ocr_kind_is_verdict(kind))
        return ocr_err_set(err, -EINVAL, "'%s' is no verdict on an image",
                           ocr_kind_name(kind));
    return cache_write(c, put, &e, "keep a verdict", err);
}
