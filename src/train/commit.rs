//! `--commit`: the state of the run in memory of nodes, which outlives the process.
//!
//! A commit is a checkpoint in /dev/shm: of rank 0's node, and where there are several of the next one, so that it
//! outlives either. It has the form of a checkpoint, with its checksum, and the one before stays until it is whole
//! (`record::Checkpoints`). A run that goes on takes the newest that any node has, if it is of the same run and newer
//! than the newest checkpoint. It is removed when the run has ended in order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::checkpoint::{Resumed, Standing};
use super::state::State;
use crate::comm::World;
use crate::config::{Config, Resume};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::files::fnv1a;
use crate::host;
use crate::record::{self, Checkpoints, Contents};

/// File system in memory that every Linux has.
const MEMORY: &str = "/dev/shm";

/// Where a node keeps those of the runs whose checkpoints are in this directory. Nodes of a test may be one machine.
fn place(world: &World, checkpoints: &Path) -> PathBuf {
    place_on(world.host_of(world.rank()), checkpoints)
}

fn place_on(host: &str, checkpoints: &Path) -> PathBuf {
    let whole = std::path::absolute(checkpoints).unwrap_or(checkpoints.into());
    let key = fnv1a(whole.as_os_str().as_encoded_bytes().iter().copied());
    let user = rustix::process::getuid().as_raw();
    Path::new(MEMORY).join(format!("dltrain-commit-{user}-{host}-{key:016x}"))
}

/// The step of the newest commit on this host of a run whose checkpoints are in this directory, whole or not.
pub fn newest_commit(checkpoints: &Path) -> Option<u64> {
    record::newest_step(&place_on(&host::name()?, checkpoints))
}

/// What a run goes on from: the newest commit that any node has of it, or the checkpoint where that is newer.
/// Collective.
pub fn newer(world: &World, config: &Config, found: Resumed) -> Result<Resumed> {
    let Some(directory) = &config.session.checkpoint else { return Ok(found) };
    let directory = place(world, directory);
    let run = found.contents.text("run").to_string();
    // Damage has been said.
    let own = match world.local_rank() {
        0 => record::newest_checkpoint(&directory).unwrap_or_default(),
        _ => None,
    };
    if own.as_ref().is_some_and(|(_, contents)| contents.text("run") != run) {
        remove(&directory);
    }
    let own = own.filter(|(_, contents)| contents.text("run") == run);
    let step = own.as_ref().and_then(|(_, contents)| contents.number("step").ok()).unwrap_or(-1.0);
    let mut newest = [step];
    world.max_f64(&mut newest)?;
    if newest[0] <= found.standing.at.done as f64 {
        return Ok(found);
    }
    let mut from = [if step == newest[0] { world.rank() as f64 } else { f64::MAX }];
    world.min_f64(&mut from)?;
    let from = from[0] as usize;
    let own = own.filter(|_| world.rank() == from).map(|(_, contents)| contents);
    let heads = world.gather_text(&own.as_ref().map_or(String::new(), Contents::head))?;
    let mut contents = world.agree(Contents::from_head(&heads[from]))?;
    if let Some(own) = own {
        contents.values = own.values;
    } else if world.is_first() {
        contents.values = vec![0f32; contents.arrays.iter().map(record::Array::elements).sum()];
    }
    if world.is_first() || world.rank() == from {
        world.one_to_first(from, &mut contents.values)?;
    }
    if !world.is_first() {
        contents.values = Vec::new();
    }
    let standing = world.agree(Standing::from_contents(&contents))?;
    let path = format!("the memory of {}", world.host_of(from)).into();
    Ok(Resumed { path, contents, standing })
}

/// Takes a run's commits.
pub struct Commits {
    every: usize,
    directory: PathBuf,
    /// On ranks that keep them: rank 0, and the first one of the next node.
    keeper: Option<Checkpoints>,
    /// These two.
    twins: Option<World>,
    texts: BTreeMap<String, String>,
    /// Whether this job has taken one; before, those of the job before are all there is.
    has_taken: bool,
}

impl Commits {
    /// `None` where none are wanted. `goes_on`: this run has a checkpoint, and may have commits. Collective.
    ///
    /// # Errors
    /// The same on every rank: what `--commit` does not go with, memory that cannot be written to.
    pub fn open(
        world: &World,
        config: &Config,
        goes_on: bool,
        texts: BTreeMap<String, String>,
    ) -> Result<Option<Commits>> {
        let (Some(every), Some(checkpoints)) = (config.session.commit, &config.session.checkpoint) else {
            return Ok(None);
        };
        if config.strategy.computing(world.size()) < world.size() {
            return world.agree(Err(Error::usage(format!(
                "--commit and {}: what ranks without a graph own is not committed; leave one out",
                config.strategy
            ))));
        }
        let directory = place(world, checkpoints);
        let goes_on = goes_on && config.session.resume == Some(Resume::Auto);
        if world.is_leader() && !goes_on {
            remove(&directory);
        }
        let node = |rank: usize| world.node_of(rank);
        let second = (1..world.size()).find(|&rank| node(rank) != node(0));
        let keeps = world.is_first() || Some(world.rank()) == second;
        let group = world.split(usize::from(!keeps), world.rank())?;
        let twins = (keeps && second.is_some()).then_some(group);
        // Commits of the job before stay until there is one of this job.
        let keeper = keeps.then(|| Checkpoints::spare(&directory)).transpose();
        let keeper = world.agree(keeper.map_err(|error| error.context("--commit")))?;
        Ok(Some(Commits { every, directory, keeper, twins, texts, has_taken: false }))
    }

    /// Whether one is due after so many steps.
    pub fn is_due(&self, done: usize) -> bool {
        done.is_multiple_of(self.every)
    }

    /// Copies the state, and leaves the writing to a thread. `record` gives what the record wants kept, on rank 0.
    /// Collective.
    pub fn take(
        &mut self,
        world: &World,
        device: &dyn Device,
        state: &State,
        standing: &Standing,
        record: impl FnOnce() -> BTreeMap<String, f64>,
    ) -> Result<()> {
        let begun = Instant::now();
        if world.is_leader() && self.keeper.is_none() && !std::mem::replace(&mut self.has_taken, true) {
            // This node kept those of the job before.
            remove(&self.directory);
        }
        let mut values = self.keeper.as_mut().map(Checkpoints::buffer);
        state.copy(world, world, self.twins.as_ref(), device, values.as_mut())?;
        let (Some(values), Some(keeper)) = (values, &mut self.keeper) else { return Ok(()) };
        let mut numbers = standing.numbers();
        numbers.extend(record());
        let arrays = state.arrays(world.size());
        let mut contents = Contents { texts: self.texts.clone(), numbers, arrays, values };
        if let Some(twins) = &self.twins {
            // The record's numbers are rank 0's.
            let head = Contents::from_head(&twins.broadcast_text(&contents.head())?)?;
            contents = Contents { values: contents.values, ..head };
        }
        keeper.write(standing.at.done as u64, None, contents, begun);
        log::debug!("commit after step {}: copied in {:?}", standing.at.done, begun.elapsed());
        Ok(())
    }

    /// The run has ended in order: there is nothing to go on from.
    pub fn remove(mut self, world: &World) {
        drop(self.keeper.take());
        if world.is_leader() {
            remove(&self.directory);
        }
    }
}

fn remove(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        log::warn!("{}: cannot be removed: {error}", directory.display());
    }
}
