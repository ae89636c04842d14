//! What was measured of a machine for the cost model, and the file that keeps it.
//!
//! Predictions decide which algorithm sums a bucket, and so the order of additions. They come from a file or are built
//! in, never from the run itself: the same flags and file give the same bits. A file that cannot be used is not
//! replaced by a measurement for that reason; the warning names the command that measures anew. All ranks use what rank
//! 0 reads.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::cost::Nodes;
use crate::comm::World;
use crate::config::{AllreduceKind, environment};
use crate::error::{Error, OrError, Result};
use crate::files::{self, directory_of, fnv1a, write_whole};
use crate::host;

/// Bytes of a file that are read at most.
const LONGEST: u64 = 16 << 20;

/// What moving a message or a range takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Microseconds until the first byte is there.
    pub latency_us: f64,
    /// Gigabytes (10⁹) a second, each way while both ways are busy.
    pub gb_per_s: f64,
}

impl Level {
    /// α: seconds.
    pub fn latency(&self) -> f64 {
        self.latency_us * 1e-6
    }

    /// β: seconds a byte.
    pub fn per_byte(&self) -> f64 {
        1e-9 / self.gb_per_s
    }
}

/// The cost model's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Messages between ranks of one node, while all of them send and receive.
    pub within: Level,
    /// Messages between nodes; the bandwidth is that of a node's link.
    pub between: Level,
    /// Memory that the ranks of a node share: a wait for all of them, and what each copies while all do.
    pub shared: Level,
    /// What a rank adds to numbers in place, while all do: gigabytes of f32 a second.
    pub add_gb_per_s: f64,
    /// What a rank rounds to halves, or takes out of them: gigabytes of f32 a second.
    pub round_gb_per_s: f64,
    /// What a thread multiplies and adds in a large product of matrices: 10⁹ operations a second.
    pub gflops_per_thread: f64,
}

impl Parameters {
    /// Bytes of f32 a second.
    pub fn add_per_second(&self) -> f64 {
        self.add_gb_per_s * 1e9
    }

    /// Bytes of f32 a second.
    pub fn round_per_second(&self) -> f64 {
        self.round_gb_per_s * 1e9
    }

    fn are_sound(&self) -> bool {
        let Parameters { within, between, shared, add_gb_per_s, round_gb_per_s, gflops_per_thread } = self;
        let levels = [within, between, shared].map(|level| [level.latency_us, level.gb_per_s]);
        let rates = [*add_gb_per_s, *round_gb_per_s, *gflops_per_thread];
        levels.iter().flatten().chain(&rates).all(|number| number.is_finite() && *number > 0.0)
    }
}

/// Nodes of some cores with links of 10 Gbit/s: used where nothing was measured.
const BUILT_IN: Parameters = Parameters {
    within: Level { latency_us: 1.0, gb_per_s: 3.0 },
    between: Level { latency_us: 10.0, gb_per_s: 1.2 },
    shared: Level { latency_us: 0.4, gb_per_s: 5.0 },
    add_gb_per_s: 8.0,
    round_gb_per_s: 1.5,
    gflops_per_thread: 60.0,
};

/// How long an algorithm took for ranges of f32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// The name of the algorithm, as `--allreduce` has it.
    pub algorithm: String,
    /// Ascending.
    pub bytes: Vec<usize>,
    /// Microseconds: medians of the slowest rank. Never fewer for more bytes.
    pub us: Vec<f64>,
}

/// On what something was measured. Elsewhere it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The models of the ranks' processors.
    pub cpu: String,
    /// The MPI library and its version.
    pub mpi: String,
    /// Ranks on each node.
    pub ranks: String,
    /// This program's version.
    pub dltrain: String,
}

impl Machine {
    /// Collective.
    pub fn of(world: &World) -> Result<Machine> {
        let mut cpus = world.gather_text(&host::cpu_model().unwrap_or_else(|| "unknown".into()))?;
        cpus.sort();
        cpus.dedup();
        Ok(Machine {
            cpu: cpus.join("; "),
            mpi: world.library().to_string(),
            ranks: Nodes::of(world).describe(),
            dltrain: env!("CARGO_PKG_VERSION").to_string(),
        })
    }

    /// The first thing in which another differs, in words.
    fn difference(&self, here: &Machine) -> Option<String> {
        let pairs = [
            ("processor", &self.cpu, &here.cpu),
            ("MPI library", &self.mpi, &here.mpi),
            ("ranks a node", &self.ranks, &here.ranks),
            ("dltrain", &self.dltrain, &here.dltrain),
        ];
        let (what, there, here) = pairs.into_iter().find(|(_, there, here)| there != here)?;
        Some(format!("{what} {there} there, {here} here"))
    }
}

/// What the cost model starts from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The machine that was measured.
    pub machine: Machine,
    /// Latencies and rates, for the cost model.
    pub parameters: Parameters,
    /// What algorithms took: in place of a prediction where there is any.
    pub measured: Vec<Times>,
    /// Why figures may not be those of other hosts, in words: links that are not alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
}

/// What is in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    about: String,
    checksum: String,
    tuning: Tuning,
}

const ABOUT: &str = "what `dltrain bench autotune` measured; used by --allreduce auto on the same machine";

impl Tuning {
    /// What holds where nothing was measured.
    pub fn built_in() -> Tuning {
        Tuning { machine: Machine::default(), parameters: BUILT_IN, measured: Vec::new(), doubts: Vec::new() }
    }

    /// Whether nothing was measured, and the figures are those of the source.
    pub fn is_built_in(&self) -> bool {
        self.machine == Machine::default()
    }

    /// What a range of f32 took, in seconds: between two sizes on a straight line of logarithms, beyond the first and
    /// the last that of the nearest. Also says for which size the answer is.
    pub fn measured(&self, kind: AllreduceKind, bytes: usize) -> Option<(usize, f64)> {
        let Times { bytes: sizes, us, .. } = self
            .measured
            .iter()
            .find(|times| AllreduceKind::from_str(&times.algorithm, false) == Ok(kind))?;
        let at = bytes.clamp(*sizes.first()?, *sizes.last()?);
        let upper = sizes.partition_point(|&size| size < at);
        if sizes[upper] == at {
            return Some((at, us[upper] * 1e-6));
        }
        let log = |bytes: usize| (bytes as f64).ln();
        let share = (log(at) - log(sizes[upper - 1])) / (log(sizes[upper]) - log(sizes[upper - 1]));
        let time = us[upper - 1].ln() * (1.0 - share) + us[upper].ln() * share;
        Some((at, time.exp() * 1e-6))
    }

    /// The text of a file.
    pub fn to_text(&self) -> Result<String> {
        let envelope = Envelope { about: ABOUT.into(), checksum: self.checksum()?, tuning: self.clone() };
        serde_json::to_string_pretty(&envelope).map(|text| text + "\n").map_err(not_written)
    }

    /// FNV-1a of what was measured.
    pub fn checksum(&self) -> Result<String> {
        let text = serde_json::to_string(self).map_err(not_written)?;
        Ok(format!("{:016x}", fnv1a(text.bytes())))
    }

    /// The tuning in a file's text, if it is whole and of this machine; else why not.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_text(text: &str, here: &Machine) -> std::result::Result<Tuning, String> {
        let damaged = |why: &str| format!("it is damaged ({why})");
        let Envelope { checksum, tuning, .. } =
            serde_json::from_str(text).map_err(|error| damaged(&error.to_string()))?;
        if tuning.checksum().ok() != Some(checksum) {
            return Err(damaged("its checksum is another"));
        }
        if !tuning.is_sound() {
            return Err(damaged("numbers that cannot be"));
        }
        match tuning.machine.difference(here) {
            Some(difference) => Err(format!("it is from another machine ({difference})")),
            None => Ok(tuning),
        }
    }

    fn is_sound(&self) -> bool {
        let sound = |times: &Times| {
            let rising = times.bytes.windows(2).all(|pair| pair[0] < pair[1])
                && times.us.windows(2).all(|pair| pair[0] <= pair[1]);
            let positive = times.bytes.first() > Some(&0) && times.us.first() > Some(&0.0);
            times.bytes.len() == times.us.len() && rising && positive
        };
        self.parameters.are_sound() && self.measured.iter().all(sound)
    }

    /// The same for ranks that lie like this ("2+2"): times of algorithms are kept only if such ranks measured them.
    pub fn of_ranks(&self, ranks: &str) -> Tuning {
        let measured = if ranks == self.machine.ranks { self.measured.clone() } else { Vec::new() };
        Tuning { measured, ..self.clone() }
    }

    /// Reads what ranks of this machine measured, however they lay.
    fn of_any_ranks(text: &str, here: &Machine) -> std::result::Result<Tuning, String> {
        let ranks = match serde_json::from_str::<Envelope>(text) {
            Ok(Envelope { tuning, .. }) => tuning.machine.ranks,
            // What is wrong with it is said below.
            Err(_) => here.ranks.clone(),
        };
        Tuning::from_text(text, &Machine { ranks, ..here.clone() })
    }

    /// Reads the file of `--tuning`, or that at the usual place if there is one. One that cannot be used is ignored
    /// with one warning. One that other ranks of this machine wrote is used; its times count for such ranks alone
    /// (`of_ranks`). The same on all ranks: what rank 0 reads. Collective.
    pub fn load(world: &World, flag: Option<&Path>) -> Result<Tuning> {
        let path = flag.map(Path::to_path_buf).or_else(usual_place);
        let mut found = Ok(String::new());
        if let (0, Some(path)) = (world.rank(), &path) {
            found = match files::read_text(path, LONGEST) {
                Err(error) if flag.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                    Ok(String::new())
                }
                Err(error) => Err(format!("it cannot be read ({error})")),
                Ok(text) if text.is_empty() => Err("it is empty".into()),
                Ok(text) => Ok(text),
            };
        }
        let text = world.broadcast_text(found.as_deref().unwrap_or_default())?;
        let tuning = match found {
            Err(why) => Err(why),
            Ok(_) if text.is_empty() => Ok(Tuning::built_in()),
            Ok(_) => {
                let here = Machine::of(world)?;
                let tuning = Tuning::of_any_ranks(&text, &here);
                if let (0, Some(path), Ok(Tuning { machine: Machine { ranks, .. }, .. })) =
                    (world.rank(), &path, &tuning)
                    && *ranks != here.ranks
                {
                    log::info!(
                        "{} was measured with other ranks a node ({ranks}, {} here): its latencies and bandwidths are \
                         used, and its times of allreduces only for such ranks",
                        path.display(),
                        here.ranks
                    );
                }
                tuning
            }
        };
        Ok(tuning.unwrap_or_else(|why| {
            if let (0, Some(path)) = (world.rank(), &path) {
                log::warn!(
                    "{} is not used: {why}. Allreduces are chosen by built-in figures; to measure anew, start as many \
                     ranks with: dltrain bench autotune --output {}",
                    path.display(),
                    path.display()
                );
            }
            Tuning::built_in()
        }))
    }

    /// Makes this process the owner of a file that is to be written, before anything is measured. It may replace an
    /// earlier one, and nothing else.
    ///
    /// # Errors
    /// `Output`: it is there and no tuning file, or another's, or its directory cannot be made.
    pub fn own(path: &Path) -> Result<()> {
        // One that is damaged, or of another version, begins as all do.
        let is_other = |text: &[u8]| !String::from_utf8_lossy(text).contains(ABOUT);
        if path.is_file() && files::read(path).is_ok_and(|text| !text.is_empty() && is_other(&text)) {
            let what = "is there already and is no tuning file; choose another --output";
            return Err(Error::output(path, what));
        }
        std::fs::create_dir_all(directory_of(path)).or_output(path, "cannot write the tuning file")?;
        files::own(path, "choose another --output")
    }

    /// Writes the file, whole or not at all; what is no file (/dev/stdout) as it is.
    ///
    /// # Errors
    /// `Output`.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = self.to_text()?;
        write_whole(path, "the tuning file", |new| {
            std::fs::write(new, &text).or_output(path, "cannot write the tuning file")
        })
    }
}

fn not_written(error: serde_json::Error) -> Error {
    Error::internal(format!("cannot write what was measured: {error}"))
}

/// $DLTRAIN_TUNING, else dltrain/tuning.json where the user's configuration is (XDG).
pub fn usual_place() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    environment::TUNING.value().map(PathBuf::from).or_else(|| {
        let configuration = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(configuration.join("dltrain").join("tuning.json"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Machine {
        Machine {
            cpu: "a".into(),
            mpi: "Open MPI 4.1.4".into(),
            ranks: "2+2".into(),
            dltrain: "0.1.0".into(),
        }
    }

    fn measured() -> Tuning {
        let times =
            Times { algorithm: "ring".into(), bytes: vec![4096, 65_536], us: vec![10.1, 1.0 / 3.0 * 1e3] };
        Tuning { machine: here(), measured: vec![times], ..Tuning::built_in() }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = measured().to_text().unwrap();
        assert_eq!(Tuning::from_text(&text, &here()), Ok(measured()));
    }

    #[test]
    fn a_file_that_is_cut_or_changed_is_not_used() {
        let text = measured().to_text().unwrap();
        for end in (0..text.trim_end().len()).step_by(7) {
            assert!(
                Tuning::from_text(&text[..end], &here()).unwrap_err().contains("damaged"),
                "cut at {end}"
            );
        }
        let digits = text
            .char_indices()
            .filter(|(at, c)| c.is_ascii_digit() && *at > text.find("\"tuning\"").unwrap());
        for (at, digit) in digits {
            let other = if digit == '7' { "3" } else { "7" };
            let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert!(Tuning::from_text(&changed, &here()).is_err(), "{at}: {changed}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_not_used() {
        let mut backwards = measured();
        backwards.measured[0].us.reverse();
        let mut negative = measured();
        negative.parameters.shared.gb_per_s = -1.0;
        let mut unequal = measured();
        unequal.measured[0].bytes.pop();
        for wrong in [backwards, negative, unequal] {
            let why = Tuning::from_text(&wrong.to_text().unwrap(), &here()).unwrap_err();
            assert!(why.contains("cannot be"), "{why}");
        }
    }

    /// Two nodes are measured with two ranks, and other nodes predicted from one.
    #[test]
    fn what_other_ranks_of_a_machine_measured_can_be_used_without_their_times() {
        let text = measured().to_text().unwrap();
        let alone = Machine { ranks: "1".into(), ..here() };
        let tuning = Tuning::of_any_ranks(&text, &alone).unwrap();
        let of_alone = tuning.of_ranks(&alone.ranks);
        assert_eq!((of_alone.parameters, of_alone.measured.len()), (measured().parameters, 0));
        assert_eq!((&tuning.of_ranks(&here().ranks), &tuning), (&measured(), &measured()));
        assert_eq!(Tuning::of_any_ranks(&text, &here()), Ok(measured()));
        let other = Machine { cpu: "b".into(), ..alone };
        assert!(Tuning::of_any_ranks(&text, &other).unwrap_err().contains("processor a there"));
        assert!(Tuning::of_any_ranks("{", &here()).unwrap_err().contains("damaged"));
    }

    #[test]
    fn another_machine_is_named_by_what_differs() {
        let text = measured().to_text().unwrap();
        for (there, named) in [
            (Machine { cpu: "b".into(), ..here() }, "processor a there, b here"),
            (Machine { mpi: "MPICH 4.0.2".into(), ..here() }, "MPI library"),
            (Machine { ranks: "4".into(), ..here() }, "ranks a node 2+2 there, 4 here"),
            (Machine { dltrain: "0.2.0".into(), ..here() }, "dltrain 0.1.0 there"),
        ] {
            let why = Tuning::from_text(&text, &there).unwrap_err();
            assert!(why.contains("another machine") && why.contains(named), "{why}");
        }
    }
}
