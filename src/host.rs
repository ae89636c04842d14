//! What the operating system and the CPU say of this machine and of its processes: /proc, and the cores.
//!
//! May use: nothing. Used by: `files`, `comm`, `device`, `collective`, `record`, `train`, `info`, `elastic`.

pub mod clock;
pub mod group;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
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

/// What bounds the memory that a process can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryLimit {
    /// What the machine has.
    Machine,
    /// A control group, by its name, whose processes may have so many bytes.
    Group(String, usize),
    /// The limit of its addresses (`ulimit -v`), which is so many bytes.
    Addresses(usize),
}

/// Bytes that this process can still be given: by the machine, by the groups that it is in (a container's, a job's),
/// and by the limit of its addresses.
pub fn available_memory() -> Option<usize> {
    Some(memory_and_bound()?.0)
}

/// The same with what bounds it.
pub fn memory_and_bound() -> Option<(usize, MemoryLimit)> {
    let machine = kilobytes(&memory_line("MemAvailable:")?).map(|bytes| (bytes, MemoryLimit::Machine));
    let group = group::memory_left().map(|left| (left.bytes, MemoryLimit::Group(left.group, left.limit)));
    let addresses = getrlimit(Resource::As).current.and_then(|most| usize::try_from(most).ok());
    let taken = status("VmSize:").and_then(|size| kilobytes(&size)).unwrap_or(0);
    let addresses = addresses.map(|most| (most.saturating_sub(taken), MemoryLimit::Addresses(most)));
    [machine, group, addresses].into_iter().flatten().min_by_key(|(bytes, _)| *bytes)
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
