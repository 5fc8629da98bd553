/* fs/cmd_doctor.c - `ocrfs doctor`: is everything there to mount and to make
 * texts? One line each, with what to do about what is missing. */
#include "cache/cache.h"
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/client/connect.h"
#include "engine/queue.h"
#include "fs/commands.h"
#include "fs/formats.h"
#include "fs/options.h"
#include "fs/trial.h"
#include "fs/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    HELLO_MS = 5000,
    READY_MS = 60 * 1000,
    POLL_MS = 20,
    RESERVE_MIB = 1024, /* of the disk, that the cache leaves free */
    WORKER_MIB = 400,   /* of memory for each page read at a time */
    CAP_SYS_ADMIN_BIT = 21,
};

struct doctor {
    struct ocr_options options;
    unsigned missing; /* what a mount or a text needs */
};

enum verdict {
    OK,
    NOTE,    /* good to know; works without */
    MISSING, /* counted */
};

__attribute__((format(printf, 4, 5))) static void say(struct doctor *d,
                                                      enum verdict verdict,
                                                      const char *subject,
                                                      const char *format, ...)
{
    static const char *const words[] = {"ok", "note", "missing"};
    char raw[1024], line[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    ocr_log_escape(line, sizeof line, raw, strlen(raw));
    printf("%-8s %-14s %s\n", words[verdict], subject, line);
    d->missing += verdict == MISSING;
}

/* The value behind `name` in a file of lines "NAME: VALUE", in `base`. */
static bool find_number(const char *path, const char *name, int base,
                        unsigned long long *out)
{
    FILE *file = fopen(path, "re");
    char line[256];
    bool found = false;

    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)))
            continue;
        *out = strtoull(line + strlen(name), NULL, base);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

/* ---- mounting ----------------------------------------------------------- */

static void check_device(struct doctor *d)
{
    const int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    const int why = errno;

    ocr_close(fd);
    if (fd >= 0)
        say(d, OK, "/dev/fuse", "can be opened");
    else if (why == ENOENT)
        say(d, MISSING, "/dev/fuse",
            "is not there; run: modprobe fuse (in a container: --device "
            "/dev/fuse)");
    else
        say(d, MISSING, "/dev/fuse", "%s; run as root: chmod 666 /dev/fuse",
            strerror(why));
}

/* Path of a program on the PATH, or in the folder of system programs that
 * users lack. */
static bool find_program(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    char all[PATH_MAX];

    snprintf(all, sizeof all, "%s:/usr/bin:/bin:/usr/sbin:/sbin",
             path ? path : "");
    for (char *rest = all, *folder; (folder = strsep(&rest, ":"));) {
        snprintf(out, size, "%s/%s", folder, name);
        if (*folder && access(out, X_OK) == 0)
            return true;
    }
    return false;
}

static bool may_mount(void)
{
    unsigned long long caps = 0;

    find_number("/proc/self/status", "CapEff:", 16, &caps);
    return caps >> CAP_SYS_ADMIN_BIT & 1;
}

static void check_fusermount(struct doctor *d)
{
    char path[PATH_MAX];
    struct stat st;
    const bool found = find_program("fusermount3", path, sizeof path);

    if (found && stat(path, &st) == 0 && (st.st_mode & S_ISUID))
        say(d, OK, "fusermount3", "%s", path);
    else if (may_mount())
        say(d, found ? OK : NOTE, "fusermount3", "%s",
            found ? path
                  : "is not there; root mounts without it, users need "
                    "the package fuse3");
    else if (geteuid() == 0)
        say(d, MISSING, "mount",
            "this root may not mount (a container without CAP_SYS_ADMIN)");
    else
        say(d, MISSING, "fusermount3", "%s; run: apt-get install fuse3",
            found ? "is not set-user-id" : "is not there");
}

static void check_allow_other(struct doctor *d)
{
    FILE *file = fopen("/etc/fuse.conf", "re");
    char line[256];
    bool allowed = geteuid() == 0;

    while (file && !allowed && fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n#")] = '\0';
        allowed = !strcmp(line, "user_allow_other");
    }
    if (file)
        fclose(file);
    if (allowed)
        say(d, OK, "allow_other", "can be used");
    else
        say(d, NOTE, "allow_other",
            "other users can only be let in with the line user_allow_other in "
            "/etc/fuse.conf");
}

/* All that is needed may be there, and a mount still be forbidden. */
static void try_mount(struct doctor *d)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_trial trial;
    char options[PATH_MAX + 128];
    int rc = ocr_trial_begin(&trial, &err);

    snprintf(options, sizeof options,
             "engine=null,engine_idle=1,cache=memory,runtime=%s/run",
             trial.base);
    if (!rc)
        rc = ocr_trial_mount(&trial, NULL, options, &err);
    if (!rc)
        rc = ocr_trial_unmount(&trial, &err);
    ocr_trial_end(&trial);
    if (rc)
        say(d, MISSING, "mount", "%s", err.text);
    else
        say(d, OK, "mount", "an empty folder was mounted, and unmounted");
}

/* ---- folders ------------------------------------------------------------ */

static void say_space(struct doctor *d, const char *folder)
{
    struct statvfs fs;

    if (statvfs(folder, &fs) == 0) {
        const unsigned long long mib =
            (unsigned long long)fs.f_bavail * fs.f_frsize >> 20;

        say(d, mib < RESERVE_MIB && !d->options.cache_size ? NOTE : OK, "cache",
            "%s, %llu MiB of the disk are free%s", folder, mib,
            mib < RESERVE_MIB && !d->options.cache_size
                ? "; below 1024 MiB new texts are not kept (see cache_size)"
                : "");
    } else
        say(d, OK, "cache", "%s", folder);
}

static void check_cache(struct doctor *d)
{
    const struct ocr_cache_options options = {
        .dir = d->options.cache, .max_bytes = d->options.cache_size};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *cache = NULL;

    if (ocr_cache_open(&cache, &options, &err))
        say(d, NOTE, "cache", "%s; texts are kept in memory only", err.text);
    else if (ocr_cache_path(cache)[0] == '/')
        say_space(d, ocr_cache_path(cache));
    else
        say(d, OK, "cache", "texts are kept in memory only");
    ocr_cache_close(cache);
}

static void check_runtime(struct doctor *d)
{
    const char *runtime = d->options.runtime;
    struct ocr_err err = OCR_ERR_INIT;
    char path[PATH_MAX];

    if (ocr_runtime_folder(*runtime ? runtime : NULL, path, sizeof path, &err))
        say(d, MISSING, "runtime", "%s; choose another with --runtime DIR",
            err.text);
    else
        say(d, OK, "runtime", "%s", path);
}

/* ---- the engine --------------------------------------------------------- */

static int open_queue(struct doctor *d, struct ocr_queue **out,
                      struct ocr_err *err)
{
    const struct ocr_options *o = &d->options;
    struct ocr_buf settings;
    char recogniser[OCR_ENGINE_WORD_MAX];
    struct ocr_engine_config config = {
        .recogniser = recogniser,
        .device = o->device,
        .model = o->model,
        .runtime = *o->runtime ? o->runtime : NULL,
        .idle_s = o->engine_idle_s,
        .gpu_idle_s = o->gpu_idle_s,
    };
    int rc;

    ocr_buf_init(&settings, 64 << 10);
    ocr_options_settings(o, &settings);
    config.settings = settings.failed ? "" : settings.data;
    ocr_options_engine(o, recogniser, sizeof recogniser);
    rc = ocr_queue_open(out, &config, NULL, err);
    ocr_buf_release(&settings);
    return rc;
}

/* Loading: from HELLO until it can read, or says why not. */
static void wait_until_ready(struct ocr_queue *q, struct ocr_queue_stats *stats)
{
    const struct timespec nap = {.tv_nsec = POLL_MS * 1000000L};
    const int64_t until = ocr_now_ms() + READY_MS;

    do {
        ocr_queue_stats(q, stats);
        if (stats->state == OCR_ENGINE_READY || stats->trouble[0])
            return;
        nanosleep(&nap, NULL);
    } while (ocr_now_ms() < until);
    snprintf(stats->trouble, sizeof stats->trouble,
             "it did not get ready within %d s", READY_MS / 1000);
}

static bool reads_with_model(const struct doctor *d)
{
    return !strcmp(ocr_options_recogniser(&d->options), "lighton");
}

static bool reads_elsewhere(const struct doctor *d)
{
    return !strcmp(ocr_options_recogniser(&d->options), "http");
}

/* ---- servers: where images go, and how ---------------------------------- */

static void check_key(struct doctor *d)
{
    const char *key = getenv("OPENAI_API_KEY");

    if (*d->options.api_key_file)
        say(d, OK, "key", "from the file %s", d->options.api_key_file);
    else if (key && *key)
        say(d, OK, "key",
            "from OPENAI_API_KEY; a mount at boot needs api_key_file=FILE");
    else
        say(d, NOTE, "key", "none, as for a server that asks for none");
}

static void check_proxies(struct doctor *d)
{
    static const char *const names[] = {
        "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);

        if (value && *value)
            say(d, NOTE, "proxy", "%s is set, and taken", names[i]);
    }
}

static void check_servers(struct doctor *d)
{
    struct ocr_buf sentence;
    bool leaves;

    if (!reads_elsewhere(d))
        return;
    ocr_buf_init(&sentence, OCR_ENGINE_WORD_MAX);
    leaves = ocr_options_say_sent(&d->options, &sentence);
    if (!sentence.failed)
        say(d, NOTE, "network", "%s", sentence.data);
    ocr_buf_release(&sentence);
    if (leaves && strstr(d->options.url, "http://"))
        say(d, NOTE, "network",
            "http:// is not encrypted: pages and key can be read on the way");
    check_key(d);
    check_proxies(d);
}

/* ---- a model ------------------------------------------------------------ */

/* Which model and why that one; or that there is none. */
static void check_model(struct doctor *d)
{
    struct ocr_buf places;

    if (!reads_with_model(d) &&
        (reads_elsewhere(d) || strcmp(d->options.engine, "auto")))
        return;
    ocr_buf_init(&places, 4 * PATH_MAX);
    ocr_options_model_places(&places);
    if (reads_with_model(d))
        say(d, OK, "model", "%s", d->options.model);
    else
        say(d, NOTE, "model",
            "none, texts come from tesseract; get one with: ocrfs model fetch "
            "LightOnOCR-2-1B");
    if (!places.failed && (!reads_with_model(d) || d->options.model_found))
        say(d, NOTE, "looked at", "%s", places.data);
    ocr_buf_release(&places);
}

static void say_ready(struct doctor *d, const struct ocr_queue_stats *s)
{
    const char *name =
        s->version[0] ? s->version : ocr_options_recogniser(&d->options);

    if (reads_with_model(d) || reads_elsewhere(d))
        say(d, OK, "recogniser", "%s, on %s: %s", name, s->device, s->details);
    else
        say(d, OK, "recogniser", "%s, lang=%s, on %s, %u pages at a time", name,
            d->options.lang, s->device, s->capacity);
}

static void check_reading(struct doctor *d, struct ocr_queue *q)
{
    struct ocr_queue_stats stats;

    wait_until_ready(q, &stats);
    if (stats.state == OCR_ENGINE_READY)
        say_ready(d, &stats);
    else
        say(d, MISSING, "recogniser", "%s: %s%s",
            ocr_options_recogniser(&d->options), stats.trouble,
            reads_with_model(d) ? "; name another folder with model=DIR, or "
                                  "read without a model: engine=tesseract"
                                : "");
}

static void check_engine(struct doctor *d)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_queue *q = NULL;
    char path[PATH_MAX];

    if (ocr_engine_program(NULL, path, sizeof path, &err)) {
        say(d, MISSING, "engine", "%s", err.text);
        return;
    }
    if (open_queue(d, &q, &err) || ocr_queue_connect(q, HELLO_MS, &err)) {
        say(d, MISSING, "engine", "%s: %s", path, err.text);
    } else {
        say(d, OK, "engine", "%s answers", path);
        check_reading(d, q);
    }
    if (q)
        ocr_queue_stop(q);
    ocr_queue_close(q);
}

/* ---- the machine -------------------------------------------------------- */

static void check_machine(struct doctor *d)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned long long mib = ocr_memory_available() >> 20;

    if (reads_with_model(d))
        say(d, OK, "memory", "%llu MiB are available; %ld cores", mib, cores);
    else if (mib)
        say(d, mib >= WORKER_MIB ? OK : NOTE, "memory",
            "%llu MiB are available, a page takes up to %d MiB; %ld cores", mib,
            WORKER_MIB, cores);
}

/* A line "VERDICT\tSUBJECT\tSENTENCE" of the engine's. */
static void say_line(void *arg, char *line)
{
    struct doctor *d = arg;
    char *rest = line;
    const char *verdict = strsep(&rest, "\t");
    const char *subject = strsep(&rest, "\t\n");

    if (rest && subject)
        say(d, strcmp(verdict, "ok") ? NOTE : OK, subject, "%s",
            strsep(&rest, "\n"));
}

/* The engine is asked, in a process of its own: looking for a GPU loads the
 * driver's library, and that may do what it likes. `value` may be NULL. */
static void ask_engine(struct doctor *d, const char *option, const char *value)
{
    char recogniser[256];
    const char *const words[] = {
        "--recogniser", recogniser, "--model", d->options.model,
        option,         value,      NULL};

    ocr_options_engine(&d->options, recogniser, sizeof recogniser);
    ocr_engine_ask(words, say_line, d);
}

/* A limit for all programs of a user; watching takes half of it. */
static void check_watching(struct doctor *d)
{
    enum {
        FEW = 16384
    };
    const unsigned limit = watch_limit("max_user_watches");
    const int fd = inotify_init1(IN_CLOEXEC);
    const int why = errno;

    ocr_close(fd);
    if (fd < 0 && why == EMFILE)
        say(d, NOTE, "watching",
            "no folder can be watched, changes show after a second; run as "
            "root: sysctl fs.inotify.max_user_instances=%u",
            4 * watch_limit("max_user_instances"));
    else if (fd < 0)
        say(d, NOTE, "watching",
            "no folder can be watched (%s), changes show after a second",
            strerror(why));
    else if (limit < FEW)
        say(d, NOTE, "watching",
            "%u folders can be watched, changes in more show after a second; "
            "run as root: sysctl fs.inotify.max_user_watches=%u",
            limit / 2, 8 * FEW);
    else
        say(d, OK, "watching", "%u folders can be watched for changes",
            limit / 2);
}

static void check_hash(struct doctor *d)
{
    if (HAVE_XXHASH)
        say(d, OK, "xxhash", "large files are checked by their digest");
    else
        say(d, MISSING, "xxhash",
            "built without it; run: apt-get install libxxhash-dev, build "
            "again");
}

int cmd_doctor(int argc, char **argv)
{
    const bool sizes = cmd_take("--gpu-sizes", &argc, argv);
    struct doctor d = {.missing = 0};
    int status = 2;

    if (cmd_options(&d.options, OCR_FOR_DOCTOR, &argc, argv))
        return status;
    if (argc > 1) {
        ocr_error("doctor takes no files (try ocrfs doctor --help)");
    } else {
        check_device(&d);
        check_fusermount(&d);
        if (!d.missing)
            try_mount(&d);
        check_allow_other(&d);
        check_watching(&d);
        check_cache(&d);
        check_runtime(&d);
        check_model(&d);
        check_servers(&d);
        check_engine(&d);
        check_hash(&d);
        check_machine(&d);
        ask_engine(&d, "--formats", NULL);
        ask_engine(&d, "--sandbox", NULL);
        ask_engine(&d, "--gpu", d.options.device);
        if (sizes)
            ask_engine(&d, "--gpu-sizes", NULL);
        status = d.missing ? 1 : 0;
    }
    ocr_options_release(&d.options);
    return status;
}
