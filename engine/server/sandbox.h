/* engine/server/sandbox.h - locks a process in, for good.
 *
 * The engine loads models and drivers: it may open what it needs for that and
 * nothing else, gets no new privileges, and reaches no network unless its
 * recogniser is made for it.
 *
 * A decode helper reads other people's bytes with C libraries: it is treated
 * as taken over from the first image on. It has no privileges, opens nothing,
 * reaches no network, starts nothing, and signals nobody but itself; all it
 * can do is compute, answer on its socket, and die. What no decoder ever asks
 * for ends it (SIGSYS); everything else that is not allowed fails with EPERM,
 * so that a library that looks for a file can do without it.
 *
 * Layer:   engine/server.
 * Threads: the calling one and those it starts later: call it before others
 *          are there.
 * Errors:  none: what the kernel does not have is left out, and the result
 *          says what holds. */
#ifndef OCR_SANDBOX_H
#define OCR_SANDBOX_H
#include <stdbool.h>

/* Sanitizers reserve terabytes of addresses, and open files and start
 * processes for their reports: with them there is no filter of system calls
 * and no limit on memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCR_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OCR_SANITIZED true
#endif
#endif
#ifndef OCR_SANITIZED
#define OCR_SANITIZED false
#endif

enum {
    OCR_SANDBOX_PRIVILEGES = 1, /* none, and no new ones */
    OCR_SANDBOX_LANDLOCK = 2,   /* no files but those named (Linux 5.13) */
    OCR_SANDBOX_SECCOMP = 4,    /* a filter of system calls */
};

struct ocr_sandbox_engine {
    const char *runtime;  /* folder of its socket */
    const char *model;    /* folder, "" if none */
    const char *key_file; /* in a folder that may be read, "" if none */
    bool network;         /* the recogniser talks to other machines */
    bool gpu;             /* it may use one */
};

/* For the engine, before its first thread; helpers inherit it.
 * OCRFS_SANDBOX=off in the environment leaves it out, for a driver that needs
 * more than is known here; that of the helpers stays. */
unsigned ocr_sandbox_engine(const struct ocr_sandbox_engine *engine);

/* What some helpers need and get. */
enum {
    /* The system's fonts and the configuration of fontconfig may be read; with
     * a kernel that can keep everything else closed (Landlock), else not. */
    OCR_SANDBOX_FONTS = 1,
    OCR_SANDBOX_THREADS = 2, /* threads may be started, no processes */
};

/* For a decode helper that talks on `sock`: OCR_SANDBOX_* that hold now. */
unsigned ocr_sandbox_helper(int sock, unsigned needs);

#endif
