//! The ranks of a job, and those with which a rank does what.

use crate::comm::{Mesh, World};
use crate::config::{Config, MeshShape};
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
        let Some(pipeline) = &config.pipeline else { return Ok(Groups::whole(job)) };
        let (ranks, stages) = (job.size(), pipeline.stages);
        let data = pipeline.data.unwrap_or(ranks / stages);
        if data == 0 || data * stages != ranks {
            let wanted = match pipeline.data {
                Some(data) => format!("{data} × {stages}"),
                None => format!("a multiple of {stages}"),
            };
            return job.agree(Err(Error::usage(format!(
                "--pipeline {stages}: this job has {ranks} rank{}; start {wanted}",
                if ranks == 1 { "" } else { "s" }
            ))));
        }
        let mesh = Mesh::new(job, MeshShape { data, pipeline: stages, tensor: 1 })?;
        let stage = mesh.shape.coordinates(job.rank())[1];
        Ok(Groups { job: job.clone(), data: mesh.data, mesh: mesh.shape, stage: Some(stage) })
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
