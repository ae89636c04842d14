//! cuDNN's backend interface: descriptors, which are objects with attributes, and what they make up: a graph of
//! operations, the engines that can compute it, a plan.
//!
//! A GPU need not be there to ask for engines and to make plans: one that is described will do (cuDNN 9.8 and newer).
//! So the very code that a run goes through is tried in tests against the real library (tests/suite/cudnn.rs).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

pub use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
pub use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as DescriptorKind;
use cudarc::cudnn::sys::{
    cudnnBackendAttributeType_t as Type, cudnnBackendBehaviorNote_t as Behaviour,
    cudnnBackendHeurMode_t as Mode, cudnnBackendNumericalNote_t as Numerical,
};

use super::sys::{self, Dnn, Failed, cudnnBackendDescriptor_t, cudnnHandle_t};
use crate::error::Result;

/// Engines that are asked for at once: more than cuDNN names for any convolution.
const ROOM: usize = 64;

/// An object of cuDNN's, with those that it was made of.
pub struct Descriptor {
    dnn: &'static Dnn,
    raw: cudnnBackendDescriptor_t,
    parts: Vec<Rc<Descriptor>>,
}

/// A number as an attribute has it.
pub trait Attribute: Copy {
    const TYPE: Type;
}
impl Attribute for i64 {
    const TYPE: Type = Type::CUDNN_TYPE_INT64;
}
impl Attribute for f32 {
    const TYPE: Type = Type::CUDNN_TYPE_FLOAT;
}
impl Attribute for bool {
    const TYPE: Type = Type::CUDNN_TYPE_BOOLEAN;
}
impl Attribute for u8 {
    const TYPE: Type = Type::CUDNN_TYPE_CHAR;
}
impl Attribute for *mut c_void {
    const TYPE: Type = Type::CUDNN_TYPE_VOID_PTR;
}

/// The type of an attribute that is one of an enumeration's values.
macro_rules! enumeration {
    ($($name:ident: $type:ident;)*) => {
        $(pub const $name: Type = Type::$type;)*
    };
}
enumeration! {
    DATA_TYPE: CUDNN_TYPE_DATA_TYPE;
    CONVOLUTION_MODE: CUDNN_TYPE_CONVOLUTION_MODE;
    POINTWISE_MODE: CUDNN_TYPE_POINTWISE_MODE;
    GENSTATS_MODE: CUDNN_TYPE_GENSTATS_MODE;
    HEURISTICS_MODE: CUDNN_TYPE_HEUR_MODE;
    NUMERICAL_NOTE: CUDNN_TYPE_NUMERICAL_NOTE;
    BEHAVIOUR_NOTE: CUDNN_TYPE_BEHAVIOR_NOTE;
}

impl Descriptor {
    pub fn new(dnn: &'static Dnn, kind: DescriptorKind) -> sys::CudaResult<Descriptor> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out-parameter is alive during the call.
        unsafe { dnn.cudnnBackendCreateDescriptor(kind as c_int, &mut raw) }?;
        Ok(Descriptor { dnn, raw, parts: Vec::new() })
    }

    /// # Safety
    /// `T` must be what `of` stands for.
    unsafe fn put<T>(self, name: Name, of: Type, values: &[T]) -> sys::CudaResult<Descriptor> {
        let (count, at) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: as many values as are stated lie there; cuDNN copies them.
        unsafe { self.dnn.cudnnBackendSetAttribute(self.raw, name as c_int, of as c_int, count, at) }?;
        Ok(self)
    }

    pub fn set<T: Attribute>(self, name: Name, values: &[T]) -> sys::CudaResult<Descriptor> {
        // SAFETY: the trait says so.
        unsafe { self.put(name, T::TYPE, values) }
    }

    /// Sets one of an enumeration's values.
    pub fn choose(self, name: Name, of: Type, value: c_int) -> sys::CudaResult<Descriptor> {
        // SAFETY: C's enumerations are integers.
        unsafe { self.put(name, of, &[value]) }
    }

    /// Sets other descriptors, which are kept.
    pub fn join(mut self, name: Name, parts: &[&Rc<Descriptor>]) -> sys::CudaResult<Descriptor> {
        let raw: Vec<_> = parts.iter().map(|part| part.raw).collect();
        self.parts.extend(parts.iter().map(|part| Rc::clone(part)));
        // SAFETY: these are descriptors, alive as long as this one.
        unsafe { self.put(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw) }
    }

    /// Says for which GPU it is, by the attribute that it has for a handle, or for a description; where it has none
    /// nothing.
    fn on(
        self,
        target: &TargetGpu,
        handle: Option<Name>,
        properties: Option<Name>,
    ) -> sys::CudaResult<Descriptor> {
        match (target, handle, properties) {
            // SAFETY: a handle is a pointer.
            (TargetGpu::Gpu(raw), Some(name), _) => unsafe {
                self.put(name, Type::CUDNN_TYPE_HANDLE, &[*raw])
            },
            (TargetGpu::Described(gpu), _, Some(name)) => self.join(name, &[gpu]),
            _ => Ok(self),
        }
    }

    /// Nothing may be set any more; what was is checked.
    pub fn finalize(self) -> sys::CudaResult<Rc<Descriptor>> {
        // SAFETY: the descriptor is alive.
        unsafe { self.dnn.cudnnBackendFinalize(self.raw) }?;
        Ok(Rc::new(self))
    }

    /// What an attribute has of `T`, `room` of them at the most.
    ///
    /// # Safety
    /// `T` must be what `of` stands for.
    unsafe fn get<T: Copy>(&self, name: Name, of: Type, values: &mut [T]) -> sys::CudaResult<usize> {
        let (mut count, room) = (0, values.len() as i64);
        let at = values.as_mut_ptr().cast();
        // SAFETY: there is room for as many as are asked for.
        unsafe {
            self.dnn.cudnnBackendGetAttribute(self.raw, name as c_int, of as c_int, room, &mut count, at)
        }?;
        Ok((count.max(0) as usize).min(values.len()))
    }

    fn number(&self, name: Name) -> sys::CudaResult<i64> {
        let mut value = [0i64];
        // SAFETY: the attribute is a number of this type.
        unsafe { self.get(name, i64::TYPE, &mut value) }?;
        Ok(value[0])
    }

    fn notes(&self, name: Name, of: Type) -> sys::CudaResult<Vec<c_int>> {
        let mut values = [0; ROOM];
        // SAFETY: notes are an enumeration.
        let count = unsafe { self.get(name, of, &mut values) }?;
        Ok(values[..count].to_vec())
    }

    /// Descriptors that this one gives out: made beforehand, filled by cuDNN, and kept with this one in them.
    fn descriptors(
        self: &Rc<Descriptor>,
        name: Name,
        kind: DescriptorKind,
        room: usize,
    ) -> sys::CudaResult<Vec<Rc<Descriptor>>> {
        let mut made =
            (0..room).map(|_| Descriptor::new(self.dnn, kind)).collect::<sys::CudaResult<Vec<_>>>()?;
        let mut raw: Vec<_> = made.iter().map(|descriptor| descriptor.raw).collect();
        // SAFETY: descriptors of the kind that the attribute has.
        let count = unsafe { self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw) }?;
        made.truncate(count);
        made.iter_mut().for_each(|descriptor| descriptor.parts.push(self.clone()));
        Ok(made.into_iter().map(Rc::new).collect())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        if let Err(failed) = unsafe { self.dnn.cudnnBackendDestroyDescriptor(self.raw) } {
            log::debug!("{} failed with code {}", failed.call, failed.code);
        }
    }
}

/// For which GPU engines are asked for and plans made.
pub enum TargetGpu {
    Gpu(cudnnHandle_t),
    /// From cuDNN 9.8 on.
    Described(Rc<Descriptor>),
}

impl TargetGpu {
    /// A GPU by its properties, in cuDNN's own words.
    pub fn described(dnn: &'static Dnn, json: &str) -> sys::CudaResult<TargetGpu> {
        let properties = Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
        // The zero at the end belongs to it.
        let text = [json.as_bytes(), &[0]].concat();
        Ok(TargetGpu::Described(
            properties.set(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, &text)?.finalize()?,
        ))
    }
}

/// A tensor of a graph, to be finalized: its number in it, cuDNN's type, extents, and how far apart elements lie.
pub fn tensor(
    dnn: &'static Dnn,
    number: i64,
    data_type: c_int,
    [extents, strides]: [&[i64]; 2],
    alignment: usize,
) -> sys::CudaResult<Descriptor> {
    Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[number])?
        .choose(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, DATA_TYPE, data_type)?
        .set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, extents)?
        .set(Name::CUDNN_ATTR_TENSOR_STRIDES, strides)?
        .set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[alignment as i64])
}

/// The graph of these operations, each before those that read what it gives.
pub fn graph(
    dnn: &'static Dnn,
    target: &TargetGpu,
    operations: &[&Rc<Descriptor>],
) -> sys::CudaResult<Rc<Descriptor>> {
    Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
        .join(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, operations)?
        .on(target, Some(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE), None)?
        .finalize()
}

/// A way to compute a graph: an engine with its settings.
pub struct Configuration {
    descriptor: Rc<Descriptor>,
    /// The number of one of cuDNN's engines for such graphs.
    pub engine: i64,
    numerical: Vec<c_int>,
    behaviour: Vec<c_int>,
}

impl Configuration {
    fn new(descriptor: Rc<Descriptor>) -> sys::CudaResult<Configuration> {
        let engines = descriptor.descriptors(
            Name::CUDNN_ATTR_ENGINECFG_ENGINE,
            DescriptorKind::CUDNN_BACKEND_ENGINE_DESCRIPTOR,
            1,
        )?;
        let engine = engines.first().unwrap_or(&descriptor);
        Ok(Configuration {
            engine: engine.number(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?,
            numerical: engine.notes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, NUMERICAL_NOTE)?,
            behaviour: engine.notes(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, BEHAVIOUR_NOTE)?,
            descriptor,
        })
    }

    fn is(&self, note: Numerical) -> bool {
        self.numerical.contains(&(note as c_int))
    }

    /// Whether it gives the same bits every time, and adds up in f32 what it multiplies as it is.
    pub fn serves(&self, tensor_cores: bool, transforms: bool) -> bool {
        use Numerical::*;
        let never = [
            CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
            CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
            CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
        ];
        !never.into_iter().any(|note| self.is(note))
            && (tensor_cores || !self.is(CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
            && (transforms || !(self.is(CUDNN_NUMERICAL_NOTE_WINOGRAD) || self.is(CUDNN_NUMERICAL_NOTE_FFT)))
    }

    /// Whether it is compiled when it is wanted, which takes a part of a second or a second, and NVRTC.
    pub fn is_compiled(&self) -> bool {
        self.behaviour.contains(&(Behaviour::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as c_int))
    }

    /// # Errors
    /// Also where cuDNN finds only now that the engine does not serve (`unsuitable`).
    pub fn plan(&self, target: &TargetGpu) -> sys::CudaResult<CudnnPlan> {
        let plan =
            Descriptor::new(self.descriptor.dnn, DescriptorKind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
                .join(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&self.descriptor])?;
        CudnnPlan::finalized(plan, self.engine, target)
    }
}

/// The ways that cuDNN knows to compute a graph, the ones it takes for the fastest first.
pub fn configurations(graph: &Rc<Descriptor>, target: &TargetGpu) -> sys::CudaResult<Vec<Configuration>> {
    let mut all = Vec::new();
    for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
        let heuristics = Descriptor::new(graph.dnn, DescriptorKind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .join(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?
            .choose(Name::CUDNN_ATTR_ENGINEHEUR_MODE, HEURISTICS_MODE, mode as c_int)?
            .on(target, None, Some(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP))?;
        // A mode that knows none says so by an error.
        let heuristics = match heuristics.finalize() {
            Err(failed) if unsuitable(&failed) => continue,
            finalized => finalized?,
        };
        let found = heuristics.descriptors(
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            DescriptorKind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
            ROOM,
        )?;
        for descriptor in found {
            all.push(Configuration::new(descriptor)?);
        }
    }
    Ok(all)
}

/// Whether a failure says only that this engine is not for this graph: CUDNN_STATUS_BAD_PARAM (2000 and above),
/// NOT_SUPPORTED (3000 and above) or INTERNAL_ERROR (4000 and above), and not that something is broken or full.
pub fn unsuitable(failed: &Failed) -> bool {
    failed.library == sys::CudaLibrary::Dnn
        && (2000..5000).contains(&failed.code)
        && failed.code != sys::CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
        && failed.code != sys::CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
}

/// A graph with the engine that computes it.
pub struct CudnnPlan {
    descriptor: Rc<Descriptor>,
    pub engine: i64,
    /// Bytes.
    pub workspace: usize,
}

/// A plan with the memory that it works on.
pub struct BoundPlan {
    plan: Rc<CudnnPlan>,
    pack: Rc<Descriptor>,
}

impl CudnnPlan {
    fn finalized(plan: Descriptor, engine: i64, target: &TargetGpu) -> sys::CudaResult<CudnnPlan> {
        let descriptor = plan
            .on(
                target,
                Some(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE),
                Some(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP),
            )?
            .finalize()?;
        let workspace = descriptor.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        Ok(CudnnPlan { descriptor, engine, workspace: workspace.max(0) as usize })
    }

    /// What `text` gave, for the same GPU and library, without compiling anything again.
    ///
    /// # Errors
    /// Also where the text is of another GPU or library, or none (`unsuitable`).
    pub fn restored(
        dnn: &'static Dnn,
        target: &TargetGpu,
        engine: i64,
        text: &str,
    ) -> sys::CudaResult<CudnnPlan> {
        let plan = Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .set(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, text.as_bytes())?;
        CudnnPlan::finalized(plan, engine, target)
    }

    /// The plan in cuDNN's own words (JSON), with what was compiled for it.
    pub fn text(&self) -> sys::CudaResult<String> {
        let name = Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
        let plan = &self.descriptor;
        let mut count = 0;
        // SAFETY: without room it only says how many there are.
        unsafe {
            let of = u8::TYPE as c_int;
            plan.dnn.cudnnBackendGetAttribute(plan.raw, name as c_int, of, 0, &mut count, ptr::null_mut())
        }?;
        let mut text = vec![0u8; count.max(0) as usize];
        // SAFETY: the attribute is bytes.
        let count = unsafe { plan.get(name, u8::TYPE, &mut text) }?;
        text.truncate(count);
        Ok(String::from_utf8_lossy(&text).trim_end_matches('\0').into())
    }

    /// Tensors by their numbers, each with its address.
    ///
    /// # Errors
    /// `Foreign`.
    pub fn bind(
        self: &Rc<CudnnPlan>,
        numbers: &[i64],
        addresses: &[*mut c_void],
        workspace: *mut c_void,
    ) -> Result<BoundPlan> {
        let pack =
            Descriptor::new(self.descriptor.dnn, DescriptorKind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
                .set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, numbers)?
                .set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses)?
                .set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace])?
                .finalize()?;
        Ok(BoundPlan { plan: self.clone(), pack })
    }
}

impl BoundPlan {
    /// Enqueues it.
    ///
    /// # Safety
    /// The handle must be that for which the plan was made, and what was bound be memory of its GPU, as large as the
    /// tensors and the workspace are.
    pub unsafe fn run(&self, handle: cudnnHandle_t) -> Result<()> {
        let plan = &self.plan.descriptor;
        // SAFETY: the caller's; the descriptors are finalized and alive.
        Ok(unsafe { plan.dnn.cudnnBackendExecute(handle, plan.raw, self.pack.raw) }?)
    }
}
