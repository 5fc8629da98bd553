/* engine/gpu/gpu.h - is there a GPU, and may it be used?
 *
 * Asks in the order in which things go wrong: the driver (libcuda.so.1), its
 * version, its cards, our plugin (ocrfs-cuda.so), and the plugin about the
 * card. Nothing here links CUDA; each answer is a sentence for people
 * (kernels/gpu_trouble.h).
 *
 * Layer:   engine.
 * Threads: the engine's main thread. */
#ifndef OCR_GPU_H
#define OCR_GPU_H
#include "engine/base/buf.h"
#include "kernels/backend.h"

/* Where the answers come from; tests give their own. */
struct ocr_gpu_source {
    /* The symbol of the driver's library, NULL without one. */
    void *(*driver)(const char *symbol);
    /* The backend of ocrfs-cuda.so, NULL and why not. */
    const struct ocr_backend_ops *(*plugin)(struct ocr_err *err);
};

extern const struct ocr_gpu_source ocr_gpu_system;

/* What was found; empty strings and zeros for what was not asked any more. */
struct ocr_gpu {
    int driver;     /* CUDA version of the driver: 13000 is 13.0 */
    int count;      /* cards that may be used */
    char card[160]; /* name, memory, and so on of the one chosen */
    const struct ocr_backend_ops *ops; /* set if it can be used */
};

/* Asks for `device`: "cuda" or "cuda:N"; "auto" is the first. 0 or the reason
 * why there is none; *out holds what was learned either way. */
int ocr_gpu_find(struct ocr_gpu *out, const struct ocr_gpu_source *from,
                 const char *device, struct ocr_err *err);

/* Number in "cuda:N", 0 for "cuda" and "auto", -1 for anything else. */
int ocr_gpu_number(const char *device);

/* The next of the devices in *list, "cuda:0,1" or "auto", into out[size]; moves
 * *list on. False: there is none left. Begin with *rest false. */
bool ocr_gpu_next(const char **list, bool *rest, char *out, size_t size);

/* What `ocrfs doctor` shows: a line "VERDICT SUBJECT SENTENCE" with tabs
 * between for each part, VERDICT being ok or note. */
void ocr_gpu_report(const struct ocr_gpu_source *from, const char *devices,
                    struct ocr_buf *out);

#endif
