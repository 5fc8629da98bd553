/* fs/commands.h - the commands of `ocrfs`, one file and one entry each.
 *
 * Layer:   fs.
 * Each takes its own argc and argv (argv[0] is the command's name) and returns
 * the exit status: 0 success, 1 some files failed, 2 wrong use; the mount has
 * the codes of README "Exit status". main() has answered --help before. */
#ifndef OCR_COMMANDS_H
#define OCR_COMMANDS_H

#include <stdbool.h>

struct ocr_err;
struct ocr_options;

int cmd_mount(int argc, char **argv);
int cmd_read(int argc, char **argv);
int cmd_warm(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_pause(int argc, char **argv);
int cmd_resume(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_model(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

/* Takes a switch that is no option of the table out of argv: true if it was
 * there. */
bool cmd_take(const char *word, int *argc, char **argv);

/* The same for one with a value, `WORD VALUE` or `WORD=VALUE`: the value,
 * borrowed from argv; "" if there is none, NULL without the word. */
const char *cmd_take_value(const char *word, int *argc, char **argv);

/* Begins every command: defaults, configuration files, then the options in
 * argv, which are taken out (fs/options.h). `command` is an OCR_FOR_*. On
 * failure the reason has been printed and *o is released. */
int cmd_options(struct ocr_options *o, unsigned command, int *argc,
                char **argv);

#endif
