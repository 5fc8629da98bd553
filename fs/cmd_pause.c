/* fs/cmd_pause.c - `ocrfs pause` and `ocrfs resume`: nobody waits for texts
 * and nothing new is read, until told otherwise (fs/pause.h). */
#include "engine/base/log.h"
#include "fs/ask.h"
#include "fs/commands.h"
#include "fs/mounts.h"
#include "fs/options.h"
#include "fs/pause.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The machine may be busy; it sleeps no sooner for less. */
enum {
    PATIENCE_MS = 5000
};

struct request {
    const struct ocr_mount *mount;
    const char *control;
    unsigned long command;
};

/* The child's. */
static int tell(const void *arg, int out)
{
    const struct request *request = arg;
    char path[PATH_MAX];
    int fd, rc = ocr_ask_become(request->mount);

    (void)out;
    if (rc)
        return rc;
    snprintf(path, sizeof path, "%s/%s", request->mount->point,
             request->control);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    rc = ioctl(fd, request->command) ? errno : 0;
    close(fd);
    return rc;
}

static int tell_one(const struct request *request, const char *done)
{
    const char *point = request->mount->point;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf nothing;
    int rc;

    ocr_buf_init(&nothing, 1);
    rc = ocr_ask(tell, request, PATIENCE_MS, point, &nothing, &err);
    ocr_buf_release(&nothing);
    if (rc == 0)
        ocr_info("%s: %s", point, done);
    else if (rc == -ETIMEDOUT)
        ocr_ask_say_hung(point, PATIENCE_MS);
    else if (rc == -ENOTTY || rc == -ENOENT)
        ocr_error("%s has no control folder of this name, or is of an older "
                  "ocrfs (see --control)",
                  point);
    else
        ocr_error("%s", err.text);
    return rc ? 1 : 0;
}

static int tell_named(const struct ocr_mounts *mounts, const char *text,
                      struct request *request, const char *done)
{
    char *point = ocr_mount_name(text);

    request->mount = point ? ocr_mounts_at(mounts, point) : NULL;
    free(point);
    if (request->mount && ocr_mount_is_ours(request->mount))
        return tell_one(request, done);
    ocr_error("%s is no mount of ocrfs (ocrfs status lists them)", text);
    return 1;
}

static int tell_all(const struct ocr_mounts *mounts, struct request *request,
                    const char *done)
{
    int status = 0;

    request->mount = NULL;
    while ((request->mount = ocr_mounts_next(mounts, request->mount)))
        status |= tell_one(request, done);
    return status;
}

static int run(int argc, char **argv, unsigned long command, const char *done)
{
    struct request request = {.command = command};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_options options;
    struct ocr_mounts mounts;
    int status;

    if (cmd_options(&options, OCR_FOR_STATUS, &argc, argv))
        return 2;
    request.control = options.control;
    if (!*options.control) {
        ocr_error("without a control folder a mount cannot be told");
        status = 2;
    } else if (ocr_mounts_read(&mounts, &err)) {
        ocr_error("%s", err.text);
        status = 1;
    } else {
        status = argc > 1 ? 0 : tell_all(&mounts, &request, done);
        for (int i = 1; i < argc; i++)
            status |= tell_named(&mounts, argv[i], &request, done);
        ocr_mounts_release(&mounts);
    }
    ocr_options_release(&options);
    return status;
}

int cmd_pause(int argc, char **argv)
{
    return run(argc, argv, OCR_PAUSE_IOCTL,
               "paused; texts that are not known fail until ocrfs resume");
}

int cmd_resume(int argc, char **argv)
{
    return run(argc, argv, OCR_RESUME_IOCTL, "reads again");
}
