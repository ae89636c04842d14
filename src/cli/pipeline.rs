//! The flags of networks that are cut into stages.

use dltrain::config::{MeshShape, Pipeline, PipelineSchedule, most};
use dltrain::error::{Error, Result};

use dltrain::config::values::{mesh, within};

/// More stages than that have no network with as many layers.
const MOST_STAGES: usize = 4096;
/// Micro-batches for each stage where none are asked for: a fifth of a step is then lost to the pipeline's filling.
const FOR_EACH_STAGE: usize = 4;

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// Cut the network into S stages, each computed by another rank; ranks beyond S have other images.
    #[arg(long, value_name = "S")]
    pipeline: Option<usize>,
    /// Parts of the batch that are in the pipeline one behind the other [default: 4 for each stage, if that divides the
    /// batch]; 1 is a network split over ranks of which one computes at a time.
    #[arg(long, value_name = "M", conflicts_with = "accumulation")]
    micro_batches: Option<usize>,
    /// In which order stages compute: gpipe (all forward passes first), 1f1b (one forward, one backward: fewer
    /// activations), interleaved:V (V pieces of the network a stage: less waiting) or zb-h1 (gradients of weights where
    /// a stage would wait) [default: 1f1b].
    #[arg(long, value_name = "ORDER")]
    schedule: Option<PipelineSchedule>,
    /// The first layer of each stage but the first one, as --dry-run has them [default: cut by predicted times, or by
    /// those that --measure takes].
    #[arg(long, value_name = "LAYERS", value_delimiter = ',', action = clap::ArgAction::Set)]
    pipeline_cuts: Vec<String>,
    /// How many ranks have other images, and how many other layers or parts of layers: data=2,pipeline=2,
    /// data=2,tensor=2.
    #[arg(long, value_name = "SHAPE", value_parser = mesh, conflicts_with = "pipeline")]
    mesh: Option<MeshShape>,
}

impl Args {
    /// What `--mesh` says.
    pub fn mesh(&self) -> Option<MeshShape> {
        self.mesh
    }

    /// Into how many stages the network is cut.
    pub fn stages(&self) -> usize {
        self.pipeline.or(self.mesh.map(|mesh| mesh.pipeline)).unwrap_or(1)
    }

    /// In which order they compute.
    pub fn schedule(&self) -> Option<PipelineSchedule> {
        self.schedule
    }

    /// What is cut, and the images and the number of micro-batches of a rank that is to take so many images.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(&self, batch: usize, accumulation: usize) -> Result<(Option<Pipeline>, [usize; 2])> {
        let stages = self.stages();
        within("pipeline", stages, MOST_STAGES)?;
        if stages == 1 {
            let others = [
                ("--micro-batches", self.micro_batches.is_some()),
                ("--schedule", self.schedule.is_some()),
                ("--pipeline-cuts", !self.pipeline_cuts.is_empty()),
            ];
            return match others.iter().find(|(_, given)| *given) {
                Some((flag, _)) => {
                    Err(Error::usage(format!("{flag}: it is for a network in stages; add --pipeline S")))
                }
                None => Ok((None, [batch, accumulation])),
            };
        }
        if accumulation > 1 {
            return Err(Error::usage(format!(
                "--accumulation {accumulation} and --pipeline: the micro-batches of a pipeline are accumulated; give \
                 --batch {} --micro-batches {accumulation}",
                batch * accumulation
            )));
        }
        let usual = (1..=FOR_EACH_STAGE * stages).rev().find(|&parts| batch.is_multiple_of(parts));
        let parts = self.micro_batches.or(usual).unwrap_or(1);
        within("micro-batches", parts, most::BATCH)?;
        if !batch.is_multiple_of(parts) {
            return Err(Error::usage(format!(
                "--micro-batches {parts}: they do not divide --batch {batch}; take a divisor of it"
            )));
        }
        let schedule = self.schedule.unwrap_or(PipelineSchedule::OneForwardOneBackward);
        let pieces = stages * schedule.chunks();
        if let (PipelineSchedule::Interleaved(_), true) = (schedule, !parts.is_multiple_of(stages)) {
            return Err(Error::usage(format!(
                "--schedule {schedule}: it goes through as many micro-batches at a time as there are stages; {parts} is \
                 no multiple of {stages}"
            )));
        }
        if !self.pipeline_cuts.is_empty() && self.pipeline_cuts.len() + 1 != pieces {
            return Err(Error::usage(format!(
                "--pipeline-cuts: {} pieces begin with {} layers, the first one with the network; there are {}",
                pieces,
                pieces - 1,
                self.pipeline_cuts.len()
            )));
        }
        let (cuts, data) = (self.pipeline_cuts.clone(), self.mesh.map(|mesh| mesh.data));
        Ok((Some(Pipeline { stages, schedule, cuts, data }), [batch / parts, parts]))
    }
}
