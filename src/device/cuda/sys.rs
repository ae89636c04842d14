//! The functions of CUDA's libraries that dltrain calls, in one table a library, looked up by name at run time.
//!
//! Types and constants are `cudarc`'s generated ones. Its functions are not used: they panic where a symbol is missing,
//! and read results as Rust enums, which a newer library's unknown code must not become. Here a missing symbol is a
//! value, a result is an integer, and every call of a table gives a `Result` that the compiler does not let anybody
//! drop.
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub use cudarc::cublas::sys::cublasHandle_t;
pub use cudarc::cudnn::sys::{cudnnBackendDescriptor_t, cudnnHandle_t};
pub use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUipcMemHandle, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUstream,
};

use super::library;
use crate::error::Error;

/// A call that failed, and with which code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    pub library: CudaLibrary,
    pub call: &'static str,
    pub code: c_int,
}

/// Which library a code is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaLibrary {
    Driver,
    Blas,
    Dnn,
    Nccl,
}

/// CUDA_SUCCESS, CUBLAS_STATUS_SUCCESS, CUDNN_STATUS_SUCCESS and ncclSuccess.
const SUCCESS: c_int = 0;
pub const CUDA_ERROR_OUT_OF_MEMORY: c_int = 2;
pub const CUDA_ERROR_NO_DEVICE: c_int = 100;
pub const CUDA_ERROR_NOT_READY: c_int = 600;
pub const CUDNN_STATUS_NOT_SUPPORTED: c_int = 3000;
pub const CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED: c_int = 4003;
pub const CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED: c_int = 4004;

pub type CudaResult<T = ()> = Result<T, Failed>;

/// Declares a table: its loading, and a method a function that checks its result.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident of $kind:expr; $($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(#[$doc])*
        pub struct $table {
            // Private: who calls goes through the method of the same name.
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }
        impl $table {
            /// Looks up every function; the name of the first that is missing otherwise.
            ///
            /// # Safety
            /// The library must be the one whose functions these are, and stay open for the process's life.
            pub unsafe fn load(library: &libloading::Library) -> Result<$table, &'static str> {
                Ok($table {
                    // SAFETY: the types are those of the library's reference; the caller vouches for the library.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| stringify!($name))?,)*
                })
            }

            $(
                /// # Safety
                /// As the library's reference has it: pointers and handles must be valid.
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $name(&self, $($argument: $type),*) -> CudaResult {
                    // SAFETY: the caller's.
                    let code = unsafe { (self.$name)($($argument),*) };
                    check($kind, stringify!($name), code)
                }
            )*
        }
    };
}

fn check(library: CudaLibrary, call: &'static str, code: c_int) -> CudaResult {
    if code == SUCCESS { Ok(()) } else { Err(Failed { library, call, code }) }
}

impl From<Failed> for Error {
    fn from(Failed { library, call, code }: Failed) -> Error {
        let name = match library {
            CudaLibrary::Driver => "CUDA driver",
            CudaLibrary::Blas => "cuBLAS",
            CudaLibrary::Dnn => "cuDNN",
            CudaLibrary::Nccl => "NCCL",
        };
        let mut error = Error::foreign(name, call, code.into(), library::text(library, code));
        if library == CudaLibrary::Driver && code == CUDA_ERROR_OUT_OF_MEMORY {
            error.kind = crate::error::ErrorKind::Environment;
            error.message += "; use a smaller --batch, --recompute, or fewer ranks on this GPU";
        }
        error
    }
}

table! {
    /// What can be asked before any GPU is used.
    Probe of CudaLibrary::Driver;
    cuInit(flags: c_uint);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
}

table! {
    /// The driver. All of it has been there since CUDA 11.8.
    Driver of CudaLibrary::Driver;
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxSetCurrent(context: CUcontext);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
    cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcCloseMemHandle(address: CUdeviceptr);
    cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister(address: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemsetD8Async(to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
    cuEventQuery(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);
    cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *const c_int,
        values: *mut *mut c_void
    );
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void
    );
    cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void
    );
    cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
    cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(executable: CUgraphExec);
    cuGraphDestroy(graph: CUgraph);
}

table! {
    /// cuBLAS 12 or 13.
    Blas of CudaLibrary::Blas;
    cublasCreate_v2(handle: *mut cublasHandle_t);
    cublasDestroy_v2(handle: cublasHandle_t);
    cublasSetStream_v2(handle: cublasHandle_t, stream: CUstream);
    cublasSetWorkspace_v2(handle: cublasHandle_t, workspace: *mut c_void, bytes: usize);
    cublasSetMathMode(handle: cublasHandle_t, mode: c_int);
    cublasGemmEx(
        handle: cublasHandle_t,
        transpose_a: c_int,
        transpose_b: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_type: c_int,
        lda: c_int,
        b: *const c_void,
        b_type: c_int,
        ldb: c_int,
        beta: *const c_void,
        c: *mut c_void,
        c_type: c_int,
        ldc: c_int,
        compute_type: c_int,
        algorithm: c_int
    );
    cublasGemmStridedBatchedEx(
        handle: cublasHandle_t,
        transpose_a: c_int,
        transpose_b: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_type: c_int,
        lda: c_int,
        stride_a: i64,
        b: *const c_void,
        b_type: c_int,
        ldb: c_int,
        stride_b: i64,
        beta: *const c_void,
        c: *mut c_void,
        c_type: c_int,
        ldc: c_int,
        stride_c: i64,
        batch: c_int,
        compute_type: c_int,
        algorithm: c_int
    );
}

table! {
    /// cuDNN 9: the backend interface.
    Dnn of CudaLibrary::Dnn;
    cudnnCreate(handle: *mut cudnnHandle_t);
    cudnnDestroy(handle: cudnnHandle_t);
    cudnnSetStream(handle: cudnnHandle_t, stream: CUstream);
    cudnnBackendCreateDescriptor(kind: c_int, descriptor: *mut cudnnBackendDescriptor_t);
    cudnnBackendDestroyDescriptor(descriptor: cudnnBackendDescriptor_t);
    cudnnBackendSetAttribute(
        descriptor: cudnnBackendDescriptor_t,
        name: c_int,
        of: c_int,
        count: i64,
        values: *const c_void
    );
    cudnnBackendGetAttribute(
        descriptor: cudnnBackendDescriptor_t,
        name: c_int,
        of: c_int,
        room: i64,
        count: *mut i64,
        values: *mut c_void
    );
    cudnnBackendFinalize(descriptor: cudnnBackendDescriptor_t);
    cudnnBackendExecute(
        handle: cudnnHandle_t,
        plan: cudnnBackendDescriptor_t,
        memory: cudnnBackendDescriptor_t
    );
}

/// ncclComm_t
pub type NcclComm = *mut c_void;

/// ncclUniqueId
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NcclUniqueId(pub [u8; 128]);

/// ncclConfig_t as far as NCCL 2.14 had it. The library reads `size` bytes, and takes its own values for what came
/// later.
#[repr(C)]
pub struct NcclConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
}

table! {
    /// NCCL 2.14 or newer.
    Nccl of CudaLibrary::Nccl;
    ncclGetVersion(version: *mut c_int);
    ncclGetUniqueId(id: *mut NcclUniqueId);
    ncclCommInitRankConfig(comm: *mut NcclComm, ranks: c_int, id: NcclUniqueId, rank: c_int, config: *mut NcclConfig);
    ncclCommGetAsyncError(comm: NcclComm, code: *mut c_int);
    ncclAllReduce(
        from: *const c_void,
        to: *mut c_void,
        count: usize,
        datatype: c_int,
        operation: c_int,
        comm: NcclComm,
        stream: CUstream
    );
    ncclCommFinalize(comm: NcclComm);
    ncclCommDestroy(comm: NcclComm);
    ncclCommAbort(comm: NcclComm);
}

/// Functions that do not answer with a status.
pub type NcclLastError = unsafe extern "C" fn(NcclComm) -> *const c_char;
pub type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
pub type DriverVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
/// nvrtcVersion
pub type NvrtcVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
pub type DnnVersion = unsafe extern "C" fn() -> usize;
pub type DnnText = unsafe extern "C" fn(c_int) -> *const c_char;

/// The words of cuBLAS's reference for its codes.
pub fn blas_text(code: c_int) -> &'static str {
    match code {
        1 => "the library was not initialised",
        3 => "a resource could not be allocated",
        7 => "an argument is not valid",
        8 => "this GPU lacks what the call needs",
        11 => "memory could not be reached",
        13 => "the GPU program failed to run",
        14 => "an internal operation failed",
        15 => "what is asked for is not supported",
        16 => "a licence was not found",
        _ => "unknown to dltrain",
    }
}

/// Copies a text that a library owns.
///
/// # Safety
/// `text` must be null or end with a zero.
pub unsafe fn owned(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
