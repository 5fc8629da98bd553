/* tests/plugin/played.h - a GPU that is played: a backend with the ABI of
 * ocrfs-cuda.so around another one (kernels/cpu, or the plugin that
 * $OCRFS_PLAYED_OVER names), which can be told to be slow, to fail, and to have
 * little memory, and which looks after what the engine owes a backend: no block
 * in two slots, no slot closed before the last event of its work was taken.
 * What is owed and not done ends the process with a sentence.
 *
 * As ocrfs-cuda.so beside a copy of ocrfs-engine (with libcuda.so.1 of the same
 * folder on the library path) it makes an engine with GPUs on any machine;
 * linked into a unit test it is told directly.
 *
 * Layer:   tests.
 * Threads: as kernels/backend.h. */
#ifndef PLAYED_H
#define PLAYED_H
#include "kernels/backend.h"

/* In a file, the one that $OCRFS_PLAYED names: words NAME=NUMBER. It is read
 * when a backend is opened or probed, and with every slot that is opened. */
struct played {
    unsigned slow_us;       /* slow: a step takes so much longer */
    unsigned fault;         /* an enum ocr_fault; counts at open */
    unsigned fault_tokens;  /* image tokens of the guilty page: (width / 28) *
                               (height / 28) of a small one */
    unsigned fault_at;      /* of NAN: which generated id */
    unsigned device_fault;  /* LOST is the card's own fault */
    unsigned gone;          /* there is no card any more */
    unsigned mute;          /* a call never comes back once a page of
                               fault_tokens is there */
    unsigned slots, blocks; /* at most, of the plan; 0: what is asked for */
    unsigned memory_mib;    /* of the card; 0: a lot */
    unsigned stolen_mib;    /* taken by another process between the question
                               how much is free and the reservation */
    /* Counted, not read, since the start: read them with played_count(). */
    unsigned opened, steps;
    unsigned pages, most_pages; /* slots open */
};

extern struct played played;

static inline unsigned played_count(const unsigned *counter)
{
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

const struct ocr_backend_ops *played_backend(void);

#endif
