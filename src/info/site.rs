//! What `dltrain info --site` adds for whoever runs the machine: the system, limits, pinning, networks, file systems,
//! clocks, and what the environment tells MPI, from /proc and /sys. Every rank says its own.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::host::{self, group};

/// This rank's facts, each a name and what it is, as one line. The names are the same on every rank.
pub fn facts() -> Vec<(&'static str, String)> {
    vec![
        ("system", system()),
        ("memory", memory()),
        ("group", group()),
        ("huge pages", huge_pages()),
        ("NUMA", format!("nodes {}", said("/sys/devices/system/node/online"))),
        ("governor", said("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("clock", said("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ("pinning", format!("processors {}, of {} on the machine", host::binding(), host::online())),
        ("limits", limits()),
        ("fabric", devices("/sys/class/infiniband", "ports/1/state", "ports/1/rate")),
        ("network", devices("/sys/class/net", "operstate", "speed")),
        ("transports", transports()),
        ("variables", variables()),
        (
            "directory",
            std::env::current_dir().map_or_else(|error| error.to_string(), |path| file_system(&path)),
        ),
        ("HOME", std::env::home_dir().map_or_else(|| "not set".into(), |path| file_system(&path))),
        ("TMPDIR", file_system(&std::env::temp_dir())),
        ("/dev/shm", file_system(Path::new("/dev/shm"))),
    ]
}

const NOT_SAID: &str = "not said here";

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string()).filter(|text| !text.is_empty())
}

fn said(path: &str) -> String {
    read(path).unwrap_or_else(|| NOT_SAID.into())
}

fn gigabytes(bytes: u64) -> String {
    match bytes {
        ..10_000_000_000 => format!("{:.1} GB", bytes as f64 / 1e9),
        _ => format!("{:.0} GB", bytes as f64 / 1e9),
    }
}

fn system() -> String {
    let release = read("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = said("/proc/sys/kernel/osrelease");
    format!("{}, Linux {kernel}", name.map_or("unknown system", |name| name.trim_matches('"')))
}

fn memory() -> String {
    let total = host::memory_line("MemTotal:").and_then(|line| host::kilobytes(&line));
    let [total, left] = [total, host::available_memory()]
        .map(|bytes| bytes.map_or_else(|| NOT_SAID.into(), |bytes| gigabytes(bytes as u64)));
    format!("{total}, of which a rank can have {left}")
}

/// The limits of the control groups around this process: the memory that is nearest to its end, and the least time.
fn group() -> String {
    let memory = group::memory_left().map_or("memory without a limit".into(), |left| {
        let [limit, left_over] = [left.limit, left.bytes].map(|bytes| gigabytes(bytes as u64));
        format!("memory at most {limit}, {left_over} left ({})", left.group)
    });
    let time = group::quota().map_or("cores' time without a limit".into(), |quota| {
        format!("the time of {} cores ({})", quota.cores, quota.group)
    });
    format!("{memory}; {time}")
}

fn huge_pages() -> String {
    let transparent = said("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen =
        transparent.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
    let [count, size] = ["HugePages_Total:", "Hugepagesize:"]
        .map(|name| host::memory_line(name).unwrap_or_else(|| NOT_SAID.into()));
    format!("transparent {}; {count} reserved of {size}", chosen.unwrap_or(&transparent))
}

fn limits() -> String {
    let one = |(name, resource, unit)| match getrlimit(resource).current {
        Some(limit) => format!("{name} {limit}{unit}"),
        None => format!("{name} unlimited"),
    };
    let all = [
        ("locked memory", Resource::Memlock, " bytes"),
        ("open files", Resource::Nofile, ""),
        ("stack", Resource::Stack, " bytes"),
        ("addresses", Resource::As, " bytes"),
        ("processes", Resource::Nproc, ""),
        ("core files", Resource::Core, " bytes"),
    ];
    all.map(one).join(", ")
}

/// The devices of a class, each with its state and its rate as the system has them.
fn devices(class: &str, state: &str, rate: &str) -> String {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| !path.ends_with("lo")).collect();
    paths.sort();
    let one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = [state, rate].map(|file| read(path.join(file)));
        // The rate of a network is a bare number, and -1 where it is not known.
        let unit = if rate == "speed" { " Mb/s" } else { "" };
        let [state, rate] = found.map(|text| text.filter(|text| text != "-1"));
        [Some(name), state, rate.map(|rate| rate + unit)].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    if paths.is_empty() { "none".into() } else { paths.iter().map(one).collect::<Vec<_>>().join(", ") }
}

/// The libraries that carry MPI's messages, as far as this process has loaded them.
fn transports() -> String {
    const LIBRARIES: [&str; 7] =
        ["libmpi", "libucp", "libfabric", "libibverbs", "libpsm2", "libportals", "libpmix"];
    let found = LIBRARIES.iter().filter_map(|name| host::library(name));
    found.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// What the environment tells MPI, its transports, OpenMP and the GPUs.
fn variables() -> String {
    const PREFIXES: &str = "OMPI_MCA_ PRTE_MCA_ PMIX_MCA_ UCX_ FI_ MPICH_ MPIR_ I_MPI_ MV2_ PSM2_ NCCL_ \
         OMP_ KMP_ GOMP_ CUDA_VISIBLE_DEVICES";
    // Launchers tell each process where its job is: that says nothing of the site.
    const OF_THE_JOB: [&str; 4] = ["OMPI_MCA_orte_", "OMPI_MCA_ess", "PMIX_MCA_psec", "OMPI_MCA_initial"];
    let is_wanted = |name: &str| {
        PREFIXES.split(' ').any(|prefix| name.starts_with(prefix))
            && !OF_THE_JOB.iter().any(|prefix| name.starts_with(prefix))
    };
    let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let mut all: Vec<String> = all
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
        .collect();
    all.sort();
    if all.is_empty() { "none that tells MPI, OpenMP or GPUs anything".into() } else { all.join(" ") }
}

/// A path with the type and the options of the file system that it is on, and the room there.
fn file_system(path: &Path) -> String {
    let shown = path.display();
    let Ok(whole) = fs::canonicalize(path) else { return format!("{shown}: is not there") };
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let kind = kind_of_mount(&mounts, &whole).unwrap_or_else(|| "unknown file system".into());
    match rustix::fs::statvfs(&whole) {
        Ok(found) => {
            let [free, all] =
                [found.f_bavail, found.f_blocks].map(|blocks| gigabytes(blocks * found.f_frsize));
            format!("{shown}: {kind}, {free} of {all} free")
        }
        Err(error) => format!("{shown}: {kind}, {error}"),
    }
}

/// The type and the options ("nfs4 rw,relatime,vers=4.2") of the mount that a path is in: of those that lead to it the
/// longest, and of several at one place the last.
fn kind_of_mount(mounts: &str, path: &Path) -> Option<String> {
    // "36 35 98:0 /root /place rw,noatime master:1 - ext4 /dev/sda rw,errors=continue": proc(5).
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut words = before.split_whitespace().skip(4);
        let place = PathBuf::from(words.next()?.replace("\\040", " "));
        let (options, mut after) = (words.next()?, after.split_whitespace());
        let (kind, of_system) = (after.next()?, after.nth(1).unwrap_or_default());
        let more = of_system.split(',').filter(|option| !options.split(',').any(|other| other == *option));
        let options = options.split(',').chain(more).collect::<Vec<_>>().join(",");
        path.starts_with(&place).then(|| (place.as_os_str().len(), format!("{kind} {options}")))
    };
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_the_mount_that_leads_to_it_last() {
        let mounts = "1 0 8:1 / / rw,relatime - ext4 /dev/sda rw\n\
                      2 1 0:9 / /scratch rw,noatime - nfs4 server:/s rw,vers=4.2\n\
                      3 2 0:8 / /scratch/my\\040own rw master:1 - tmpfs none rw,size=1k\n\
                      4 1 0:7 / /home rw - autofs auto rw\n\
                      5 1 0:6 / /home rw - lustre 10.0.0.1@o2ib:/fs rw,noflock\n";
        let kind = |path: &str| kind_of_mount(mounts, Path::new(path)).unwrap();
        assert_eq!(kind("/scratches"), "ext4 rw,relatime");
        assert_eq!(kind("/scratch/run"), "nfs4 rw,noatime,vers=4.2");
        assert_eq!(kind("/scratch/my own/x"), "tmpfs rw,size=1k");
        assert_eq!(kind("/home/me"), "lustre rw,noflock");
        assert_eq!(kind_of_mount("", Path::new("/")), None);
    }
}
