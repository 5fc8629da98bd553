/* fs/cmd_bench.c - `ocrfs bench`: how fast is it here? A folder of images is
 * mounted with a cache of its own and read as programs read; what is printed
 * has the form of the tables in README. */
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/commands.h"
#include "fs/options.h"
#include "fs/progress.h"
#include "fs/trial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum {
    TEXTS_MAX = 1000,
    ALONE = 5,   /* texts read one by one */
    RUNS = 5,    /* of what is short */
    KNOWN = 400, /* opens in a run */
    LISTINGS = 20,
    LONGEST_S = 60, /* of reading all */
    DEEPEST = 8,
};

struct bench {
    struct ocr_trial trial;
    const char *source, *options; /* of the user */
    char *text[TEXTS_MAX];        /* paths in the mount */
    size_t count, failed;
};

/* Several times the same. */
struct times {
    double value[RUNS > ALONE ? RUNS : ALONE]; /* seconds */
    size_t count;
};

/* ---- clocks and numbers ------------------------------------------------- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static const char *seconds(double s, char out[32])
{
    if (s >= 10)
        snprintf(out, 32, "%.0f s", s);
    else if (s >= 1)
        snprintf(out, 32, "%.1f s", s);
    else if (s >= 0.001)
        snprintf(out, 32, "%.*f ms", s < 0.01, s * 1e3);
    else
        snprintf(out, 32, "%.*f µs", s < 1e-5, s * 1e6);
    return out;
}

/* "52 µs (51 µs to 57 µs)": the median and the range. */
static void row(const char *what, struct times *t)
{
    char middle[32], least[32], most[32];

    if (!t->count)
        return;
    qsort(t->value, t->count, sizeof *t->value, by_size);
    seconds(t->value[t->count / 2], middle);
    if (t->count == 1)
        printf("| %s | %s |\n", what, middle);
    else
        printf("| %s | %s (%s to %s) |\n", what, middle,
               seconds(t->value[0], least),
               seconds(t->value[t->count - 1], most));
}

/* ---- reading ------------------------------------------------------------ */

/* Reads a file to its end: 0 or an errno. */
static int read_all(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char part[65536];
    ssize_t n = 1;

    if (fd < 0)
        return errno;
    while (n > 0)
        n = read(fd, part, sizeof part);
    close(fd);
    return n < 0 ? EIO : 0;
}

static bool read_text(struct bench *b, size_t i, double *taken)
{
    const double begun = now();
    const int why = read_all(b->text[i]);

    *taken = now() - begun;
    if (!why)
        return true;
    ocr_error("%s: %s", b->text[i] + strlen(b->trial.point) + 1, strerror(why));
    b->failed++;
    return false;
}

/* Gathers the texts below a folder of the mount: those beside an image. */
static void gather(struct bench *b, const char *folder, unsigned depth)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);
    char path[PATH_MAX];
    struct stat st;

    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        const size_t n = strlen(name);
        const bool fits = (size_t)snprintf(path, sizeof path, "%s/%s", folder,
                                           name) < sizeof path;

        if (name[0] == '.' || !fits || lstat(path, &st))
            ;
        else if (S_ISDIR(st.st_mode) && depth < DEEPEST)
            gather(b, path, depth + 1);
        else if (S_ISREG(st.st_mode) && n > 3 && !strcmp(name + n - 3, ".md") &&
                 b->count < TEXTS_MAX) {
            b->text[b->count] = strdup(path);
            path[strlen(path) - 3] = '\0';
            if (b->text[b->count] && access(path, F_OK) == 0)
                b->count++;
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

static void forget_texts(struct bench *b)
{
    for (size_t i = 0; i < b->count; i++)
        free(b->text[i]);
    b->count = 0;
}

/* Mounts with an empty cache. */
static int mount_anew(struct bench *b, const char *cache, const char *more,
                      struct ocr_err *err)
{
    char options[PATH_MAX + 2048];
    int rc;

    if ((size_t)snprintf(options, sizeof options, "%s%scache=%s/%s%s",
                         b->options, *b->options ? "," : "", b->trial.base,
                         cache, more) >= sizeof options)
        return ocr_err_set(err, -EINVAL, "the options are too long");
    rc = ocr_trial_mount(&b->trial, b->source, options, err);
    if (rc)
        return rc;
    forget_texts(b);
    gather(b, b->trial.point, 0);
    return b->count ? 0
                    : ocr_err_set(err, -ENOENT, "there are no images in %s",
                                  b->source);
}

/* ---- what is measured --------------------------------------------------- */

/* Who reads, from the mount's own status; *starts: engines it has started. */
static void say_machine(const struct bench *b, unsigned *starts)
{
    char path[PATH_MAX + 32], line[256], cpu[128] = "";
    struct utsname system;
    FILE *file = fopen("/proc/cpuinfo", "re");
    const json_t *engine;
    const char *version, *device;
    json_t *status;

    while (file && !cpu[0] && fgets(line, sizeof line, file))
        sscanf(line, "model name : %127[^\n]", cpu);
    if (file)
        fclose(file);
    snprintf(path, sizeof path, "%s/.ocrfs/status.json", b->trial.point);
    status = json_load_file(path, 0, NULL);
    engine = json_object_get(status, "engine");
    version = json_string_value(json_object_get(engine, "version"));
    device = json_string_value(json_object_get(engine, "device"));
    *starts = (unsigned)json_integer_value(json_object_get(engine, "starts"));
    uname(&system);
    printf("ocrfs %s, %s on %s; %s, %ld cores, Linux %s; %zu images of %s\n\n",
           OCR_VERSION, version ? version : "no recogniser",
           device ? device : "nothing", cpu[0] ? cpu : system.machine,
           sysconf(_SC_NPROCESSORS_ONLN), system.release, b->count, b->source);
    json_decref(status);
}

/* One text after the other, each when nothing else is read. */
static int read_alone(struct bench *b, struct ocr_err *err)
{
    struct times first = {.count = 0}, alone = {.count = 0};
    unsigned starts;
    double taken;
    int rc = mount_anew(b, "alone", ",prefetch=off", err);

    if (rc)
        return rc;
    if (read_text(b, 0, &taken))
        first.value[first.count++] = taken;
    for (size_t i = 1; i < b->count && alone.count < ALONE; i++)
        if (read_text(b, i, &taken))
            alone.value[alone.count++] = taken;
    say_machine(b, &starts);
    printf("| what | |\n| --- | ---: |\n");
    row(starts ? "first text, the engine started for it"
               : "first text, the engine was there",
        &first);
    row("a text, nothing else being read", &alone);
    return ocr_trial_unmount(&b->trial, err);
}

/* All of them, by one program, as grep -r does. */
static int read_on(struct bench *b, struct ocr_err *err)
{
    struct ocr_progress progress;
    const double begun = now();
    size_t read = 0;
    double taken;
    const int rc = mount_anew(b, "all", "", err);

    if (rc)
        return rc;
    ocr_progress_init(&progress, b->count);
    for (size_t i = 0; i < b->count && now() - begun < LONGEST_S; i++) {
        read += read_text(b, i, &taken);
        ocr_progress_bar(&progress, i + 1);
    }
    taken = now() - begun;
    ocr_progress_clear(&progress);
    if (read)
        printf("| texts a second, one program reads %zu | %.*f |\n", read,
               (double)read / taken < 10, (double)read / taken);
    return 0;
}

/* Those that are known by now. */
static void read_known(struct bench *b)
{
    struct times opens = {.count = 0};
    size_t known = 0;

    /* Those that were read before, and none that failed. */
    while (known < b->count && known < 100 && !read_all(b->text[known]))
        known++;
    for (; known && opens.count < RUNS; opens.count++) {
        const double begun = now();

        for (size_t i = 0; i < KNOWN; i++)
            read_all(b->text[i % known]);
        opens.value[opens.count] = (now() - begun) / KNOWN;
    }
    row("open, read and close a known text", &opens);
}

/* ls -l of the folder. */
static size_t list(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    struct stat st;
    size_t count = 0;

    while (dir && (entry = readdir(dir)))
        count +=
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (dir)
        closedir(dir);
    return count;
}

static void list_all(struct bench *b)
{
    struct times entries = {.count = 0};

    for (; entries.count < RUNS; entries.count++) {
        const double begun = now();
        size_t count = 0;

        for (int i = 0; i < LISTINGS; i++)
            count += list(b->trial.point);
        entries.value[entries.count] =
            (now() - begun) / (double)(count ? count : 1);
    }
    row("`ls -l`, an entry", &entries);
}

static int measure(struct bench *b, struct ocr_err *err)
{
    int rc = ocr_trial_begin(&b->trial, err);

    if (rc == 0)
        rc = read_alone(b, err);
    if (rc == 0)
        rc = read_on(b, err);
    if (rc == 0) {
        read_known(b);
        list_all(b);
    }
    forget_texts(b);
    ocr_trial_end(&b->trial);
    return rc;
}

/* ---- the command -------------------------------------------------------- */

/* The samples that come with it: installed, or in the source. */
static bool find_samples(char out[PATH_MAX])
{
    static const char *const places[] = {"../share/ocrfs/samples",
                                         "../../tests/data/samples"};
    char self[PATH_MAX], path[PATH_MAX + 64];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n > 0 ? n : 0] = '\0';
    if (strrchr(self, '/'))
        *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s/%s", self, places[i]);
        if (realpath(path, out))
            return true;
    }
    return false;
}

static int usage(void)
{
    ocr_error("usage: ocrfs bench [-o OPTIONS] [DIR]");
    return 2;
}

int cmd_bench(int argc, char **argv)
{
    struct bench b = {.options = ""};
    struct ocr_err err = OCR_ERR_INIT;
    char source[PATH_MAX];
    int at = 1, rc;

    if (argc > at && !strcmp(argv[at], "-o")) {
        if (argc == at + 1)
            return usage();
        b.options = argv[at + 1];
        at += 2;
    }
    if (argc > at + 1 || (argc > at && argv[at][0] == '-'))
        return usage();
    if (argc > at ? !realpath(argv[at], source) : !find_samples(source)) {
        ocr_error("%s: %s", argc > at ? argv[at] : "the samples",
                  strerror(errno));
        return 2;
    }
    b.source = source;
    rc = measure(&b, &err);
    if (rc)
        ocr_error("%s", err.text);
    return rc || b.failed ? 1 : 0;
}
