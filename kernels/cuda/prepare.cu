/* What the device is, which shapes the kernels can do, and loading them. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

/* Tests build with less, to be as other cards are (65536: sm_75). */
#ifndef OCR_CUDA_SHARED
#define OCR_CUDA_SHARED SIZE_MAX
#endif

namespace
{
enum {
    DEVICES = 64
};

struct device_facts facts[DEVICES];

/* Whether this is code with the instructions of sm_90a. */
__global__ void probe(uint32_t *answer)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    *answer = 1;
#else
    *answer = 0;
#endif
}

__device__ uint32_t has_warpgroups;

cudaError_t ask_warpgroups(bool *has)
{
    uint32_t *at, answer;
    cudaError_t rc =
        cudaGetSymbolAddress(reinterpret_cast<void **>(&at), has_warpgroups);

    if (rc)
        return rc;
    probe<<<1, 1>>>(at);
    rc = cudaGetLastError();
    rc = rc ? rc
            : cudaMemcpy(&answer, at, sizeof answer, cudaMemcpyDeviceToHost);
    *has = !rc && answer;
    return rc;
}

cudaError_t learn(struct device_facts *f, int device)
{
    int processors, shared, major;
    cudaFuncAttributes a;
    cudaError_t rc = cudaDeviceGetAttribute(
        &processors, cudaDevAttrMultiProcessorCount, device);

    if (!rc)
        rc = cudaDeviceGetAttribute(
            &shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (!rc)
        rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                    device);
    if (!rc)
        rc = cudaFuncGetAttributes(&a, probe);
    if (rc)
        return rc;
    f->processors = (unsigned)processors;
    f->shared =
        (size_t)shared < OCR_CUDA_SHARED ? (size_t)shared : OCR_CUDA_SHARED;
    /* Code made of older PTX does not wait for the kernel before. */
    f->overlapping = major >= 9 && a.ptxVersion >= 90;
    return ask_warpgroups(&f->warpgroups);
}

bool is_multiple(uint32_t n, uint32_t of)
{
    return n && n % of == 0;
}
} // namespace

const struct device_facts *device_facts(void)
{
    int device = 0;

    if (cudaGetDevice(&device) || device < 0 || device >= DEVICES)
        device = 0;
    return &facts[device];
}

cudaError_t cuda_ops_prepare(enum ocr_half half)
{
    int device;
    cudaError_t rc = cudaGetDevice(&device);

    if (!rc && device >= DEVICES)
        rc = cudaErrorInvalidDevice;
    rc = rc ? rc : learn(&facts[device], device);
    rc = rc ? rc : prepare_rows(half);
    rc = rc ? rc : prepare_split(half);
    rc = rc ? rc : prepare_attention(half);
    rc = rc ? rc : prepare_page_attention(half);
    rc = rc ? rc : prepare_product(half);
    rc = rc ? rc : prepare_logits(half);
    rc = rc ? rc : prepare_attend(half);
    rc = rc ? rc : prepare_sample();
    rc = rc ? rc : prepare_decode(half);
    return rc ? rc : cudaDeviceSynchronize();
}

const char *cuda_ops_refusal(const struct cuda_shape *s)
{
    const uint32_t group =
        s->text_kv_heads && s->text_heads % s->text_kv_heads == 0
            ? s->text_heads / s->text_kv_heads
            : 0;

    if (s->patch != CUDA_PATCH || s->merge != 2)
        return "the GPU kernels take patches of 14 pixels, merged 2 x 2";
    if (s->vision_head_dim != CUDA_VISION_DIM)
        return "the GPU kernels take vision heads of 64 numbers";
    if (s->text_head_dim != CUDA_TEXT_DIM)
        return "the GPU kernels take text heads of 128 numbers";
    if (!is_multiple(s->vision_hidden, 64) ||
        !is_multiple(s->vision_inner, 64) || !is_multiple(s->text_hidden, 64) ||
        !is_multiple(s->text_inner, 64) ||
        !is_multiple(s->projector_hidden, 64))
        return "the GPU kernels take widths that are multiples of 64";
    if (group != 1 && group != 2 && group != 4)
        return "the GPU kernels take 1, 2 or 4 query heads for each head of K "
               "and V";
    if (!is_multiple(s->vocab, 8))
        return "the GPU kernels take a vocabulary of a multiple of 8";
    return nullptr;
}
