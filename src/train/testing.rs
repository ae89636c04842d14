//! `--evaluate`: the weights of a file on the test images, with what a test takes and nothing else; `--predict` goes
//! the same way to other images.

use super::assemble::Assembly;
use super::groups::Groups;
use super::network::Network;
use super::plans::{Planning, Plans};
use super::predicting::{self, Question};
use super::predicting_fields::FieldQuestion;
use super::setup::raw;
use super::source::{decided, open_sets, sharding, test_loader};
use super::stop::{self, Watch};
use super::weights::Start;
use super::{Test, by_class, device, greatest, max_batch, owning, report_missing};
use crate::comm::{self, RunPhase, World};
use crate::config::{Config, Loss, Metric};
use crate::data::Reading;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::MemoryKind;
use crate::record;
use crate::reducer::Averaging;

/// Tests and prints the figures; with `--dry-run` the plan. Collective.
///
/// # Errors
/// The same on every rank; `Diverged` where the loss is not a finite number.
pub fn run(world: &World, config: &Config, network: Network, watch: &Watch) -> Result<()> {
    let threads = world.threads(config.threads)?;
    comm::enter(RunPhase::Data, 0);
    own_output(world, config)?;
    let start = Start::agree(world, config, &network)?;
    let sets = open_sets(world, config, &network, start.as_ref().map(Start::said))?;
    let config = &decided(config, sets.as_ref(), threads);
    let given = sets.clone();
    let samples = sets.and_then(|sets| sets.test);
    let samples =
        world.agree(samples.ok_or_else(|| Error::usage("--evaluate: --data has no samples to test with")))?;
    let reading = Reading::new(config.input.loader_threads.unwrap_or(0), config.input.strict);
    let loader = world.agree(test_loader(world, config, &network, samples.clone(), world.agree(reading)?))?;
    comm::enter(RunPhase::Plan, 0);
    let (device, ref config) = device::open(world, config, threads)?;
    let classes = network.classes;
    let network = network.reading(raw(given.as_ref(), &*device));
    let averaging = Averaging::new(world, config, &*device, threads)?;
    let groups = &Groups::whole(world);
    let (device, averaging) = (&*device, &averaging);
    let of = Planning { layout: groups.layout(), config, device, averaging, evaluate: false };
    let mut plans = world.agree(Plans::new(&of, &network))?;
    plans.compare(groups, config, device)?;
    plans.ledger.set_program(greatest(world, plans.ledger.bytes(MemoryKind::Program))?);
    if config.plan.dry_run {
        record::say(world, &world.agree(plans.describe(&of))?);
        max_batch::tell(world, &of, &network, &plans)?;
        return world.agree(record::printed());
    }
    world.agree(max_batch::check(world, &of, &network, &plans))?;
    comm::enter(RunPhase::Memory, 0);
    let assembly = Assembly { groups, world, peers: world, config, averaging, plans: &plans, device };
    let memories = assembly.memories(start.as_ref(), threads)?;
    let mut evaluator = assembly.evaluator(&plans.training, &memories, loader)?;
    comm::enter(RunPhase::Evaluation, 1);
    if let Some(wanted) = &config.predict {
        if let Some(set) = samples.fields() {
            let shape = world.agree(network.output())?;
            let (sharding, mut loss) = (sharding(world, config), config.fields.loss());
            // What ends in shares gives them by itself.
            if loss == Some(Loss::Bce) && world.agree(network.gives_shares())? {
                loss = None;
            }
            let question = FieldQuestion { wanted, sharding, set, shape, loss };
            return question.answer(world, evaluator, device, watch);
        }
        let classes = predicting::class_names(start.as_ref(), &samples, classes);
        let question = Question { wanted, sharding: sharding(world, config), samples: &samples, classes };
        return question.answer(world, evaluator, device, watch);
    }
    match evaluator.run(world, device, || watch.flags(0.0).stop)? {
        Some(test) => {
            report_missing(world, "missing ", &[("in the test", evaluator.loader.missing())])?;
            say(world, &test, config.metric())
        }
        None => stopped(world, watch),
    }
}

/// That the file of predictions is not there yet. Collective.
fn own_output(world: &World, config: &Config) -> Result<()> {
    let Some(path) = config.predict.as_ref().and_then(|wanted| wanted.output.as_ref()) else { return Ok(()) };
    let check = || record::check_new(path).map_err(|e| e.context("--output"));
    owning(world, config, || record::once(world, check))
}

/// The end of a test that was told to stop. Collective.
pub fn stopped(world: &World, watch: &Watch) -> Result<()> {
    let mut signal = [watch.signal() as f64];
    world.max_f64(&mut signal)?;
    let reason = watch.reason(signal[0] as usize);
    world.agree(Err(Error::new(
        stop::kind(signal[0] as usize),
        format!("stopped by {reason} before the test's end"),
    )))
}

fn say(world: &World, test: &Test, metric: Metric) -> Result<()> {
    if !test.loss.is_finite() {
        let text = format!(
            "the test loss is {}: the weights of --init-from overflow in this network, and what it says of samples \
             means nothing",
            test.loss
        );
        return world.agree(Err(Error::new(ErrorKind::Diverged, text)));
    }
    let found = match metric.is_share() {
        true => format!("{:.2}%", 100.0 * test.metric),
        false => format!("{:.9}", test.metric),
    };
    record::say(world, &format!("test loss {:.9}, {} {found}", test.loss, metric.name()));
    by_class(world, test);
    world.agree(record::printed())
}
