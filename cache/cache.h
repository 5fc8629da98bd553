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
 * Errors:  0 or a negative errno; a miss is -ENOENT and leaves err alone. */
#ifndef OCR_CACHE_H
#define OCR_CACHE_H
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ocr_cache; /* opaque */

enum { OCR_CACHE_SECRET_BYTES = 192, OCR_CACHE_DIGEST_BYTES = 16 };
#define OCR_CACHE_ANY_OWNER UINT32_MAX

struct ocr_cache_options {
    const char *dir;      /* NULL: the user's default; "memory": no disk */
    uint64_t max_bytes;   /* of texts; 0: until 1 GiB of the disk is left */
    uint64_t keep_free;   /* bytes left free on the disk if max_bytes is 0;
                             0: 1 GiB */
};

/* Opens or creates. The folder is made with mode 0700 and refused if others
 * may write to it or it belongs to somebody else (-EPERM). Damage is healed
 * here (see above). On a disk that cannot hold it (-EROFS, -ENOSPC, -EACCES)
 * the caller decides to go on with dir "memory". */
int ocr_cache_open(struct ocr_cache **out,
                   const struct ocr_cache_options *options,
                   struct ocr_err *err);

/* Writes what is pending, then releases. NULL is a no-op. */
void ocr_cache_close(struct ocr_cache *c);

/* The secret that keys digests in this cache; constant while it is open. */
const uint8_t *ocr_cache_secret(const struct ocr_cache *c);

/* Where it lives, for messages: a folder or "memory". */
const char *ocr_cache_path(const struct ocr_cache *c);

/* ---- file -> digest ---------------------------------------------------- */

struct ocr_file_id {
    uint64_t fs;  /* file system id from statfs, else st_dev */
    uint64_t ino;
    uint64_t size;
    int64_t mtime_ns, ctime_ns;
};

enum ocr_identity {
    OCR_IDENTITY_NONE,   /* never seen */
    OCR_IDENTITY_EXACT,  /* all fields match and the hash was not racy */
    OCR_IDENTITY_RACY,   /* all match, but mtime or ctime was less than 2 s old
                            when the bytes were read: hash again before use */
    OCR_IDENTITY_CTIME,  /* only ctime differs: show the size, hash on open */
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
    uint64_t size;      /* bytes of the text */
    int64_t redone_ns;  /* when it was made, if it replaced a text of an older
                           version, else 0: the mtime to show (rule U12) */
    enum ocr_kind verdict; /* NONE: there is a text of `size` bytes */
    char sentence[256];    /* the verdict's */
    char *text;            /* only from ocr_cache_get: malloc'd, caller frees;
                              NULL if it was evicted or a verdict */
};

/* Which row serves: same recogniser, settings, fingerprint; else (unless
 * redo_stale) the newest of the same recogniser and settings; else one of a
 * better recogniser. 0 or -ENOENT. ocr_cache_size never reads the text. */
int ocr_cache_size(struct ocr_cache *c, const struct ocr_cache_key *key,
                   const struct ocr_maker *maker, struct ocr_cached *out);

/* The same with the text. -ENOENT also if only the size is left. Marks it as
 * used (written in batches). */
int ocr_cache_get(struct ocr_cache *c, const struct ocr_cache_key *key,
                  const struct ocr_maker *maker, struct ocr_cached *out);

/* Stores a text, all or nothing, also across a crash; evicts least recently
 * used texts above the limit. Reads of other processes see it at once. */
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

/* Forgets everything: texts, sizes, verdicts, index. */
int ocr_cache_clear(struct ocr_cache *c, struct ocr_err *err);

#endif
