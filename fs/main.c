/* fs/main.c - `ocrfs`: finds the command, answers --help and --version. What
 * is no command is a mount: ocrfs SOURCE MOUNTPOINT. */
#include "engine/base/log.h"
#include "fs/commands.h"
#include "fs/options.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    unsigned options; /* OCR_FOR_* */
    const char *arguments;
    const char *summary;
    const char *detail;
};

static const struct command mount_command = {
    "",
    cmd_mount,
    OCR_FOR_MOUNT,
    "SOURCE MOUNTPOINT [-o OPTIONS] [-f] [-d] [-s]",
    "show SOURCE read-only, a text beside each image",
    "Beside each image X.png there is a text X.png.md; opening it reads the\n"
    "image, once. Unmount with: fusermount3 -u MOUNTPOINT\n"
    "\n"
    "  -o LIST  options as below, NAME or NAME=VALUE, parted by commas;\n"
    "           what mount(8) knows (noexec, allow_root, ...) is passed on\n"
    "  -f       stay in the foreground\n"
    "  -d       the same, with every request on standard error\n"
    "  -s       one thread\n"
    "\n"
    "Exit status: 0 mounted (with -f: unmounted), 1 wrong option, 2 no mount\n"
    "point, 3 cannot set up, 4 cannot mount, 5 cannot go to the background,\n"
    "6 cannot handle signals, 7 the mount ended with an error.\n",
};

static const struct command commands[] = {
    {"read", cmd_read, OCR_FOR_READ, "[OPTIONS] FILE...",
     "print the texts of images, without a mount",
     "Texts go to standard output in the order of the files, if there are\n"
     "several each behind a line <!-- FILE -->; - is standard input.\n"
     "\n"
     "  --dump-pages DIR  no texts: each page as tesseract gets it (even,\n"
     "                    straight, enlarged), as an image DIR/FILE.pgm\n"
     "\n"
     "Exit status: 0 success, 1 some files failed, 2 wrong use.\n"},
    {"warm", cmd_warm, OCR_FOR_STATUS, "[--refresh] [DIR]",
     "make all texts below a mounted folder, with a progress bar",
     "DIR is the current folder if it is left out. Nobody who opens a text\n"
     "meanwhile waits for it. Ctrl-C keeps what is made.\n"
     "\n"
     "  --refresh  make texts of another version of the recogniser again\n"
     "\n"
     "Exit status: 0 success, 1 some texts failed (each is named, with the\n"
     "reason), 2 wrong use.\n"},
    {"status", cmd_status, OCR_FOR_STATUS, "[--watch] [--texts] [DIR]",
     "what mounts are doing: queue, errors, cache, engine",
     "DIR is a mount point; without it all mounts that this user may look\n"
     "into. Of a folder below one: how many of its texts are known.\n"
     "\n"
     "  --texts  of a mount point too: how many texts are known; without DIR\n"
     "           of the current folder\n"
     "  --watch  again every second, until Ctrl-C or the end of the mount\n"},
    {"pause", cmd_pause, OCR_FOR_STATUS, "[MOUNTPOINT...]",
     "let nobody wait and read nothing new, so that the machine can sleep",
     "Without MOUNTPOINT all mounts of this user; root: of all users. "
     "Programs\n"
     "that wait for a text get EINTR, and so does whoever opens one that is "
     "not\n"
     "known; known texts are served. What is being read is finished and "
     "kept.\n"},
    {"resume", cmd_resume, OCR_FOR_STATUS, "[MOUNTPOINT...]",
     "the end of a pause", "Without MOUNTPOINT all mounts, as for pause.\n"},
    {"cache", cmd_cache, OCR_FOR_CACHE,
     "stat|verify|clear|forget|gc [PATH...] [--unseen=AGE] [OPTIONS]",
     "look at, check or empty the cache",
     "forget takes images, texts or folders and leaves nothing of their texts\n"
     "in the database or its journal; gc drops what nobody read for AGE, "
     "90d\n"
     "if it is left out. Mounts may use the cache meanwhile.\n"
     "\n"
     "Exit status: 0 success, 1 damage was found (and removed), a PATH\n"
     "failed, or there is no cache, 2 wrong use.\n"},
    {"model", cmd_model, 0, "list|fetch|add|check [--system] [NAME...]",
     "get, look at or check models",
     "fetch gets models from Hugging Face, by the names of list or as\n"
     "OWNER/NAME, and goes on where it was cut; HF_ENDPOINT=URL names a\n"
     "mirror. add copies a folder. check reads all of those named, or all\n"
     "that are here.\n"
     "\n"
     "  --system  for all users, in /usr/local/share/ocrfs/models\n"
     "\n"
     "Exit status: 0 success, 1 a model failed, 2 wrong use.\n"},
    {"doctor", cmd_doctor, OCR_FOR_DOCTOR, "[--gpu-sizes] [OPTIONS]",
     "check what is needed to mount and to read images",
     "  --gpu-sizes  and what the model would take of GPUs of 16 to 141 GB\n"
     "\n"
     "Says what is missing and which package has it. Exit status: 0 if a\n"
     "mount would work and texts can be made, else 1.\n"},
    {"bench", cmd_bench, 0, "[-o OPTIONS] [DIR]", "how fast it is here",
     "Mounts DIR, or samples that come with it, with a cache of its own, and\n"
     "reads: texts one by one, all of them, known ones. Takes a minute or "
     "two.\n"
     "\n"
     "  -o LIST  options for the mount\n"
     "\n"
     "Exit status: 0 success, 1 a text failed, or the mount, 2 wrong use.\n"},
};

enum {
    COMMANDS = sizeof commands / sizeof commands[0],
};

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, name))
            return &commands[i];
    return NULL;
}

/* How many letters must be changed, added, left out or swapped with the next to
 * make `b` of `a`; more than `most` may come out as any larger number. */
static unsigned distance(const char *a, const char *b, unsigned most)
{
    unsigned best, other;

    while (*a && *a == *b) {
        a++;
        b++;
    }
    if (!*a && !*b)
        return 0;
    if (!most)
        return 1;
    best = *a && *b ? distance(a + 1, b + 1, most - 1) : most;
    other = *a ? distance(a + 1, b, most - 1) : most;
    best = other < best ? other : best;
    other = *b ? distance(a, b + 1, most - 1) : most;
    best = other < best ? other : best;
    if (*a && *b && a[0] == b[1] && a[1] == b[0]) {
        other = distance(a + 2, b + 2, most - 1);
        best = other < best ? other : best;
    }
    return best + 1;
}

/* Says that `word` is no command, and which may be meant. */
static int no_command(const char *word)
{
    enum {
        MOST = 2
    };
    const char *nearest = NULL;
    unsigned least = MOST + 1;

    for (size_t i = 0; i < COMMANDS; i++) {
        const unsigned d = distance(word, commands[i].name, MOST);

        if (d < least && d < strlen(word)) {
            nearest = commands[i].name;
            least = d;
        }
    }
    if (nearest)
        ocr_error("there is no command '%s' (did you mean '%s'?)", word,
                  nearest);
    else
        ocr_error("there is no command '%s' (ocrfs --help lists them)", word);
    return 2;
}

/* A single word that can be no SOURCE whose mount point was forgotten. */
static bool is_no_source(const char *word)
{
    struct stat st;

    return *word != '-' && !strchr(word, '/') &&
           (stat(word, &st) || !S_ISDIR(st.st_mode));
}

static void print_details(const struct command *command)
{
    const bool mount = command == &mount_command;
    struct ocr_buf text;

    ocr_buf_init(&text, 64 << 10);
    ocr_buf_printf(&text, "\n%s", command->detail);
    if (command->options)
        ocr_buf_puts(&text, mount
                                ? "\nOptions (-o NAME=VALUE, or a line NAME = "
                                  "VALUE of /etc/ocrfs.conf or\n"
                                  "~/.config/ocrfs/config):\n"
                                : "\nOptions (--NAME VALUE):\n");
    ocr_options_help(&text, command->options);
    if (!text.failed)
        fputs(text.data, stdout);
    ocr_buf_release(&text);
}

static int help_on(const struct command *command)
{
    printf("usage: ocrfs %s%s%s\n", command->name, *command->name ? " " : "",
           command->arguments);
    print_details(command);
    return 0;
}

static int help(void)
{
    printf("usage: ocrfs %s\n", mount_command.arguments);
    for (size_t i = 0; i < COMMANDS; i++)
        printf("       ocrfs %s %s\n", commands[i].name, commands[i].arguments);
    printf("\n%-8s %s\n", "(mount)", mount_command.summary);
    for (size_t i = 0; i < COMMANDS; i++)
        printf("%-8s %s\n", commands[i].name, commands[i].summary);
    print_details(&mount_command);
    return 0;
}

static const char *next_line(const char *at)
{
    at += strcspn(at, "\n");
    return at + (*at == '\n');
}

/* One switch: a line "  -x  what it does" or "  -x LIST  what ..." and those
 * below it that are indented further. Returns the line behind them. */
static const char *list_switch(struct ocr_buf *out, const char *line)
{
    const size_t name = strcspn(line += 2, " ");
    const char *text = line + name + 1;
    const size_t value = strcspn(text, " ");

    ocr_buf_printf(out, "%.*s\t%.*s\t\t", (int)name, line, (int)value, text);
    text += value;
    do {
        text += strspn(text, " ");
        ocr_buf_add(out, text, strcspn(text, "\n"));
        text = next_line(text);
        ocr_buf_putc(out, strncmp(text, "    ", 4) ? '\n' : ' ');
    } while (!strncmp(text, "    ", 4));
    return text;
}

static void list_switches(struct ocr_buf *out, const char *detail)
{
    while (*detail)
        detail = strncmp(detail, "  -", 3) ? next_line(detail)
                                           : list_switch(out, detail);
}

/* For programs: the commands, or the switches and options of one. */
static void list(const struct command *command)
{
    struct ocr_buf text;

    ocr_buf_init(&text, 64 << 10);
    if (command) {
        list_switches(&text, command->detail);
        ocr_options_list(&text, command->options);
    }
    for (size_t i = 0; i < COMMANDS && !command; i++)
        ocr_buf_printf(&text, "%s\t%s\t%s\n", commands[i].name,
                       commands[i].arguments, commands[i].summary);
    if (!text.failed)
        fputs(text.data, stdout);
    ocr_buf_release(&text);
}

static int cmd_help(const char *const *words)
{
    const bool for_programs = words[0] && !strcmp(words[0], "--list");
    const char *topic = words[for_programs];
    const struct command *command = topic ? find(topic) : NULL;

    if (topic && !strcmp(topic, "mount"))
        command = &mount_command;
    if (topic && !command)
        return no_command(topic);
    if (for_programs)
        list(command);
    else
        return command ? help_on(command) : help();
    return 0;
}

/* True if one of `short_form`, `long_form` stands before a "--". */
static bool asks_for(char **argv, const char *short_form, const char *long_form)
{
    for (int i = 1; argv[i] && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], short_form) || !strcmp(argv[i], long_form))
            return true;
    return false;
}

bool cmd_take(const char *word, int *argc, char **argv)
{
    bool found = false;
    int kept = 1;

    for (int i = 1; i < *argc; i++) {
        if (!found && !strcmp(argv[i], word))
            found = true;
        else
            argv[kept++] = argv[i];
    }
    argv[kept] = NULL;
    *argc = kept;
    return found;
}

const char *cmd_take_value(const char *word, int *argc, char **argv)
{
    const size_t len = strlen(word);
    const char *value = NULL;
    bool open = true; /* no -- so far */
    int kept = 1;

    for (int i = 1; i < *argc; i++) {
        open = open && strcmp(argv[i], "--") != 0;
        if (open && !value && !strcmp(argv[i], word))
            value = i + 1 < *argc ? argv[++i] : "";
        else if (open && !value && !strncmp(argv[i], word, len) &&
                 argv[i][len] == '=')
            value = argv[i] + len + 1;
        else
            argv[kept++] = argv[i];
    }
    argv[kept] = NULL;
    *argc = kept;
    return value;
}

int cmd_options(struct ocr_options *o, unsigned command, int *argc, char **argv)
{
    struct ocr_err err = OCR_ERR_INIT;
    int rc;

    ocr_options_init(o);
    rc = ocr_options_load(o, &err);
    o->command = command;
    if (!rc)
        rc = ocr_options_apply_args(o, argc, argv, &err);
    if (!rc && command & (OCR_FOR_MOUNT | OCR_FOR_READ | OCR_FOR_DOCTOR))
        rc = ocr_options_settle(o, &err);
    if (rc) {
        ocr_error("%s", err.text);
        ocr_options_release(o);
    }
    return rc;
}

/* A descriptor 0, 1 or 2 that is closed would become some file of ours. */
static void open_standard_descriptors(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDONLY); /* writing fails, and is said */
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

static int run(int argc, char **argv)
{
    const struct command *command = argc > 1 ? find(argv[1]) : NULL;

    if (argc > 1 && !strcmp(argv[1], "help"))
        return cmd_help((const char *const *)argv + 2);
    if (asks_for(argv, "-V", "--version")) {
        printf("ocrfs %s\n", OCR_VERSION);
        return 0;
    }
    if (asks_for(argv, "-h", "--help"))
        return command ? help_on(command) : help();
    if (command)
        return command->run(argc - 1, argv + 1);
    if (argc == 2 && is_no_source(argv[1]))
        return no_command(argv[1]);
    return cmd_mount(argc, argv);
}

int main(int argc, char **argv)
{
    int status;

    open_standard_descriptors();
    ocr_log_init("ocrfs", OCR_LOG_INFO);
    status = run(argc, argv);
    /* Texts that did not reach a full disk are not success. */
    if (fflush(stdout) || ferror(stdout)) {
        ocr_error("cannot write to standard output");
        return status ? status : 1;
    }
    return status;
}
