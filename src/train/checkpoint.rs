//! When a checkpoint is taken, what it says beside the arrays of `state`, and how a run goes on from one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Totals;
use super::commit;
use super::doubts::{CHECKPOINT, Weights};
use super::groups::Groups;
use super::stages;
use super::state::State;
use super::stop::Watch;
use crate::comm::World;
use crate::config::{Config, Interval, Resume};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::model::Model;
use crate::optim::state_names;
use crate::record::{self, Checkpoints, Contents, Description, ModelMetadata, Reached};

/// Where a run stands between two steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Steps done.
    pub done: usize,
    /// Epochs that are over, with their evaluation.
    pub epoch: usize,
    /// Images of the present epoch's order that are behind.
    pub images: usize,
    /// The global batch by which that order was made.
    pub shuffled_for: usize,
}

/// Everything that is kept but the arrays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    pub at: Position,
    /// Sums over the steps of the present epoch.
    pub totals: Totals,
    /// The best test accuracy and the steps done then.
    pub best: Option<(f64, usize)>,
}

impl Standing {
    pub fn numbers(&self) -> BTreeMap<String, f64> {
        let (accuracy, step) =
            self.best.map_or((f64::NAN, f64::NAN), |(accuracy, step)| (accuracy, step as f64));
        let at = self.at;
        let named = [
            ("step", at.done as f64),
            ("epoch", at.epoch as f64),
            ("images", at.images as f64),
            ("shuffled_for", at.shuffled_for as f64),
            ("best_accuracy", accuracy),
            ("best_step", step),
        ];
        let totals = self.totals.numbers().map(|(name, value)| (format!("epoch.{name}"), value));
        named.map(|(name, value)| (name.to_string(), value)).into_iter().chain(totals).collect()
    }

    pub fn from_contents(contents: &Contents) -> Result<Standing> {
        let count = |name: &str| contents.number(name).map(|number| number as usize);
        let best = (contents.number("best_accuracy")?, count("best_step")?);
        Ok(Standing {
            at: Position {
                done: count("step")?,
                epoch: count("epoch")?,
                images: count("images")?,
                shuffled_for: count("shuffled_for")?,
            },
            totals: Totals::from_numbers(|name| contents.number(&format!("epoch.{name}")))?,
            best: (!best.0.is_nan()).then_some(best),
        })
    }
}

/// A checkpoint at which the run goes on. The values are there on rank 0.
pub struct Resumed {
    pub path: PathBuf,
    pub contents: Contents,
    pub standing: Standing,
}

impl Resumed {
    /// Finds and reads the checkpoint that the run is to go on at; `None` where it starts at its beginning. Collective.
    ///
    /// # Errors
    /// The same on every rank.
    pub fn find(world: &World, config: &Config) -> Result<Option<Resumed>> {
        let Some(resume) = &config.session.resume else { return Ok(None) };
        let directory = config.session.checkpoint.as_deref();
        let found = world.agree(record::find_checkpoint(world.into(), resume, directory))?;
        let text = found
            .as_ref()
            .map_or(String::new(), |(path, contents)| format!("{}\n{}", path.display(), contents.head()));
        let text = world.broadcast_text(&text)?;
        let Some((path, head)) = text.split_once('\n') else {
            if let (Resume::Auto, Some(directory)) = (resume, directory) {
                let text = format!("no checkpoint in {}: starting at the beginning", directory.display());
                record::say(world, &text);
            }
            return Ok(None);
        };
        let contents = match found {
            Some((_, contents)) => contents,
            None => Contents::from_head(head)?,
        };
        let standing = world.agree(Standing::from_contents(&contents))?;
        let found = Resumed { path: path.into(), contents, standing };
        match (config.session.commit, resume) {
            (Some(_), Resume::Auto) => commit::newer(world, config, found).map(Some),
            _ => Ok(Some(found)),
        }
    }

    /// What it says of the network besides.
    ///
    /// # Errors
    /// `Data` where that cannot be.
    pub fn said(&self) -> Result<Weights> {
        let about = ModelMetadata::read(&self.path, |name| self.contents.text(name).to_string())?;
        Ok(Weights { whose: CHECKPOINT, about })
    }

    /// Bytes of the numbers that this rank has of it.
    pub fn bytes(&self) -> usize {
        4 * self.contents.values.len()
    }

    /// How far the record had come.
    pub fn reached(&self) -> Reached {
        let at = self.standing.at;
        Reached { step: at.done as u64, epochs: at.epoch as u64, numbers: self.contents.numbers.clone() }
    }

    /// That this run is the one that was interrupted; what else has changed is said.
    ///
    /// # Errors
    /// `Usage`, naming every difference.
    pub fn check(&self, world: &World, config: &Config, identity: &[(String, String)]) -> Result<()> {
        let kept: BTreeMap<String, String> =
            serde_json::from_str(self.contents.text("identity")).unwrap_or_default();
        let differ = |name: &str, now: &str| {
            let then = kept.get(name).map_or("unknown", String::as_str);
            (then != now).then(|| format!("{name} {then} there, {now} here"))
        };
        // A best figure of other images would stand beside what is tested now; where one tests nothing, none does.
        let is_untested = |name: &str, now: &str| {
            let then = kept.get(name).map(String::as_str);
            name == TEST_IMAGES && [Some(now), then].iter().any(|of| of.is_none_or(|text| text == "none"))
        };
        let is_unknown = |name: &str| OF_ARRAYS.contains(&name) && !kept.contains_key(name);
        let compared = identity.iter().filter(|(name, now)| !is_untested(name, now) && !is_unknown(name));
        let differences: Vec<String> = compared.filter_map(|(name, now)| differ(name, now)).collect();
        if !differences.is_empty() {
            return Err(Error::usage(format!(
                "{}: is the checkpoint of another run: {}",
                self.path.display(),
                differences.join("; ")
            )));
        }
        self.say(world, config);
        Ok(())
    }

    fn say(&self, world: &World, config: &Config) {
        let Position { done, epoch, .. } = self.standing.at;
        let mut text =
            format!("going on after step {done}, in epoch {}, from {}", epoch + 1, self.path.display());
        let ranks = world.size().to_string();
        if self.contents.text("ranks") != ranks {
            text += &format!("; {} ranks then, {ranks} now", self.contents.text("ranks"));
        }
        record::say(world, &text);
        for change in config.changes_since(self.contents.text("config")) {
            record::say(world, &format!("  changed: {change}"));
        }
    }
}

/// What the images to test on are called in there. Older checkpoints do not have them.
const TEST_IMAGES: &str = "test images";

/// What runs on arrays must have in common too, and older checkpoints do not have.
const OF_ARRAYS: [&str; 4] = ["--class-weights", "--ignore-label", "--missing", "files in their order"];

/// What a run's checkpoints must have in common, by the flags that say it. `files`: of arrays, in their order.
pub fn identity(
    config: &Config,
    model: &Model,
    graph: &Graph,
    ([images, tested], files): ([&str; 2], Option<&String>),
) -> Vec<(String, String)> {
    let on = |given: bool| if given { "on" } else { "off" }.to_string();
    let fields = &config.fields;
    let of_arrays = |files: &String| {
        let list = |numbers: &[f32]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let weights = Some(list(&fields.class_weights)).filter(|text| !text.is_empty());
        let label = fields.ignore_label.map(|label| label.to_string());
        let none = || "none".to_string();
        let missing = format!("{:?}", fields.missing).to_lowercase();
        let values = [weights.unwrap_or_else(none), label.unwrap_or_else(none), missing, files.clone()];
        OF_ARRAYS.into_iter().zip(values)
    };
    [
        ("--model", model.identity()),
        ("--classes", graph.classes().to_string()),
        ("image shape", graph.image().to_string()),
        ("--label-smoothing", config.network.label_smoothing.to_string()),
        ("training images", images.to_string()),
        (TEST_IMAGES, tested.to_string()),
        ("--seed", config.seed.to_string()),
        ("--optimizer", config.optimizer.rule.name().replace('-', "")),
        ("optimizer states", state_names(&config.optimizer.rule).join(", ")),
        ("--ema", on(config.optimizer.ema.is_some())),
    ]
    .into_iter()
    .chain(fields.loss.clone().map(|loss| ("--loss", loss.into())))
    .chain(files.into_iter().flat_map(of_arrays))
    .map(|(name, value)| (name.to_string(), value))
    .collect()
}

/// A name that no other run has, by which its files know each other.
pub fn run_name(resumed: Option<&Resumed>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let new = || format!("{now:x}-{}", std::process::id());
    resumed.map_or_else(new, |resumed| resumed.contents.text("run").to_string())
}

/// What a checkpoint says of its run.
pub fn texts(
    about: &Description,
    ranks: usize,
    identity: &[(String, String)],
    results: Option<&PathBuf>,
) -> BTreeMap<String, String> {
    let identity: BTreeMap<_, _> = identity.iter().cloned().collect();
    let results = results.map(|path| std::path::absolute(path).unwrap_or(path.clone()).display().to_string());
    let own = [
        ("identity".to_string(), serde_json::to_string(&identity).unwrap_or_default()),
        ("results".to_string(), results.unwrap_or_default()),
        ("ranks".to_string(), ranks.to_string()),
    ];
    about.attributes.iter().cloned().chain(own).collect()
}

/// Takes the run's checkpoints.
pub struct Saver {
    /// Whether any are taken.
    pub active: bool,
    pub watch: Watch,
    /// Of the rank that writes them.
    checkpoints: Option<Checkpoints>,
    every: Interval,
    texts: BTreeMap<String, String>,
    /// Where the last one was taken, or the run goes on.
    saved: Option<Position>,
    /// One is due and waits for the epoch's evaluation.
    pub due: bool,
    /// Seconds since the last step in which one was taken.
    pub copying: f64,
}

impl Saver {
    pub fn new(
        config: &Config,
        checkpoints: Option<Checkpoints>,
        watch: Watch,
        texts: BTreeMap<String, String>,
        resumed: Option<Position>,
    ) -> Saver {
        let active = config.session.checkpoint.is_some();
        let (every, saved) = (config.session.every, resumed);
        Saver { active, watch, checkpoints, every, texts, saved, due: false, copying: 0.0 }
    }

    /// The name of the run.
    pub fn run(&self) -> &str {
        self.texts.get("run").map_or("", String::as_str)
    }

    /// Whether a checkpoint is due after so many steps. `clock`: by the clock of some rank.
    pub fn is_due(&self, done: usize, clock: bool) -> bool {
        self.active
            && match self.every {
                Interval::Steps(steps) => done.is_multiple_of(steps),
                Interval::Seconds(_) => clock,
                Interval::Epochs(_) => false,
            }
    }

    /// Whether one is due after so many epochs.
    pub fn is_due_after_epoch(&self, epochs: usize) -> bool {
        matches!(self.every, Interval::Epochs(every) if self.active && epochs.is_multiple_of(every))
    }

    /// Takes a checkpoint: copies the state, and leaves the writing to a thread. `record` gives what the record wants
    /// kept, on the rank that writes; of what ranks have of their own those of `peers` count. Collective.
    pub fn take(
        &mut self,
        groups: &Groups,
        peers: &World,
        device: &dyn Device,
        state: &State,
        standing: &Standing,
        record: impl FnOnce() -> BTreeMap<String, f64>,
    ) -> Result<()> {
        self.due = false;
        if !self.active || self.saved == Some(standing.at) {
            return Ok(());
        }
        let begun = Instant::now();
        let mut values = self.checkpoints.as_mut().map(Checkpoints::buffer);
        if groups.mesh.is_cut() && groups.data.is_first() {
            values.get_or_insert_default();
        }
        state.copy(&groups.data, peers, None, device, values.as_mut())?;
        let arrays = stages::collect(groups, state.arrays(peers.size()), &mut values)?;
        if let (Some(values), Some(checkpoints)) = (values, &mut self.checkpoints) {
            let mut numbers = standing.numbers();
            numbers.extend(record());
            let contents = Contents { texts: self.texts.clone(), numbers, arrays, values };
            let best = standing.best.map(|(_, step)| step as u64);
            checkpoints.write(standing.at.done as u64, best, contents, begun);
        }
        self.saved = Some(standing.at);
        self.watch.checkpointed();
        log::debug!("checkpoint after step {}: copied in {:?}", standing.at.done, begun.elapsed());
        Ok(())
    }

    /// Whether one is being written in the background, by this rank.
    pub fn is_writing(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(Checkpoints::is_writing)
    }

    /// What this rank tells the others with the next step.
    pub fn flags(&self) -> super::stop::Flags {
        self.watch.flags(self.checkpoints.as_ref().map_or(0.0, |checkpoints| checkpoints.seconds))
    }

    /// Waits for the last one to be on disk. Rank 0 alone can fail here.
    pub fn finish(&mut self) -> Result<()> {
        self.checkpoints.as_mut().map_or(Ok(()), Checkpoints::finish)
    }
}
