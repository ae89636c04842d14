//! The table that is printed.

use super::Args;
use super::results::ResultRow;
use super::subject::Subject;
use crate::bench::limits::{self, BandwidthLimits};
use crate::bench::sizes::show;
use crate::comm::{Region, World};
use crate::record;

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
pub fn print_row(world: &World, row: &ResultRow) {
    if world.rank() > 0 {
        return;
    }
    let ResultRow { size, elements, ranges, algbw, busbw, ratio, wrong, .. } = row;
    let (size, algorithm, wire) = (show(*size as usize), row.algorithm.as_str(), row.wire.as_str());
    if row.samples == 0 {
        record::print(&format!("{size:>10} {elements:>11} {algorithm:>18} {wrong:>8}"));
        return;
    }
    let [min, median, p95] = [row.min, row.median, row.p95].map(|seconds| seconds * 1e6);
    let [algbw, busbw] = [algbw, busbw].map(|rate| rate / 1e9);
    record::print(&format!(
        "{size:>10} {elements:>11} {ranges:>6} {algorithm:>18} {wire:>5} {min:>11.2} {median:>11.2} {p95:>11.2} \
         {algbw:>11.3} {busbw:>11.3} {ratio:>6.2} {wrong:>8}"
    ));
}
