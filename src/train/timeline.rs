//! The timeline of a run: started before it, gathered on one clock after it.

use super::groups::Groups;
use super::owning;
use crate::comm::World;
use crate::config::Config;
use crate::error::Result;
use crate::host::clock::Offset;
use crate::record::{RankEvents, TimelineFile};
use crate::trace::{self, Event};

/// Events of all ranks together, at most: some 100 MB of text.
const EVENTS: usize = 400_000;
/// Events of one rank: 2.6 MB.
const EVENTS_A_RANK: usize = 65_536;
/// Steps that are kept where none are asked for.
const STEPS: u64 = 50;

/// `None` where none is asked for.
pub struct Timeline(Option<Recording>);

struct Recording {
    file: TimelineFile,
    /// On rank 0: every rank's clock at the start.
    offsets: Vec<Offset>,
    /// How many steps at most are written.
    steps: u64,
}

impl Timeline {
    /// Makes the file, so that one that cannot be written stops the run before it begins. Collective.
    ///
    /// # Errors
    /// `Output`, the same on every rank.
    pub fn start(world: &World, config: &Config) -> Result<Timeline> {
        let Some(path) =
            config.outputs.timeline.as_deref().filter(|_| !config.plan.dry_run && config.max_batch.is_none())
        else {
            return Ok(Timeline(None));
        };
        let goes_on = config.session.resume.is_some();
        let file = owning(world, config, || TimelineFile::create(world.into(), path, goes_on))?;
        let offsets = world.clock_offsets()?;
        let (first, last) = config.outputs.timeline_steps.unwrap_or((0, u64::MAX));
        trace::start((EVENTS / world.size()).min(EVENTS_A_RANK), first, last);
        let steps = if config.outputs.timeline_steps.is_some() { u64::MAX } else { STEPS };
        Ok(Timeline(Some(Recording { file, offsets, steps })))
    }

    /// Where this rank fails and cannot ask the others: rank 0 writes its own part.
    pub fn finish_alone(self, world: &World, labels: &[String]) -> Result<()> {
        let Some(Recording { mut file, .. }) = self.0 else { return Ok(()) };
        let (rank, host, clock) = (world.rank(), world.host(), [Offset::default(); 2]);
        file.begin();
        file.rank(&RankEvents { rank, host, labels, clock, events: trace::stop() });
        file.end()
    }

    /// Writes what all ranks have of the same steps; `labels` are the names of this rank's. Collective.
    ///
    /// # Errors
    /// `Output`, the same on every rank.
    pub fn finish(self, groups: &Groups, labels: &[String]) -> Result<()> {
        let world = &groups.job;
        let Some(Recording { mut file, offsets, steps }) = self.0 else { return Ok(()) };
        let mut events = trace::stop();
        // Where one rank has written over a step, it is left out for all.
        let of_steps = |pick: fn(u32, u32) -> u32| events.iter().map(|event| event.step).reduce(pick);
        let mut range = [of_steps(u32::min), of_steps(u32::max)].map(|step| f64::from(step.unwrap_or(0)));
        world.max_f64(&mut range)?;
        let [first, last] = range.map(|step| step as u64);
        let first = first.max((last + 1).saturating_sub(steps));
        events.retain(|event| u64::from(event.step) >= first);
        let offsets_at_end = world.clock_offsets()?;
        let words: Vec<u64> = events.iter().flat_map(Event::words).collect();
        let of_stages = labels_of_stages(groups, labels)?;
        let stage_of = |rank| groups.mesh.coordinates(rank)[1];
        file.begin();
        world.to_first(&words, |rank, words| {
            let events = words.chunks_exact(Event::WORDS).filter_map(Event::from_words).collect();
            file.rank(&RankEvents {
                rank,
                host: world.host_of(rank),
                labels: &of_stages[stage_of(rank)],
                clock: [offsets[rank], offsets_at_end[rank]],
                events,
            });
        })?;
        world.agree(file.end())
    }
}

/// The names of the steps of each stage's plan.
fn labels_of_stages(groups: &Groups, labels: &[String]) -> Result<Vec<Vec<String>>> {
    if !groups.mesh.is_cut() {
        return Ok(vec![labels.to_vec()]);
    }
    let own = if groups.data.is_first() { labels.join("\n") } else { String::new() };
    let all = groups.job.gather_text(&own)?;
    let of = |stage: usize| all[groups.mesh.rank([0, stage, 0])].lines().map(String::from).collect();
    Ok((0..groups.mesh.pipeline).map(of).collect())
}
