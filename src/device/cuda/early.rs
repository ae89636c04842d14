//! Programmatic dependent launches: a kernel that begins before the one in front of it has ended, and waits for that
//! itself. Every kernel does so before anything else, so that nothing it reads or writes is touched too early: what is
//! saved is the time between the end of one kernel and the beginning of the next.

use crate::config::environment;

/// `griddepcontrol` came with sm_90 and PTX 7.8; CUDA 12.3 says how it goes into graphs.
const CAPABILITY: (i32, i32) = (9, 0);
const DRIVER: (i32, i32) = (12, 3);

/// Whether launches are to be such: where `environment::CUDA_PDL` asks for it, on a GPU and with a driver that can.
pub fn wanted(capability: (i32, i32), driver: (i32, i32)) -> bool {
    let asked = environment::CUDA_PDL.text().as_deref() == Some("1");
    let can = can(capability, driver);
    if asked && !can {
        log::warn!(
            "{}=1 does nothing: it needs a GPU of sm_90 or newer and a driver for CUDA 12.3 or newer",
            environment::CUDA_PDL.name
        );
    }
    asked && can
}

fn can(capability: (i32, i32), driver: (i32, i32)) -> bool {
    capability >= CAPABILITY && driver >= DRIVER
}

/// The PTX for sm_80 as one for sm_90, in which each kernel waits first until those in front of it have ended and all
/// that they wrote can be seen. A kernel ends only when all of its threads have waited so: what is in front of that one
/// has ended too.
pub fn waiting(ptx: &str) -> String {
    let newer = ptx.replacen(".version 7.0", ".version 7.8", 1).replacen(".target sm_80", ".target sm_90", 1);
    // Only bodies of kernels begin with a brace on a line of its own: there are no other functions.
    newer.replace("\n{\n", "\n{\n\tgriddepcontrol.wait;\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;
    use std::path::Path;
    use std::process::Command;

    const PTX: &str = include_str!("../../../kernels/dltrain.sm_80.ptx");

    /// Whatever is called from a kernel would have a body of its own; here all of it is written into the kernels.
    #[test]
    fn every_kernel_waits_before_anything_else() {
        let text = waiting(PTX);
        assert!(text.contains("\n.version 7.8\n.target sm_90\n") && !text.contains(".func"));
        let entries: Vec<&str> = text.split(".entry ").skip(1).collect();
        assert!(entries.len() > 200);
        for entry in entries {
            let (name, rest) = entry.split_once('(').unwrap();
            let (_, body) = rest.split_once("\n{\n").unwrap();
            assert!(body.starts_with("\tgriddepcontrol.wait;\n"), "{name}");
            assert_eq!(body.matches("griddepcontrol").count(), 1, "{name}");
        }
    }

    #[test]
    fn older_gpus_and_drivers_do_without() {
        assert!(!wanted((9, 0), (13, 0)), "nobody has asked");
        assert!(can((9, 0), (12, 3)) && can((12, 0), (13, 0)));
        assert!(!can((8, 9), (13, 0)) && !can((9, 0), (12, 2)));
    }

    /// The assembler moves no access to memory in front of it. Needs `.ci/deps cuda`.
    #[test]
    fn in_machine_code_too_nothing_is_accessed_before_the_wait() {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/cuda");
        if !["ptxas", "nvdisasm"].iter().all(|tool| tools.join(tool).exists()) {
            println!("SKIPPED: NVIDIA's assembler is not there (.ci/deps cuda)");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [source, cubin] = ["early.ptx", "early.cubin"].map(|name| directory.path().join(name));
        std::fs::write(&source, waiting(PTX)).unwrap();
        for gpu in ["sm_90", "sm_100", "sm_120"] {
            let mut assemble = Command::new(tools.join("ptxas"));
            assert!(
                assemble
                    .arg(format!("-arch={gpu}"))
                    .arg(&source)
                    .arg("-o")
                    .arg(&cubin)
                    .status()
                    .unwrap()
                    .success()
            );
            let listing = Command::new(tools.join("nvdisasm")).arg("-c").arg(&cubin).output().unwrap().stdout;
            let listing = String::from_utf8(listing).unwrap();
            // Of each kernel what comes first: the wait, or an access of memory that kernels share.
            let mut first: BTreeMap<&str, &str> = BTreeMap::new();
            let mut name = "";
            for line in listing.lines() {
                if let Some(section) = line.strip_prefix(".text.") {
                    name = section.trim_end_matches(':');
                }
                let words = line.split("*/").nth(1).unwrap_or_default().split_whitespace();
                let found = words.take(2).find(|word| {
                    let of = word.split('.').next().unwrap_or_default().trim_end_matches(';');
                    ["ACQBULK", "LDG", "STG", "LD", "ST", "ATOMG", "RED", "REDG", "ATOM", "LDGSTS"]
                        .contains(&of)
                });
                if let Some(found) = found {
                    first.entry(name).or_insert(found);
                }
            }
            assert_eq!(first.len(), PTX.matches(".entry ").count(), "{gpu}");
            let wrong: Vec<_> = first.iter().filter(|(_, found)| !found.starts_with("ACQBULK")).collect();
            assert!(wrong.is_empty(), "{gpu}: {wrong:?}");
        }
    }
}
