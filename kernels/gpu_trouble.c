#include "kernels/gpu_trouble.h"

#include <errno.h>
#include <string.h>

static const struct trouble {
    int code;
    int error;
    bool lost; /* the context cannot be used any more */
    const char *sentence;
} troubles[] = {
    {OCR_GPU_NO_DRIVER, ENODEV, false,
     "there is no NVIDIA driver (libcuda.so.1 was not found); a container "
     "needs the option --gpus all"},
    {OCR_GPU_NO_PLUGIN, ENODEV, false,
     "this build has no part for the GPU: there is no ocrfs-cuda.so beside "
     "ocrfs-engine"},
    {OCR_GPU_NO_CUBLASLT, ENODEV, false,
     "libcublasLt.so.13 was not found; install CUDA's cuBLAS (package "
     "libcublas-13-0)"},
    {OCR_GPU_TOO_OLD, ENODEV, false,
     "this GPU is older than what is supported (compute capability 7.5: T4, "
     "RTX 20 and later)"},
    {OCR_GPU_NO_MEMORY, ENOMEM, false,
     "the GPU has not enough free memory; another program may be using it"},
    {OCR_GPU_OLD_DRIVER, ENODEV, false,
     "the NVIDIA driver is too old for CUDA 13; version 580 or later is "
     "needed"},
    {OCR_GPU_BUSY, ENODEV, false,
     "the GPU is taken by another program (compute mode exclusive)"},
    {OCR_GPU_NONE, ENODEV, false,
     "there is no GPU that CUDA may use (nvidia-smi lists them; with MIG on, a "
     "slice must have been made)"},
    {OCR_GPU_NO_SUCH, ENODEV, false, "there is no GPU with this number"},
    {OCR_GPU_NO_CODE, ENODEV, false,
     "this build has no code for this GPU; build again with its architecture "
     "in CUDA_ARCHS"},
    {OCR_GPU_ECC, EIO, true,
     "the GPU's memory has an error that cannot be corrected; it must be "
     "reset (nvidia-smi -r) or replaced"},
    {OCR_GPU_OLD_PTX, ENODEV, false,
     "the NVIDIA driver is too old to make code for this GPU; update it, or "
     "build again with its architecture in CUDA_ARCHS"},
    {OCR_GPU_ADDRESS, EIO, true,
     "a kernel touched memory that is not its own; this is a fault of ocrfs, "
     "please report it"},
    {OCR_GPU_TIMEOUT, EIO, true,
     "the GPU was stopped because a kernel ran too long (a screen is connected "
     "to it)"},
    {OCR_GPU_LAUNCH, EIO, true,
     "a kernel ended with an error; the GPU or its driver failed"},
    {OCR_GPU_NOT_READY, ENODEV, false,
     "the GPU is not ready yet (is nvidia-fabricmanager running?)"},
    {OCR_GPU_MISMATCH, ENODEV, false,
     "the parts of the NVIDIA driver are of different versions; restart the "
     "machine"},
};

static const struct trouble *find(int code)
{
    for (size_t i = 0; i < sizeof troubles / sizeof *troubles; i++)
        if (troubles[i].code == code)
            return &troubles[i];
    return NULL;
}

int ocr_gpu_err(struct ocr_err *err, int code, const char *what,
                const char *fallback)
{
    const struct trouble *t = find(code);
    const char *colon = what ? ": " : "";

    what = what ? what : "";
    if (t)
        return ocr_err_set(err, -t->error, "%s%s%s", what, colon, t->sentence);
    return ocr_err_set(err, -EIO, "%s%s%s (CUDA error %d)", what, colon,
                       fallback, code);
}

bool ocr_gpu_is_lost(int code)
{
    const struct trouble *t = find(code);

    /* All from 700 to 799 are of kernels that failed, and stay. */
    return (t && t->lost) || (code >= OCR_GPU_ADDRESS && code < 800);
}

bool ocr_gpu_is_fault(int code)
{
    return code && (code < OCR_GPU_ADDRESS || code >= 800);
}

int ocr_gpu_err_small(struct ocr_err *err, const char *name,
                      unsigned long long total, unsigned long long needed)
{
    return ocr_err_set(err, -ENOMEM,
                       "the %s %s has %.1f GiB of memory to use, and one page "
                       "with this model needs %.1f",
                       strstr(name, "MIG") ? "MIG slice" : "GPU", name,
                       (double)total / 0x1p30, (double)needed / 0x1p30);
}
