/* ocrfs-engine: reads pages for ocrfs. People do not start it by hand; ocrfs
 * does, with a listening socket as descriptor 3 (engine/client/connect.c). */
#include "engine/server/server_i.h"

#include "engine/base/log.h"
#include "engine/gpu/gpu.h"
#include "engine/server/formats.h"
#if HAVE_MODEL
#include "engine/model/model.h"
#endif
#include "engine/server/plugin.h"
#include "engine/server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char usage[] =
    "ocrfs-engine is started by ocrfs when a page is to be read.\n"
    "  --recogniser NAME[:ARGS]  --device NAME  --model DIR  --idle SECONDS\n"
    "  --gpu-idle SECONDS             the same where it holds a GPU\n"
    "  --runtime DIR  --name NAME     where its socket is; descriptor 3 "
    "listens\n"
    "  --decode-helper[=KIND]         decode images for an engine\n"
    "  --gpu DEVICE                   say what GPU there is, and what the "
    "model would\n"
    "                                 take of it (ocrfs doctor asks)\n"
    "  --gpu-sizes                    the same of GPUs of other sizes\n"
    "  --sandbox                      say what locks it in (ocrfs doctor "
    "asks)\n"
    "  --formats                      say what it reads beside PNG and JPEG\n"
    "  --check-model DIR              is it whole (ocrfs model check asks)\n"
    "  --help  --version\n";

enum {
    OPTION_RECOGNISER = 256,
    OPTION_DEVICE,
    OPTION_MODEL,
    OPTION_IDLE,
    OPTION_GPU_IDLE,
    OPTION_RUNTIME,
    OPTION_NAME,
    OPTION_HELPER,
    OPTION_GPU,
    OPTION_GPU_SIZES,
    OPTION_SANDBOX,
    OPTION_FORMATS,
    OPTION_CHECK_MODEL,
    OPTION_HELP,
    OPTION_VERSION,
};

static const struct option options[] = {
    {"recogniser", required_argument, NULL, OPTION_RECOGNISER},
    {"device", required_argument, NULL, OPTION_DEVICE},
    {"model", required_argument, NULL, OPTION_MODEL},
    {"idle", required_argument, NULL, OPTION_IDLE},
    {"gpu-idle", required_argument, NULL, OPTION_GPU_IDLE},
    {"runtime", required_argument, NULL, OPTION_RUNTIME},
    {"name", required_argument, NULL, OPTION_NAME},
    {"decode-helper", optional_argument, NULL, OPTION_HELPER},
    {"gpu", required_argument, NULL, OPTION_GPU},
    {"gpu-sizes", no_argument, NULL, OPTION_GPU_SIZES},
    {"check-model", required_argument, NULL, OPTION_CHECK_MODEL},
    {"sandbox", no_argument, NULL, OPTION_SANDBOX},
    {"formats", no_argument, NULL, OPTION_FORMATS},
    {"help", no_argument, NULL, OPTION_HELP},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

enum {
    API_KEY_MAX = 8192
};

struct arguments {
    const char *recogniser;
    struct server *server;
};

/* `device` NULL: GPUs of other sizes. What reads stands before on the command
 * line. */
static int say_gpu(const struct arguments *a, const char *device)
{
    struct ocr_recogniser_config config = a->server->config;
    const struct ocr_recogniser_ops *ops =
        a->recogniser[0]
            ? ocr_recogniser_find(a->recogniser, &config.arguments, NULL)
            : NULL;
    struct ocr_buf text;

    ocr_buf_init(&text, 64 << 10);
    if (device) {
        config.device = device;
        ocr_gpu_report(&ocr_gpu_system, device, &text);
    }
    if (ops && ops->plans)
        ops->plans(&config, !device, &text);
    fwrite(text.data, 1, text.len, stdout);
    ocr_buf_release(&text);
    return 0;
}

/* What holds in a process that locks itself in: it can say it by its exit
 * status only. */
static unsigned try_sandbox(void)
{
    const pid_t pid = fork();
    int status = 0;

    if (pid == 0)
        _exit((int)ocr_sandbox_helper(OCR_ENGINE_LISTEN_FD, 0));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) : 0;
}

/* One line, as that of --gpu. */
static int say_sandbox(void)
{
    const unsigned holds = try_sandbox();

    if (OCR_SANITIZED)
        printf("note\tsandbox\tbuilt with a sanitizer, which works by what a "
               "sandbox forbids\n");
    else if (!HAVE_SECCOMP)
        printf("note\tsandbox\tbuilt without libseccomp: decode helpers may "
               "make any system call; run: apt-get install libseccomp-dev, "
               "build again\n");
    else if (!(holds & OCR_SANDBOX_SECCOMP))
        printf("note\tsandbox\tthis kernel has no seccomp: decode helpers may "
               "make any system call\n");
    else if (!(holds & OCR_SANDBOX_LANDLOCK))
        printf("note\tsandbox\tthis kernel has no Landlock (Linux 5.13): the "
               "engine may open any file of yours\n");
    else
        printf("ok\tsandbox\tdecoding by seccomp, the engine by Landlock\n");
    return 0;
}

/* Prints a sentence, of what it is or why it cannot be used. */
static int check_model(const char *folder)
{
#if HAVE_MODEL
    struct ocr_model_folder *model;
    struct ocr_err err = OCR_ERR_INIT;

    if (ocr_model_folder_open(&model, folder, &err)) {
        puts(err.text);
        return 1;
    }
    printf("whole; fingerprint %.12s\n", model->fingerprint);
    ocr_model_folder_close(model);
    return 0;
#else
    printf("%s: this ocrfs-engine is built without models\n", folder);
    return 1;
#endif
}

/* Takes one option; returns -1 to go on, else the exit status. */
static int take_option(struct arguments *a, int option)
{
    switch (option) {
    case OPTION_RECOGNISER:
        a->recogniser = optarg;
        return -1;
    case OPTION_DEVICE:
        a->server->config.device = optarg;
        return -1;
    case OPTION_MODEL:
        a->server->config.model = optarg;
        return -1;
    case OPTION_IDLE:
        a->server->idle_s = (unsigned)strtoul(optarg, NULL, 10);
        return -1;
    case OPTION_GPU_IDLE:
        a->server->gpu_idle_s = (unsigned)strtoul(optarg, NULL, 10);
        return -1;
    case OPTION_RUNTIME:
        a->server->runtime = optarg;
        return -1;
    case OPTION_NAME:
        a->server->name = optarg;
        return -1;
    case OPTION_HELPER:
        return ocr_decode_helper_main(OCR_ENGINE_LISTEN_FD, optarg);
    case OPTION_GPU:
        return say_gpu(a, optarg);
    case OPTION_GPU_SIZES:
        return say_gpu(a, NULL);
    case OPTION_CHECK_MODEL:
        return check_model(optarg);
    case OPTION_SANDBOX:
        return say_sandbox();
    case OPTION_FORMATS:
        return ocr_formats_say();
    case OPTION_HELP:
        fputs(usage, stdout);
        return 0;
    case OPTION_VERSION:
        puts("ocrfs-engine " OCR_VERSION);
        return 0;
    default:
        fputs(usage, stderr);
        return 2;
    }
}

/* Descriptor 3 must be a listening socket, and its name in the folder ours. */
static bool check_socket(struct server *s)
{
    char path[PATH_MAX];
    int listening = 0;
    socklen_t size = sizeof listening;
    struct stat st;

    snprintf(path, sizeof path, "%s/%s.sock", s->runtime, s->name);
    if (getsockopt(s->listener, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) ||
        !listening || stat(path, &st))
        return false;
    s->socket_ino = st.st_ino;
    return fcntl(s->listener, F_SETFD, FD_CLOEXEC) == 0 &&
           fcntl(s->listener, F_SETFL, O_NONBLOCK) == 0;
}

/* Descriptors of pages and helpers: all that may be had, and enough. */
static bool enough_descriptors(struct ocr_err *err)
{
    enum {
        LEAST = 128
    };
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return true;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= LEAST)
        return true;
    ocr_err_set(err, -EMFILE,
                "the engine may open only %llu files, and needs %d: raise the "
                "limit (ulimit -n)",
                (unsigned long long)limit.rlim_cur, LEAST);
    return false;
}

/* Only the recogniser gets the key: not the helpers that decode, who inherit
 * the environment. */
static const char *take_api_key(void)
{
    static const char name[] = "OPENAI_API_KEY";
    static char key[API_KEY_MAX];
    const char *value = getenv(name);

    snprintf(key, sizeof key, "%s", value ? value : "");
    unsetenv(name);
    return key;
}

/* The starter waits for its child only: the engine lives on without it. */
static bool go_to_background(void)
{
    const pid_t pid = fork();

    if (pid > 0)
        _exit(0);
    return pid == 0 && setsid() >= 0 && chdir("/") == 0;
}

/* The engine holds nothing but its socket yet, and has one thread. */
static void lock_in(const struct server *s)
{
    char key_file[PATH_MAX] = "";
    const struct ocr_sandbox_engine engine = {
        .runtime = s->runtime,
        .model = s->config.model,
        .key_file = key_file,
        .network = s->ops->network,
        .gpu = strcmp(s->config.device, "cpu") != 0};

    if (s->ops->network)
        ocr_setting(s->config.arguments, "api_key_file", "", key_file,
                    sizeof key_file);
    if (!(ocr_sandbox_engine(&engine) & OCR_SANDBOX_LANDLOCK))
        ocr_info("this kernel has no Landlock: the engine may open any file");
}

int main(int argc, char **argv)
{
    struct server s = {
        .config = {.arguments = "", .device = "auto", .model = ""},
        .listener = OCR_ENGINE_LISTEN_FD,
        .idle_s = 600,
        .gpu_idle_s = 300,
        .runtime = "",
        .name = ""};
    struct arguments a = {"", &s};
    struct ocr_err err = OCR_ERR_INIT;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        const int status = take_option(&a, option);

        if (status >= 0)
            return status;
    }
    ocr_log_init("ocrfs-engine", OCR_LOG_INFO);
    s.config.api_key = take_api_key();
    if (!check_socket(&s)) {
        fputs(usage, stderr);
        return 2;
    }
    s.ops = ocr_recogniser_find(a.recogniser, &s.config.arguments, &err);
    if (!s.ops || !enough_descriptors(&err))
        s.ops = ocr_recogniser_missing(&err);
    umask(077);
    signal(SIGPIPE, SIG_IGN);
    if (!go_to_background())
        return 1;
    lock_in(&s);
    crash_install();
    return server_run(&s);
}
