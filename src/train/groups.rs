//! The ranks of a job, and those with which a rank does what.

use crate::comm::{Mesh, Topology, World};
use crate::config::{Config, MeshShape, Pipeline, TensorParallel};
use crate::error::{Error, Result};
use crate::graph::TensorGroup;

/// The groups that this rank is in.
#[derive(Clone)]
pub struct Groups {
    /// All ranks.
    pub job: World,
    /// Those that have other images: all of them unless the network is cut into stages.
    pub data: World,
    /// Where layers are split: among whom.
    pub split: Option<Split>,
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// Which stage of the network this rank computes.
    pub stage: usize,
}

/// The ranks of a job whose layers are split.
#[derive(Clone)]
pub struct Split {
    /// Those that have the other parts.
    pub beside: World,
    /// Those that have the same parts.
    pub alike: World,
}

/// Where the ranks are that compute a stage, or the network where it is not cut: those of this job, or of one that is
/// thought of.
#[derive(Clone, Copy)]
pub struct Layout<'a> {
    /// The ranks that compute the same with other images.
    pub data: &'a Topology,
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// Which stage of the network they compute.
    pub stage: usize,
}

impl Groups {
    /// Of a network that is not cut.
    pub fn whole(job: &World) -> Groups {
        let mesh = MeshShape::of_data(job.size());
        Groups { job: job.clone(), data: job.clone(), split: None, mesh, stage: 0 }
    }

    /// Collective.
    ///
    /// # Errors
    /// `Usage`, the same on every rank, where the ranks do not divide into pipelines.
    pub fn new(job: &World, config: &Config) -> Result<Groups> {
        // What is predicted is of other ranks.
        if config.prediction.is_some() {
            return Ok(Groups::whole(job));
        }
        if let Some(tensor) = config.tensor {
            let Mesh { shape, data, tensor, .. } = Mesh::new(job, job.agree(in_groups(tensor, job.size()))?)?;
            let split = Some(Split { beside: tensor, alike: data });
            return Ok(Groups { split, mesh: shape, ..Groups::whole(job) });
        }
        let Some(pipeline) = &config.pipeline else { return Ok(Groups::whole(job)) };
        let mesh = Mesh::new(job, job.agree(divided(pipeline, job.size()))?)?;
        let stage = mesh.shape.coordinates(job.rank())[1];
        Ok(Groups { job: job.clone(), data: mesh.data, split: None, mesh: mesh.shape, stage })
    }

    /// Where this rank is.
    pub fn layout(&self) -> Layout<'_> {
        Layout { data: &self.data, mesh: self.mesh, stage: self.stage }
    }

    /// The rank of the job that computes a stage for the images of this one.
    pub fn beside(&self, stage: usize) -> usize {
        let [data, _, tensor] = self.mesh.coordinates(self.job.rank());
        self.mesh.rank([data, stage, tensor])
    }

    /// Whether this rank is of the group of the job's first one, where layers are split.
    pub fn is_of_first(&self) -> bool {
        self.split.is_some() && self.job.rank() < self.mesh.tensor
    }

    /// Whether this rank reads images.
    pub fn reads(&self) -> bool {
        self.stage == 0
    }
}

/// How so many ranks are groups that share layers.
///
/// # Errors
/// `Usage` where they do not divide into them.
pub fn in_groups(
    TensorParallel { ranks: tensor, groups }: TensorParallel,
    ranks: usize,
) -> Result<MeshShape> {
    let data = groups.unwrap_or(ranks / tensor);
    if data > 0 && data * tensor == ranks {
        return Ok(MeshShape { data, pipeline: 1, tensor });
    }
    let wanted = match groups {
        Some(data) => format!("{data} × {tensor}"),
        None => format!("a multiple of {tensor}"),
    };
    Err(Error::usage(format!(
        "--tensor {tensor}: this job has {ranks} rank{}, which are no groups of {tensor}; start {wanted}",
        if ranks == 1 { "" } else { "s" }
    )))
}

/// Among which ranks one's layers are split, of those of a job.
pub fn group(config: &Config, [rank, ranks]: [usize; 2]) -> Option<TensorGroup> {
    let tensor = config.tensor?.ranks;
    let (place, groups) = (rank % tensor, ranks / tensor);
    Some(TensorGroup { ranks: tensor, place, groups, micro_steps: config.accumulation })
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
