//! The table that is printed.

use super::Args;
use super::subject::Subject;
use super::time::TimeSamples;
use crate::bench::limits::{self, BandwidthLimits};
use crate::bench::sizes::show;
use crate::comm::{Region, World};
use crate::config::Wire;
use crate::record;

/// One line: what an algorithm does with one length.
#[derive(Debug, Clone)]
pub struct TableRow {
    pub algorithm: &'static str,
    pub wire: Wire,
    pub bytes: usize,
    pub elements: usize,
    /// Ranges in flight together that these are.
    pub ranges: usize,
    /// `None` where nothing was timed.
    pub times: Option<TimeSamples>,
    /// Bytes a second: size / median.
    pub algbw: f64,
    pub busbw: f64,
    /// Median time of the MPI library's call over this one's.
    pub ratio: f64,
    /// Wrong numbers of all ranks and checks.
    pub wrong: usize,
}

pub fn print_header(
    subject: Subject,
    args: &Args,
    world: &World,
    region: &Region,
    limits: Option<&BandwidthLimits>,
) {
    if world.rank() > 0 {
        return;
    }
    let kind = if region.is_shared() { "shared" } else { "private" };
    let (ranks, nodes, library) = (world.size(), world.nodes(), world.library());
    record::print(&format!(
        "# {subject} of f32 in place: {ranks} ranks on {nodes} node(s), {library}, {kind} memory"
    ));
    if args.check_only {
        record::print(&format!("#{:>9} {:>11} {:>18} {:>8}", "size", "elements", "algorithm", "wrong"));
        return;
    }
    if let Some(limits) = limits {
        record::print(&limits::comment(limits));
    }
    record::print(&format!(
        "# algbw = size/median, busbw = {}, ratio = median of the MPI library's / median; times of the slowest rank",
        subject.bus_formula()
    ));
    if subject == Subject::Allreduce && nodes == 1 {
        record::print(
            "# (memory): every rank reads and writes the size once in place, the least that a sum in place takes",
        );
    }
    record::print(
        "#     size    elements ranges          algorithm  wire      min us   median us      p95 us  algbw GB/s  \
         busbw GB/s  ratio    wrong",
    );
}

/// Says a row as soon as it is there. One that was not timed has a number of wrong elements only.
pub fn print_row(world: &World, row: &TableRow) {
    if world.rank() > 0 {
        return;
    }
    let TableRow { algorithm, wire, bytes, elements, ranges, algbw, busbw, ratio, wrong, .. } = row;
    let Some(times) = row.times else {
        record::print(&format!("{:>10} {elements:>11} {algorithm:>18} {wrong:>8}", show(*bytes)));
        return;
    };
    let us = |seconds: f64| seconds * 1e6;
    record::print(&format!(
        "{:>10} {elements:>11} {ranges:>6} {algorithm:>18} {wire:>5} {:>11.2} {:>11.2} {:>11.2} {:>11.3} {:>11.3} {ratio:>6.2} {wrong:>8}",
        show(*bytes),
        us(times.min),
        us(times.median),
        us(times.p95),
        algbw / 1e9,
        busbw / 1e9,
    ));
}
