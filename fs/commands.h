/* fs/commands.h - the commands of `ocrfs`, one file and one entry each.
 *
 * Layer:   fs.
 * Each takes its own argc and argv (argv[0] is the command's name) and returns
 * the exit status: 0 success, 1 some files failed, 2 wrong use; the mount has
 * the codes of README "Exit status". */
#ifndef OCR_COMMANDS_H
#define OCR_COMMANDS_H

int cmd_mount(int argc, char **argv);
int cmd_read(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

#endif
