/* cache/cache.h - texts, their sizes, verdicts and content hashes on disk.
 *
 * One SQLite database (WAL) in a private folder, shared by all mounts and
 * commands of a user. It answers three questions:
 *   file   -> digest   the index: so that stat never reads an image
 *   digest -> size     kept also after the text was evicted
 *   digest -> text     or the verdict why there is none
 * A text is found by the digest of the image, its owner (with allow_other),
 * and its maker: recogniser, settings, and the engine's fingerprint.
 *
 * Every row carries a checksum and is checked when read; a bad row is a miss.
 * A database that is damaged is moved aside, said once, and begun anew. A full
 * disk costs caching, never a read: put reports it, get goes on.
 *
 * Layer:   includes engine/base only; a digest is 16 raw bytes here.
 * Threads: every function from any thread; calls are serialised by locks
 *          inside that are never held while waiting for another process longer
 *          than the busy time-out (250 ms; then it is a miss or not stored).
 *          identify, size and get use a connection of their own: they never
 *          wait for a commit or an fsync of the other functions.
 * Fork:    open starts a thread and holds locks that a fork loses: open after
 *          the last fork (behind the daemonizing), never carry it across one.
 * Errors:  0 or a negative errno; a miss is -ENOENT and leaves err alone. */
#ifndef OCR_CACHE_H
#define OCR_CACHE_H
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ocr_cache; /* opaque */

enum {
    OCR_CACHE_SECRET_BYTES = 192,
    OCR_CACHE_DIGEST_BYTES = 16
};
#define OCR_CACHE_ANY_OWNER UINT32_MAX

struct ocr_cache_options {
    const char *dir;    /* NULL or "": the user's default; "memory": no disk */
    uint64_t max_bytes; /* of texts; 0: until 1 GiB of the disk is left, in
                           memory 64 MiB */
    uint64_t keep_free; /* bytes left free on the disk if max_bytes is 0;
                           0: 1 GiB, or a quarter of a smaller disk */
};

/* Opens or creates. The folder is made with mode 0700 and refused if others
 * may write to it or it belongs to somebody else (-EPERM). Damage is healed
 * here; if others use the damaged database, texts are kept in memory only
 * (said in the log, and by ocr_cache_path). A database of a newer ocrfs is
 * left alone (-ENOTSUP). On a disk that cannot hold it (-EROFS, -ENOSPC,
 * -EACCES) the caller decides to go on with dir "memory". One that is there
 * opens on a full disk too, without a byte written; until there is room again
 * no other process gets in then (-EBUSY). */
int ocr_cache_open(struct ocr_cache **out,
                   const struct ocr_cache_options *options,
                   struct ocr_err *err);

/* Writes what is pending, then releases. NULL is a no-op. */
void ocr_cache_close(struct ocr_cache *c);

/* The secret that keys digests in this cache; constant while it is open. */
const uint8_t *ocr_cache_secret(const struct ocr_cache *c);

/* Where it lives now, for messages: a folder or "memory" (also after damage
 * that could not be healed). Valid while open. */
const char *ocr_cache_path(const struct ocr_cache *c);

/* ---- file -> digest ---------------------------------------------------- */

struct ocr_file_id {
    uint64_t fs; /* file system id from statfs, else st_dev */
    uint64_t ino;
    uint64_t size;
    int64_t mtime_ns, ctime_ns;
};

enum ocr_identity {
    OCR_IDENTITY_NONE,  /* never seen */
    OCR_IDENTITY_EXACT, /* all fields match and the hash was not racy */
    OCR_IDENTITY_RACY,  /* size and mtime match, but mtime or ctime was less
                           than 2 s old, or in the future, when the bytes
                           were read: hash again before use */
    OCR_IDENTITY_CTIME, /* only ctime differs: show the size, hash on open */
};

/* Looks the file up; digest is set unless NONE is returned. */
enum ocr_identity ocr_cache_identify(struct ocr_cache *c,
                                     const struct ocr_file_id *file,
                                     uint8_t digest[OCR_CACHE_DIGEST_BYTES]);

/* Remembers what the file's bytes hashed to; read_ns: CLOCK_REALTIME when
 * reading began. Replaces an older row of the same (fs, ino). */
int ocr_cache_remember(struct ocr_cache *c, const struct ocr_file_id *file,
                       const uint8_t digest[OCR_CACHE_DIGEST_BYTES],
                       int64_t read_ns, struct ocr_err *err);

/* ---- digest -> size, text, verdict -------------------------------------- */

/* Who makes texts in this mount. recogniser orders the quality: lighton, http,
 * tesseract, then null (which is only ever compared with itself). fingerprint
 * "" : not known yet (no engine has answered), any version will do. */
struct ocr_maker {
    const char *recogniser;  /* "tesseract" */
    const char *settings;    /* lines name=value\n that decide about the text */
    const char *fingerprint; /* engine's, "" if not known */
    bool redo_stale;         /* stale=redo: another version is a miss */
};

struct ocr_cache_key {
    uint8_t digest[OCR_CACHE_DIGEST_BYTES];
    uint32_t owner; /* uid or OCR_CACHE_ANY_OWNER */
};

struct ocr_cached {
    uint64_t size;     /* bytes of the text */
    bool stored;       /* the text is there; false: it was evicted, and the
                          size holds as long as the maker stays the same
                          (with fingerprint "" that is not known: show it
                          with attr_timeout 0) */
    int64_t redone_ns; /* when it was made, if the image had a text of another
                          maker before, else 0: the mtime to show (U12) */
    enum ocr_kind verdict; /* NONE: there is a text of `size` bytes */
    char sentence[256];    /* the verdict's, else "" */
    char maker[256];       /* who made it: "recogniser: fingerprint" */
    char *text;            /* only from ocr_cache_get: malloc'd, NUL-terminated,
                              caller frees; NULL with a verdict */
};

/* Which row serves: same recogniser, settings, fingerprint; else (unless
 * redo_stale) the newest text of the same recogniser and settings; else the
 * newest text of a better recogniser. Verdicts serve only their own maker.
 * 0 or -ENOENT; *out is set in both cases. ocr_cache_size never reads the
 * text. */
int ocr_cache_size(struct ocr_cache *c, const struct ocr_cache_key *key,
                   const struct ocr_maker *maker, struct ocr_cached *out);

/* The same with the text. -ENOENT also if only the size is left. Marks it as
 * used (written in batches). */
int ocr_cache_get(struct ocr_cache *c, const struct ocr_cache_key *key,
                  const struct ocr_maker *maker, struct ocr_cached *out);

/* Stores a text, all or nothing, also across a crash; evicts least recently
 * used texts above the limit (their sizes stay; a text above the limit leaves
 * only its size). Replaces what an older version of the same recogniser and
 * settings made. Reads of other processes see it at once. */
int ocr_cache_put(struct ocr_cache *c, const struct ocr_cache_key *key,
                  const struct ocr_maker *maker, const char *text, size_t len,
                  struct ocr_err *err);

/* Stores a verdict on the bytes (ocr_kind_is_verdict). */
int ocr_cache_put_verdict(struct ocr_cache *c, const struct ocr_cache_key *key,
                          const struct ocr_maker *maker, enum ocr_kind kind,
                          const char *sentence, struct ocr_err *err);

/* ---- commands ------------------------------------------------------------ */

struct ocr_cache_stat {
    uint64_t texts, text_bytes; /* stored texts */
    uint64_t sizes;             /* known sizes, stored texts included */
    uint64_t verdicts, files;   /* files: rows of the index */
    uint64_t disk_bytes;        /* of the database and its journal */
    int64_t oldest_use_ns;
    uint64_t hits, misses, bad_rows; /* since open, this process */
};

int ocr_cache_stat(struct ocr_cache *c, struct ocr_cache_stat *out,
                   struct ocr_err *err);

/* Checks the database and every row's checksum; *bad counts rows that were
 * damaged and have been removed. */
int ocr_cache_verify(struct ocr_cache *c, uint64_t *rows, uint64_t *bad,
                     struct ocr_err *err);

/* What the file (fs, ino) hashed to when it was last read, whatever it is now:
 * 0, or -ENOENT. */
int ocr_cache_last_digest(struct ocr_cache *c, const struct ocr_file_id *file,
                          uint8_t digest[OCR_CACHE_DIGEST_BYTES]);

/* Forgets all that is known of these contents, whoever owns them and whatever
 * made their texts: no byte of a text stays in the database or its journal.
 * *texts: how many there were. -EBUSY: forgotten, but the journal could not be
 * emptied within 10 s. */
int ocr_cache_forget(struct ocr_cache *c,
                     const uint8_t (*digest)[OCR_CACHE_DIGEST_BYTES],
                     size_t count, uint64_t *texts, struct ocr_err *err);

struct ocr_cache_collected {
    uint64_t texts, rows, files; /* rows: texts, sizes and verdicts */
};

/* Drops what was neither made nor read since before_ns (CLOCK_REALTIME), and
 * index rows that lead nowhere. In small steps: mounts go on meanwhile. */
int ocr_cache_collect(struct ocr_cache *c, int64_t before_ns,
                      struct ocr_cache_collected *out, struct ocr_err *err);

/* Forgets everything: texts, sizes, verdicts, index. */
int ocr_cache_clear(struct ocr_cache *c, struct ocr_err *err);

#endif
