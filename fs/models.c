#include "fs/models.h"

#include "engine/base/io.h"
#include "engine/client/connect.h"
#include "fs/options.h"
#include "fs/program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char sums_file[] = "SHA256SUMS";

static const struct ocr_published published[] = {
    {"LightOnOCR-2-1B", "recommended: tables, formulas, many languages"},
    {"LightOnOCR-2-1B-base", "the same before its last training"},
    {"LightOnOCR-2-1B-bbox", "also says where on the page images are"},
    {"LightOnOCR-2-1B-bbox-base", "the same before its last training"},
    {"LightOnOCR-2-1B-ocr-soup", "weights merged from several trainings"},
    {"LightOnOCR-2-1B-bbox-soup", "weights merged from several trainings"},
    {"LightOnOCR-1B-1025", "the first version"},
    {"LightOnOCR-0.9B-32k-1025", "the first version, fewer words"},
    {"LightOnOCR-0.9B-16k-1025", "the first version, fewer words still"},
};

static const struct {
    const char *model, *file;
    uint64_t size;
    const char *sha256;
} known[] = {
    {"LightOnOCR-2-1B", "model.safetensors", 2011367489,
     "cbe12d0831cca119facce91268fc7c5fb72babdf919a6e352e3131bda85c8fbb"},
    {"LightOnOCR-2-1B", "tokenizer.json", 11422822,
     "f54b55fa0c3aba0c91ce09ea79ae4e62da24e2a1a630f96c4bae34aba25e234a"},
    {"LightOnOCR-1B-1025", "tokenizer.json", 11422776,
     "9aa803b36beaf43c54f4b2ab0635fdf86bf07f13221b4ec71ad1f67867394f40"},
};

/* ---- where they are ----------------------------------------------------- */

bool ocr_models_folder(enum ocr_models_where where, char *out, size_t size)
{
    const char *data = getenv("XDG_DATA_HOME");
    char *home = NULL;
    int n = -1;

    if (where == OCR_MODELS_LOCAL)
        n = snprintf(out, size, "/usr/local/share/ocrfs/models");
    else if (where == OCR_MODELS_SYSTEM)
        n = snprintf(out, size, "/usr/share/ocrfs/models");
    else if (data && data[0] == '/')
        n = snprintf(out, size, "%s/ocrfs/models", data);
    else if ((home = ocr_home_folder()))
        n = snprintf(out, size, "%s/.local/share/ocrfs/models", home);
    free(home);
    return n >= 0 && (size_t)n < size;
}

bool ocr_models_is_model(const char *folder)
{
    char path[PATH_MAX];

    return (size_t)snprintf(path, sizeof path, "%s/config.json", folder) <
               sizeof path &&
           access(path, R_OK) == 0;
}

int ocr_models_each(const char *folder,
                    int (*each)(void *arg, const char *path), void *arg)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);
    char path[PATH_MAX];
    int rc = 0;

    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;

        if (rc == 0 && name[0] != '.' &&
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) <
                sizeof path &&
            ocr_models_is_model(path))
            rc = each(arg, path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return rc;
}

static int take_first(void *arg, const char *path)
{
    snprintf(arg, PATH_MAX, "%s", path);
    return 1;
}

bool ocr_models_first(const char *folder, char path[PATH_MAX])
{
    return ocr_models_each(folder, take_first, path) == 1;
}

/* ---- what is published -------------------------------------------------- */

const struct ocr_published *ocr_models_published(size_t *count)
{
    *count = sizeof published / sizeof *published;
    return published;
}

bool ocr_models_wants(const char *file)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+";
    const char *end = strrchr(file, '.');

    return end && file[0] != '.' && strlen(file) < 200 &&
           !file[strspn(file, letters)] &&
           (!strcmp(end, ".json") || !strcmp(end, ".safetensors") ||
            !strcmp(end, ".jinja"));
}

const char *ocr_models_known_sha256(const char *model, const char *file,
                                    uint64_t size)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].model, model) && !strcmp(known[i].file, file) &&
            known[i].size == size)
            return known[i].sha256;
    return "";
}

/* ---- a new one ---------------------------------------------------------- */

static int make_folders(const char *path, struct ocr_err *err)
{
    char part[PATH_MAX];

    for (const char *at = path + 1;; at++) {
        if (*at && *at != '/')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        if (mkdir(part, 0755) && errno != EEXIST)
            return ocr_err_errno(err, "cannot make the folder %s", part);
        if (!*at)
            return 0;
    }
}

int ocr_models_begin(struct ocr_models_new *out, const char *home,
                     const char *name, struct ocr_err *err)
{
    *out = (struct ocr_models_new){.fd = -1};
    if (snprintf(out->name, sizeof out->name, "%s", name) > NAME_MAX - 10 ||
        snprintf(out->path, sizeof out->path, "%s/%s", home, name) >=
            PATH_MAX - 300)
        return ocr_err_set(err, -ENAMETOOLONG, "the path %s is too long", home);
    snprintf(out->part, sizeof out->part, "%.*s/.%s.part", PATH_MAX - 300, home,
             out->name);
    if (access(out->path, F_OK) == 0)
        return ocr_err_set(err, -EEXIST, "%s is there already", out->path);
    if (make_folders(home, err))
        return err->code;
    if (mkdir(out->part, 0755) && errno != EEXIST)
        return ocr_err_errno(err, "cannot make the folder %s", out->part);
    out->fd = open(out->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->fd < 0)
        return ocr_err_errno(err, "cannot open the folder %s", out->part);
    if (flock(out->fd, LOCK_EX | LOCK_NB)) {
        out->fd = ocr_close(out->fd);
        return ocr_err_set(err, -EBUSY, "another process is filling %s",
                           out->part);
    }
    return 0;
}

void ocr_models_release(struct ocr_models_new *new)
{
    new->fd = ocr_close(new->fd);
}

int ocr_models_finish(struct ocr_models_new *new, struct ocr_err *err)
{
    int rc = ocr_models_check(new->part, NULL, err);

    if (rc)
        return rc;
    if (syncfs(new->fd) || rename(new->part, new->path))
        return ocr_err_errno(err, "cannot rename %s", new->part);
    return 0;
}

int ocr_models_note_sum(const char *folder, const char *file,
                        const char *sha256, struct ocr_err *err)
{
    char path[PATH_MAX];
    FILE *sums;
    int rc = 0;

    snprintf(path, sizeof path, "%s/%s", folder, sums_file);
    sums = fopen(path, "ae");
    if (!sums)
        return ocr_err_errno(err, "cannot write %s", path);
    if (fprintf(sums, "%s  %s\n", sha256, file) < 0)
        rc = ocr_err_errno(err, "cannot write %s", path);
    if (fclose(sums) && !rc)
        rc = ocr_err_errno(err, "cannot write %s", path);
    return rc;
}

/* ---- is it whole -------------------------------------------------------- */

int ocr_models_check(const char *folder, struct ocr_buf *details,
                     struct ocr_err *err)
{
    char program[PATH_MAX];
    const char *const argv[] = {program, "--check-model", folder, NULL};
    struct ocr_buf said;
    const char *text;
    int rc = ocr_engine_program(NULL, program, sizeof program, err);

    if (rc)
        return rc;
    ocr_buf_init(&said, 64 << 10);
    rc = ocr_program_run(argv, &said, err);
    if (said.data)
        said.data[strcspn(said.data, "\n")] = '\0';
    text = said.data ? said.data : "";
    if (rc == 0 && details)
        ocr_buf_puts(details, text);
    else if (rc == -ENOENT)
        rc = ocr_err_set(err, rc, "cannot start %s", program);
    else if (rc > 0)
        rc = ocr_err_set(err, -EBADMSG, "%s",
                         *text ? text : "the engine died of it");
    ocr_buf_release(&said);
    return rc;
}

/* 0 if the file has the digest. */
static int check_sum(const char *folder, const char *file, const char *want,
                     struct ocr_err *err)
{
    char path[PATH_MAX], digest[OCR_SHA256_SIZE];
    int rc;

    snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 300, folder, file);
    rc = ocr_sha256(path, digest, err);
    if (rc || !strcasecmp(digest, want))
        return rc;
    return ocr_err_set(err, -EBADMSG,
                       "%s is not what it was: its SHA-256 is %.12s..., not "
                       "%.12s...",
                       path, digest, want);
}

static int check_listed(const char *folder, FILE *sums, unsigned *known_files,
                        struct ocr_err *err)
{
    char line[512];
    int rc = 0;

    while (rc == 0 && fgets(line, sizeof line, sums)) {
        line[strcspn(line, "\n")] = '\0';
        if (strlen(line) < OCR_SHA256_SIZE + 2)
            continue;
        line[OCR_SHA256_SIZE - 1] = '\0';
        if (!ocr_models_wants(line + OCR_SHA256_SIZE + 1))
            continue;
        rc = check_sum(folder, line + OCR_SHA256_SIZE + 1, line, err);
        ++*known_files;
    }
    return rc;
}

static int check_published(const char *folder, unsigned *known_files,
                           struct ocr_err *err)
{
    const char *slash = strrchr(folder, '/');
    const char *name = slash ? slash + 1 : folder;
    char path[PATH_MAX];
    struct stat st;
    int rc = 0;

    for (size_t i = 0; i < sizeof known / sizeof *known && rc == 0; i++) {
        if (strcmp(known[i].model, name) != 0 ||
            (size_t)snprintf(path, sizeof path, "%s/%s", folder,
                             known[i].file) >= sizeof path ||
            stat(path, &st) || (uint64_t)st.st_size != known[i].size)
            continue;
        rc = check_sum(folder, known[i].file, known[i].sha256, err);
        ++*known_files;
    }
    return rc;
}

int ocr_models_check_sums(const char *folder, unsigned *known_files,
                          struct ocr_err *err)
{
    char path[PATH_MAX];
    FILE *sums;
    int rc;

    *known_files = 0;
    snprintf(path, sizeof path, "%s/%s", folder, sums_file);
    sums = fopen(path, "re");
    if (!sums)
        return check_published(folder, known_files, err);
    rc = check_listed(folder, sums, known_files, err);
    fclose(sums);
    return rc;
}
