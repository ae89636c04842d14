//! Owners of oneDNN's objects: each frees its object when dropped, each failed call becomes an `Error` that
//! names the call and its status.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::rc::Rc;

use super::library::{Library, check, library};
use super::sys;
use crate::error::{Error, Result};

/// Calls a function of the library and checks its status.
macro_rules! call {
    ($library:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $crate::device::onednn::library::check(
            ($library.functions.$name)($($arg),*), stringify!($name),
        )
    };
}

/// The CPU engine with its one stream, and the threads that work on it.
pub struct Engine {
    pub library: &'static Library,
    engine: *mut sys::Engine,
    stream: *mut sys::Stream,
    pub threads: usize,
}

impl Engine {
    pub fn new(threads: usize) -> Result<Rc<Engine>> {
        let library = library()?;
        if threads > 1 && !library.threaded() {
            let found = library.found();
            return Err(Error::environment(format!(
                "{} is built without OpenMP ({}) and runs on one thread; use --threads 1, or an OpenMP build \
                 (PyPI's onednn-cpu-gomp)",
                found.path.display(),
                found.runtime
            )));
        }
        let mut this = Engine { library, engine: ptr::null_mut(), stream: ptr::null_mut(), threads };
        // SAFETY: the out-pointers are valid; what was made so far is freed by Drop if a call fails.
        unsafe {
            call!(library, dnnl_engine_create(&mut this.engine, sys::ENGINE_CPU, 0))?;
            call!(library, dnnl_stream_create(&mut this.stream, this.engine, sys::STREAM_DEFAULT))?;
        }
        Ok(Rc::new(this))
    }

    pub fn raw(&self) -> *mut sys::Engine {
        self.engine
    }

    /// Makes this engine's thread count the calling thread's: OpenMP keeps it per thread, not per engine.
    pub fn enter(&self) {
        self.library.set_threads(self.threads);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: both were made by `new` or are null, which oneDNN ignores; memories and primitives hold an
        // `Rc` to this engine, so none is left.
        unsafe {
            (self.library.functions.dnnl_stream_destroy)(self.stream);
            (self.library.functions.dnnl_engine_destroy)(self.engine);
        }
    }
}

/// A memory descriptor: dimensions, element type, layout.
pub struct Desc {
    library: &'static Library,
    raw: *mut sys::MemoryDesc,
}

impl Desc {
    /// A descriptor that leaves the layout to the primitive.
    pub fn any(engine: &Engine, dims: &[usize], data_type: sys::DataType) -> Result<Desc> {
        let (ndims, dims) = to_dims(dims)?;
        let mut raw = ptr::null_mut();
        // SAFETY: `dims` has room for every dimension a descriptor may have.
        unsafe {
            call!(
                engine.library,
                dnnl_memory_desc_create_with_tag(
                    &mut raw,
                    ndims,
                    dims.as_ptr(),
                    data_type,
                    sys::FORMAT_TAG_ANY
                )
            )?;
        }
        Ok(Desc { library: engine.library, raw })
    }

    /// Dense, the last dimension fastest.
    pub fn plain(engine: &Engine, dims: &[usize], data_type: sys::DataType) -> Result<Desc> {
        let (ndims, extents) = to_dims(dims)?;
        let mut strides: sys::Dims = [0; sys::MAX_NDIMS];
        let mut stride = 1;
        for d in (0..dims.len()).rev() {
            strides[d] = stride;
            stride *= extents[d].max(1);
        }
        Desc::with_strides(engine, ndims, &extents, &strides, data_type)
    }

    /// With strides in elements.
    pub fn strided(
        engine: &Engine,
        dims: &[usize],
        strides: &[usize],
        data_type: sys::DataType,
    ) -> Result<Desc> {
        let ((ndims, extents), (_, strides)) = (to_dims(dims)?, to_dims(strides)?);
        Desc::with_strides(engine, ndims, &extents, &strides, data_type)
    }

    fn with_strides(
        engine: &Engine,
        ndims: c_int,
        extents: &sys::Dims,
        strides: &sys::Dims,
        data_type: sys::DataType,
    ) -> Result<Desc> {
        let mut raw = ptr::null_mut();
        // SAFETY: both arrays have room for every dimension a descriptor may have.
        unsafe {
            call!(
                engine.library,
                dnnl_memory_desc_create_with_strides(
                    &mut raw,
                    ndims,
                    extents.as_ptr(),
                    data_type,
                    strides.as_ptr()
                )
            )?;
        }
        Ok(Desc { library: engine.library, raw })
    }

    /// A copy of the descriptor.
    pub fn copy(&self) -> Result<Desc> {
        let mut raw = ptr::null_mut();
        // SAFETY: the descriptor is alive; the clone is ours.
        unsafe { call!(self.library, dnnl_memory_desc_clone(&mut raw, self.raw))? };
        Ok(Desc { library: self.library, raw })
    }

    /// A part of the tensor that this describes, where it lies.
    ///
    /// # Errors
    /// `Internal` also where the part does not begin or end with a block of the layout.
    pub fn part(&self, dims: &[usize], offsets: &[usize]) -> Result<Desc> {
        let ((_, dims), (_, offsets)) = (to_dims(dims)?, to_dims(offsets)?);
        let mut raw = ptr::null_mut();
        // SAFETY: both arrays have room for every dimension a descriptor may have.
        unsafe {
            let (dims, offsets) = (dims.as_ptr(), offsets.as_ptr());
            call!(self.library, dnnl_memory_desc_create_submemory(&mut raw, self.raw, dims, offsets))?;
        }
        Ok(Desc { library: self.library, raw })
    }

    pub fn raw(&self) -> *const sys::MemoryDesc {
        self.raw
    }

    /// Bytes of a tensor of this layout, padding included.
    pub fn bytes(&self) -> usize {
        // SAFETY: the descriptor is alive.
        unsafe { (self.library.functions.dnnl_memory_desc_get_size)(self.raw) }
    }

    pub fn dims(&self) -> Result<Vec<i64>> {
        self.vector(sys::QUERY_DIMS, self.ndims()?)
    }

    pub fn data_type(&self) -> Result<sys::DataType> {
        // Where no element is, its type is not defined.
        if self.ndims()? == 0 { Ok(0) } else { self.scalar(sys::QUERY_DATA_TYPE) }
    }

    pub fn ndims(&self) -> Result<usize> {
        Ok(self.scalar::<c_int>(sys::QUERY_NDIMS_S32)? as usize)
    }

    /// One number about the descriptor. `T` must be the type that the query's name ends in.
    pub fn scalar<T: Default>(&self, what: sys::Query) -> Result<T> {
        let mut value = T::default();
        // SAFETY: the query writes one value of the type its name ends in.
        unsafe {
            call!(self.library, dnnl_memory_desc_query(self.raw, what, (&raw mut value).cast::<c_void>()))?;
        }
        Ok(value)
    }

    /// A vector about the descriptor, of `length` numbers; the library keeps it.
    pub fn vector(&self, what: sys::Query, length: usize) -> Result<Vec<i64>> {
        let mut values: *const i64 = ptr::null();
        // SAFETY: the query writes a pointer to a dnnl_dims_t inside the descriptor, which is alive.
        unsafe {
            call!(self.library, dnnl_memory_desc_query(self.raw, what, (&raw mut values).cast::<c_void>()))?;
            if values.is_null() || length > sys::MAX_NDIMS {
                return Err(Error::internal("oneDNN described a layout without its dimensions"));
            }
            Ok(std::slice::from_raw_parts(values, length).to_vec())
        }
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made by this type's constructors, freed once.
        unsafe {
            (self.library.functions.dnnl_memory_desc_destroy)(self.raw);
        }
    }
}

/// Extents in the form that the C API takes.
pub fn to_dims(dims: &[usize]) -> Result<(c_int, sys::Dims)> {
    if dims.is_empty() || dims.len() > sys::MAX_NDIMS {
        return Err(Error::internal(format!("oneDNN tensors have 1 to 12 dimensions, not {}", dims.len())));
    }
    let mut array: sys::Dims = [0; sys::MAX_NDIMS];
    for (to, &from) in array.iter_mut().zip(dims) {
        *to = i64::try_from(from).map_err(|_| Error::internal(format!("dimension {from} is too large")))?;
    }
    Ok((dims.len() as c_int, array))
}

/// What a primitive is to do besides its own operation.
pub struct Attributes {
    library: &'static Library,
    raw: *mut sys::PrimitiveAttr,
}

impl Attributes {
    /// Scratch memory given by the caller; a ReLU on the result if asked for.
    pub fn new(engine: &Engine, relu: bool) -> Result<Attributes> {
        Attributes::with(engine, relu.then_some((sys::ELTWISE_RELU, 0.0)))
    }

    /// Attributes with any function of each element (`dnnl_alg_kind_t`, alpha) on the result.
    pub fn with(engine: &Engine, then: Option<(sys::AlgKind, f32)>) -> Result<Attributes> {
        let library = engine.library;
        Attributes::having(library, |ops| match then {
            // SAFETY: the post-ops are alive.
            Some((algorithm, alpha)) => unsafe {
                call!(library, dnnl_post_ops_append_eltwise(ops, algorithm, alpha, 0.0))
            },
            None => Ok(()),
        })
    }

    /// Scratch memory given by the caller; the result is added to what is there.
    pub fn adding(engine: &Engine) -> Result<Attributes> {
        let library = engine.library;
        // SAFETY: the post-ops are alive. No type means that of the result.
        Attributes::having(library, |ops| unsafe {
            call!(library, dnnl_post_ops_append_sum(ops, 1.0, 0, sys::UNDEFINED))
        })
    }

    fn having(
        library: &'static Library,
        append: impl FnOnce(*mut sys::PostOps) -> Result<()>,
    ) -> Result<Attributes> {
        let mut this = Attributes { library, raw: ptr::null_mut() };
        // SAFETY: the attributes are alive from the first call on, and the post-ops between their creation
        // and destruction; set_post_ops copies them.
        unsafe {
            call!(library, dnnl_primitive_attr_create(&mut this.raw))?;
            call!(library, dnnl_primitive_attr_set_scratchpad_mode(this.raw, sys::SCRATCHPAD_USER))?;
            let mut ops = ptr::null_mut();
            call!(library, dnnl_post_ops_create(&mut ops))?;
            let set =
                append(ops).and_then(|()| call!(library, dnnl_primitive_attr_set_post_ops(this.raw, ops)));
            (library.functions.dnnl_post_ops_destroy)(ops);
            set?;
        }
        Ok(this)
    }

    pub fn raw(&self) -> *const sys::PrimitiveAttr {
        self.raw
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: made by `new` or null, freed once.
        unsafe {
            (self.library.functions.dnnl_primitive_attr_destroy)(self.raw);
        }
    }
}

/// Chooses a primitive by one of the library's `dnnl_*_primitive_desc_create` functions, with what it wants between the
/// engine and the attributes; where that is a pointer to something that is not there it is null.
macro_rules! describe {
    ($engine:ident, $attributes:ident => $create:ident($($argument:expr),* $(,)?)) => {
        $crate::device::onednn::handle::PrimitiveDesc::create($engine, stringify!($create), |desc| {
            // SAFETY: descriptors, geometry, hint and attributes are borrowed by expressions of the caller, and outlive
            // the call, which copies what it keeps.
            unsafe { ($engine.library.functions.$create)(desc, $engine.raw(), $($argument,)* $attributes.raw()) }
        })
    };
}
pub(super) use describe;

/// A primitive descriptor: an operation with its layouts and implementation chosen.
pub struct PrimitiveDesc {
    engine: Rc<Engine>,
    raw: *mut sys::PrimitiveDesc,
}

impl PrimitiveDesc {
    /// Runs `create`, one of the `dnnl_*_primitive_desc_create` functions named `call`, and owns the result.
    pub fn create(
        engine: &Rc<Engine>,
        call: &str,
        create: impl FnOnce(*mut *mut sys::PrimitiveDesc) -> sys::Status,
    ) -> Result<PrimitiveDesc> {
        engine.enter();
        let mut this = PrimitiveDesc { engine: engine.clone(), raw: ptr::null_mut() };
        check(create(&mut this.raw), call)?;
        Ok(this)
    }

    pub fn raw(&self) -> *const sys::PrimitiveDesc {
        self.raw
    }

    /// Takes the library's next implementation for the same, which may want other layouts.
    ///
    /// # Errors
    /// Where there is no other.
    pub fn take_next(&mut self) -> Result<()> {
        let library = self.engine.library;
        // SAFETY: the descriptor is ours, and nobody holds what was asked of it.
        unsafe { call!(library, dnnl_primitive_desc_next_impl(self.raw)) }
    }

    /// The descriptor of one argument (`sys::ARG_…`); of no dimensions for one that the primitive does not use.
    pub fn desc(&self, argument: c_int) -> Result<Desc> {
        let library = self.engine.library;
        let mut borrowed: *const sys::MemoryDesc = ptr::null();
        let mut raw = ptr::null_mut();
        // SAFETY: the query writes a pointer to a descriptor that belongs to this one; the clone is ours.
        unsafe {
            let result = (&raw mut borrowed).cast::<c_void>();
            call!(library, dnnl_primitive_desc_query(self.raw, sys::QUERY_EXEC_ARG_MD, argument, result))?;
            call!(library, dnnl_memory_desc_clone(&mut raw, borrowed))?;
        }
        Ok(Desc { library, raw })
    }

    /// "jit:avx512_core"
    pub fn implementation(&self) -> String {
        let library = self.engine.library;
        let mut text: *const c_char = ptr::null();
        // SAFETY: the query writes a pointer to a C string that lives as long as the descriptor.
        unsafe {
            let result = (&raw mut text).cast::<c_void>();
            let asked =
                call!(library, dnnl_primitive_desc_query(self.raw, sys::QUERY_IMPL_INFO_STR, 0, result));
            if asked.is_err() || text.is_null() {
                return "unknown".to_string();
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

impl Drop for PrimitiveDesc {
    fn drop(&mut self) {
        // SAFETY: made by `create` or null, freed once.
        unsafe {
            (self.engine.library.functions.dnnl_primitive_desc_destroy)(self.raw);
        }
    }
}

/// A compiled primitive.
pub struct Primitive {
    engine: Rc<Engine>,
    raw: *mut sys::Primitive,
}

impl Primitive {
    pub fn new(desc: &PrimitiveDesc) -> Result<Primitive> {
        desc.engine.enter();
        let mut this = Primitive { engine: desc.engine.clone(), raw: ptr::null_mut() };
        // SAFETY: the descriptor is alive; the primitive keeps what it needs of it.
        unsafe { call!(this.engine.library, dnnl_primitive_create(&mut this.raw, desc.raw))? };
        Ok(this)
    }

    /// Runs the primitive to its end.
    ///
    /// # Safety
    /// `args` must name every argument of the primitive, with memory of the layout that its descriptor says
    /// and that nothing else uses meanwhile.
    pub unsafe fn execute(&self, args: &[sys::ExecArg]) -> Result<()> {
        let library = self.engine.library;
        self.engine.enter();
        // SAFETY: the caller's promise; the stream is the engine's own.
        unsafe {
            let (count, stream) = (args.len() as c_int, self.engine.stream);
            call!(library, dnnl_primitive_execute(self.raw, stream, count, args.as_ptr()))?;
            call!(library, dnnl_stream_wait(stream))
        }
    }
}

impl Drop for Primitive {
    fn drop(&mut self) {
        // SAFETY: made by `new` or null, freed once.
        unsafe {
            (self.engine.library.functions.dnnl_primitive_destroy)(self.raw);
        }
    }
}

/// A memory object: a descriptor with an address. It does not own the bytes.
pub struct MemoryObject {
    library: &'static Library,
    raw: *mut sys::Memory,
}

impl MemoryObject {
    /// # Safety
    /// `address` must be valid for `desc.bytes()` bytes whenever a primitive runs on this object.
    pub unsafe fn new(engine: &Engine, desc: &Desc, address: *mut u8) -> Result<MemoryObject> {
        let mut raw = ptr::null_mut();
        // SAFETY: descriptor and engine are alive; the address is only stored.
        unsafe {
            call!(engine.library, dnnl_memory_create(&mut raw, desc.raw, engine.engine, address.cast()))?
        };
        Ok(MemoryObject { library: engine.library, raw })
    }

    pub fn raw(&self) -> *mut sys::Memory {
        self.raw
    }
}

impl Drop for MemoryObject {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe {
            (self.library.functions.dnnl_memory_destroy)(self.raw);
        }
    }
}
