#include "fs/options.h"

#include "engine/base/log.h"
#include "engine/base/size.h"
#include "fs/words.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FUSE_LIST_MAX = 64 << 10,
    HELP_COLUMN = 29
};

enum type {
    FLAG,    /* bool */
    COUNT,   /* unsigned */
    DECIMAL, /* double, between the two numbers of `choices` */
    BYTES,   /* uint64_t */
    TEXT,    /* char *, checked by `check` */
    FOLDER,  /* char *, absolute; may also be the word in `choices` */
    WORD,    /* char *, one of `choices` */
    SIZE,    /* size and size_names; one of `choices`, or wait:NAMES */
    EITHER,  /* bool, true for the second of `choices` */
};

/* Where a value comes from: a command line or a line of a file. */
struct origin {
    const char *file; /* NULL: command line */
    unsigned line;
};

struct option {
    const char *name;
    enum type type;
    size_t offset; /* in struct ocr_options */
    const char *preset;
    unsigned commands;
    const char *choices; /* parted by '|' */
    const char *value;   /* name of the value in --help */
    const char *help;
    int (*check)(const char *text, struct ocr_err *err);
};

static int check_engine(const char *text, struct ocr_err *err);
static int check_lang(const char *text, struct ocr_err *err);
static int check_device(const char *text, struct ocr_err *err);
static int check_suffix(const char *text, struct ocr_err *err);
static int check_control(const char *text, struct ocr_err *err);
static int check_prefetch(const char *text, struct ocr_err *err);
static int check_url(const char *text, struct ocr_err *err);
static int check_prompt(const char *text, struct ocr_err *err);

enum {
    TEXTS = OCR_FOR_MOUNT | OCR_FOR_READ,
    MAKING = TEXTS | OCR_FOR_DOCTOR,
    STORED = MAKING | OCR_FOR_CACHE,
    NAMED = OCR_FOR_MOUNT | OCR_FOR_STATUS,
};

#define AT(field) offsetof(struct ocr_options, field)

static const struct option table[] = {
    {"engine", TEXT, AT(engine), "auto", MAKING, NULL, "NAME",
     "recogniser: auto, lighton, http, tesseract, null[:TIME]", check_engine},
    {"lang", TEXT, AT(lang), "eng", MAKING, NULL, "LIST",
     "languages of the texts: eng, deu+eng", check_lang},
    {"device", TEXT, AT(device), "auto", MAKING, NULL, "NAME",
     "where the recogniser runs: auto, cpu, cuda:0, or several GPUs: cuda:0,1",
     check_device},
    {"model", FOLDER, AT(model), "", MAKING, NULL, "DIR",
     "folder of a model for lighton (else it is looked for); for http the name "
     "of one",
     NULL},
    {"url", TEXT, AT(url), "", MAKING, NULL, "URL;URL",
     "servers for http, like http://host:8000/v1: images are sent there",
     check_url},
    {"api_key_file", FOLDER, AT(api_key_file), "", MAKING, NULL, "FILE",
     "file with the key of the servers, mode 0600 (else $OPENAI_API_KEY)",
     NULL},
    {"prompt", TEXT, AT(prompt), "", MAKING, NULL, "TEXT",
     "for http: what to tell a model that wants to be told", check_prompt},
    {"http_timeout", COUNT, AT(http_timeout_s), "300", MAKING, NULL, "SECONDS",
     "a server that says nothing for so long is given up", NULL},
    {"gpu_memory", BYTES, AT(gpu_memory), "0", MAKING, NULL, "SIZE",
     "most the model may take of a GPU (0: what 64 pages need, at most 90 % of "
     "what is free)",
     NULL},
    {"precision", WORD, AT(precision), "auto", MAKING,
     "auto|bf16|fp16|fp32|int8", NULL,
     "of the model: auto is bf16, or fp16 on a GPU without it; int8 (CPU) "
     "reads "
     "faster and a little worse",
     NULL},
    {"max_tokens", COUNT, AT(max_tokens), "4096", MAKING, NULL, "N",
     "longest text of a page the model may write", NULL},
    {"temperature", DECIMAL, AT(temperature), "0", MAKING, "0:2", "X",
     "0: always the likeliest token", NULL},
    {"top_p", DECIMAL, AT(top_p), "1", MAKING, "0.01:1", "X",
     "with a temperature: how much of the likelihood may be drawn from", NULL},
    {"repetition_penalty", DECIMAL, AT(repetition_penalty), "1", MAKING, "1:2",
     "X", "makes tokens that were written less likely", NULL},
    {"patch_multiple", WORD, AT(patch_multiple), "28", MAKING, "28|14", NULL,
     "sides of a page are rounded up to a multiple of so many pixels", NULL},
    {"tables", WORD, AT(tables), "pipe", MAKING, "pipe|html", NULL,
     "tables as Markdown or as the recogniser wrote them", NULL},
    {"pdf", WORD, AT(pdf), "ocr", TEXTS, "ocr|text", NULL,
     "text: PDF pages that were made on a computer give the text that is in "
     "them",
     NULL},
    {"engine_required", FLAG, AT(engine_required), "no", OCR_FOR_MOUNT, NULL,
     NULL, "refuse to mount without an engine", NULL},
    {"engine_idle", COUNT, AT(engine_idle_s), "600", MAKING, NULL, "SECONDS",
     "the engine ends after so long without work", NULL},
    {"gpu_idle", COUNT, AT(gpu_idle_s), "300", MAKING, NULL, "SECONDS",
     "the same for one that holds a GPU, so that others may have its memory",
     NULL},
    {"jobs", COUNT, AT(jobs), "0", TEXTS, NULL, "N",
     "pages in the engine at most (0: as many as it offers)", NULL},
    {"prefetch", TEXT, AT(prefetch), "auto", OCR_FOR_MOUNT, NULL, "N",
     "pages read ahead of a program that opens one text after the other: auto "
     "(as many as the engine takes), off, or at most N",
     check_prefetch},
    {"watch", TEXT, AT(watch), "auto", OCR_FOR_MOUNT, NULL, "N",
     "folders of SOURCE watched for changes, which then show at once: auto "
     "(half of what the system allows), off, or at most N",
     check_prefetch},
    {"index", EITHER, AT(index_new), "off", OCR_FOR_MOUNT, "off|new", NULL,
     "new: images that come are read in the background, before anybody opens "
     "their texts",
     NULL},
    {"partial", FLAG, AT(partial), "no", TEXTS, NULL, NULL,
     "read what a truncated image has; not cached", NULL},

    {"suffix", TEXT, AT(suffix), ".md", OCR_FOR_MOUNT, NULL, ".EXT",
     "ending of the text files", check_suffix},
    {"size", SIZE, AT(size), "bound", OCR_FOR_MOUNT, "bound|wait|zero",
     "bound|wait|zero",
     "what stat says of a text not read yet: an upper bound, the truth after "
     "waiting (wait:NAME:NAME: for these programs only), or 0",
     NULL},
    {"show", EITHER, AT(show_texts), "all", OCR_FOR_MOUNT, "all|texts", NULL,
     "texts: only folders and texts, without the images", NULL},
    {"include", TEXT, AT(include), "", OCR_FOR_MOUNT, NULL, "GLOB:GLOB",
     "only these images have texts: names, or paths below SOURCE with a slash "
     "(2019/**/*.png); a folder stands for all in it",
     NULL},
    {"exclude", TEXT, AT(exclude), "", OCR_FOR_MOUNT, NULL, "GLOB:GLOB",
     "images without texts, also of those in include=", NULL},
    {"min_pixels", COUNT, AT(min_pixels), "0", OCR_FOR_MOUNT, NULL, "N",
     "images of fewer pixels (icons) have no text; listing then reads the "
     "beginning of small files",
     NULL},
    {"errors", WORD, AT(errors), "errno", OCR_FOR_MOUNT, OCR_ERRORS_WORDS, NULL,
     "what an image shows of which no text can be made: an error when it is "
     "opened, no text once that is known, or the reason as its text",
     NULL},
    {"xattr", FLAG, AT(xattr), "no", OCR_FOR_MOUNT, NULL, NULL,
     "texts have user.ocrfs.state, .engine, .hash and .error", NULL},
    {"noocr", TEXT, AT(noocr),
     /* As /proc/PID/comm has them: 15 bytes. */
     "tracker-miner-f:tracker-extract:localsearch-3:localsearch-ext:"
     "baloo_file:baloo_file_extr:baloorunner:thumbnail.so:tumblerd:"
     "evince-thumbnai:totem-video-thu:gdk-pixbuf-thum:ffmpegthumbnail",
     OCR_FOR_MOUNT, NULL, "NAME:NAME",
     "programs that get no text which is not known yet (default: desktop "
     "indexers and thumbnailers)",
     NULL},
    {"ocr_timeout", COUNT, AT(ocr_timeout_s), "0", TEXTS, NULL, "SECONDS",
     "longest wait for a text (0: no limit)", NULL},
    {"intr", FLAG, AT(intr), "no", OCR_FOR_MOUNT, NULL, NULL,
     "every signal ends a waiting open", NULL},
    {"follow", FLAG, AT(follow), "no", OCR_FOR_MOUNT, NULL, NULL,
     "texts also for symbolic links that stay below SOURCE", NULL},

    {"cache", FOLDER, AT(cache), "", STORED, "memory", "DIR",
     "where texts are kept; memory: nowhere on disk", NULL},
    {"cache_size", BYTES, AT(cache_size), "0", STORED, NULL, "SIZE",
     "most bytes of texts kept (0: until 1 GiB of the disk is left)", NULL},
    {"verify", FLAG, AT(verify), "no", TEXTS, NULL, NULL,
     "hash the image at every open", NULL},
    {"stale", EITHER, AT(stale_redo), "serve", TEXTS, "serve|redo", NULL,
     "texts of another version of the recogniser", NULL},
    {"share", EITHER, AT(share_all), "owner", OCR_FOR_MOUNT, "owner|all", NULL,
     "with allow_other: who shares known texts of equal images", NULL},

    {"allow_other", FLAG, AT(allow_other), "no", OCR_FOR_MOUNT, NULL, NULL,
     "other users may enter, as far as the modes in SOURCE allow", NULL},
    {"control", TEXT, AT(control), ".ocrfs", NAMED, NULL, "NAME",
     "hidden folder with the status (off: none)", check_control},
    {"runtime", FOLDER, AT(runtime), "", MAKING, NULL, "DIR",
     "where the sockets of the engine are", NULL},
};

enum {
    OPTIONS = sizeof table / sizeof table[0]
};

/* ---- values ------------------------------------------------------------- */

static void *field(struct ocr_options *o, const struct option *option)
{
    return (char *)o + option->offset;
}

static int parse_count(const char *text, unsigned *out, struct ocr_err *err)
{
    char *end;
    unsigned long n;

    errno = 0;
    n = strtoul(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9' || n > INT32_MAX)
        return ocr_err_set(err, -EINVAL, "'%s' is no whole number", text);
    *out = (unsigned)n;
    return 0;
}

static int parse_decimal(const char *text, const char *range, double *out,
                         struct ocr_err *err)
{
    double least = 0, most = 0, value;
    char *end;

    sscanf(range, "%lf:%lf", &least, &most);
    value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        return ocr_err_set(err, -EINVAL, "'%s' is no number from %g to %g",
                           text, least, most);
    *out = value;
    return 0;
}

static int parse_flag(const char *text, bool *out, struct ocr_err *err)
{
    const int index = ocr_word_index("no|yes|off|on|false|true|0|1", text);

    if (index < 0)
        return ocr_err_set(err, -EINVAL, "'%s' is neither yes nor no", text);
    *out = index & 1;
    return 0;
}

static int check_engine(const char *text, struct ocr_err *err)
{
    if (!strcmp(text, "auto") || !strcmp(text, "tesseract") ||
        !strcmp(text, "lighton") || !strcmp(text, "http") ||
        !strcmp(text, "null") || !strncmp(text, "null:", 5))
        return 0;
    return ocr_err_set(err, -EINVAL,
                       "this version has no engine '%s', only auto, lighton, "
                       "http, tesseract and null",
                       text);
}

static int check_lang(const char *text, struct ocr_err *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/";

    /* Names of files of the recogniser, so nothing that leads elsewhere. */
    for (const char *at = text;; at++) {
        const size_t n = strspn(at, letters);

        if (n == 0 || at[0] == '/' || (at[n] && at[n] != '+'))
            break;
        at += n;
        if (!*at)
            return 0;
    }
    if (text[strcspn(text, ", ;:")])
        return ocr_err_set(err, -EINVAL,
                           "'%s' is no list of languages: a + parts them, as "
                           "in deu+eng",
                           text);
    return ocr_err_set(
        err, -EINVAL, "'%s' is no list of languages (like eng, deu+eng)", text);
}

/* "0" or "0,1,3", none of them twice. */
static bool are_numbers(const char *text)
{
    enum {
        GPUS = 16
    };
    unsigned long seen[GPUS];
    size_t count = 0;

    for (char *end;; text = end + 1) {
        const unsigned long n = strtoul(text, &end, 10);

        if (*text < '0' || *text > '9' || count == GPUS)
            return false;
        for (size_t i = 0; i < count; i++)
            if (seen[i] == n)
                return false;
        seen[count++] = n;
        if (*end != ',')
            return !*end;
    }
}

static int check_device(const char *text, struct ocr_err *err)
{
    if (!strcmp(text, "auto") || !strcmp(text, "cpu") || !strcmp(text, "cuda"))
        return 0;
    if (!strncmp(text, "cuda:", 5) && are_numbers(text + 5))
        return 0;
    return ocr_err_set(err, -EINVAL,
                       "'%s' is no device (auto, cpu, cuda, cuda:0, cuda:0,1)",
                       text);
}

static int check_suffix(const char *text, struct ocr_err *err)
{
    if (text[0] != '.' || strchr(text, '/') || strlen(text) > 32)
        return ocr_err_set(err, -EINVAL,
                           "a suffix begins with a dot and has no slash");
    if (!text[strspn(text, ".")])
        return ocr_err_set(err, -EINVAL, "a suffix is more than dots");
    return 0;
}

static int check_control(const char *text, struct ocr_err *err)
{
    if (!*text || strchr(text, '/') || !strcmp(text, ".") ||
        !strcmp(text, "..") || strlen(text) > 255)
        return ocr_err_set(err, -EINVAL, "'%s' is no name for a folder", text);
    return 0;
}

static int check_prefetch(const char *text, struct ocr_err *err)
{
    unsigned n = 0;

    if (!strcmp(text, "auto") || !strcmp(text, "off"))
        return 0;
    if (!parse_count(text, &n, NULL) && n >= 1 && n <= 65536)
        return 0;
    return ocr_err_set(
        err, -EINVAL, "'%s' is neither auto nor off nor a number from 1", text);
}

static bool is_url(const char *text, size_t len)
{
    const size_t scheme = !strncmp(text, "https://", 8)  ? 8
                          : !strncmp(text, "http://", 7) ? 7
                                                         : 0;

    return scheme && len > scheme && strcspn(text + scheme, ";/?# ") > 0 &&
           strcspn(text, "@?# ") >= len;
}

static int check_url(const char *text, struct ocr_err *err)
{
    if (strlen(text) > 4000)
        return ocr_err_set(err, -EINVAL, "that is too long");
    for (const char *at = text; *at;) {
        const size_t len = strcspn(at, ";");

        if (memchr(at, '@', len))
            return ocr_err_set(err, -EINVAL,
                               "a name and password in it would be seen by "
                               "everybody: use api_key_file");
        if (len && !is_url(at, len))
            return ocr_err_set(err, -EINVAL,
                               "'%.*s' is no address like "
                               "http://host:8000/v1 (several are parted by ;)",
                               (int)len, at);
        at += len + (at[len] == ';');
    }
    return 0;
}

static int check_prompt(const char *text, struct ocr_err *err)
{
    return strlen(text) <= 8192
               ? 0
               : ocr_err_set(err, -EINVAL, "at most 8192 bytes");
}

char *ocr_home_folder(void)
{
    const char *home = getenv("HOME");
    const struct passwd *account;

    if (home && home[0] == '/')
        return strdup(home);
    account = getpwuid(geteuid());
    return account && account->pw_dir[0] == '/' ? strdup(account->pw_dir)
                                                : NULL;
}

/* What a folder written as `text` is called from everywhere; NULL: no memory,
 * or err is set. */
static char *absolute(const char *text, const struct origin *from,
                      struct ocr_err *err)
{
    char *base = NULL, *path = NULL;

    if (!*text || text[0] == '/')
        return strdup(text);
    if (text[0] == '~' && (text[1] == '/' || !text[1])) {
        base = ocr_home_folder();
        text += text[1] ? 2 : 1;
    } else if (from->file) {
        ocr_err_set(err, -EINVAL, "'%s' must begin with / or ~/", text);
        return NULL;
    } else {
        base = getcwd(NULL, 0);
    }
    if (!base)
        ocr_err_set(err, -ENOENT, "cannot tell which folder '%s' is", text);
    else if (asprintf(&path, "%s/%s", base, text) < 0)
        path = NULL;
    free(base);
    return path;
}

static int replace(char **at, char *text, struct ocr_err *err)
{
    if (!text)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    free(*at);
    *at = text;
    return 0;
}

/* Each without slashes at its end, so that all ways to write an address mean
 * one engine; malloc'd, or NULL. */
static char *trimmed_urls(const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;

    while (out && *text) {
        const size_t all = strcspn(text, ";");
        size_t len = all;

        while (len && text[len - 1] == '/')
            len--;
        if (len && to > out)
            *to++ = ';';
        memcpy(to, text, len);
        to += len;
        text += all + (text[all] == ';');
    }
    if (out)
        *to = '\0';
    return out;
}

static int store_text(char **at, const struct option *option, const char *text,
                      const struct origin *from, struct ocr_err *err)
{
    char *path;

    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return ocr_err_set(err, -EINVAL, "it holds a control character");
    if (option->check == check_control && !strcmp(text, "off"))
        return replace(at, strdup(""), err);
    if (option->check && option->check(text, err))
        return -EINVAL;
    if (option->check == check_url)
        return replace(at, trimmed_urls(text), err);
    if (option->type != FOLDER ||
        (option->choices && ocr_word_index(option->choices, text) >= 0))
        return replace(at, strdup(text), err);
    path = absolute(text, from, err);
    if (!path && err && err->code)
        return err->code;
    return replace(at, path, err);
}

static const char *place(const struct origin *from, char *out, size_t size)
{
    out[0] = '\0';
    if (from->file)
        snprintf(out, size, "%s:%u: ", from->file, from->line);
    return out;
}

/* A folder for lighton, a name for http: which of the two is known when all
 * options are. */
static int store_model(struct ocr_options *o, const struct option *option,
                       const char *text, const struct origin *from,
                       struct ocr_err *err)
{
    const bool relative =
        from->file && *text && text[0] != '/' && text[0] != '~';
    char where[300];
    int rc = 0;

    place(from, where, sizeof where);
    if (!relative)
        rc = store_text(&o->model, option, text, from, err);
    else
        rc = replace(&o->model, strdup(text), err);
    if (!rc)
        rc = replace(&o->model_name, strdup(text), err);
    if (!rc)
        rc = replace(&o->model_from, strdup(relative ? where : ""), err);
    return rc;
}

static int store_choice(void *at, const struct option *option, const char *text,
                        struct ocr_err *err)
{
    const int index = ocr_word_index(option->choices, text);

    if (index < 0)
        return ocr_err_set(err, -EINVAL, "'%s' is not one of %s", text,
                           option->choices);
    if (option->type == WORD)
        return replace(at, strdup(text), err);
    *(bool *)at = index == 1;
    return 0;
}

static int store_size(struct ocr_options *o, const struct option *option,
                      const char *text, struct ocr_err *err)
{
    const bool named = !strncmp(text, "wait:", 5) && text[5];
    const int index =
        named ? OCR_SIZE_WAIT : ocr_word_index(option->choices, text);

    if (index < 0)
        return ocr_err_set(err, -EINVAL,
                           "'%s' is not one of %s or wait:PROGRAM:PROGRAM",
                           text, option->choices);
    o->size = (enum ocr_size_mode)index;
    return replace(&o->size_names, strdup(named ? text + 5 : ""), err);
}

static int store(struct ocr_options *o, const struct option *option,
                 const char *text, const struct origin *from,
                 struct ocr_err *err)
{
    void *at = field(o, option);

    switch (option->type) {
    case FLAG:
        return parse_flag(text, at, err);
    case COUNT:
        return parse_count(text, at, err);
    case DECIMAL:
        return parse_decimal(text, option->choices, at, err);
    case BYTES:
        return ocr_parse_size(text, at, err);
    case TEXT:
    case FOLDER:
        if (option->offset == AT(model))
            return store_model(o, option, text, from, err);
        return store_text(at, option, text, from, err);
    case SIZE:
        return store_size(o, option, text, err);
    case WORD:
    case EITHER:
        return store_choice(at, option, text, err);
    }
    return -EINVAL;
}

/* ---- names -------------------------------------------------------------- */

static const struct option *find(const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

static int unknown(const char *name, unsigned command, struct ocr_err *err)
{
    const char *names[OPTIONS + 1];
    const char *near;
    size_t n = 0;

    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].commands & command)
            names[n++] = table[i].name;
    near = ocr_word_nearest(name, names, n);
    if (near)
        return ocr_err_set(err, -EINVAL,
                           "unknown option '%s' (did you mean '%s'?)", name,
                           near);
    return ocr_err_set(err, -EINVAL, "unknown option '%s'", name);
}

/* Sets one option; value NULL: it stands alone. */
static int set(struct ocr_options *o, const char *name, const char *value,
               const struct origin *from, struct ocr_err *err)
{
    const struct option *option = find(name);
    struct ocr_err why = OCR_ERR_INIT;
    char where[300];
    int rc;

    place(from, where, sizeof where);
    if (!option) {
        rc = unknown(name, o->command, &why);
        return ocr_err_set(err, rc, "%s%s", where, why.text);
    }
    if (!from->file && !(option->commands & o->command))
        return ocr_err_set(err, -EINVAL, "option '%s' is not for this command",
                           name);
    if (!value && option->type == FLAG)
        value = "yes";
    if (!value)
        return ocr_err_set(err, -EINVAL, "%soption '%s' needs a value", where,
                           name);
    /* Most often a variable of a script that is not set. */
    if (!*value && option->type == FOLDER && option->offset != AT(model))
        return ocr_err_set(err, -EINVAL, "%soption '%s' is empty", where, name);
    rc = store(o, option, value, from, &why);
    if (rc)
        return ocr_err_set(err, rc, "%soption '%s': %s", where, name, why.text);
    return 0;
}

/* ---- defaults ----------------------------------------------------------- */

void ocr_options_init(struct ocr_options *o)
{
    static const struct origin here = {"(default)", 0};

    *o = (struct ocr_options){.command = OCR_FOR_ALL};
    ocr_buf_init(&o->fuse, FUSE_LIST_MAX);
    for (size_t i = 0; i < OPTIONS; i++)
        if (store(o, &table[i], table[i].preset, &here, NULL))
            abort(); /* no memory for a few words, or a wrong table */
}

void ocr_options_release(struct ocr_options *o)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        const enum type type = table[i].type;

        if (type == TEXT || type == FOLDER || type == WORD)
            free(*(char **)field(o, &table[i]));
    }
    free(o->size_names);
    free(o->model_name);
    free(o->model_from);
    ocr_buf_release(&o->fuse);
    *o = (struct ocr_options){0};
}

/* ---- -o a,b=c ----------------------------------------------------------- */

/* Adds a word to the list for libfuse, escaped as its parser wants it. */
static int pass_on(struct ocr_options *o, const char *word, struct ocr_err *err)
{
    if (o->fuse.len)
        ocr_buf_putc(&o->fuse, ',');
    for (; *word; word++) {
        if (*word == ',' || *word == '\\')
            ocr_buf_putc(&o->fuse, '\\');
        ocr_buf_putc(&o->fuse, *word);
    }
    return o->fuse.failed ? ocr_err_set(err, -ENOMEM, "too many mount options")
                          : 0;
}

/* One element of the list, in a buffer of our own: `word` may be cut. */
static int apply_word(struct ocr_options *o, char *word, struct ocr_err *err)
{
    static const struct origin line = {NULL, 0};
    char *value = strchr(word, '=');

    if (!*word)
        return 0;
    if (o->command & OCR_FOR_MOUNT) {
        switch (ocr_word_of_mount(word)) {
        case OCR_WORD_OURS:
            break;
        case OCR_WORD_FUSE:
            return pass_on(o, word, err);
        case OCR_WORD_IGNORED:
            return 0;
        case OCR_WORD_DEBUG:
            o->debug = o->foreground = true;
            return 0;
        case OCR_WORD_REFUSED:
            return ocr_err_set(err, -EINVAL,
                               "option '%s' is set by ocrfs itself", word);
        }
    }
    if (value)
        *value++ = '\0';
    return set(o, word, value, &line, err);
}

/* "-o lang=deu,eng" is two options to everybody but its writer. */
static int hint_at_plus(const char *word, int rc, struct ocr_err *err)
{
    const size_t letters = strcspn(word, "_+/");

    if (find(word) || letters != 3)
        return rc;
    ocr_err_clear(err);
    return ocr_err_set(err, rc,
                       "unknown option '%s' (if it is a language: a + parts "
                       "them, as in lang=deu+eng)",
                       word);
}

/* The comma in "device=cuda:0,1" parts no options. */
static bool is_of_device(const char *word, size_t n, const char *behind)
{
    static const char start[] = "device=cuda:";

    return n > sizeof start - 1 && !memcmp(word, start, sizeof start - 1) &&
           *behind >= '0' && *behind <= '9';
}

int ocr_options_apply_list(struct ocr_options *o, const char *list,
                           struct ocr_err *err)
{
    char *word = malloc(strlen(list) + 1);
    bool behind_lang = false, alone;
    size_t n = 0;
    int rc = 0;

    if (!word)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    for (const char *at = list; rc == 0; at++) {
        if (*at && (*at != ',' || is_of_device(word, n, at + 1))) {
            if (*at == '\\' && at[1])
                at++;
            word[n++] = *at;
            continue;
        }
        word[n] = '\0';
        n = 0;
        alone = !strchr(word, '=');
        rc = apply_word(o, word, err);
        if (rc && behind_lang && alone)
            rc = hint_at_plus(word, rc, err);
        behind_lang = !strcmp(word, "lang");
        if (!*at)
            break;
    }
    free(word);
    return rc;
}

/* ---- command line ------------------------------------------------------- */

/* --NAME VALUE, --NAME=VALUE; `text` is behind the dashes. *used says whether
 * `next` was taken. */
static int apply_long(struct ocr_options *o, const char *text, const char *next,
                      bool *used, struct ocr_err *err)
{
    static const struct origin line = {NULL, 0};
    const struct option *option;
    const char *value = strchr(text, '=');
    char name[64];
    const size_t n = value ? (size_t)(value - text) : strlen(text);

    *used = false;
    if (n >= sizeof name)
        return ocr_err_set(err, -EINVAL, "unknown option '--%s'", text);
    for (size_t i = 0; i < n; i++)
        name[i] = text[i] == '-' ? '_' : text[i];
    name[n] = '\0';
    option = find(name);
    if (value) {
        value++;
    } else if (option && option->type != FLAG && next) {
        value = next;
        *used = true;
    }
    return set(o, name, value, &line, err);
}

/* -f, -d, -s, also several in one. */
static int apply_letters(struct ocr_options *o, const char *letters,
                         struct ocr_err *err)
{
    for (const char *at = letters; *at; at++) {
        if (!strchr("fds", *at) || !(o->command & OCR_FOR_MOUNT))
            return ocr_err_set(err, -EINVAL, "unknown option '-%s'", letters);
        o->foreground = o->foreground || *at == 'f' || *at == 'd';
        o->debug = o->debug || *at == 'd';
        o->single_thread = o->single_thread || *at == 's';
    }
    return 0;
}

/* `arg` begins with a dash; *used as above. */
static int apply_arg(struct ocr_options *o, const char *arg, const char *next,
                     bool *used, struct ocr_err *err)
{
    if (arg[1] == '-')
        return apply_long(o, arg + 2, next, used, err);
    if (arg[1] != 'o') {
        *used = false;
        return apply_letters(o, arg + 1, err);
    }
    *used = !arg[2];
    if (*used && !next)
        return ocr_err_set(err, -EINVAL, "option '-o' needs a list");
    return ocr_options_apply_list(o, arg[2] ? arg + 2 : next, err);
}

int ocr_options_apply_args(struct ocr_options *o, int *argc, char **argv,
                           struct ocr_err *err)
{
    int kept = 1;
    bool more = true;

    for (int i = 1; i < *argc; i++) {
        bool used = false;

        if (more && !strcmp(argv[i], "--")) {
            more = false;
        } else if (!more || argv[i][0] != '-' || !argv[i][1]) {
            argv[kept++] = argv[i];
        } else {
            const char *next = i + 1 < *argc ? argv[i + 1] : NULL;
            const int rc = apply_arg(o, argv[i], next, &used, err);

            if (rc)
                return rc;
            i += used;
        }
    }
    argv[kept] = NULL;
    *argc = kept;
    return 0;
}

/* ---- configuration files ------------------------------------------------ */

/* Cuts spaces at both ends. */
static char *trim(char *text)
{
    char *end;

    text += strspn(text, " \t\r\n");
    end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1]))
        end--;
    *end = '\0';
    return text;
}

/* A # begins a comment only at the start or behind a space: folders may have
 * one in their names. */
static void cut_comment(char *line)
{
    for (char *at = line; *at; at++) {
        if (*at == '#' && (at == line || at[-1] == ' ' || at[-1] == '\t')) {
            *at = '\0';
            return;
        }
    }
}

static int apply_line(struct ocr_options *o, char *line,
                      const struct origin *from, struct ocr_err *err)
{
    char *value;

    cut_comment(line);
    line = trim(line);
    if (!*line)
        return 0;
    value = strchr(line, '=');
    if (value) {
        *value = '\0';
        value = trim(value + 1);
    }
    return set(o, trim(line), value, from, err);
}

/* Line `from->line` of a file: `len` bytes, with a NUL behind them. */
static int apply_bytes(struct ocr_options *o, char *line, size_t len,
                       const struct origin *from, struct ocr_err *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, by some editors */
    const size_t skip =
        from->line == 1 && !strncmp(line, mark, 3) ? strlen(mark) : 0;

    if (strlen(line) < len)
        return ocr_err_set(err, -EINVAL,
                           "%s:%u: there is a NUL byte: the file is no text, "
                           "or not UTF-8",
                           from->file, from->line);
    return apply_line(o, line + skip, from, err);
}

int ocr_options_load_file(struct ocr_options *o, const char *path,
                          struct ocr_err *err)
{
    struct origin from = {path, 0};
    /* A FIFO would wait for a writer that never comes. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    char *line = NULL;
    size_t size = 0;
    ssize_t len;
    int rc = 0;

    if (!file)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : ocr_err_errno(err, "cannot read %s", path);
    while (rc == 0 && (len = getline(&line, &size, file)) >= 0) {
        from.line++;
        rc = apply_bytes(o, line, (size_t)len, &from, err);
    }
    if (rc == 0 && ferror(file)) {
        errno = EIO;
        rc = ocr_err_errno(err, "cannot read %s", path);
    }
    free(line);
    fclose(file);
    return rc;
}

/* With the environment of another user (setpriv, a service) the home folder
 * may be closed to us. */
static int load_of_user(struct ocr_options *o, const char *path,
                        struct ocr_err *err)
{
    struct ocr_err why = OCR_ERR_INIT;
    const int rc = ocr_options_load_file(o, path, &why);

    if (rc != -EACCES)
        return rc ? ocr_err_set(err, rc, "%s", why.text) : 0;
    ocr_warning("%s; going on without it", why.text);
    return 0;
}

int ocr_options_load(struct ocr_options *o, struct ocr_err *err)
{
    const char *xdg = getenv("XDG_CONFIG_HOME");
    char *home = NULL, *path = NULL;
    int rc = ocr_options_load_file(o, "/etc/ocrfs.conf", err);

    if (rc)
        return rc;
    if (xdg && xdg[0] == '/')
        rc = asprintf(&path, "%s/ocrfs/config", xdg);
    else if ((home = ocr_home_folder()))
        rc = asprintf(&path, "%s/.config/ocrfs/config", home);
    free(home);
    if (rc < 0)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    rc = path ? load_of_user(o, path, err) : 0;
    free(path);
    return rc;
}

/* ---- help -------------------------------------------------------------- */

/* What stands behind the =; "" for a flag. */
static const char *value_name(const struct option *option)
{
    if (option->value)
        return option->value;
    return option->choices ? option->choices : "";
}

/* "size=bound|wait|zero" as --help writes it. */
static int heading(const struct option *option, char *out, size_t size)
{
    const char *value = value_name(option);

    return snprintf(out, size, "%s%s%s", option->name, *value ? "=" : "",
                    value);
}

/* Adds `text` from column HELP_COLUMN on, broken at spaces before 80. */
static void wrapped(struct ocr_buf *out, const char *text)
{
    const size_t width = 79 - HELP_COLUMN;

    while (strlen(text) > width) {
        size_t n = width;

        while (n > 0 && text[n] != ' ')
            n--;
        if (n == 0)
            break;
        ocr_buf_add(out, text, n);
        ocr_buf_printf(out, "\n%*s", HELP_COLUMN, "");
        text += n + 1;
    }
    ocr_buf_puts(out, text);
    ocr_buf_putc(out, '\n');
}

void ocr_options_help(struct ocr_buf *out, unsigned commands)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct option *option = &table[i];
        const bool shown = option->type != FLAG && option->preset[0] &&
                           strlen(option->preset) <= 8;
        char head[64], text[256];

        if (!(option->commands & commands))
            continue;
        heading(option, head, sizeof head);
        snprintf(text, sizeof text, "%s%s%s%s", option->help, shown ? " [" : "",
                 shown ? option->preset : "", shown ? "]" : "");
        ocr_buf_printf(out, "  %-*s", HELP_COLUMN - 2, head);
        if (strlen(head) > HELP_COLUMN - 3)
            ocr_buf_printf(out, "\n%*s", HELP_COLUMN, "");
        wrapped(out, text);
    }
}

void ocr_options_list(struct ocr_buf *out, unsigned commands)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (table[i].commands & commands)
            ocr_buf_printf(out, "%s\t%s\t%s\t%s\n", table[i].name,
                           value_name(&table[i]), table[i].preset,
                           table[i].help);
}
