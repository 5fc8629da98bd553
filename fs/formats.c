#include "fs/formats.h"

#include "engine/client/connect.h"
#include "fs/fs_i.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void ocr_engine_ask(const char *option, const char *value,
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
        execl(path, path, option, value, (char *)NULL);
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
    ocr_engine_ask("--formats", NULL, learn_line, NULL);
}
