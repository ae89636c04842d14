//! What cuDNN would run on a GPU that is only described: for tests, where there is no card (tests/suite/cudnn.rs).

use std::path::Path;

use super::backend::{Configuration, CudnnPlan, TargetGpu};
use super::conv;
use super::dnn;
use super::layout::Real;
use super::library;
use super::product::{Direction, Product, Then};
use super::sys::Dnn;
use crate::error::{Error, Result};
use crate::graph::{Conv, DType, Spec};

/// A cuDNN, and a GPU.
pub struct CudnnSetting {
    dnn: &'static Dnn,
    version: String,
    target: TargetGpu,
}

/// The engine that cuDNN takes for the fastest of those that serve, and finalises a plan with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudnnEngine {
    /// cuDNN's number of it.
    pub number: i64,
    /// Bytes of scratch memory.
    pub workspace: usize,
    /// Whether it was compiled just now.
    pub compiled: bool,
}

/// What is asked for: a convolution, given its tensors x, w and y.
#[derive(Debug, Clone, Copy)]
pub struct ConvQuery<'a> {
    /// The geometry.
    pub conv: &'a Conv,
    /// x, w and y.
    pub tensors: [&'a Spec; 3],
    /// What is multiplied.
    pub dtype: DType,
    /// Whether products of f32 may be rounded to 10 bits.
    pub tf32: bool,
}

impl CudnnSetting {
    /// The library in this file, which stays open, and a GPU by its properties in cuDNN's own words. What is in
    /// `before`, which cuDNN may look for, is opened first.
    ///
    /// # Errors
    /// `Environment` where a library does not open or is not cuDNN 9; `Foreign` where it cannot have a GPU described
    /// (before 9.8).
    pub fn new(library: &Path, before: &[&Path], json: &str) -> Result<CudnnSetting> {
        before.iter().try_for_each(|path| library::keep_open(path)).map_err(Error::environment)?;
        let (dnn, version) = library::dnn_at(library).map_err(Error::environment)?;
        let dnn: &'static Dnn = Box::leak(Box::new(dnn));
        Ok(CudnnSetting { dnn, version, target: TargetGpu::described(dnn, json)? })
    }

    /// "9.26.0"
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Engines for a convolution's three products (y, dx, dw) as a run would ask for them, each by itself. None: none
    /// serves.
    ///
    /// # Errors
    /// `Foreign` where cuDNN does not take the operation, or a plan's own text.
    pub fn engines(&self, question: &ConvQuery) -> Result<[Option<CudnnEngine>; 3]> {
        let directions = [Direction::Forward, Direction::BackwardData, Direction::BackwardWeights];
        let mut engines = [None; 3];
        for (engine, direction) in engines.iter_mut().zip(directions) {
            *engine = self.engine(question, direction, Then::Nothing)?;
        }
        Ok(engines)
    }

    /// Engines that do along with it what the plan may want: a bias and a ReLU with y, the gradient of a ReLU with dx,
    /// the sums that moments are made of with y, an addition to what dx was. None: none does, and it is done apart.
    ///
    /// # Errors
    /// As `engines`.
    pub fn joined(&self, question: &ConvQuery) -> Result<[Option<CudnnEngine>; 4]> {
        Ok([
            self.engine(question, Direction::Forward, Then::Activate { bias: true, relu: true })?,
            self.engine(question, Direction::BackwardData, Then::Mask)?,
            self.engine(question, Direction::Forward, Then::Sums)?,
            self.engine(question, Direction::BackwardData, Then::Accumulate)?,
        ])
    }

    /// Engines that normalise what they read: a scale, a shift and a ReLU, then y and its sums; the same, then dw.
    ///
    /// # Errors
    /// As `engines`.
    pub fn normalised(&self, question: &ConvQuery) -> Result<[Option<CudnnEngine>; 2]> {
        let engine = |direction| self.engine(question, direction, Then::Normalise);
        Ok([engine(Direction::Forward)?, engine(Direction::BackwardWeights)?])
    }

    fn product(&self, question: &ConvQuery, direction: Direction, then: Then) -> Result<Product> {
        let ConvQuery { conv, tensors, dtype, tf32 } = *question;
        conv::product(direction, then, conv, Real::of(dtype)?, tf32, tensors)
    }

    fn engine(&self, question: &ConvQuery, direction: Direction, then: Then) -> Result<Option<CudnnEngine>> {
        self.first(self.product(question, direction, then)?.ways(self.dnn, &self.target)?)
    }

    /// The first that a plan is finalised with.
    fn first(&self, ways: Vec<Configuration>) -> Result<Option<CudnnEngine>> {
        for way in ways {
            let Some(plan) = dnn::plan(&way, &self.target)? else { continue };
            // As the next run would have it.
            let again = CudnnPlan::restored(self.dnn, &self.target, plan.engine, &plan.text()?)?;
            return Ok(Some(CudnnEngine {
                number: again.engine,
                workspace: again.workspace,
                compiled: way.is_compiled(),
            }));
        }
        Ok(None)
    }
}
