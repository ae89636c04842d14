// A driver that knows of no GPU, and as much of cuBLAS as cuDNN asks about: what cuDNN wants to find before it names
// engines that are compiled when they are wanted, and compiles them, for a GPU that is only described
// (tests/suite/cudnn.rs). Nothing here computes.
#include <dlfcn.h>

extern "C" {

// CUDA_ERROR_NO_DEVICE
int cuInit(unsigned) {
    return 100;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

// What is compiled is loaded, and a kernel looked up in it.
int cuLibraryLoadData(void **library, const void *, void *, void *, unsigned, void *, void *, unsigned) {
    static int loaded;
    *library = &loaded;
    return 0;
}

int cuLibraryGetKernel(void **kernel, void *, const char *) {
    static int found;
    *kernel = &found;
    return 0;
}

size_t cublasLtGetVersion() {
    return 130000;
}

// CUBLAS_STATUS_NOT_INITIALIZED
int cublasLtCreate(void **) {
    return 1;
}

int absent_call() {
    return 0;
}

#define ABSENT(name)                                                                                                   \
    int name() {                                                                                                       \
        return 0;                                                                                                      \
    }
#define EACH(of)                                                                                                       \
    of(cuCtxGetCurrent) of(cuCtxGetDevice) of(cuCtxGetLimit) of(cuCtxPopCurrent) of(cuCtxPushCurrent) of(cuDeviceGet)  \
    of(cuDeviceGetAttribute) of(cuDeviceGetCount) of(cuFuncGetAttribute) of(cuFuncSetAttribute) of(cuGetErrorName)     \
    of(cuGetErrorString) of(cuKernelGetAttribute) of(cuKernelGetFunction) of(cuKernelSetAttribute)                     \
    of(cuLaunchCooperativeKernel) of(cuLaunchKernel) of(cuLaunchKernelEx) of(cuLibraryGetModule)                       \
    of(cuLibraryLoadFromFile) of(cuLibraryUnload) of(cuLinkAddData) of(cuLinkComplete) of(cuLinkCreate)                \
    of(cuLinkDestroy) of(cuModuleGetFunction) of(cuModuleLoadData) of(cuModuleLoadDataEx) of(cuModuleUnload)           \
    of(cuOccupancyMaxPotentialClusterSize) of(cuStreamGetCaptureInfo) of(cuStreamGetCtx) of(cuTensorMapEncodeIm2col)   \
    of(cuTensorMapEncodeIm2colWide) of(cuTensorMapEncodeTiled) of(cuTensorMapReplaceAddress) of(cublasLtDestroy)       \
    of(cublasLtMatmul) of(cublasLtMatmulAlgoGetHeuristic) of(cublasLtMatmulDescCreate) of(cublasLtMatmulDescDestroy)   \
    of(cublasLtMatmulDescGetAttribute) of(cublasLtMatmulDescSetAttribute) of(cublasLtMatmulPreferenceCreate)           \
    of(cublasLtMatmulPreferenceDestroy) of(cublasLtMatmulPreferenceSetAttribute) of(cublasLtMatrixLayoutCreate)        \
    of(cublasLtMatrixLayoutDestroy) of(cublasLtMatrixLayoutGetAttribute) of(cublasLtMatrixLayoutSetAttribute)          \
    of(cublasLtMatrixTransform) of(cublasLtMatrixTransformDescCreate) of(cublasLtMatrixTransformDescDestroy)           \
    of(cublasLtMatrixTransformDescSetAttribute)
EACH(ABSENT)

// The runtime that cuDNN holds looks up hundreds of functions, and calls none of those before cuInit.
int cuGetProcAddress_v2(const char *name, void **function, int, unsigned long long, int *status) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = (void *)absent_call;
    if (status) *status = 0;
    return 0;
}

} // extern "C"
