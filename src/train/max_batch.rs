//! How large a batch fits: the answer to `--max-batch`, and the check that a run fits its machine.

use super::network::Network;
use super::plans::{Planning, Plans};
use crate::comm::World;
use crate::config::{Config, Precision, most};
use crate::error::{Error, ErrorKind, Result};
use crate::host::{self, MemoryLimit};
use crate::plan::{Ledger, MemoryKind, describe_bytes as bytes};
use crate::record;

/// The largest batch within a limit, with its bytes and those of one image more.
#[derive(Debug, PartialEq, Eq)]
struct Fit {
    batch: usize,
    bytes: usize,
    next: usize,
}

/// The largest batch whose memory a rank is at most `limit` bytes, in words.
///
/// # Errors
/// `Usage` when not even the smallest batch fits, or the network cannot be planned at all.
pub fn answer(of: &Planning, network: &Network, limit: usize) -> Result<String> {
    // Each plan adds its compiled kernels to the process; a run has those of one.
    let one = planned(of, network, 1).or_else(|error| planned(of, network, 2).map_err(|_| error))?;
    let program = one.bytes(MemoryKind::Program);
    let total = |batch| {
        let mut ledger = planned(of, network, batch)?;
        ledger.set_program(program);
        Ok(ledger.limiting())
    };
    let Fit { batch, bytes: needed, next } = largest(limit, total)?;
    let (name, limit) = (network.model.name(), bytes(limit));
    if batch == 0 {
        return Err(Error::usage(format!(
            "--max-batch: {name} needs {} for the smallest batch",
            bytes(next)
        )));
    }
    let beyond = match next {
        usize::MAX => String::new(),
        next => format!("; one {} more needs {}", of.config.unit().trim_end_matches('s'), bytes(next)),
    };
    Ok(format!(
        "{name}: the largest batch within {limit} a rank is {batch}, which needs {}, {} of them for code and libraries\
         {beyond}",
        bytes(needed),
        bytes(program),
    ))
}

/// Makes sure that the run's memory is there, shared fairly by the ranks of this node.
///
/// # Errors
/// `Environment`, with the largest batch that fits.
pub fn check(world: &World, of: &Planning, network: &Network, plans: &Plans) -> Result<()> {
    let ranks = world.local_size().max(1);
    if let Some(share) = of.device.free_bytes()? {
        let place = format!("{} has {} free on the rank's GPU", world.host(), bytes(share));
        fits(of, network, (&plans.ledger, Ledger::of_device), share, &place)?;
    }
    let Some((available, bound)) = host::memory_and_bound() else { return Ok(()) };
    let (bound, kept) = match bound {
        MemoryLimit::Machine => (String::new(), 0),
        // The system kills a process for a page too many, and a plan is not as exact as that.
        MemoryLimit::Group(name, limit) => {
            (format!(", as control group {name} allows {} in all", bytes(limit)), within(plans.total()))
        }
        MemoryLimit::Addresses(limit) => {
            (format!(", as `ulimit -v` allows {} of addresses", bytes(limit)), 0)
        }
    };
    let (share, each) = match ranks {
        1 => (available.saturating_sub(kept), String::new()),
        _ => ((available / ranks).saturating_sub(kept), format!(" for each of its {ranks} ranks")),
    };
    let place = format!("{} has {} free{each}{bound}", world.host(), bytes(share));
    fits(of, network, (&plans.ledger, Ledger::to_come), share, &place)
}

/// How far a run's memory may be from what is planned of a rank (docs/internals.md).
fn within(planned: usize) -> usize {
    (planned / 20).max(50_000_000)
}

/// Says of a run that is only planned that its memory is not here, as another machine may be meant. Collective.
///
/// # Errors
/// Those of planning and of MPI.
pub fn tell(world: &World, of: &Planning, network: &Network, plans: &Plans) -> Result<()> {
    let lacking = match check(world, of, network, plans) {
        Err(error) if error.kind == ErrorKind::Environment => Ok(error.to_string()),
        checked => checked.map(|()| String::new()),
    };
    let all = world.gather_text(&world.agree(lacking)?)?;
    if let Some(lacking) = all.iter().find(|lacking| !lacking.is_empty()) {
        record::say(world, &format!("\nwithout --dry-run this ends before the first step: {lacking}"));
    }
    Ok(())
}

/// Makes sure that a part of what is needed is there; the error has the largest batch for which it is.
fn fits(
    of: &Planning,
    network: &Network,
    (ledger, part): (&Ledger, fn(&Ledger) -> usize),
    share: usize,
    place: &str,
) -> Result<()> {
    let needed = part(ledger);
    if needed <= share {
        return Ok(());
    }
    // What is planned is known, and its figure is the one that is said.
    let total = |batch| match batch == of.config.batch {
        true => Ok(needed),
        false => planned(of, network, batch).map(|ledger| part(&ledger)),
    };
    let fit = largest(share, total)?;
    let remedy = match fit.batch {
        0 if fit.next == needed => format!("no batch is smaller{}", smaller(of.config, network)),
        0 => format!(
            "not even the smallest fits (it needs {}){}",
            bytes(fit.next),
            smaller(of.config, network)
        ),
        batch => format!("the largest --batch that fits is {batch}"),
    };
    Err(Error::environment(format!(
        "{} with --batch {} needs {} a rank, and {place}: {remedy}",
        network.model.name(),
        of.config.batch,
        bytes(needed),
    )))
}

/// Flags that a run has not been given by which a rank needs less, in words.
fn smaller(config: &Config, network: &Network) -> String {
    let trains = !config.evaluate && config.predict.is_none();
    let is_half = matches!(config.precision, Precision::Bf16 | Precision::F16);
    // A test of pictures has all of each on a rank.
    let is_cut = network.image[1] > network.parts()
        && (trains || config.fields.are_given() && config.predict.is_none());
    let flags = [
        (trains && !config.recompute, "--recompute"),
        (!is_half, "--precision bf16"),
        (
            is_cut,
            if network.parts() > 1 { "--spatial over more ranks" } else { "--spatial over several ranks" },
        ),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(helps, _)| *helps).map(|&(_, flag)| flag).collect();
    match flags.split_last() {
        None => String::new(),
        Some((last, [])) => format!("; less is needed with {last}"),
        Some((last, others)) => format!("; less is needed with {} or {last}", others.join(", ")),
    }
}

/// The memory of a rank with another batch.
fn planned(of: &Planning, network: &Network, batch: usize) -> Result<Ledger> {
    let config = &Config { batch, ..of.config.clone() };
    Ok(Plans::new(&Planning { config, ..*of }, network)?.ledger)
}

/// Finds the largest batch for which `total` is at most `limit`. Memory grows almost linearly, so each try is where a
/// straight line through what is known meets the limit; halving takes over should that be slow.
fn largest(limit: usize, total: impl Fn(usize) -> Result<usize>) -> Result<Fit> {
    // A normalisation over a single pixel wants two images.
    let (least, fewest) = match total(1) {
        Err(error) if error.kind == ErrorKind::Usage => (2, total(2).map_err(|_| error)?),
        one => (1, one?),
    };
    if fewest > limit {
        return Ok(Fit { batch: 0, bytes: 0, next: fewest });
    }
    // A batch that cannot be planned at all is one that does not fit; a defect stays one.
    let total = |batch| match total(batch) {
        Err(error) if error.kind != ErrorKind::Internal => Ok(usize::MAX),
        other => other,
    };
    let (mut low, mut high) = ((least, fewest), (most::BATCH + 1, usize::MAX));
    let mut slope = (total(least + 1)?.saturating_sub(fewest)).max(1) as f64;
    for attempt in 0.. {
        if high.0 - low.0 == 1 {
            break;
        }
        let linear = low.0 + ((limit - low.1) as f64 / slope) as usize;
        let middle = low.0 + (high.0 - low.0) / 2;
        let batch = if attempt < 8 { linear.clamp(low.0 + 1, high.0 - 1) } else { middle };
        let needed = total(batch)?;
        if needed <= limit {
            low = (batch, needed);
        } else {
            high = (batch, needed);
        }
        if high.1 != usize::MAX {
            slope = ((high.1 - low.1) as f64 / (high.0 - low.0) as f64).max(1.0);
        }
    }
    Ok(Fit { batch: low.0, bytes: low.1, next: high.1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Also where memory jumps, and where it cannot be planned beyond a point; never in many tries.
    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let curves: [fn(usize) -> usize; 3] =
            [|b| 1000 + 37 * b, |b| 500 + 30 * b + 4000 * (b / 16), |b| 100 + b * b];
        for curve in curves {
            for limit in [600, 1100, 1500, 10_000, 123_456, 9_999_999] {
                let tries = Cell::new(0);
                let total = |batch| {
                    tries.set(tries.get() + 1);
                    Ok(curve(batch))
                };
                let fit = largest(limit, total).unwrap();
                assert!(fit.batch == 0 || curve(fit.batch) <= limit && fit.bytes == curve(fit.batch));
                assert!(curve(fit.batch + 1) > limit && fit.next == curve(fit.batch + 1));
                assert!(tries.get() <= 32, "{} tries", tries.get());
            }
        }
        let from_two = |batch| if batch > 1 { Ok(100 * batch) } else { Err(Error::usage("too few")) };
        assert_eq!(largest(1000, from_two).unwrap(), Fit { batch: 10, bytes: 1000, next: 1100 });
        assert_eq!(largest(199, from_two).unwrap(), Fit { batch: 0, bytes: 0, next: 200 });
        assert_eq!(largest(1000, |_| Err(Error::usage("never"))).unwrap_err().message, "never");
        let planned = |batch| if batch < 77 { Ok(batch) } else { Err(Error::usage("too large")) };
        assert_eq!(largest(1000, planned).unwrap(), Fit { batch: 76, bytes: 76, next: usize::MAX });
    }
}
