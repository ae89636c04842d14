//! `dltrain bench fusion`: a model's real gradients, ready when they are in a backward pass, summed in buckets of
//! several cuts. Each rank spins for as long as a step would compute, and between two steps does what training does.

use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;

use super::sizes::show;
use crate::collective::Selection;
use crate::collective::cost::Nodes;
use crate::collective::tuning::Tuning;
use crate::comm::{Region, World};
use crate::config::{AllreduceKind, Rule, Wire};
use crate::device::reference::Reference;
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::{Carriers, Fusion};
use crate::model;
use crate::plan::{self, Action, Manner, Options, Plan, Script, TAIL, Transfer};
use crate::record::{self, ProgressLine};
use crate::simulate::threshold;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Model whose gradients are summed
    #[arg(long, default_value = "resnet50", value_parser = PossibleValuesParser::new(model::names()))]
    model: String,
    /// Images a rank: what the steps take grows with it
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Milliseconds of the backward pass [default: estimated from its arithmetic and bytes]
    #[arg(long, value_name = "MS")]
    backward_ms: Option<f64>,
    /// How gradients are added up over ranks
    #[arg(long, value_enum, default_value_t = AllreduceKind::Auto)]
    allreduce: AllreduceKind,
    /// What gradients travel as between ranks
    #[arg(long, value_enum, default_value_t = Wire::F32)]
    wire: Wire,
    /// What `dltrain bench autotune` measured [default: as in training]
    #[arg(long, value_name = "FILE")]
    tuning: Option<std::path::PathBuf>,
    /// Backward passes to time; the median counts
    #[arg(long, default_value_t = 15)]
    iterations: usize,
}

/// A backward pass that is only waited for.
struct Replay<'a> {
    world: &'a World,
    plan: Plan,
    /// The time of each backward step.
    steps: Vec<Duration>,
    selection: Selection,
    region: Rc<Region>,
}

pub fn run(args: &Args, world: &World) -> Result<()> {
    if args.iterations == 0 || args.batch == 0 {
        return world.agree(Err(Error::usage("--iterations and --batch must be at least 1")));
    }
    let tuning = Tuning::load(world, args.tuning.as_deref())?;
    let selection = Selection::new(args.allreduce, args.wire, &Nodes::of(world), &tuning);
    let selection = world.agree(selection)?;
    let mut plan = world.agree(planned(args))?;
    let mut threads = [world.threads(None)? as f64];
    world.min_f64(&mut threads)?;
    let threads = threads[0] as usize;
    let all = threshold::step_seconds(&plan, &tuning.parameters, threads);
    let seconds = &all[plan.forward_steps..];
    let scale = args.backward_ms.map_or(1.0, |ms| ms / 1e3 / seconds.iter().sum::<f64>());
    let steps = seconds.iter().map(|seconds| Duration::from_secs_f64(seconds * scale)).collect();
    let sum = |transfer: &Transfer| selection.choose(transfer.cuts.range().len(), true).seconds;
    world.agree(threshold::cut(&mut plan, &Manner::plain(vec![0]), &RULE, &all, &sum))?;
    let chosen = plan.buckets.clone();
    let region = Region::allocate(world, plan.sizes.gradients, selection.wants_shared(&plan.bucket_bytes()))?;
    let mut replay = Replay { world, plan, steps, selection, region };
    replay.print_header(args);
    let thresholds = [("one a tensor", 0), ("4 MB", 4 << 20), ("16 MB", 16 << 20), ("64 MB", 64 << 20)];
    let mut cuts = Vec::new();
    for (name, threshold) in thresholds {
        replay.plan.cut_at(threshold);
        cuts.push(replay.prepare(name)?);
    }
    replay.plan.buckets = chosen;
    cuts.push(replay.prepare("rehearsed")?);
    replay.measure(&mut cuts, args.iterations)
}

/// Nothing is updated: it only says that any element may be.
const RULE: Rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };

/// The gradients in buckets of one kind, and what summing them took.
struct Cut {
    name: &'static str,
    buckets: Vec<usize>,
    script: Script,
    fusion: Fusion,
    wrong: usize,
    totals: Vec<f64>,
    exposed: Vec<f64>,
}

fn planned(args: &Args) -> Result<Plan> {
    let model = model::find(&args.model)?;
    let graph = model.build(args.batch, model.image, model.classes)?.simplify().differentiate();
    plan::plan(graph, &Reference, &Options::whole(0))
}

impl Cut {
    fn print(&self) {
        let ms = |seconds: &[f64]| {
            let mut seconds = seconds.to_vec();
            seconds.sort_by(f64::total_cmp);
            seconds.get(seconds.len() / 2).map_or(f64::NAN, |seconds| seconds * 1e3)
        };
        let Cut { name, buckets, wrong, .. } = self;
        record::print(&format!(
            "{name:>14} {:>8} {:>10.3} {:>10.3} {:>10.3} {:>12.3} {:>12.3} {wrong:>8}",
            buckets.len(),
            buckets[0] as f64 / 1e6,
            buckets.iter().copied().max().unwrap_or(0) as f64 / 1e6,
            buckets[buckets.len() - 1] as f64 / 1e6,
            ms(&self.totals),
            ms(&self.exposed),
        ));
    }
}

impl Replay<'_> {
    /// Makes the sums of the plan's buckets and checks them. Collective.
    fn prepare(&self, name: &'static str) -> Result<Cut> {
        let sums = self.selection.build(self.world, &self.region)?;
        let manner = Manner::plain((0..self.world.size()).map(|rank| self.world.node_of(rank)).collect());
        let rank = self.world.rank();
        let script = self.plan.scripts(&manner, &RULE, rank..rank + 1).swap_remove(0);
        let mut fusion = self.world.agree(Fusion::new(Carriers::of_sums(sums), &script, true))?;
        let wrong = self.check(&mut fusion, &script)?;
        let buckets = self.plan.bucket_bytes();
        Ok(Cut { name, buckets, script, fusion, wrong, totals: Vec::new(), exposed: Vec::new() })
    }

    /// Times the cuts in turn, so that what else the machine does meets all alike, and prints a line for each.
    /// Collective.
    ///
    /// # Errors
    /// `Internal`, agreed by all ranks, when sums were wrong; then nothing is timed.
    fn measure(&self, cuts: &mut [Cut], iterations: usize) -> Result<()> {
        let wrong: usize = cuts.iter().map(|cut| cut.wrong).sum();
        let progress = ProgressLine::start(self.world.into(), (iterations * cuts.len()) as u64);
        for _ in 0..if wrong > 0 { 0 } else { iterations } {
            for cut in cuts.iter_mut() {
                let mut seconds = self.pass(&mut cut.fusion, &cut.script, true)?;
                self.world.max_f64(&mut seconds)?;
                cut.totals.push(seconds[0]);
                cut.exposed.push(seconds[1]);
                progress.advance(1);
            }
        }
        progress.end();
        if self.world.rank() == 0 {
            cuts.iter().for_each(Cut::print);
        }
        self.world.agree(match wrong {
            0 => Ok(()),
            wrong => Err(Error::new(ErrorKind::Internal, format!("fusion: {wrong} wrong elements"))),
        })
    }

    /// One backward pass: its seconds, and those in which nothing was computed. Collective.
    fn pass(&self, fusion: &mut Fusion, script: &Script, compute: bool) -> Result<[f64; 2]> {
        self.world.barrier()?;
        let begun = Instant::now();
        fusion.begin(&Reference, begun);
        for action in &script.actions {
            match action {
                Action::Run { steps, .. } => {
                    for step in steps.clone().filter(|&step| step >= self.plan.forward_steps) {
                        let (begun, time) = (Instant::now(), self.steps[step - self.plan.forward_steps]);
                        while compute && begun.elapsed() < time {
                            std::hint::spin_loop();
                        }
                        fusion.advance(&Reference)?;
                    }
                }
                Action::Start(id) => fusion.start(*id, &Reference)?,
                Action::Wait(id) => fusion.wait(*id, &Reference)?,
                _ => {}
            }
        }
        let exposed = fusion.times().iter().map(|time| time.exposed).sum();
        Ok([begun.elapsed().as_secs_f64(), exposed])
    }

    /// Elements of all ranks that are not the sum of all. Leaves zeros, which stay zeros. Collective.
    fn check(&self, fusion: &mut Fusion, script: &Script) -> Result<usize> {
        /// Integers so small that their sums are exact, in halves too while ranks are few.
        fn value(rank: usize, index: usize) -> f32 {
            ((index.wrapping_mul(2_654_435_761) >> 7) % 4 + rank % 2) as f32
        }
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let count = self.region.elements();
        let mut buffer = vec![0.0; count];
        buffer.iter_mut().enumerate().for_each(|(index, to)| *to = value(rank, index));
        self.region.write(0, &buffer);
        self.pass(fusion, script, false)?;
        self.region.read(0, &mut buffer);
        let sum = |index| (0..ranks).map(|rank| value(rank, index)).sum::<f32>();
        let wrong = buffer.iter().enumerate().filter(|(index, got)| **got != sum(*index)).count();
        self.region.write(0, &vec![0.0; count]);
        let mut all = [wrong as f64];
        self.world.sum_f64(&mut all)?;
        Ok(all[0] as usize)
    }

    fn print_header(&self, args: &Args) {
        if self.world.rank() > 0 {
            return;
        }
        let gradients = self.plan.gradients.len();
        record::print(&format!(
            "# fusion: {gradients} gradients of {} ({}), {} ranks on {} node(s), {}, --allreduce {}, {} between ranks",
            args.model,
            show(self.region.bytes() - TAIL),
            self.world.size(),
            self.world.nodes(),
            self.world.library(),
            args.allreduce.name(),
            args.wire,
        ));
        record::print(&format!(
            "# the backward pass alone: {} steps, {:.3} ms; times are medians of the slowest rank",
            self.steps.len(),
            self.steps.iter().sum::<Duration>().as_secs_f64() * 1e3
        ));
        record::print(&format!(
            "#{:>13} {:>8} {:>10} {:>10} {:>10} {:>12} {:>12} {:>8}",
            "cut", "buckets", "first MB", "most MB", "last MB", "total ms", "exposed ms", "wrong"
        ));
    }
}
