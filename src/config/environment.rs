//! The switches of the environment: every variable of dltrain's own, and what it does. Nothing else reads one.

use std::ffi::OsString;
use std::fmt::Write;

use super::values::lists;

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

macro_rules! variables {
    ($($constant:ident: $name:literal, $values:literal, $what:literal, $default:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $what, ".")]
            pub const $constant: Variable =
                Variable { name: $name, values: $values, what: $what, default: $default };
        )*
        /// All of them.
        pub const VARIABLES: &[Variable] = &[$($constant),*];
    };
}

// Name, values, what it does, and what holds without it.
variables! {
    LOG: "DLTRAIN_LOG", "error, warn, info, debug, trace, off, MODULE=LEVEL,...",
        "messages of every rank", "RUST_LOG, else info of rank 0 and warn of the others";
    TUNING: "DLTRAIN_TUNING", "FILE",
        "what bench autotune measured, for --allreduce auto", "dltrain/tuning.json in $XDG_CONFIG_HOME or ~/.config";
    MPI: "DLTRAIN_MPI", "openmpi, mpich",
        "the program for which MPI the installed dltrain starts", "that of the launcher";
    CUDA_PATH: "DLTRAIN_CUDA_PATH", "DIR:DIR...", "where CUDA's libraries are looked for first", "the usual places";
    CUDNN_CACHE: "DLTRAIN_CUDNN_CACHE", "DIR, /dev/null",
        "where choices of cuDNN's engines are kept", "dltrain/cudnn in $XDG_CACHE_HOME or ~/.cache";
    CUDNN_FUSION: "DLTRAIN_CUDNN_FUSION", "0 never, 1 wherever there is an engine",
        "ops that cuDNN computes along with convolutions", "where that is faster";
    CUDNN_ENGINES: "DLTRAIN_CUDNN_ENGINES", "1 the first that serves",
        "which of cuDNN's engines computes a convolution", "the fastest of ten";
    CUDA_GRAPH: "DLTRAIN_CUDA_GRAPH", "0 off",
        "what runs between two buckets, or all of a single rank's step, as one CUDA graph", "on";
    CUDA_PDL: "DLTRAIN_CUDA_PDL", "1 on",
        "kernels that begin before the one in front has ended (programmatic dependent launches, sm_90)", "off";
    CUDA_CODING: "DLTRAIN_CUDA_CODING", "0 off", "--compress on the GPU where the gradients lie", "on";
    CUDA_PIXELS: "DLTRAIN_CUDA_PIXELS", "0 off",
        "samples are sent as files have them, and the GPU makes numbers of them", "on";
}

/// What `dltrain elastic` marks the processes of its job with.
pub const ELASTIC_JOB: &str = "DLTRAIN_ELASTIC_JOB";

/// What the build and the tests have for themselves.
const OF_THE_BUILD: &str =
    "DLTRAIN_DNNL DLTRAIN_MPIRUN DLTRAIN_MPICC DLTRAIN_REVISION DLTRAIN_SCENE DLTRAIN_KERNELS_ON";

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
    for variable in VARIABLES {
        let Variable { name, values, what, default } = variable;
        let value = variable
            .value()
            .map_or_else(|| format!("not set: {default}"), |value| value.display().to_string());
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
            || lists(OF_THE_BUILD, name)
            || name == ELASTIC_JOB
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
