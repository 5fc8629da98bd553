/* The language packs on disk: where, which, and what exactly is in them. */
#include "engine/tesseract/tesseract_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const folders[] = {
    "/usr/share/tesseract-ocr/5/tessdata",
    "/usr/share/tesseract-ocr/4.00/tessdata",
    "/usr/share/tessdata",
    "/usr/share/tesseract/tessdata",
    "/usr/local/share/tessdata",
};

/* True if the folder holds language packs: a model of another recogniser may
 * be configured too. */
static bool has_packs(const char *path)
{
    char pattern[4096];
    glob_t found;
    bool any;

    if (!path || !*path)
        return false;
    snprintf(pattern, sizeof(pattern), "%s/*.traineddata", path);
    any = glob(pattern, GLOB_NOSORT, NULL, &found) == 0;
    if (any)
        globfree(&found);
    return any;
}

const char *tess_datapath(const char *model)
{
    if (has_packs(model))
        return model;
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++)
        if (has_packs(folders[i]))
            return folders[i];
    return NULL;
}

static void pack_path(char *out, size_t size, const char *datapath,
                      const char *lang)
{
    snprintf(out, size, "%s/%s.traineddata", datapath, lang);
}

static bool is_name(const char *lang)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t n = strspn(lang, letters);

    return n > 0 && lang[n] == '\0';
}

/* The names of the packs in `datapath`, each behind a space. */
static void list_packs(const char *datapath, char *out, size_t size)
{
    static const char ending[] = ".traineddata";
    struct dirent **entries;
    const int count = scandir(datapath, &entries, NULL, alphasort);
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        const size_t len = strlen(name);
        const size_t stem =
            len - (len < sizeof(ending) ? 0 : sizeof(ending) - 1);

        if (stem < len && !strcmp(name + stem, ending) &&
            strncmp(name, "osd", 3) != 0 && used + stem + 2 < size)
            used += (size_t)snprintf(out + used, size - used, " %.*s",
                                     (int)stem, name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

static int check_one(const char *datapath, const char *lang,
                     struct ocr_err *err)
{
    char path[4096], package[64], packs[200];

    if (!is_name(lang))
        return ocr_err_set(err, -EINVAL, "lang: \"%s\" is no language code",
                           lang);
    pack_path(path, sizeof(path), datapath, lang);
    if (access(path, R_OK) == 0)
        return 0;
    snprintf(package, sizeof(package), "%s", lang);
    for (char *c = package; *c; c++)
        if (*c == '_')
            *c = '-';
    list_packs(datapath, packs, sizeof(packs));
    /* Shorter ones are no language of tesseract: "de" is a guess at "deu". */
    if (strlen(lang) < 3)
        return ocr_err_set(err, -ENOENT, "no language \"%s\"; installed are:%s",
                           lang, packs);
    return ocr_err_set(err, -ENOENT,
                       "no language pack \"%s\": install the package "
                       "tesseract-ocr-%s (installed are:%s)",
                       lang, package, packs);
}

/* Calls `each` for the parts of "eng+deu". */
static int split(const char *lang,
                 int (*each)(void *arg, const char *one, struct ocr_err *err),
                 void *arg, struct ocr_err *err)
{
    char copy[128], *rest = copy, *one;
    int code = 0;

    if (strlen(lang) >= sizeof(copy))
        return ocr_err_set(err, -EINVAL, "lang: too many languages");
    strcpy(copy, lang);
    while (code == 0 && (one = strsep(&rest, "+")))
        code = each(arg, one, err);
    return code;
}

static int check_each(void *arg, const char *one, struct ocr_err *err)
{
    return check_one(arg, one, err);
}

int tess_language_check(const char *datapath, const char *lang,
                        struct ocr_err *err)
{
    return split(lang, check_each, (void *)(uintptr_t)datapath, err);
}

/* FNV-1a: no secrets here, only "is it the same file as yesterday". */
static uint64_t mix(uint64_t hash, const unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t mix_file(uint64_t hash, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *bytes;

    if (fd < 0)
        return mix(hash, (const unsigned char *)"none", 4);
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) {
            hash = mix(hash, bytes, (size_t)st.st_size);
            munmap(bytes, (size_t)st.st_size);
        }
    }
    close(fd);
    return hash;
}

struct digest {
    const char *datapath;
    uint64_t hash;
};

static int digest_each(void *arg, const char *one, struct ocr_err *err)
{
    struct digest *digest = arg;
    char path[4096];

    (void)err;
    pack_path(path, sizeof(path), digest->datapath, one);
    digest->hash = mix_file(digest->hash, path);
    return 0;
}

uint64_t tess_language_digest(const char *datapath, const char *lang)
{
    struct digest digest = {datapath, UINT64_C(0xcbf29ce484222325)};

    split(lang, digest_each, &digest, NULL);
    digest_each(&digest, "osd", NULL);
    return digest.hash;
}
