//! The ranks of a job, and those with which a rank does what.

use crate::comm::{Mesh, Topology, World};
use crate::config::{Config, MeshShape, Pipeline};
use crate::error::{Error, Result};

/// The groups that this rank is in.
#[derive(Clone)]
pub struct Groups {
    /// All ranks.
    pub job: World,
    /// Those that compute what this one does, with other images: all of them unless the network is cut into stages.
    pub data: World,
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// Where the network is cut: which stage this rank computes.
    pub stage: Option<usize>,
}

/// Where the ranks are that compute a stage, or the network where it is not cut: those of this job, or of one that is
/// thought of.
#[derive(Clone, Copy)]
pub struct Layout<'a> {
    /// All of the job.
    pub all: &'a Topology,
    /// The ranks that compute the same with other images.
    pub data: &'a Topology,
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// Where the network is cut: which stage they compute.
    pub stage: Option<usize>,
}

impl Groups {
    /// Of a network that is not cut.
    pub fn whole(job: &World) -> Groups {
        Groups { job: job.clone(), data: job.clone(), mesh: MeshShape::of_data(job.size()), stage: None }
    }

    /// Collective.
    ///
    /// # Errors
    /// `Usage`, the same on every rank, where the ranks do not divide into pipelines.
    pub fn new(job: &World, config: &Config) -> Result<Groups> {
        // What is predicted is of other ranks.
        let pipeline = config.pipeline.as_ref().filter(|_| config.prediction.is_none());
        let Some(pipeline) = pipeline else { return Ok(Groups::whole(job)) };
        let mesh = Mesh::new(job, job.agree(divided(pipeline, job.size()))?)?;
        let stage = mesh.shape.coordinates(job.rank())[1];
        Ok(Groups { job: job.clone(), data: mesh.data, mesh: mesh.shape, stage: Some(stage) })
    }

    /// Where this rank is.
    pub fn layout(&self) -> Layout<'_> {
        Layout { all: &self.job, data: &self.data, mesh: self.mesh, stage: self.stage }
    }

    /// The rank of the job that computes a stage for the images of this one.
    pub fn beside(&self, stage: usize) -> usize {
        let [data, _, tensor] = self.mesh.coordinates(self.job.rank());
        self.mesh.rank([data, stage, tensor])
    }

    /// Whether this rank reads images.
    pub fn reads(&self) -> bool {
        self.stage.is_none_or(|stage| stage == 0)
    }
}

/// How so many ranks are pipelines.
///
/// # Errors
/// `Usage` where they do not divide into them.
pub fn divided(pipeline: &Pipeline, ranks: usize) -> Result<MeshShape> {
    let stages = pipeline.stages;
    let data = pipeline.data.unwrap_or(ranks / stages);
    if data > 0 && data * stages == ranks {
        return Ok(MeshShape { data, pipeline: stages, tensor: 1 });
    }
    let wanted = match pipeline.data {
        Some(data) => format!("{data} × {stages}"),
        None => format!("a multiple of {stages}"),
    };
    Err(Error::usage(format!(
        "--pipeline {stages}: this job has {ranks} rank{}; start {wanted}",
        if ranks == 1 { "" } else { "s" }
    )))
}
