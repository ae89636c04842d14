//! The switches of the environment: every variable of dltrain's own, and what it does. Nothing else reads one.

use std::ffi::OsString;
use std::fmt::Write;

/// A variable, the values that it takes, what they do, and what holds without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// What it does.
    pub what: &'static str,
    /// What holds where it is not set.
    pub default: &'static str,
}

/// The level of messages, on every rank.
pub const LOG: Variable = Variable {
    name: "DLTRAIN_LOG",
    values: "error, warn, info, debug, trace, off, MODULE=LEVEL,...",
    what: "messages of every rank",
    default: "RUST_LOG, else info of rank 0 and warn of the others",
};
/// The file of `dltrain bench autotune`.
pub const TUNING: Variable = Variable {
    name: "DLTRAIN_TUNING",
    values: "FILE",
    what: "what bench autotune measured, for --allreduce auto",
    default: "dltrain/tuning.json in $XDG_CONFIG_HOME or ~/.config",
};
/// Where CUDA's libraries are.
pub const CUDA_PATH: Variable = Variable {
    name: "DLTRAIN_CUDA_PATH",
    values: "DIR:DIR...",
    what: "where CUDA's libraries are looked for first",
    default: "the usual places",
};
/// Where the choices of cuDNN's engines are kept.
pub const CUDNN_CACHE: Variable = Variable {
    name: "DLTRAIN_CUDNN_CACHE",
    values: "DIR, /dev/null",
    what: "where choices of cuDNN's engines are kept",
    default: "dltrain/cudnn in $XDG_CACHE_HOME or ~/.cache",
};
/// Whether cuDNN does something along with a convolution.
pub const CUDNN_FUSION: Variable = Variable {
    name: "DLTRAIN_CUDNN_FUSION",
    values: "0 never, 1 wherever there is an engine",
    what: "ops that cuDNN computes along with convolutions",
    default: "where that is faster",
};
/// Whether steps become CUDA graphs.
pub const CUDA_GRAPH: Variable = Variable {
    name: "DLTRAIN_CUDA_GRAPH",
    values: "0 off",
    what: "steps between two buckets as one CUDA graph",
    default: "on",
};
/// Whether gradients are compressed on the GPU.
pub const CUDA_CODING: Variable = Variable {
    name: "DLTRAIN_CUDA_CODING",
    values: "0 off",
    what: "--compress on the GPU where the gradients lie",
    default: "on",
};
/// Whether the GPU normalises images.
pub const CUDA_PIXELS: Variable = Variable {
    name: "DLTRAIN_CUDA_PIXELS",
    values: "0 off",
    what: "images sent as pixels, and normalised by the GPU",
    default: "on",
};
/// Which MPI's program is started.
const MPI: Variable = Variable {
    name: "DLTRAIN_MPI",
    values: "openmpi, mpich",
    what: "the program for which MPI the installed dltrain starts",
    default: "that of the launcher",
};

/// All of them.
pub const VARIABLES: [Variable; 9] =
    [LOG, TUNING, MPI, CUDA_PATH, CUDNN_CACHE, CUDNN_FUSION, CUDA_GRAPH, CUDA_CODING, CUDA_PIXELS];

/// What the build and the tests have for themselves.
const OF_THE_BUILD: [&str; 6] = [
    "DLTRAIN_DNNL",
    "DLTRAIN_MPIRUN",
    "DLTRAIN_MPICC",
    "DLTRAIN_REVISION",
    "DLTRAIN_SCENE",
    "DLTRAIN_KERNELS_ON",
];

impl Variable {
    /// Its value, unless it is empty.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    /// Its value as text.
    pub fn text(&self) -> Option<String> {
        self.value().and_then(|value| value.into_string().ok())
    }

    /// Whether it is 0.
    pub fn is_off(&self) -> bool {
        self.value().is_some_and(|value| value == "0")
    }
}

/// The variables with the values in force, a line each and one below for what it is.
pub fn describe() -> String {
    let mut text = String::new();
    for Variable { name, values, what, default } in VARIABLES {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        let value = value.map_or_else(|| format!("not set: {default}"), |value| value.display().to_string());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<20} {value}\n{:<20} {what} ({values})", "");
    }
    text
}

/// Names in the environment that look like one of these and are none.
pub fn unknown() -> Vec<String> {
    unknown_of(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn unknown_of(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = |name: &str| {
        VARIABLES.iter().any(|variable| variable.name == name)
            || OF_THE_BUILD.contains(&name)
            || name.starts_with("DLTRAIN_TEST_")
    };
    let mut unknown: Vec<String> =
        names.filter(|name| name.starts_with("DLTRAIN_") && !known(name)).collect();
    unknown.sort();
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_a_switch_and_is_none_is_unknown() {
        let names =
            ["PATH", "DLTRAIN_TUNNING", "DLTRAIN_LOG", "DLTRAIN_TEST_SEED", "DLTRAIN_MPIRUN", "DLTRAIN"];
        assert_eq!(unknown_of(names.map(String::from).into_iter()), ["DLTRAIN_TUNNING"]);
        assert!(VARIABLES.iter().all(|variable| describe().contains(variable.name)));
    }
}
