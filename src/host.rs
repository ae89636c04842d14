//! What the operating system and the CPU say of this machine and of its processes: /proc, and the cores.
//!
//! May use: nothing. Used by: `files`, `comm`, `device`, `collective`, `record`, `train`, `info`, `elastic`.

pub mod clock;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The model of this machine's processor.
pub fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    Some(text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "))?.1.to_string())
}

/// Cores that this process may use: by its binding, and by its group's quota.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The cores that this process is bound to, in words: equal for two processes of a machine that may use the same ones.
pub fn binding() -> String {
    status("Cpus_allowed_list:").unwrap_or_default()
}

/// The logical processors of this machine, as a list like that of `binding`.
pub fn online() -> String {
    fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default().trim().to_string()
}

/// Those of them that this process would get if it asked for all: what its group of processes leaves it (a container's,
/// or a job's). A launcher's binding, or taskset's, is no limit here.
pub fn within_reach() -> Vec<usize> {
    // The thread that asks ends with the answer.
    let asked = std::thread::spawn(|| {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        sched_setaffinity(None, &all).and_then(|()| sched_getaffinity(None)).ok()
    });
    let given = asked.join().ok().flatten();
    given.map_or(Vec::new(), |given| (0..CpuSet::MAX_CPU).filter(|&cpu| given.is_set(cpu)).collect())
}

/// The numbers of a list: "0-2,8".
pub fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The cores of logical processors, each by its first one: those of one core compute by turns.
pub fn cores_of(cpus: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
    let core = |cpu: usize| {
        let siblings =
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        numbers(&siblings.unwrap_or_default()).first().copied().unwrap_or(cpu)
    };
    cpus.into_iter().map(core).collect()
}

/// Says that this rank's threads have cores of their own, so that they may wait awake. To be called before a library
/// with threads is first used.
pub fn cores_are_own() {
    CORES_ARE_OWN.store(true, Ordering::Relaxed);
}

/// Whether that was said.
pub fn has_own_cores() -> bool {
    CORES_ARE_OWN.load(Ordering::Relaxed)
}

static CORES_ARE_OWN: AtomicBool = AtomicBool::new(false);

/// By these OpenMP binds threads to cores, each process from the first core on that it may use.
pub const THREAD_BINDINGS: [&str; 4] = ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"];

/// Says that other ranks may use the same cores as this one: bound, they would all have the first ones. To be called
/// before a library with threads is first used.
pub fn cores_are_shared() {
    CORES_ARE_SHARED.store(true, Ordering::Relaxed);
}

/// Whether that was said.
pub fn has_shared_cores() -> bool {
    CORES_ARE_SHARED.load(Ordering::Relaxed)
}

static CORES_ARE_SHARED: AtomicBool = AtomicBool::new(false);

/// This machine's name.
pub fn name() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(text.trim().to_string()).filter(|name| !name.is_empty())
}

/// The boot of this machine's kernel, and the space of process numbers that this process sees: where both are another
/// process's, its number means that process here too.
pub fn machine() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let numbers = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), numbers.display()))
}

/// Raises the limit of open files to what the system allows, within reason: a data set may lie in thousands.
pub fn raise_open_files() {
    /// More than any set needs; some libraries go over all numbers below the limit.
    const ENOUGH: u64 = 1 << 16;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if current.is_some_and(|current| current < wanted) {
        // Where it is not allowed, files are closed and opened again (`files::KeptFile`).
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Whether this process was started with a signal ignored, as nohup does.
pub fn ignores(signal: i32) -> bool {
    let ignored = status("SigIgn:").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}

/// Bytes that this process can still be given: by the machine, by the groups that it is in (a container's, a job's),
/// and by the limit of its addresses.
pub fn available_memory() -> Option<usize> {
    let machine = kilobytes(&memory_line("MemAvailable:")?);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let addresses = getrlimit(Resource::As).current.and_then(|most| usize::try_from(most).ok());
    let taken = status("VmSize:").and_then(|size| kilobytes(&size)).unwrap_or(0);
    let addresses = addresses.map(|most| most.saturating_sub(taken));
    [machine, left_by_groups(Path::new("/sys/fs/cgroup"), &groups), addresses].into_iter().flatten().min()
}

/// What limits of memory leave, by either version of control groups: those of a process's groups and of all around
/// them. Files in the cache that nobody reads any more make room when it is needed.
fn left_by_groups(root: &Path, groups: &str) -> Option<usize> {
    let of_line = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (root, [limit, used, cached]) = match controllers {
            "" => (root.to_path_buf(), ["memory.max", "memory.current", "inactive_file "]),
            "memory" => {
                let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];
                (root.join("memory"), names)
            }
            _ => return None,
        };
        let left = |group: &Path| {
            let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<usize>().ok();
            let (limit, used) = (number(limit)?, number(used)?);
            let of_cache = value(&fs::read_to_string(group.join("memory.stat")).unwrap_or_default(), cached);
            let cached = of_cache.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
            Some(limit.saturating_sub(used.saturating_sub(cached)))
        };
        // A container sees its own group in the place of the root.
        let place = root.join(group.trim_start_matches('/'));
        place.ancestors().take_while(|group| group.starts_with(&root)).filter_map(left).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// Bytes that this process has in physical memory now: its own, and pages of libraries and shared windows that it has
/// touched. `None` where the system does not say.
pub fn rss() -> Option<usize> {
    kilobytes(&status("VmRSS:")?)
}

/// The most that it had at any time.
pub fn peak_rss() -> Option<usize> {
    kilobytes(&status("VmHWM:")?)
}

/// The file of a library of this process, whose name starts so.
pub fn library(name: &str) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let is_it = |path: &&str| path.rsplit('/').next().is_some_and(|file| file.starts_with(name));
    paths.find(is_it).map(PathBuf::from)
}

/// A process, as the system shows it to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The name of the process's program.
    pub name: String,
    /// 'R', 'S', 'D', ….
    pub state: char,
    /// The process that started it.
    pub parent: u32,
    /// When it began, in ticks after the machine's boot.
    pub began: u64,
}

/// The process of a number, or "self".
pub fn process(id: &str) -> Option<Process> {
    // "PID (NAME) STATE PARENT …", and a name may hold anything.
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(") ")?;
    let mut words = tail.split_whitespace();
    Some(Process {
        name: head.split_once('(')?.1.to_string(),
        state: words.next()?.chars().next()?,
        parent: words.next()?.parse().ok()?,
        // The 22nd field, and the parent is the fourth.
        began: words.nth(17)?.parse().ok()?,
    })
}

/// The processes of this machine whose environment has this entry ("NAME=VALUE"), as far as they may be looked at.
pub fn processes_with(entry: &str) -> Vec<i32> {
    let has_it = |number: &i32| {
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|other| other == entry.as_bytes())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_it).collect()
}

/// What the system says of the machine's memory under this name ("MemTotal:"): "24689480 kB", or a count.
pub fn memory_line(name: &str) -> Option<String> {
    value(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// A line of this process's status.
fn status(name: &str) -> Option<String> {
    value(&fs::read_to_string("/proc/self/status").ok()?, name)
}

/// What follows a name at the start of a line.
fn value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_string())
}

/// Bytes of "12 kB".
pub fn kilobytes(text: &str) -> Option<usize> {
    Some(text.split_whitespace().next()?.parse::<usize>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_and_counted_by_cores() {
        assert_eq!(numbers("0-2,8, 10-11"), [0, 1, 2, 8, 10, 11]);
        assert!(numbers("").is_empty());
        let (own, reach) = (numbers(&binding()), within_reach());
        assert!(!own.is_empty() && own.iter().all(|cpu| reach.contains(cpu)), "{own:?} of {reach:?}");
        let online = numbers(&online());
        assert!(reach.iter().all(|cpu| online.contains(cpu)), "{reach:?} of {online:?}");
        assert!((1..=own.len()).contains(&cores_of(own.iter().copied()).len()));
    }

    #[test]
    fn the_least_limit_of_the_groups_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, files: &[(&str, &str)]| {
            std::fs::create_dir_all(root.path().join(group)).unwrap();
            files
                .iter()
                .for_each(|(name, text)| fs::write(root.path().join(group).join(name), text).unwrap());
        };
        let left = |groups: &str| left_by_groups(root.path(), groups);
        assert_eq!(left("0::/job/step\n"), None);
        write("job", &[("memory.max", "1000\n"), ("memory.current", "700\n")]);
        write("job/step", &[("memory.max", "max\n"), ("memory.current", "600\n")]);
        assert_eq!(left("1:cpu:/\n0::/job/step\n"), Some(300));
        // What is cached can be had; a group within has less.
        write("job", &[("memory.stat", "anon 500\ninactive_file 150\nactive_file 50\n")]);
        assert_eq!(left("0::/job/step\n"), Some(450));
        write("job/step", &[("memory.max", "650\n")]);
        assert_eq!(left("0::/job/step\n"), Some(50));
        // The first version, as a container sees it: its path is the host's.
        let files = [("memory.limit_in_bytes", "90\n"), ("memory.usage_in_bytes", "100\n")];
        write("memory", &files);
        assert_eq!(left("4:memory:/docker/abc\n0::/\n"), Some(0));
        write("memory", &[("memory.stat", "inactive_file 1\ntotal_inactive_file 30\n")]);
        assert_eq!(left("4:memory:/docker/abc\n0::/\n"), Some(20));
    }

    /// A page counts once it is touched.
    #[test]
    fn what_is_touched_is_counted() {
        let before = rss().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(rss().unwrap() >= before + block.len() * 9 / 10);
        assert!(peak_rss().unwrap() >= rss().unwrap());
    }

    #[test]
    fn a_process_is_seen_with_its_parent() {
        let (own, by_number) = (process("self").unwrap(), process(&std::process::id().to_string()).unwrap());
        assert_eq!((&own.name, own.parent), (&by_number.name, std::os::unix::process::parent_id()));
        assert_eq!(process("no number"), None);
        assert!(library("libc.so").is_some() && library("no library").is_none());
        assert!(available_memory().is_some() && cores() > 0 && !binding().is_empty() && name().is_some());
    }
}
