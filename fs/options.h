/* fs/options.h - one table for every option, wherever it is written.
 *
 * `-o NAME=VALUE` of the mount, `--NAME VALUE` of the other commands, and a
 * line `NAME = VALUE` of /etc/ocrfs.conf and ~/.config/ocrfs/config are the
 * same option: command line over user over system. An unknown name is an
 * error that names it (with file and line in a configuration file). Nothing
 * that goes into the cache key depends on the environment.
 *
 * Layer:   fs.
 * Threads: filled by main() before threads start, read-only afterwards. */
#ifndef OCR_OPTIONS_H
#define OCR_OPTIONS_H
#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum ocr_size_mode {
    OCR_SIZE_BOUND,
    OCR_SIZE_WAIT,
    OCR_SIZE_ZERO,
};

#define OCR_ERRORS_WORDS "errno|hide|text"

/* Which commands an option is for. */
enum {
    OCR_FOR_MOUNT = 1,
    OCR_FOR_READ = 2,
    OCR_FOR_STATUS = 4,
    OCR_FOR_CACHE = 8,
    OCR_FOR_DOCTOR = 16,
    OCR_FOR_ALL = 31,
};

/* Strings are owned by the struct and never NULL ("" means not set). */
struct ocr_options {
    /* Recogniser */
    char *engine;     /* auto, lighton, http, tesseract, null[:ARGS] */
    char *lang;       /* "eng", "eng+deu" */
    char *device;     /* auto, cpu, cuda:0, cuda:0,1 */
    char *model;      /* folder of a model; "" after ocr_options_settle: none */
    bool model_found; /* by settle; false: named, or none */
    /* The same as it was written: a name for http, where settle takes it. */
    char *model_name, *model_from; /* "FILE:LINE: " if it must be absolute */
    char *url;                     /* of servers, parted by ';' */
    char *api_key_file, *prompt;
    unsigned http_timeout_s;
    char *tables;         /* pipe, html */
    char *pdf;            /* ocr, text */
    char *precision;      /* auto, bf16, fp16, fp32, int8 */
    uint64_t gpu_memory;  /* bytes, 0: what the pages need */
    char *patch_multiple; /* 28, 14 */
    unsigned max_tokens;  /* a page */
    double temperature, top_p, repetition_penalty;
    bool engine_required;
    unsigned engine_idle_s; /* 600 */
    unsigned gpu_idle_s;    /* 300 */
    unsigned jobs;          /* pages in the engine at most; 0: its capacity */
    bool partial;           /* serve what a truncated image has, uncached */

    char *prefetch; /* auto, off, or how many pages at most */
    char *watch;    /* auto, off, or how many folders at most */
    bool index_new; /* read images as they come */

    /* Texts */
    char *suffix; /* ".md" */
    enum ocr_size_mode size;
    char *size_names;        /* size=wait:NAMES: only for these; "": for all */
    bool show_texts;         /* show=texts: nothing but folders and texts */
    char *include, *exclude; /* globs parted by ':' (fs/pattern.h) */
    unsigned min_pixels;     /* images with fewer have no text */
    char *errors;            /* one of OCR_ERRORS_WORDS */
    bool xattr;
    char *noocr; /* names parted by ':' ; default: indexers, thumbnailers */
    unsigned ocr_timeout_s; /* 0: none */
    bool intr;              /* every signal ends a waiting open */
    bool follow;            /* symlinks that stay below SOURCE get texts */

    /* Cache */
    char *cache;         /* folder, "memory", "": the user's default */
    uint64_t cache_size; /* bytes, 0: until 1 GiB of the disk is left */
    bool verify;         /* hash at every open */
    bool stale_redo;     /* stale=redo */
    bool share_all;      /* share=all */

    /* Mount */
    bool allow_other;
    char *control; /* ".ocrfs"; "" with control=off */
    char *runtime; /* folder for sockets, "": the user's */
    bool foreground, debug, single_thread;
    struct ocr_buf fuse; /* comma list for libfuse: what is its own */

    unsigned command; /* OCR_FOR_*: whose command line is parsed */
};

void ocr_options_init(struct ocr_options *o); /* the defaults */
void ocr_options_release(struct ocr_options *o);

/* Reads /etc/ocrfs.conf, then the user's file, if they exist. Call before the
 * command line is applied. The user's file is $XDG_CONFIG_HOME/ocrfs/config or
 * ~/.config/ocrfs/config; the home folder is the account's if HOME is not set.
 */
int ocr_options_load(struct ocr_options *o, struct ocr_err *err);

/* Reads one such file: lines NAME = VALUE (a flag may stand alone), `#` begins
 * a comment at the start of a line or behind a space. Folders begin with / or
 * ~/. A file that does not exist is no error. */
int ocr_options_load_file(struct ocr_options *o, const char *path,
                          struct ocr_err *err);

/* Applies a list `a,b=c,...` as after -o: a backslash keeps the next byte. */
int ocr_options_apply_list(struct ocr_options *o, const char *list,
                           struct ocr_err *err);

/* Takes --NAME VALUE, --NAME=VALUE, -o LIST, -f, -d and -s out of argv[1..] and
 * leaves the rest (files, folders, in order; `--` ends options) in argv[1..],
 * *argc lowered. The first unknown option is an error. Options of other
 * commands than o->command (OCR_FOR_ALL after init) are refused. */
int ocr_options_apply_args(struct ocr_options *o, int *argc, char **argv,
                           struct ocr_err *err);

/* Decides between folder and name of a model, and fails if http is to read and
 * has no server. Looks for a model if one may be used and none is named:
 * $OCRFS_MODEL, which
 * counts as named, else the first folder with a config.json in
 * the folders of models (fs/models.h). Call once, after all options are
 * known. */
int ocr_options_settle(struct ocr_options *o, struct ocr_err *err);

/* -ENOENT if a model is to read and its folder holds none: for commands that
 * would else print what another model made. A mount goes on and says so. */
int ocr_options_check_model(const struct ocr_options *o, struct ocr_err *err);

/* Appends where settle looks and what is there, for people. */
void ocr_options_model_places(struct ocr_buf *out);

/* The user's home, malloc'd; the account's if HOME is not set (systemd); NULL
 * if there is none. */
char *ocr_home_folder(void);

/* Which recogniser `engine` means: for auto http if there is a url, lighton if
 * there is a model, else tesseract; else engine without its arguments. Borrowed
 * from o or static. */
const char *ocr_options_recogniser(const struct ocr_options *o);

/* The same with what it is started with, for struct ocr_engine_config:
 * "lighton:precision=int8"; needs OCR_ENGINE_WORD_MAX bytes. */
enum {
    OCR_ENGINE_WORD_MAX = 12 << 10
};
void ocr_options_engine(const struct ocr_options *o, char *out, size_t size);

/* Where images are sent to by the recogniser of these options, as a sentence
 * for people; nothing is appended if they stay in the machine's own programs.
 * True if they leave the machine. */
bool ocr_options_say_sent(const struct ocr_options *o, struct ocr_buf *out);

/* The lines name=value\n that decide about the text, sorted by name: they go
 * to the engine and into the cache key. Appends to *out. */
void ocr_options_settings(const struct ocr_options *o, struct ocr_buf *out);

/* The table for --help, the README and the manual: the options of these
 * commands (OCR_FOR_*), one line each. */
void ocr_options_help(struct ocr_buf *out, unsigned commands);

/* The same for programs (completions, the manual page): a line
 * NAME\tVALUE\tDEFAULT\tHELP each. VALUE is empty for a flag, its choices
 * parted by '|' if there are some, else its name in capitals: DIR, N, SIZE. */
void ocr_options_list(struct ocr_buf *out, unsigned commands);

#endif
