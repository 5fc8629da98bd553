/* engine/client/connect.h - finds the engine that serves a configuration, or
 * starts one.
 *
 * Whoever needs an engine first binds its socket, in a private folder, and
 * hands the listening descriptor to the program it starts: there is no moment
 * in which an engine runs but cannot be reached. A lock file beside the socket
 * makes starters take turns.
 *
 * Layer:   engine, private to client/ and server/.
 * Threads: no state. Blocks for a few ms, longer only if another process is
 *          starting the same engine. */
#ifndef OCR_CONNECT_H
#define OCR_CONNECT_H
#include "engine/queue.h"

/* A connected socket, the caller's, close-on-exec, non-blocking; *started says
 * whether an engine was started for it. -ENOENT if there is no program. */
int ocr_connect(const struct ocr_engine_config *config, bool *started,
                struct ocr_err *err);

/* The engine at the socket does not answer: the next ocr_connect starts a new
 * one. */
void ocr_connect_forget(const struct ocr_engine_config *config);

/* The folder for sockets (`runtime` or, if NULL, the user's): made with mode
 * 0700 if it is not there, refused if it is not ours alone. Returns its path
 * in `out`. */
int ocr_runtime_folder(const char *runtime, char *out, size_t size,
                       struct ocr_err *err);

/* Where ocrfs-engine is: `program` if given, else beside this program, else
 * in ../libexec/ocrfs. -ENOENT with a sentence that names the places. */
int ocr_engine_program(const char *program, char *out, size_t size,
                       struct ocr_err *err);

#endif
