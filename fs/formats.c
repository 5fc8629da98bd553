#include "fs/formats.h"

#include "engine/client/connect.h"
#include "fs/fs_i.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* exec does not write to its words, but is not declared so. */
static void run_engine(char *path, const char *const words[])
{
    char *argv[10] = {path};

    for (size_t i = 0; words[i] && i < 8; i++)
        memcpy(&argv[i + 1], &words[i], sizeof argv[0]);
    execv(path, argv);
}

void ocr_engine_ask(const char *const words[],
                    void (*take)(void *arg, char *line), void *arg)
{
    char path[PATH_MAX], line[1024];
    struct ocr_err err = OCR_ERR_INIT;
    int out[2];
    pid_t child;
    FILE *file;

    if (ocr_engine_program(NULL, path, sizeof path, &err) ||
        pipe2(out, O_CLOEXEC))
        return;
    child = fork();
    if (child == 0) {
        dup2(out[1], STDOUT_FILENO);
        run_engine(path, words);
        _exit(127);
    }
    close(out[1]);
    file = fdopen(out[0], "re");
    while (file && fgets(line, sizeof line, file))
        take(arg, line);
    if (file)
        fclose(file);
    else
        close(out[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
}

/* "ok TAB TIFF TAB .tif .tiff: libtiff 4.5.0" */
static void learn_line(void *arg, char *line)
{
    char *rest = line;
    const char *verdict = strsep(&rest, "\t");
    char *endings;

    (void)arg;
    strsep(&rest, "\t");
    if (!rest || strcmp(verdict, "ok") != 0)
        return;
    endings = strsep(&rest, ":");
    for (char *ending; (ending = strsep(&endings, " "));)
        if (ending[0] == '.')
            names_add(ending);
}

void ocr_formats_learn(void)
{
    static const char *const words[] = {"--formats", NULL};

    ocr_engine_ask(words, learn_line, NULL);
}
