/* kernels/cuda/launch.cuh - starting kernels.
 *
 * Layer:   kernels/cuda, private.
 * Threads: any; device_facts are filled by cuda_ops_prepare. */
#ifndef OCR_CUDA_LAUNCH_CUH
#define OCR_CUDA_LAUNCH_CUH
#include "kernels/cuda/ops.h"

/* Shared memory that a block can have on every card: sm_75. */
constexpr size_t CUDA_LEAST_SHARED = 64 * 1024;

struct device_facts {
    unsigned processors;
    size_t shared;    /* bytes a block can have */
    bool overlapping; /* kernels may start before the one before has ended */
    bool warpgroups;  /* there is code for attention90.cu */
};

/* Of the current device. */
const struct device_facts *device_facts(void);

/* `early`: a kernel that keeps the rule of await_previous (device.cuh). */
template <typename... Formal, typename... Actual>
cudaError_t start(void (*kernel)(Formal...), dim3 grid, unsigned threads,
                  size_t shared, cudaStream_t stream, bool early,
                  const Actual &...args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    if (!device_facts()->processors)
        return cudaErrorInitializationError; /* cuda_ops_prepare was not */
    if (!grid.x || !grid.y || !grid.z)
        return cudaSuccess;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early && device_facts()->overlapping ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* Loads the kernel and lets it use up to `shared` bytes, or as many as the
 * device has. All kernels cut the cache alike: a processor that has to change
 * that cannot take a kernel before the one before has left it. */
template <typename Kernel> cudaError_t prepare(Kernel *kernel, size_t shared)
{
    cudaFuncAttributes a;
    cudaError_t rc = cudaFuncGetAttributes(&a, kernel);

    if (!rc)
        rc = cudaFuncSetAttribute(
            kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
            cudaSharedmemCarveoutMaxShared);
    if (!rc && shared > 48 * 1024)
        rc = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
            static_cast<int>(shared < device_facts()->shared - a.sharedSizeBytes
                                 ? shared
                                 : device_facts()->shared - a.sharedSizeBytes));
    return rc;
}

/* Vision attention where device_facts()->warpgroups: see
 * cuda_vision_attention. */
cudaError_t page_attention_start(cudaStream_t stream, ocr_half half,
                                 uint16_t *out, const uint16_t *q,
                                 const uint16_t *k, const uint16_t *v,
                                 uint32_t patches, uint32_t heads);

/* Each part's kernels. */
cudaError_t prepare_rows(ocr_half half);
cudaError_t prepare_split(ocr_half half);
cudaError_t prepare_attention(ocr_half half);
cudaError_t prepare_page_attention(ocr_half half);
cudaError_t prepare_product(ocr_half half);
cudaError_t prepare_logits(ocr_half half);
cudaError_t prepare_attend(ocr_half half);
cudaError_t prepare_decode(ocr_half half);
cudaError_t prepare_sample(void);

#endif
