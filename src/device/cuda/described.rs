//! What cuDNN would run on a GPU that is only described: for tests, where there is no card (tests/cudnn.rs).

use std::path::Path;

use super::backend::Target;
use super::conv;
use super::dnn::{self, Direction};
use super::layout::Real;
use super::library;
use super::sys::Dnn;
use crate::error::{Error, Result};
use crate::graph::{Conv2d, DType, Spec};

/// A cuDNN, and a GPU.
pub struct Described {
    dnn: &'static Dnn,
    target: Target,
}

/// The engine that cuDNN takes for the fastest of those that serve, and finalises a plan with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// cuDNN's number of it.
    pub number: i64,
    /// Bytes of scratch memory.
    pub workspace: usize,
}

impl Described {
    /// The library in this file, which stays open, and a GPU by its properties in cuDNN's own words.
    ///
    /// # Errors
    /// `Environment` where the library does not open or is not cuDNN 9; `Foreign` where it cannot have a GPU described
    /// (before 9.8).
    pub fn new(library: &Path, json: &str) -> Result<Described> {
        let dnn: &'static Dnn = Box::leak(Box::new(library::dnn_at(library).map_err(Error::environment)?));
        Ok(Described { dnn, target: Target::described(dnn, json)? })
    }

    /// Engines for a convolution's three products (y, dx, dw) as a run would ask for them, given the tensors x, w and y. None:
    /// none serves.
    ///
    /// # Errors
    /// `Foreign` where cuDNN does not take the operation.
    pub fn engines(
        &self,
        conv: &Conv2d,
        tensors: [&Spec; 3],
        dtype: DType,
        tf32: bool,
    ) -> Result<[Option<Engine>; 3]> {
        let real = Real::of(dtype)?;
        let mut engines = [None; 3];
        let directions = [Direction::Forward, Direction::BackwardData, Direction::BackwardWeights];
        for (engine, direction) in engines.iter_mut().zip(directions) {
            let product = conv::product(direction, conv, real, tf32, tensors)?;
            for way in product.ways(self.dnn, &self.target)? {
                if let Some(plan) = dnn::plan(&way, &self.target)? {
                    *engine = Some(Engine { number: plan.engine, workspace: plan.workspace });
                    break;
                }
            }
        }
        Ok(engines)
    }
}
