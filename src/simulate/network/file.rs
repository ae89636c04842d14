//! The file of `--network`: TOML, in people's units. Whatever is wrong with it is named with its line.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use super::{Interconnect, Topology};
use crate::error::{Error, Result};
use crate::files;

/// Bytes that are read at most.
const LONGEST: u64 = 1 << 20;

/// Beyond this a number of nodes, switches or links is a slip of the keyboard.
const MOST: u64 = 1 << 20;

/// The same of latencies (a quarter of an hour) and bandwidths.
const LARGEST: f64 = 1e9;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    latency_us: Spanned<f64>,
    hop_us: Spanned<f64>,
    gb_per_s: Spanned<f64>,
    links_a_node: Spanned<u64>,
    topology: Spanned<String>,
    #[serde(rename = "fat-tree")]
    fat_tree: Option<Spanned<FatTree>>,
    dragonfly: Option<Spanned<Dragonfly>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FatTree {
    down: Spanned<Vec<u64>>,
    up: Spanned<Vec<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dragonfly {
    groups: Spanned<u64>,
    switches: Spanned<u64>,
    nodes: Spanned<u64>,
    between_groups: Spanned<u64>,
    between_switches: Spanned<u64>,
}

/// What is wrong, and where in the text.
type Wrong = (String, Range<usize>);

impl Interconnect {
    /// Reads a file.
    ///
    /// # Errors
    /// `Usage`, naming the file and the line.
    pub fn read(path: &Path) -> Result<Interconnect> {
        let named = |what: String| Error::usage(format!("--network {}: {what}", path.display()));
        let text = files::read_text(path, LONGEST).map_err(|error| named(error.to_string()))?;
        parse(&text).map_err(|(what, place)| {
            let line = 1 + text[..place.start.min(text.len())].matches('\n').count();
            named(format!("line {line}: {what}"))
        })
    }
}

fn parse(text: &str) -> std::result::Result<Interconnect, Wrong> {
    let file: File =
        toml::from_str(text).map_err(|error| (error.message().to_string(), error.span().unwrap_or(0..0)))?;
    let micro =
        |name: &str, number: &Spanned<f64>, least: f64| figure(name, number, least).map(|us| us * 1e-6);
    let latency = micro("latency_us", &file.latency_us, f64::MIN_POSITIVE)?;
    let hop = micro("hop_us", &file.hop_us, 0.0)?;
    if 2.0 * hop > latency {
        let what = "hop_us is more than half of latency_us, in which two links are counted".to_string();
        return Err((what, file.hop_us.span()));
    }
    Ok(Interconnect {
        latency,
        hop,
        bandwidth: 1e9 * figure("gb_per_s", &file.gb_per_s, f64::MIN_POSITIVE)?,
        links_a_node: count("links_a_node", &file.links_a_node)?,
        topology: topology(&file)?,
        name: file.name,
    })
}

fn figure(name: &str, number: &Spanned<f64>, least: f64) -> std::result::Result<f64, Wrong> {
    let value = *number.get_ref();
    let kind = if least > 0.0 { "a positive number" } else { "a number, not negative" };
    match value.is_finite() && value >= least && value <= LARGEST {
        true => Ok(value),
        false => {
            Err((format!("{name} is {value}; it must be {kind}, of at most {LARGEST:e}"), number.span()))
        }
    }
}

fn count(name: &str, number: &Spanned<u64>) -> std::result::Result<usize, Wrong> {
    counted(name, *number.get_ref(), number.span())
}

fn counted(name: &str, value: u64, place: Range<usize>) -> std::result::Result<usize, Wrong> {
    match (1..=MOST).contains(&value) {
        true => Ok(value as usize),
        false => Err((format!("{name} is {value}; it must be from 1 to {MOST}"), place)),
    }
}

fn topology(file: &File) -> std::result::Result<Topology, Wrong> {
    let missing = |table: &str| {
        let what = format!("topology \"{table}\" needs a table [{table}]");
        (what, file.topology.span())
    };
    let topology = match file.topology.get_ref().as_str() {
        "flat" => Topology::Flat,
        "fat-tree" => fat_tree(file.fat_tree.as_ref().ok_or_else(|| missing("fat-tree"))?.get_ref())?,
        "dragonfly" => dragonfly(file.dragonfly.as_ref().ok_or_else(|| missing("dragonfly"))?.get_ref())?,
        other => {
            let what = format!("topology is \"{other}\"; it is one of flat, fat-tree, dragonfly");
            return Err((what, file.topology.span()));
        }
    };
    let spare = match &topology {
        Topology::FatTree { .. } => file.dragonfly.as_ref().map(|table| ("dragonfly", table.span())),
        Topology::Dragonfly { .. } => file.fat_tree.as_ref().map(|table| ("fat-tree", table.span())),
        Topology::Flat => {
            let of_tree = file.fat_tree.as_ref().map(|table| ("fat-tree", table.span()));
            of_tree.or_else(|| file.dragonfly.as_ref().map(|table| ("dragonfly", table.span())))
        }
    };
    match spare {
        Some((table, place)) => Err((format!("[{table}] is not the topology of this file"), place)),
        None => Ok(topology),
    }
}

fn fat_tree(table: &FatTree) -> std::result::Result<Topology, Wrong> {
    let counts = |name: &str, numbers: &Spanned<Vec<u64>>| -> std::result::Result<Vec<usize>, Wrong> {
        numbers.get_ref().iter().map(|&value| counted(name, value, numbers.span())).collect()
    };
    let (down, up) = (counts("down", &table.down)?, counts("up", &table.up)?);
    if down.is_empty() || down.len() != up.len() {
        let what =
            format!("up has {} numbers and down {}; both have one for each level", up.len(), down.len());
        return Err((what, table.up.span()));
    }
    let links = down.iter().chain(&up).try_fold(1usize, |all, &number| all.checked_mul(number));
    match links.is_some_and(|links| links as u64 <= MOST * MOST) {
        true => Ok(Topology::FatTree { down, up }),
        false => Err((format!("a tree of more than {MOST} nodes"), table.down.span())),
    }
}

fn dragonfly(table: &Dragonfly) -> std::result::Result<Topology, Wrong> {
    let (groups, switches) = (count("groups", &table.groups)?, count("switches", &table.switches)?);
    let nodes = count("nodes", &table.nodes)?;
    if groups > switches {
        let what = format!(
            "groups is {groups} and switches {switches}; a group has a switch for the way to each other group"
        );
        return Err((what, table.groups.span()));
    }
    if (groups as u64).saturating_mul(switches as u64).saturating_mul((switches.max(nodes)) as u64)
        > 64 * MOST
    {
        return Err((format!("a Dragonfly of more than {} links", 64 * MOST), table.groups.span()));
    }
    Ok(Topology::Dragonfly {
        groups,
        switches,
        nodes,
        between_groups: count("between_groups", &table.between_groups)?,
        between_switches: count("between_switches", &table.between_switches)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# A test.\nname = \"test\"\nlatency_us = 1.5\nhop_us = 0\ngb_per_s = 10\nlinks_a_node = 2\n\
                        topology = \"dragonfly\"\n[dragonfly]\ngroups = 3\nswitches = 4\nnodes = 2\n\
                        between_groups = 6\nbetween_switches = 1\n";

    #[test]
    fn a_file_is_read_in_its_units() {
        let network = parse(FILE).unwrap();
        assert_eq!((network.latency, network.hop, network.of_node()), (1.5e-6, 0.0, 2e10));
        assert_eq!(network.room(), Some(24));
        let tree = FILE.split_once("topology").unwrap().0.to_string()
            + "topology = \"fat-tree\"\n[fat-tree]\ndown = [4, 3]\nup = [1, 2]\n";
        assert_eq!(parse(&tree).unwrap().room(), Some(12));
        let flat = FILE.split_once("topology").unwrap().0.to_string() + "topology = \"flat\"\n";
        assert_eq!(parse(&flat).unwrap().room(), None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.toml");
        let wrong = |old: &str, new: &str| {
            assert!(FILE.contains(old));
            std::fs::write(&path, FILE.replace(old, new)).unwrap();
            Interconnect::read(&path).expect_err(new).message
        };
        for (old, new, line, named) in [
            ("latency_us = 1.5", "latency_us = -1.5", 3, "latency_us is -1.5"),
            ("latency_us = 1.5", "latency_us = 0", 3, "latency_us is 0"),
            ("latency_us = 1.5", "latency_us = 1e12", 3, "a positive number, of at most 1e9"),
            ("hop_us = 0", "hop_us = -0.1", 4, "hop_us is -0.1"),
            ("hop_us = 0", "hop_us = 0.8", 4, "more than half of latency_us"),
            ("gb_per_s = 10", "gb_per_s = nan", 5, "gb_per_s is NaN"),
            ("gb_per_s = 10", "gb_per_s = \"10\"", 5, "expected f64"),
            ("links_a_node = 2", "links_a_node = 0", 6, "links_a_node is 0"),
            ("links_a_node = 2", "links_a_node = -2", 6, "-2"),
            ("\"dragonfly\"", "\"torus\"", 7, "torus"),
            ("\"dragonfly\"", "\"fat-tree\"", 7, "[fat-tree]"),
            ("\"dragonfly\"", "\"flat\"", 8, "[dragonfly] is not"),
            ("groups = 3\n", "groups = 5\n", 9, "groups is 5 and switches 4"),
            ("gb_per_s = 10\n", "gb_per_s = 10\ngb = 1\n", 6, "unknown field `gb`"),
            ("gb_per_s = 10\n", "gb_per_s = \n", 5, ""),
            ("gb_per_s = 10\n", "", 1, "missing field `gb_per_s`"),
            ("nodes = 2\n", "", 8, "missing field `nodes`"),
        ] {
            let message = wrong(old, new);
            let place = format!("net.toml: line {line}: ");
            assert!(message.contains(&place) && message.contains(named), "{new:?}: {message}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Interconnect::read(&path).unwrap_err().message.starts_with("--network "));
    }
}
