//! The part of oneDNN's C API that dltrain calls, written by hand after `oneapi/dnnl/dnnl.h`.
//!
//! Enumerations are plain integers: a later 3.x may return a value that this file has no name for. Every
//! function here has had the same signature from 3.0 on.

use std::ffi::{c_char, c_float, c_int, c_uint, c_void};

/// `dnnl_status_t`.
pub type Status = c_int;
pub const SUCCESS: Status = 0;

/// What a status means (`dnnl_status_t`'s comments).
pub fn status_text(status: Status) -> &'static str {
    match status {
        0 => "success",
        1 => "out of memory",
        2 => "invalid arguments",
        3 => "unimplemented",
        4 => "last implementation reached",
        5 => "runtime error",
        6 => "not required",
        7 => "invalid graph",
        8 => "invalid graph op",
        9 => "invalid shape",
        10 => "invalid data type",
        _ => "unknown status",
    }
}

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )*};
}
opaque! {
    /// `dnnl_engine`.
    Engine;
    /// `dnnl_stream`.
    Stream;
    /// `dnnl_memory_desc`.
    MemoryDesc;
    /// `dnnl_memory`.
    Memory;
    /// `dnnl_primitive_desc`.
    PrimitiveDesc;
    /// `dnnl_primitive`.
    Primitive;
    /// `dnnl_primitive_attr`.
    PrimitiveAttr;
    /// `dnnl_post_ops`.
    PostOps;
}

/// `dnnl_version_t`.
#[repr(C)]
pub struct Version {
    pub major: c_int,
    pub minor: c_int,
    pub patch: c_int,
    pub hash: *const c_char,
    pub cpu_runtime: c_uint,
    pub gpu_runtime: c_uint,
}

/// `DNNL_RUNTIME_*`: what the library was built to run its CPU work on.
pub const RUNTIME_SEQ: c_uint = 1;
pub const RUNTIME_OMP: c_uint = 2;
pub const RUNTIME_TBB: c_uint = 4;
pub const RUNTIME_THREADPOOL: c_uint = 8;
pub const RUNTIME_SYCL: c_uint = 512;

/// `dnnl_exec_arg_t`: one argument of a primitive's execution.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecArg {
    pub arg: c_int,
    pub memory: *mut Memory,
}

pub const MAX_NDIMS: usize = 12;
/// `dnnl_dims_t`.
pub type Dims = [i64; MAX_NDIMS];

/// `dnnl_cpu`, of `dnnl_engine_kind_t`.
pub const ENGINE_CPU: c_int = 1;
/// `dnnl_stream_default_flags`.
pub const STREAM_DEFAULT: c_uint = 1;
/// `dnnl_scratchpad_mode_user`.
pub const SCRATCHPAD_USER: c_int = 1;
/// `dnnl_format_tag_any`.
pub const FORMAT_TAG_ANY: c_int = 1;
/// `dnnl_blocked`, of `dnnl_format_kind_t`.
pub const FORMAT_KIND_BLOCKED: c_int = 2;

/// `dnnl_data_type_t`.
pub type DataType = c_int;
pub const BF16: DataType = 2;
pub const UNDEFINED: DataType = 0;
pub const F32: DataType = 3;
pub const S32: DataType = 4;
pub const S8: DataType = 5;
pub const U8: DataType = 6;

/// `dnnl_prop_kind_t`.
pub type PropKind = c_int;
pub const FORWARD_TRAINING: PropKind = 64;
pub const FORWARD_INFERENCE: PropKind = 96;
pub const BACKWARD: PropKind = 128;

/// `dnnl_alg_kind_t`.
pub type AlgKind = c_int;
pub const CONVOLUTION_DIRECT: AlgKind = 0x1;
pub const ELTWISE_RELU: AlgKind = 0x20;
pub const ELTWISE_LINEAR: AlgKind = 0x26;
pub const SOFTMAX_ACCURATE: AlgKind = 0x30000;
pub const BINARY_ADD: AlgKind = 0x1fff0;
pub const BINARY_MUL: AlgKind = 0x1fff1;
pub const BINARY_DIV: AlgKind = 0x1fff4;
pub const BINARY_SUB: AlgKind = 0x1fff5;
pub const POOLING_MAX: AlgKind = 0x1ff;
pub const POOLING_AVG_INCLUDE_PADDING: AlgKind = 0x2ff;
pub const POOLING_AVG_EXCLUDE_PADDING: AlgKind = 0x3ff;
pub const LRN_ACROSS_CHANNELS: AlgKind = 0xaff;

/// `dnnl_normalization_flags_t`.
pub const USE_GLOBAL_STATS: c_uint = 1;
pub const USE_SCALE: c_uint = 2;
pub const USE_SHIFT: c_uint = 4;
pub const FUSE_NORM_RELU: c_uint = 8;

/// `dnnl_query_t`.
pub type Query = c_int;
pub const QUERY_IMPL_INFO_STR: Query = 8;
pub const QUERY_STRIDES: Query = 14;
pub const QUERY_EXEC_ARG_MD: Query = 255;
pub const QUERY_NDIMS_S32: Query = 256;
pub const QUERY_DIMS: Query = 257;
pub const QUERY_DATA_TYPE: Query = 258;
pub const QUERY_SUBMEMORY_OFFSET_S64: Query = 259;
pub const QUERY_PADDED_DIMS: Query = 260;
pub const QUERY_FORMAT_KIND: Query = 262;
pub const QUERY_INNER_NBLKS_S32: Query = 263;
pub const QUERY_INNER_BLKS: Query = 264;
pub const QUERY_INNER_IDXS: Query = 265;

/// `DNNL_ARG_*`.
pub const ARG_SRC: c_int = 1;
pub const ARG_SRC_1: c_int = 2;
pub const ARG_DST: c_int = 17;
pub const ARG_WEIGHTS: c_int = 33;
pub const ARG_BIAS: c_int = 41;
pub const ARG_MEAN: c_int = 49;
pub const ARG_VARIANCE: c_int = 50;
pub const ARG_SCALE: c_int = 51;
pub const ARG_SHIFT: c_int = 52;
pub const ARG_WORKSPACE: c_int = 64;
pub const ARG_SCRATCHPAD: c_int = 80;
pub const ARG_DIFF_SRC: c_int = 129;
pub const ARG_DIFF_DST: c_int = 145;
pub const ARG_DIFF_WEIGHTS: c_int = 161;
pub const ARG_DIFF_BIAS: c_int = 169;
pub const ARG_DIFF_SCALE: c_int = 255;
pub const ARG_DIFF_SHIFT: c_int = 256;
/// The first of several inputs; the others follow.
pub const ARG_MULTIPLE_SRC: c_int = 1024;

/// A table of C functions looked up in a shared library by name.
macro_rules! functions {
    ($(fn $name:ident($($arg:ty),* $(,)?) -> $ret:ty;)*) => {
        /// Pointers to the functions of one loaded library.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Errors
            /// The name of the first function that the library lacks.
            ///
            /// # Safety
            /// `library` must be oneDNN 3.x and stay loaded as long as the table is used.
            pub unsafe fn load(library: &libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: oneDNN 3.x declares the function with this signature.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0")) };
                        *symbol.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

functions! {
    fn dnnl_set_max_cpu_isa(c_int) -> Status;
    fn dnnl_get_effective_cpu_isa() -> c_int;
    fn dnnl_get_primitive_cache_capacity(*mut c_int) -> Status;
    fn dnnl_set_primitive_cache_capacity(c_int) -> Status;
    // transa, transb; m, n, k; alpha, a, lda, b, ldb, beta, c, ldc; row-major
    fn dnnl_sgemm(
        c_char, c_char, i64, i64, i64, c_float, *const c_float, i64, *const c_float, i64,
        c_float, *mut c_float, i64,
    ) -> Status;

    fn dnnl_engine_create(*mut *mut Engine, c_int, usize) -> Status;
    fn dnnl_engine_destroy(*mut Engine) -> Status;
    fn dnnl_stream_create(*mut *mut Stream, *mut Engine, c_uint) -> Status;
    fn dnnl_stream_wait(*mut Stream) -> Status;
    fn dnnl_stream_destroy(*mut Stream) -> Status;

    fn dnnl_memory_desc_create_with_strides(*mut *mut MemoryDesc, c_int, *const i64, DataType, *const i64) -> Status;
    fn dnnl_memory_desc_create_with_tag(*mut *mut MemoryDesc, c_int, *const i64, DataType, c_int) -> Status;
    fn dnnl_memory_desc_clone(*mut *mut MemoryDesc, *const MemoryDesc) -> Status;
    // whole, extents of the part, where it begins
    fn dnnl_memory_desc_create_submemory(*mut *mut MemoryDesc, *const MemoryDesc, *const i64, *const i64) -> Status;
    fn dnnl_memory_desc_query(*const MemoryDesc, Query, *mut c_void) -> Status;
    fn dnnl_memory_desc_get_size(*const MemoryDesc) -> usize;
    fn dnnl_memory_desc_destroy(*mut MemoryDesc) -> Status;
    fn dnnl_memory_create(*mut *mut Memory, *const MemoryDesc, *mut Engine, *mut c_void) -> Status;
    fn dnnl_memory_destroy(*mut Memory) -> Status;

    fn dnnl_primitive_attr_create(*mut *mut PrimitiveAttr) -> Status;
    fn dnnl_primitive_attr_set_scratchpad_mode(*mut PrimitiveAttr, c_int) -> Status;
    fn dnnl_primitive_attr_set_post_ops(*mut PrimitiveAttr, *const PostOps) -> Status;
    fn dnnl_primitive_attr_destroy(*mut PrimitiveAttr) -> Status;
    fn dnnl_post_ops_create(*mut *mut PostOps) -> Status;
    fn dnnl_post_ops_append_eltwise(*mut PostOps, AlgKind, c_float, c_float) -> Status;
    // scale of what is there, its zero point, its type
    fn dnnl_post_ops_append_sum(*mut PostOps, c_float, i32, DataType) -> Status;
    fn dnnl_post_ops_destroy(*mut PostOps) -> Status;

    fn dnnl_primitive_desc_query(*const PrimitiveDesc, Query, c_int, *mut c_void) -> Status;
    fn dnnl_primitive_desc_next_impl(*mut PrimitiveDesc) -> Status;
    fn dnnl_primitive_desc_destroy(*mut PrimitiveDesc) -> Status;
    fn dnnl_primitive_create(*mut *mut Primitive, *const PrimitiveDesc) -> Status;
    fn dnnl_primitive_execute(*const Primitive, *mut Stream, c_int, *const ExecArg) -> Status;
    fn dnnl_primitive_destroy(*mut Primitive) -> Status;

    // source, its engine, destination, its engine, attributes
    fn dnnl_reorder_primitive_desc_create(
        *mut *mut PrimitiveDesc, *const MemoryDesc, *mut Engine, *const MemoryDesc, *mut Engine,
        *const PrimitiveAttr,
    ) -> Status;
    // src, weights, bias, dst; strides, dilations, padding before, padding after
    fn dnnl_convolution_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, AlgKind,
        *const MemoryDesc, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const i64, *const i64, *const i64, *const i64, *const PrimitiveAttr,
    ) -> Status;
    // diff src, weights, diff dst; geometry; forward hint
    fn dnnl_convolution_backward_data_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind,
        *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const i64, *const i64, *const i64, *const i64, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, diff weights, diff bias, diff dst; geometry; forward hint
    fn dnnl_convolution_backward_weights_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind,
        *const MemoryDesc, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const i64, *const i64, *const i64, *const i64, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, weights, bias, dst
    fn dnnl_inner_product_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind,
        *const MemoryDesc, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc, *const PrimitiveAttr,
    ) -> Status;
    // diff src, weights, diff dst; forward hint
    fn dnnl_inner_product_backward_data_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine,
        *const MemoryDesc, *const MemoryDesc, *const MemoryDesc, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, diff weights, diff bias, diff dst; forward hint
    fn dnnl_inner_product_backward_weights_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine,
        *const MemoryDesc, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, dst; strides, kernel, dilations, padding before, padding after
    fn dnnl_pooling_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, AlgKind, *const MemoryDesc, *const MemoryDesc,
        *const i64, *const i64, *const i64, *const i64, *const i64, *const PrimitiveAttr,
    ) -> Status;
    // diff src, diff dst; geometry; forward hint
    fn dnnl_pooling_backward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind, *const MemoryDesc, *const MemoryDesc,
        *const i64, *const i64, *const i64, *const i64, *const i64,
        *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, dst; epsilon, flags
    fn dnnl_batch_normalization_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, *const MemoryDesc, *const MemoryDesc,
        c_float, c_uint, *const PrimitiveAttr,
    ) -> Status;
    // diff src, diff dst, src; epsilon, flags; forward hint
    fn dnnl_batch_normalization_backward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        c_float, c_uint, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, dst, mean; epsilon, flags
    fn dnnl_layer_normalization_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        c_float, c_uint, *const PrimitiveAttr,
    ) -> Status;
    // diff src, diff dst, src, mean; epsilon, flags; forward hint
    fn dnnl_layer_normalization_backward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const MemoryDesc, c_float, c_uint, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, weights, bias, dst
    fn dnnl_matmul_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const MemoryDesc, *const PrimitiveAttr,
    ) -> Status;
    // src, dst; axis
    fn dnnl_softmax_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, AlgKind, *const MemoryDesc, *const MemoryDesc, c_int,
        *const PrimitiveAttr,
    ) -> Status;
    // diff src, diff dst, dst; axis; forward hint
    fn dnnl_softmax_backward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        c_int, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // sources, dst
    fn dnnl_binary_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        *const PrimitiveAttr,
    ) -> Status;
    // src, dst; alpha, beta
    fn dnnl_eltwise_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, AlgKind, *const MemoryDesc, *const MemoryDesc,
        c_float, c_float, *const PrimitiveAttr,
    ) -> Status;
    // dst, which may be null; inputs, along which dimension; srcs
    fn dnnl_concat_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, *const MemoryDesc, c_int, c_int, *const *const MemoryDesc,
        *const PrimitiveAttr,
    ) -> Status;
    // src, dst; size, alpha, beta, k
    fn dnnl_lrn_forward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, PropKind, AlgKind, *const MemoryDesc, *const MemoryDesc,
        i64, c_float, c_float, c_float, *const PrimitiveAttr,
    ) -> Status;
    // diff src, diff dst, src; size, alpha, beta, k; forward hint
    fn dnnl_lrn_backward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        i64, c_float, c_float, c_float, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
    // diff src, diff dst, data; alpha, beta; forward hint
    fn dnnl_eltwise_backward_primitive_desc_create(
        *mut *mut PrimitiveDesc, *mut Engine, AlgKind, *const MemoryDesc, *const MemoryDesc, *const MemoryDesc,
        c_float, c_float, *const PrimitiveDesc, *const PrimitiveAttr,
    ) -> Status;
}
