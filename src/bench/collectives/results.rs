//! The table as an HDF5 file. `docs/results.md` has its schema.

use std::path::Path;

use hdf5::types::FixedUnicode;

use super::Args;
use super::subject::Subject;
use crate::bench::limits::BandwidthLimits;
use crate::comm::{Region, World};
use crate::error::Result;
use crate::record;

/// What an algorithm does with one length, as it is kept (`COLUMNS`).
#[derive(Debug, Clone, hdf5::H5Type)]
#[repr(C)]
pub struct ResultRow {
    pub algorithm: FixedUnicode<32>,
    pub wire: FixedUnicode<8>,
    pub size: u64,
    pub elements: u64,
    pub ranges: u64,
    pub samples: u64,
    pub min: f64,
    pub median: f64,
    pub p95: f64,
    pub algbw: f64,
    pub busbw: f64,
    pub ratio: f64,
    pub wrong: u64,
}

/// Unit and meaning of each column.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("algorithm", "", "name of the algorithm, or of the MPI library's call"),
    ("wire", "", "the type in which numbers travelled"),
    ("size", "B", "bytes of the whole buffer of a rank"),
    ("elements", "1", "f32 elements of it"),
    ("ranges", "1", "ranges in flight together that these are"),
    ("samples", "1", "timed samples; 0 where answers were only checked"),
    ("min", "s", "time of the fastest sample, on the slowest rank"),
    ("median", "s", "time of the median sample"),
    ("p95", "s", "95 % of the samples took at most so long"),
    ("algbw", "B/s", "size / median"),
    ("busbw", "B/s", "algbw times the attribute bus_factor"),
    ("ratio", "1", "median of the MPI library's call / median"),
    ("wrong", "1", "wrong elements in all checks on all ranks"),
];

/// What all rows have in common.
pub struct About<'a> {
    pub subject: Subject,
    pub args: &'a Args,
    pub world: &'a World,
    pub region: &'a Region,
    pub limits: Option<&'a BandwidthLimits>,
}

impl About<'_> {
    fn attributes(&self) -> Vec<(&'static str, String)> {
        let world = self.world;
        let memory = if self.region.is_shared() { "shared" } else { "private" };
        let hosts: Vec<&str> =
            (0..world.nodes()).map(|node| world.host_of(world.ranks_of(node)[0])).collect();
        let mut attributes = vec![
            ("operation", self.subject.to_string()),
            ("ranks", world.size().to_string()),
            ("nodes", world.nodes().to_string()),
            ("hosts", hosts.join(" ")),
            ("mpi", world.library().to_string()),
            ("wire", self.args.wire.to_string()),
            ("memory", memory.to_string()),
            ("bus_factor", self.subject.bus_factor(world.size()).to_string()),
        ];
        attributes.extend(self.limits.map(|limits| ("limits", limits.to_string())));
        attributes
    }
}

/// Called where there is a path: on rank 0.
pub fn write(path: &Path, about: &About, rows: &[ResultRow]) -> Result<()> {
    record::write_table(path, "dltrain bench", &about.attributes(), COLUMNS, rows)
}
