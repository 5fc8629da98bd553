#include "fs/model_fetch.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/download.h"
#include "fs/models.h"
#include "fs/progress.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    FILES_MAX = 64,
    LISTING_MAX = 4 << 20,
    URL_MAX = 1024,
    COPY_AT_ONCE = 64 << 20,
};
/* No model that can be read is as large. */
#define FILE_BYTES_MAX ((uint64_t)1 << 40)

struct file {
    char name[200];
    uint64_t size;
    char sha256[OCR_SHA256_SIZE]; /* "": not known */
};

/* What goes into the folder, and how far it is. */
struct work {
    struct ocr_models_new new;
    struct file file[FILES_MAX];
    size_t count;
    uint64_t total, done; /* bytes, of whole files */
    struct ocr_progress progress;
};

static void draw(void *arg, uint64_t bytes)
{
    struct work *w = arg;

    ocr_progress_bytes(&w->progress, w->done + bytes);
}

static int add_file(struct work *w, const char *name, uint64_t size,
                    const char *sha256, struct ocr_err *err)
{
    struct file *file = &w->file[w->count];

    if (w->count == FILES_MAX || size > FILE_BYTES_MAX)
        return ocr_err_set(err, -EBADMSG,
                           "%s has too many files, or too large ones",
                           w->new.name);
    snprintf(file->name, sizeof file->name, "%s", name);
    snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
    file->size = size;
    w->total += size;
    w->count++;
    return 0;
}

static bool has(const struct work *w, const char *end)
{
    for (size_t i = 0; i < w->count; i++) {
        const char *name = w->file[i].name;
        const size_t n = strlen(name), m = strlen(end);

        if (n >= m && !strcmp(name + n - m, end))
            return true;
    }
    return false;
}

static int check_files(const struct work *w, const char *from,
                       struct ocr_err *err)
{
    if (has(w, "config.json") && has(w, "tokenizer.json") &&
        has(w, ".safetensors"))
        return 0;
    return ocr_err_set(err, -EBADMSG,
                       "%s is no model: it needs config.json, tokenizer.json "
                       "and *.safetensors",
                       from);
}

static void path_of(const struct work *w, const struct file *file, char *out,
                    size_t size)
{
    snprintf(out, size, "%.*s/%s", PATH_MAX - 300, w->new.part, file->name);
}

/* What is there already counts. */
static int check_space(const struct work *w, struct ocr_err *err)
{
    uint64_t need = w->total, room;
    char path[PATH_MAX];
    struct statvfs fs;
    struct stat st;

    for (size_t i = 0; i < w->count; i++) {
        path_of(w, &w->file[i], path, sizeof path);
        if (stat(path, &st) == 0)
            need -= (uint64_t)st.st_size < w->file[i].size
                        ? (uint64_t)st.st_size
                        : w->file[i].size;
    }
    if (fstatvfs(w->new.fd, &fs))
        return ocr_err_errno(err, "cannot use %s", w->new.part);
    room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need <= room)
        return 0;
    return ocr_err_set(err, -ENOSPC,
                       "%s needs %" PRIu64 " MB more, and the disk of %s has "
                       "%" PRIu64 " MB",
                       w->new.name, need / 1000000, w->new.part,
                       room / 1000000);
}

/* Sums as of this moment, so that later damage is found. */
static int note_sums(const struct work *w, struct ocr_err *err)
{
    char path[PATH_MAX], digest[OCR_SHA256_SIZE];
    int rc = 0;

    if (unlinkat(w->new.fd, "SHA256SUMS", 0) && errno != ENOENT)
        return ocr_err_errno(err, "cannot replace %s/SHA256SUMS", w->new.part);
    for (size_t i = 0; i < w->count && rc == 0; i++) {
        const struct file *file = &w->file[i];

        path_of(w, file, path, sizeof path);
        snprintf(digest, sizeof digest, "%s", file->sha256);
        if (!digest[0])
            rc = ocr_sha256(path, digest, err);
        if (rc == 0)
            rc = ocr_models_note_sum(w->new.part, file->name, digest, err);
    }
    return rc;
}

/* After the files are there. */
static int finish(struct work *w, char path[PATH_MAX], struct ocr_err *err)
{
    int rc = note_sums(w, err);

    if (rc == 0)
        rc = ocr_models_finish(&w->new, err);
    snprintf(path, PATH_MAX, "%s", w->new.path);
    return rc;
}

/* ---- from a server ------------------------------------------------------ */

static int endpoint(char *out, size_t size, struct ocr_err *err)
{
    const char *set = getenv("HF_ENDPOINT");
    const char *url = set && *set ? set : "https://huggingface.co";
    size_t n = strlen(url);

    while (n && url[n - 1] == '/')
        n--;
    if ((strncmp(url, "https://", 8) && strncmp(url, "http://", 7)) ||
        n + 1 > size)
        return ocr_err_set(err, -EINVAL,
                           "HF_ENDPOINT=%s: it must begin with https://", url);
    snprintf(out, size, "%.*s", (int)n, url);
    return 0;
}

static bool is_sha256(const char *text)
{
    size_t n = 0;

    while (isxdigit((unsigned char)text[n]))
        n++;
    return n == OCR_SHA256_SIZE - 1 && !text[n];
}

/* One entry of the listing. */
static int take_entry(struct work *w, const json_t *entry, struct ocr_err *err)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const char *name = json_string_value(json_object_get(entry, "path"));
    const json_t *size = json_object_get(entry, "size");
    const char *digest = json_string_value(
        json_object_get(json_object_get(entry, "lfs"), "oid"));

    if (!type || !name || strcmp(type, "file") || !ocr_models_wants(name))
        return 0;
    if (!json_is_integer(size) || json_integer_value(size) <= 0)
        return ocr_err_set(err, -EBADMSG, "the server tells no size of %s",
                           name);
    if (!digest)
        digest = ocr_models_known_sha256(w->new.name, name,
                                         (uint64_t)json_integer_value(size));
    if (*digest && !is_sha256(digest))
        return ocr_err_set(err, -EBADMSG,
                           "the server tells a digest of %s that is none",
                           name);
    return add_file(w, name, (uint64_t)json_integer_value(size), digest, err);
}

/* Which files there are, from the server's listing. */
static int list_files(struct work *w, const char *server, const char *repo,
                      struct ocr_err *err)
{
    char url[URL_MAX];
    struct ocr_buf text;
    json_t *listing = NULL;
    int rc;

    snprintf(url, sizeof url, "%s/api/models/%s/tree/main", server, repo);
    ocr_buf_init(&text, LISTING_MAX);
    rc = ocr_download_text(url, &text, err);
    if (rc == 0 && text.len)
        listing = json_loadb(text.data, text.len, 0, NULL);
    if (rc == 0 && !json_is_array(listing))
        rc = ocr_err_set(err, -EBADMSG,
                         "%s is no listing of files: is HF_ENDPOINT right?",
                         url);
    for (size_t i = 0; i < json_array_size(listing) && rc == 0; i++)
        rc = take_entry(w, json_array_get(listing, i), err);
    json_decref(listing);
    ocr_buf_release(&text);
    return rc ? rc : check_files(w, repo, err);
}

static int fetch_files(struct work *w, const char *server, const char *repo,
                       struct ocr_err *err)
{
    char path[PATH_MAX], url[URL_MAX];
    int rc = check_space(w, err);

    ocr_progress_init(&w->progress, w->total);
    for (size_t i = 0; i < w->count && rc == 0; i++) {
        const struct file *file = &w->file[i];
        const struct ocr_download d = {.url = url,
                                       .path = path,
                                       .size = file->size,
                                       .sha256 = file->sha256,
                                       .progress = draw,
                                       .arg = w};

        path_of(w, file, path, sizeof path);
        snprintf(url, sizeof url, "%s/%s/resolve/main/%s", server, repo,
                 file->name);
        rc = ocr_download(&d, err);
        w->done += file->size;
    }
    ocr_progress_clear(&w->progress);
    return rc;
}

int ocr_model_fetch(const char *repo, const char *home, char path[PATH_MAX],
                    struct ocr_err *err)
{
    struct work w = {.new = {.fd = -1}};
    char server[URL_MAX / 2];
    int rc = endpoint(server, sizeof server, err);

    if (rc == 0)
        rc = ocr_models_begin(&w.new, home, strrchr(repo, '/') + 1, err);
    if (rc == 0)
        rc = list_files(&w, server, repo, err);
    if (rc == 0)
        rc = fetch_files(&w, server, repo, err);
    if (rc == 0)
        rc = finish(&w, path, err);
    /* Nothing came: nothing stays. */
    if (rc && w.new.fd >= 0)
        rmdir(w.new.part);
    ocr_models_release(&w.new);
    return rc;
}

/* ---- from a folder ------------------------------------------------------ */

/* Links are followed: that is how Hugging Face's own cache is made. */
static int list_folder(struct work *w, int from, const char *path,
                       struct ocr_err *err)
{
    DIR *dir = fdopendir(dup(from));
    const struct dirent *entry;
    struct stat st;
    int rc = 0;

    if (!dir)
        return ocr_err_errno(err, "cannot read the folder %s", path);
    while (rc == 0 && (entry = readdir(dir)))
        if (ocr_models_wants(entry->d_name) &&
            fstatat(from, entry->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            rc = add_file(w, entry->d_name, (uint64_t)st.st_size,
                          ocr_models_known_sha256(w->new.name, entry->d_name,
                                                  (uint64_t)st.st_size),
                          err);
    closedir(dir);
    return rc ? rc : check_files(w, path, err);
}

static int copy_bytes(struct work *w, const struct file *file, int from, int to,
                      struct ocr_err *err)
{
    uint64_t done = 0;
    ssize_t n = 1;

    while (n > 0 && done < file->size) {
        n = sendfile(to, from, NULL, COPY_AT_ONCE);
        if (n < 0)
            return ocr_err_errno(err, "cannot copy %s", file->name);
        done += (uint64_t)n;
        draw(w, done);
    }
    if (done != file->size)
        return ocr_err_set(err, -EIO, "%s changed while it was copied",
                           file->name);
    return 0;
}

static int copy_file(struct work *w, const struct file *file, int from,
                     struct ocr_err *err)
{
    char path[PATH_MAX], digest[OCR_SHA256_SIZE];
    const int source = openat(from, file->name, O_RDONLY | O_CLOEXEC);
    int copy = -1, rc = 0;

    path_of(w, file, path, sizeof path);
    if (source < 0)
        rc = ocr_err_errno(err, "cannot read %s", file->name);
    else if ((copy = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                          0644)) < 0)
        rc = ocr_err_errno(err, "cannot write %s", path);
    else
        rc = copy_bytes(w, file, source, copy, err);
    ocr_close(source);
    ocr_close(copy);
    if (rc || !file->sha256[0])
        return rc;
    rc = ocr_sha256(path, digest, err);
    if (rc == 0 && strcasecmp(digest, file->sha256) != 0)
        rc = ocr_err_set(err, -EBADMSG,
                         "%s is not the published file of this size: it is "
                         "damaged, or another training",
                         file->name);
    return rc;
}

static int copy_files(struct work *w, int from, struct ocr_err *err)
{
    int rc = check_space(w, err);

    ocr_progress_init(&w->progress, w->total);
    for (size_t i = 0; i < w->count && rc == 0; i++) {
        rc = copy_file(w, &w->file[i], from, err);
        w->done += w->file[i].size;
    }
    ocr_progress_clear(&w->progress);
    return rc;
}

int ocr_model_add(const char *from, const char *home, char path[PATH_MAX],
                  struct ocr_err *err)
{
    struct work w = {.new = {.fd = -1}};
    char *real = realpath(from, NULL);
    const int fd = real ? open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int rc = 0;

    if (fd < 0)
        rc = ocr_err_errno(err, "cannot read the folder %s", from);
    if (real && rc == 0)
        rc = ocr_models_begin(&w.new, home, strrchr(real, '/') + 1, err);
    if (rc == 0)
        rc = list_folder(&w, fd, real, err);
    if (rc == 0)
        rc = copy_files(&w, fd, err);
    if (rc == 0)
        rc = finish(&w, path, err);
    if (rc && w.new.fd >= 0)
        rmdir(w.new.part);
    ocr_models_release(&w.new);
    ocr_close(fd);
    free(real);
    return rc;
}
