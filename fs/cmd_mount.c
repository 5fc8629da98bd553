/* fs/cmd_mount.c - `ocrfs SOURCE MOUNTPOINT`: from the command line to a
 * mounted file system and back. */
#include "cache/cache.h"
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/client/connect.h"
#include "fs/commands.h"
#include "fs/fs.h"
#include "fs/formats.h"
#include "fs/mounts.h"
#include "fs/options.h"
#include "fs/places.h"
#include "fs/privileges.h"
#include "fs/report.h"
#include "fs/warden.h"

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HELLO_MS = 5000,
    SETTLE_MS = 1000,
    LOAD_MS = 120000,
    THREADS = 10,
};

struct mount {
    struct ocr_options options;
    struct ocr_report report;
    struct ocr_places places;
    struct ocr_cache *cache;
    struct ocr_fs *fs;
    struct fuse_session *session;
    struct ocr_warden warden;
};

/* ---- the parts of the start --------------------------------------------- */

/* A daemon keeps no folder busy. */
static int leave_folder(struct ocr_err *err)
{
    umask(077);
    return chdir("/") ? ocr_err_errno(err, "cannot go to /") : 0;
}

static int open_cache(struct mount *m, struct ocr_err *err)
{
    struct ocr_cache_options options = {
        .dir = m->options.cache,
        .max_bytes = m->options.cache_size,
    };
    struct ocr_err why = OCR_ERR_INIT;

    if (ocr_cache_open(&m->cache, &options, &why) == 0)
        return 0;
    ocr_warning("%s; texts are kept in memory only", why.text);
    options.dir = "memory";
    return ocr_cache_open(&m->cache, &options, err);
}

static enum ocr_exit check_folders(const struct mount *m, const char *cache,
                                   const char *runtime, struct ocr_err *err)
{
    enum ocr_exit status = OCR_EXIT_OK;

    if (cache[0] == '/')
        status = ocr_places_allow(&m->places, cache, "cache", err);
    if (status == OCR_EXIT_OK && runtime[0] == '/')
        status = ocr_places_allow(&m->places, runtime, "runtime", err);
    return status;
}

/* Nothing that ocrfs needs may lie in its own mount: checked as asked for,
 * before anything is made there, and as it came out. */
static enum ocr_exit open_folders(struct mount *m, struct ocr_err *err)
{
    const char *asked = m->options.runtime;
    char runtime[PATH_MAX];
    enum ocr_exit status = check_folders(m, m->options.cache, asked, err);

    if (status != OCR_EXIT_OK)
        return status;
    if (open_cache(m, err))
        return OCR_EXIT_SETUP;
    /* Without this folder there is no engine, which is said elsewhere. */
    if (ocr_runtime_folder(*asked ? asked : NULL, runtime, sizeof runtime,
                           NULL))
        runtime[0] = '\0';
    return check_folders(m, ocr_cache_path(m->cache), runtime, err);
}

static unsigned read_number(const char *path)
{
    char text[32] = "";
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof text - 1) < 0)
        text[0] = '\0';
    close(fd);
    return (unsigned)strtoul(text, NULL, 10);
}

/* The kernel can be told to end mounts that take long to answer. */
static void warn_of_request_timeout(const struct mount *m)
{
    static const char *const files[] = {
        "/proc/sys/fs/fuse/default_request_timeout",
        "/proc/sys/fs/fuse/max_request_timeout",
    };
    const unsigned wait = m->options.ocr_timeout_s;

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const unsigned limit = read_number(files[i]);

        if (limit && (wait == 0 || wait >= limit))
            ocr_warning("%s is %u: the kernel ends this mount when a text "
                        "takes longer; use ocr_timeout=%u or less",
                        files[i], limit, limit / 2 ? limit / 2 : 1);
    }
}

static int connect_engine(struct mount *m, struct ocr_err *err)
{
    const bool required = m->options.engine_required;
    struct ocr_err why = OCR_ERR_INIT;
    int rc = ocr_fs_connect(m->fs, HELLO_MS, &why);

    /* A language or model that is missing is found out within moments; what
     * takes longer to load may go on loading behind the mount. */
    if (!rc)
        rc = ocr_fs_wait_ready(m->fs, required ? LOAD_MS : SETTLE_MS, &why);
    if (!rc || (rc == -ETIMEDOUT && !required))
        return 0;
    if (required)
        return ocr_err_set(err, -EIO, "no engine: %s", why.text);
    /* Why there is none was said by the queue. */
    ocr_warning("known texts are served, all others fail until there is one");
    return 0;
}

static void on_ready(void *arg)
{
    struct mount *m = arg;

    ocr_report_ready(&m->report);
    ocr_info("%s is mounted at %s", m->places.name, m->places.mountpoint);
}

static int create_fs(struct mount *m, struct ocr_err *err)
{
    const struct ocr_fs_config config = {
        .options = &m->options,
        .source = m->places.source,
        .source_fd = m->places.source_fd,
        .mountpoint = m->places.mountpoint,
        .cache = m->cache,
        .ready = on_ready,
        .ready_arg = m,
    };

    return ocr_fs_create(&m->fs, &config, err);
}

/* ---- libfuse ------------------------------------------------------------ */

__attribute__((format(printf, 2, 0))) static void
log_of_fuse(enum fuse_log_level level, const char *format, va_list args)
{
    char text[1024];
    size_t len;

    vsnprintf(text, sizeof text, format, args);
    len = strlen(text);
    while (len > 0 && text[len - 1] == '\n')
        text[--len] = '\0';
    if (level <= FUSE_LOG_ERR)
        ocr_error("%s", text);
    else if (level <= FUSE_LOG_WARNING)
        ocr_warning("%s", text);
    else
        ocr_debug("%s", text);
}

/* The list for libfuse; malloc'd, NULL without memory. Ours come last: dev and
 * suid are what mount.fuse3 adds unasked. */
static char *mount_options(const struct mount *m)
{
    static const char *const always[] = {"subtype=ocrfs", "default_permissions",
                                         "ro", "nosuid", "nodev"};
    char *list = m->options.fuse.len ? strdup(m->options.fuse.data) : NULL;
    char *name = NULL;
    int rc = asprintf(&name, "fsname=%s", m->places.name);

    rc = rc < 0 ? rc : fuse_opt_add_opt_escaped(&list, name);
    for (size_t i = 0; rc >= 0 && i < sizeof always / sizeof always[0]; i++)
        rc = fuse_opt_add_opt(&list, always[i]);
    if (rc >= 0 && m->options.allow_other)
        rc = fuse_opt_add_opt(&list, "allow_other");
    free(name);
    if (rc >= 0)
        return list;
    free(list);
    return NULL;
}

static int new_session(struct mount *m, struct ocr_err *err)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct fuse_lowlevel_ops operations;
    char *list = mount_options(m);

    ocr_fs_operations(&m->options, &operations);
    if (list && fuse_opt_add_arg(&args, "ocrfs") == 0 &&
        fuse_opt_add_arg(&args, "-o") == 0 &&
        fuse_opt_add_arg(&args, list) == 0 &&
        (!m->options.debug || fuse_opt_add_arg(&args, "-d") == 0))
        m->session =
            fuse_session_new(&args, &operations, sizeof operations, m->fs);
    free(list);
    fuse_opt_free_args(&args);
    return m->session ? 0
                      : ocr_err_set(err, -EINVAL, "libfuse refuses to start");
}

static int mount_session(struct mount *m, struct ocr_err *err)
{
    int rc;

    ocr_privileges_raise();
    rc = fuse_session_mount(m->session, m->places.mountpoint);
    ocr_privileges_lower();
    if (rc)
        return ocr_err_set(err, -EIO,
                           "cannot mount at %s (ocrfs doctor says what is "
                           "missing)",
                           m->places.mountpoint);
    /* For descriptors that came from fusermount3 or mount.fuse3. */
    fcntl(fuse_session_fd(m->session), F_SETFD, FD_CLOEXEC);
    return 0;
}

static int run_loop(struct mount *m)
{
    struct fuse_loop_config *config;
    int rc;

    if (m->options.single_thread)
        return fuse_session_loop(m->session);
    config = fuse_loop_cfg_create();
    if (!config)
        return -ENOMEM;
    fuse_loop_cfg_set_max_threads(config, THREADS);
    rc = fuse_session_loop_mt(m->session, config);
    fuse_loop_cfg_destroy(config);
    return rc;
}

/* ---- start, run, stop --------------------------------------------------- */

/* Everything up to the loop. */
static enum ocr_exit start(struct mount *m, char *const paths[2],
                           struct ocr_err *err)
{
    enum ocr_exit status;

    if (ocr_warden_init(err))
        return OCR_EXIT_SIGNALS;
    status = ocr_places_open(&m->places, paths[0], paths[1], err);
    if (status != OCR_EXIT_OK)
        return status;
    if (leave_folder(err))
        return OCR_EXIT_SETUP;
    ocr_privileges_drop();
    status = open_folders(m, err);
    if (status != OCR_EXIT_OK)
        return status;
    warn_of_request_timeout(m);
    ocr_formats_learn();
    if (create_fs(m, err) || connect_engine(m, err) || new_session(m, err))
        return OCR_EXIT_SETUP;
    if (mount_session(m, err))
        return OCR_EXIT_MOUNT;
    if (ocr_fs_start(m->fs, m->session, err))
        return OCR_EXIT_SETUP;
    m->warden.fs = m->fs;
    m->warden.session = m->session;
    m->warden.mountpoint = m->places.mountpoint;
    return ocr_warden_start(&m->warden, err) ? OCR_EXIT_SIGNALS : OCR_EXIT_OK;
}

/* The mount may be gone already; what else is at the mount point then is not
 * ours to take away, but libfuse would. */
static void unmount(struct mount *m)
{
    ocr_privileges_raise();
    if (!m->warden.tracked || ocr_warden_is_in_place(&m->warden))
        fuse_session_unmount(m->session);
    /* libfuse leaves a mount whose connection was aborted, and one that has
     * moved because a folder above it was renamed. */
    if (ocr_warden_is_mounted(&m->warden))
        ocr_warden_detach(&m->warden);
    ocr_privileges_lower();
}

static enum ocr_exit serve(struct mount *m)
{
    const int rc = run_loop(m);

    ocr_warden_loop_ended(&m->warden);
    ocr_report_notify(&m->report, "STOPPING=1");
    ocr_fs_stop(m->fs);
    unmount(m);
    ocr_warden_finish(&m->warden);
    if (rc >= 0)
        return OCR_EXIT_OK;
    ocr_error("the mount ended: %s", strerror(-rc));
    return OCR_EXIT_LOOP;
}

static void release(struct mount *m)
{
    if (m->fs)
        ocr_fs_stop(m->fs);
    ocr_fs_destroy(m->fs);
    if (m->session)
        fuse_session_destroy(m->session);
    ocr_cache_close(m->cache);
    ocr_places_release(&m->places);
    ocr_report_release(&m->report);
}

static enum ocr_exit run(struct mount *m, char *const paths[2])
{
    struct ocr_err err = OCR_ERR_INIT;
    enum ocr_exit status = start(m, paths, &err);

    if (status == OCR_EXIT_OK) {
        status = serve(m);
    } else {
        ocr_privileges_raise();
        if (m->session)
            fuse_session_unmount(m->session);
        ocr_privileges_lower();
        ocr_report_failed(&m->report, (int)status, err.text);
    }
    release(m);
    return status;
}

static int say_arguments(int argc, char **argv)
{
    if (argc < 2)
        ocr_error("nothing to mount (try ocrfs --help)");
    else if (argc < 3)
        ocr_error("no mount point (try ocrfs --help)");
    else if (strchr(argv[3], '=') && argv[3][0] != '-')
        ocr_error("'%s' is one argument too many; options go behind -o: -o %s",
                  argv[3], argv[3]);
    else
        ocr_error("'%s' is one argument too many; options go behind -o (try "
                  "ocrfs --help)",
                  argv[3]);
    return argc == 2 ? OCR_EXIT_NO_MOUNTPOINT : OCR_EXIT_OPTION;
}

int cmd_mount(int argc, char **argv)
{
    struct mount m = {.places = {.source_fd = -1, .device = -1}};
    int status = OCR_EXIT_OK;

    if (cmd_options(&m.options, OCR_FOR_MOUNT, &argc, argv))
        return OCR_EXIT_OPTION;
    ocr_report_init(&m.report);
    if (argc != 3) {
        status = say_arguments(argc, argv);
        goto out;
    }
    if (m.options.debug)
        ocr_log_init("ocrfs", OCR_LOG_DEBUG);
    fuse_set_log_func(log_of_fuse);
    /* One heap for each of 20 threads would cost more than a thousand waiting
     * programs do. */
    mallopt(M_ARENA_MAX, 2);
    if (m.options.foreground)
        ocr_report_use_notify(&m.report);
    else if (ocr_report_fork(&m.report, &status))
        goto out;
    status = (int)run(&m, argv + 1);
out:
    ocr_options_release(&m.options);
    return status;
}
