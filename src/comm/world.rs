//! The job: its ranks, what they must agree on, and its end.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::ops::Deref;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use mpi::ffi;

use super::communicator::{Communicator, Reduction, host_name};
use super::cores::{self, CoreShare};
use super::launcher::Launch;
use super::library::{MpiLibrary, thread_level};
use super::progress::SelfReceive;
use super::request::check;
use super::stall_gossip::StallGossip;
use super::topology::Topology;
use super::{region, signals, stall, window};
use crate::config::most;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{self, fnv1a};
use crate::host;
use crate::host::clock::{self, Offset};
use crate::record::RankInfo;

/// How long a job that aborts leaves the launcher to pass on its message.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(200);

/// All ranks of the job, or of a group of them (`split`), which number themselves from 0. A handle: clones mean the
/// same ranks, and MPI is finalized when the last handle of the job, the last of its groups and the last thing made
/// from any of them (regions, channels) are gone. Methods marked collective must be called by every rank of the world,
/// in the same order. What is made from a world is made among its ranks.
///
/// Derefs to `Topology`: `world.rank()`, `world.local_rank()`, …
#[derive(Clone)]
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    members: Members,
    /// The last error that every rank got from `agree` or `check_same`. Of a group of all ranks it is that of its
    /// parent.
    agreed: Rc<RefCell<Option<Error>>>,
    job: Rc<MpiProcess>,
}

/// Some ranks, and those of them that share this node.
struct Members {
    control: Communicator,
    node: Communicator,
    topology: Topology,
}

/// What there is once in a process, whatever groups its ranks form. MPI ends with it.
struct MpiProcess {
    /// All ranks.
    control: Communicator,
    library: MpiLibrary,
    hint: Option<String>,
    /// Windows that are no longer used, with the number of their making: see `retire`.
    retired: RefCell<Vec<(u64, ffi::MPI_Win)>>,
    made: Cell<u64>,
}

impl Members {
    /// `job_rank` is this rank's number in the job; `None` where these are the job. Collective.
    fn of(control: Communicator, job_rank: Option<usize>) -> Result<Members> {
        let node = control.on_this_node()?;
        let mut leader = [control.rank() as u64];
        node.reduce(&mut leader, Reduction::Min)?;
        let own = format!("{} {} {}", leader[0], job_rank.unwrap_or(control.rank()), host_name()?);
        let (mut leaders, mut job_ranks, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for text in control.gather_text(&own)? {
            let mut words = text.splitn(3, ' ');
            let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            leaders.push(number());
            job_ranks.push(number());
            hosts.push(words.next().unwrap_or_default().to_string());
        }
        let topology = Topology::new(control.rank(), &leaders, hosts, job_ranks);
        Ok(Members { control, node, topology })
    }
}

impl World {
    /// Starts MPI. Without a launcher the job is this process alone, and everything works the same way. `revision` is
    /// that of the program.
    ///
    /// # Errors
    /// `Environment` when the launcher started several processes that do not see each other, `Mismatch` when the ranks
    /// are of unlike revisions, `Foreign` when MPI fails, `Internal` when called twice in one process.
    pub fn start(revision: &str) -> std::result::Result<World, NotStarted> {
        let launch = Launch::at_start();
        let mut library = MpiLibrary::linked();
        library.launcher = launch.describe().to_string();
        launch.prepare(&library)?;
        library.thread_level = initialize()?;
        signals::keep_off_this_thread()?;
        host::raise_open_files();
        let world = Communicator::world()?;
        if let Err(error) = launch.check(&library, world.size()) {
            // SAFETY: MPI is initialised and nothing is in flight. A failure changes nothing any more.
            unsafe { ffi::MPI_Finalize() };
            return Err(error.into());
        }
        introduce(&world, revision)?;
        Ok(World::of(&world, launch, library)?)
    }

    fn of(world: &Communicator, launch: &Launch, library: MpiLibrary) -> Result<World> {
        // Traffic of our own, apart from whatever a tool may send on MPI_COMM_WORLD.
        let members = Members::of(world.duplicate()?, None)?;
        let board = watch(&members)?;
        let job = MpiProcess {
            control: members.control,
            hint: launch.hint(&library, world.size()),
            library,
            // Freed at the end, like all windows that nobody holds.
            retired: RefCell::new(board.into_iter().map(|window| (0, window)).collect()),
            made: Cell::new(1),
        };
        Ok(World { inner: Rc::new(Inner { members, agreed: Rc::default(), job: Rc::new(job) }) })
    }

    /// The group of ranks that give the same colour, numbered in the order of their keys, and where these are equal of
    /// their ranks here. All that is made from a world works in a group, as if its ranks were alone, and groups work
    /// side by side. What people are told goes on naming the job's ranks (`Topology::job_rank`). Collective.
    ///
    /// # Errors
    /// `Foreign` when MPI fails, `Internal` for colours and keys beyond 2³¹.
    pub fn split(&self, color: usize, key: usize) -> Result<World> {
        let control = self.inner.members.control.split(color, key)?;
        let members = Members::of(control, Some(self.job_rank(self.rank())))?;
        let whole = control.size() == self.size();
        let agreed = if whole { self.inner.agreed.clone() } else { Rc::default() };
        Ok(World { inner: Rc::new(Inner { members, agreed, job: self.inner.job.clone() }) })
    }

    /// Sets after how many seconds without progress a wait for other ranks is reported, and after how many the job
    /// ends; 0 is never. Without this: 30 seconds, and never.
    pub fn limit_stalls(&self, warn: f64, abort: f64) {
        stall::limit(warn, abort);
    }

    /// The MPI library that this process runs with.
    pub fn library(&self) -> &MpiLibrary {
        &self.inner.job.library
    }

    /// What to tell the user about how this job was started, if anything.
    pub fn hint(&self) -> Option<&str> {
        self.inner.job.hint.as_deref()
    }

    /// Returns when every rank has called it. Collective.
    pub fn barrier(&self) -> Result<()> {
        self.inner.members.control.barrier()
    }

    /// Threads of this rank: `wanted`, else the cores that it may use, shared fairly with the ranks that may use the
    /// same ones. A launcher that binds ranks gives each its own; one that does not gives all of them to all. Where
    /// cores are enough for all threads, that is kept for the libraries (`host::has_own_cores`). Collective.
    ///
    /// # Errors
    /// `Usage` where more are wanted than any machine has use for; `Foreign` when MPI fails.
    pub fn threads(&self, wanted: Option<usize>) -> Result<usize> {
        self.agree(match wanted {
            Some(wanted) if wanted > most::THREADS => {
                Err(Error::usage(format!("--threads {wanted}: must be at most {}", most::THREADS)))
            }
            _ => Ok(()),
        })?;
        let mine = cores::told(self);
        let all = self.gather_text(&mine)?;
        let share = CoreShare::of(&mine, &all);
        self.warn_of_cores(&self.gather_text(&cores::warning(self, &all, &share, wanted))?);
        let cores = share.most();
        if let Some(threads) = wanted.filter(|&threads| threads > cores && self.rank() == 0) {
            let plural = if cores == 1 { "" } else { "s" };
            log::warn!(
                "--threads {threads}: this rank may use {cores} core{plural}, and more threads than cores are far slower"
            );
        }
        if share.ranks() > 1 {
            host::cores_are_shared();
            self.warn_of_binding(share.ranks());
        }
        let threads = wanted.unwrap_or(share.threads());
        if share.part(threads) >= 1.0 {
            host::cores_are_own();
        }
        Ok(threads)
    }

    /// Says, once, that ranks which share cores leave variables alone that a site may set for programs of one process.
    fn warn_of_binding(&self, sharing: usize) {
        let set = host::THREAD_BINDINGS.iter().filter(|name| std::env::var_os(name).is_some());
        let set: Vec<&str> = set.copied().collect();
        static ONCE: std::sync::Once = std::sync::Once::new();
        if self.rank() == 0 && !set.is_empty() {
            let names = set.join(", ");
            let why = "the threads of all would be bound to the first of them; let the launcher bind ranks";
            ONCE.call_once(|| {
                log::warn!("{names}: not used, since {sharing} ranks may use the same cores: {why}")
            });
        }
    }

    /// Says, once, what the first node has to say of its cores, and how many others have.
    fn warn_of_cores(&self, warnings: &[String]) {
        let mut warnings = warnings.iter().filter(|warning| !warning.is_empty());
        let Some(first) = warnings.next().filter(|_| self.rank() == 0) else { return };
        let others = match warnings.count() {
            0 => String::new(),
            1 => "; it is alike on another node".into(),
            others => format!("; it is alike on {others} other nodes"),
        };
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| log::warn!("{first}{others}"));
    }

    /// Which part of the cores that it asks for a rank with so many threads has, that which has least: less than 1
    /// where ranks share cores. Collective.
    pub fn share_of_cores(&self, threads: usize) -> Result<f64> {
        let mine = cores::told(self);
        let mut share = [CoreShare::of(&mine, &self.gather_text(&mine)?).part(threads)];
        self.min_f64(&mut share)?;
        Ok(share[0])
    }

    /// Replaces each number by its sum over all ranks: the same bits on every rank. Collective.
    pub fn sum_f64(&self, numbers: &mut [f64]) -> Result<()> {
        self.inner.members.control.reduce(numbers, Reduction::Sum)
    }

    /// Replaces each number by its least over all ranks. Collective.
    pub fn min_f64(&self, numbers: &mut [f64]) -> Result<()> {
        self.inner.members.control.reduce(numbers, Reduction::Min)
    }

    /// Replaces each number by its greatest over all ranks. Collective.
    pub fn max_f64(&self, numbers: &mut [f64]) -> Result<()> {
        self.inner.members.control.reduce(numbers, Reduction::Max)
    }

    /// Every rank's text, by rank, on every rank. Collective.
    pub fn gather_text(&self, text: &str) -> Result<Vec<String>> {
        self.inner.members.control.gather_text(text)
    }

    /// Hands every rank's words to rank 0, one rank after the other, so that it need not hold all of them. Collective.
    pub fn to_first(&self, words: &[u64], mut each: impl FnMut(usize, &[u64])) -> Result<()> {
        let control = &self.inner.members.control;
        if self.rank() > 0 {
            control.send(&[words.len() as u64], 0)?;
            return control.send(words, 0);
        }
        each(0, words);
        for rank in 1..self.size() {
            let mut length = [0u64];
            control.receive(&mut length, rank)?;
            let mut words = vec![0u64; length[0] as usize];
            control.receive(&mut words, rank)?;
            each(rank, &words);
        }
        Ok(())
    }

    /// How far every rank's clock (`now`) is from rank 0's; empty on other ranks. Collective.
    pub fn clock_offsets(&self) -> Result<Vec<Offset>> {
        let control = &self.inner.members.control;
        if self.rank() > 0 {
            for _ in 0..clock::QUESTIONS {
                control.receive(&mut [0u64], 0)?;
                control.send(&[clock::now()], 0)?;
            }
            return Ok(Vec::new());
        }
        let mut offsets = vec![Offset { at: clock::now(), ..Offset::default() }];
        for rank in 1..self.size() {
            let mut best = Offset { uncertainty: u64::MAX, ..Offset::default() };
            for _ in 0..clock::QUESTIONS {
                let (asked, mut there) = (clock::now(), [0u64]);
                control.send(&[0u64], rank)?;
                control.receive(&mut there, rank)?;
                let offset = Offset::from_answer(asked, there[0], clock::now());
                if offset.uncertainty < best.uncertainty {
                    best = offset;
                }
            }
            offsets.push(best.of_one_clock(self.same_node(rank)));
        }
        Ok(offsets)
    }

    /// Rank 0's text on every rank; what the others pass is ignored. Collective.
    pub fn broadcast_text(&self, text: &str) -> Result<String> {
        self.inner.members.control.broadcast_text(text)
    }

    /// Makes one result of every rank's: if any rank failed, all return the error of the lowest rank that did,
    /// with its rank and host named unless all ranks failed alike. Collective: put it behind whatever may fail
    /// on one rank only, so that no rank waits for one that has given up.
    pub fn agree<T>(&self, local: Result<T>) -> Result<T> {
        let mut healthy = [u64::from(local.is_ok())];
        self.inner.members.control.reduce(&mut healthy, Reduction::Min)?;
        if healthy[0] == 1 {
            return local;
        }
        let report = match &local {
            Ok(_) => String::new(),
            Err(error) => format!("{} {}", error.kind as u8, error.message),
        };
        let reports = self.gather_text(&report)?;
        Err(self.agreed(common_error(&reports, |rank| self.place_of(rank))))
    }

    /// Compares named values that must be equal on every rank (flags, data, plan). Collective; a hash is
    /// compared first, so that equality costs one small message.
    ///
    /// # Errors
    /// `Mismatch`, the same on every rank, naming the first item that differs, both values, ranks and hosts.
    pub fn check_same(&self, items: &[(String, String)]) -> Result<()> {
        match unlike(&self.inner.members.control, items)? {
            None => Ok(()),
            Some(lists) => Err(self.agreed(difference(&lists, |rank| self.place_of(rank)))),
        }
    }

    /// Whether every rank has returned this very error from `agree` or `check_same`. If so the job can end in order;
    /// if not, other ranks may be waiting for this one, and only `abort` ends them. What a group has agreed on the
    /// other ranks of the job know nothing of: ask the job.
    pub fn is_agreed(&self, error: &Error) -> bool {
        self.inner.agreed.borrow().as_ref() == Some(error)
    }

    fn agreed(&self, error: Error) -> Error {
        *self.inner.agreed.borrow_mut() = Some(error.clone());
        error
    }

    /// Whether this rank is to say why the job ends, which `abort` is to follow: the first of its node that asks.
    pub fn is_to_say_why(&self) -> bool {
        stall::ends_first()
    }

    /// Ends the whole job now, this process with `code` and the others by the launcher's hand.
    pub fn abort(&self, code: i32) -> ! {
        abort(code)
    }

    pub(super) fn control(&self) -> &Communicator {
        &self.inner.members.control
    }

    pub(super) fn node_communicator(&self) -> &Communicator {
        &self.inner.members.node
    }

    /// A number for each window in the order in which this rank makes them, in whatever group.
    pub(super) fn next_window(&self) -> u64 {
        let made = &self.inner.job.made;
        made.replace(made.get() + 1)
    }

    /// Takes over a window that is no longer used. It is freed at the end, where all ranks meet anyway:
    /// freeing is collective, and a rank that unwinds from an error must not wait for the others.
    pub(super) fn retire(&self, number: u64, window: ffi::MPI_Win) {
        self.inner.job.retired.borrow_mut().push((number, window));
    }
}

impl From<&World> for RankInfo {
    fn from(world: &World) -> RankInfo {
        RankInfo { rank: world.rank(), size: world.size() }
    }
}

impl Deref for World {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        &self.inner.members.topology
    }
}

/// Why there is no `World`.
#[derive(Debug)]
pub struct NotStarted {
    /// What failed.
    pub error: Error,
    /// Where all ranks found out together: whether this one speaks for them. `None` where others may know nothing: see
    /// `leave`.
    pub speaks: Option<bool>,
}

impl From<Error> for NotStarted {
    fn from(error: Error) -> NotStarted {
        NotStarted { error, speaks: None }
    }
}

/// Makes sure that all ranks are of one revision. This comes before any other message, and must stay as it is: ranks of
/// unlike revisions have nothing else in common. Collective.
fn introduce(world: &Communicator, revision: &str) -> std::result::Result<(), NotStarted> {
    let Some(lists) = unlike(world, &[("the revision of dltrain".into(), revision.into())])? else {
        return Ok(());
    };
    let hosts = world.gather_text(&host_name()?)?;
    let error = difference(&lists, |rank| format!("rank {rank} on {}", hosts[rank]));
    // SAFETY: MPI is initialised and nothing is in flight. A failure changes nothing any more.
    unsafe { ffi::MPI_Finalize() };
    Err(NotStarted { error, speaks: Some(world.rank() == 0) })
}

/// `None` where these are equal on all ranks; else each rank's, in JSON. Collective; a hash is compared first.
fn unlike(control: &Communicator, items: &[(String, String)]) -> Result<Option<Vec<String>>> {
    let hash = hash_of(items);
    // The minimum of the complement is the complement of the maximum: both in one reduction.
    let mut range = [hash, !hash];
    control.reduce(&mut range, Reduction::Min)?;
    if range[0] == !range[1] {
        return Ok(None);
    }
    let text = serde_json::to_string(items)
        .map_err(|error| Error::internal(format!("cannot write items to compare: {error}")))?;
    control.gather_text(&text).map(Some)
}

/// Starts the watch over waits; returns the window of its board, where the nodes have room for one. Collective.
fn watch(Members { control, node, topology }: &Members) -> Result<Option<ffi::MPI_Win>> {
    let bytes = stall::board_bytes(topology.size());
    let mut room = [u64::from(region::free_shared_memory() > bytes as u64 + (1 << 20))];
    control.reduce(&mut room, Reduction::Min)?;
    let window = match room[0] {
        1 => Some(window::allocate(node, if topology.is_leader() { bytes } else { 0 }, true)?),
        _ => None,
    };
    let alone = window.is_some() && topology.nodes() == 1;
    let news =
        if alone || topology.size() == 1 { None } else { Some(StallGossip::new(control.duplicate()?)) };
    let board = window.map(|window| window::part(window, 0)).transpose()?;
    stall::start(topology.clone(), board, news, SelfReceive::new()?);
    Ok(window)
}

/// MPI_Init_thread; returns the thread level granted.
fn initialize() -> Result<&'static str> {
    let (mut already, mut level): (c_int, c_int) = (0, 0);
    // SAFETY: integers to write to; null arguments are allowed since MPI-2.
    unsafe {
        ffi::MPI_Initialized(&mut already);
        if already != 0 {
            return Err(Error::internal("MPI can be started only once in a process"));
        }
        let wanted = ffi::RSMPI_THREAD_FUNNELED;
        let code = ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &mut level);
        check("MPI_Init_thread", code)?;
        if level < wanted {
            return Err(Error::environment(format!(
                "{} grants thread level {} only; a library built with threads (funneled) is needed",
                MpiLibrary::linked(),
                thread_level(level)
            )));
        }
    }
    Ok(thread_level(level))
}

fn abort(code: i32) -> ! {
    // A launcher stops reading the pipes of a job that aborts: let it read the last words first.
    std::thread::sleep(LAST_WORDS);
    // SAFETY: allowed at any time between MPI_Init and MPI_Finalize.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
    // Only a library that failed to abort comes here.
    std::process::exit(code)
}

impl Drop for MpiProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The other ranks know nothing of the panic and would wait for ever.
            abort(ErrorKind::Internal as i32);
        }
        files::disown();
        // MPI_Win_free and MPI_Finalize spin until all are there; let them come first. Nothing can be done
        // about a failure on the way out.
        let _ = self.control.barrier();
        stall::stop();
        let windows = self.retired.get_mut();
        windows.sort_unstable_by_key(|(number, _)| *number);
        for (_, window) in windows {
            // SAFETY: allocated by `SharedWindow::allocate`, and nothing uses it. Two ranks that share windows made
            // them in one order, and each frees its own in the order in which it made them: who could make them can
            // free them.
            unsafe {
                ffi::MPI_Win_unlock_all(*window);
                ffi::MPI_Win_free(window);
            }
        }
        // SAFETY: MPI is initialised, and everything made from it is gone: it held this `MpiProcess`.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// The error that stands for all: `reports[r]` is "code message", or empty where rank r is healthy.
fn common_error(reports: &[String], place_of: impl Fn(usize) -> String) -> Error {
    let first = reports.iter().position(|report| !report.is_empty()).unwrap_or(0);
    let report = &reports[first];
    let (code, message) = report.split_once(' ').unwrap_or(("1", report));
    let kind = ErrorKind::from_code(code.parse().unwrap_or(1));
    if reports.iter().all(|other| other == report) {
        return Error::new(kind, message);
    }
    Error::new(kind, format!("{message} ({})", place_of(first)))
}

/// The first item in which some rank differs from rank 0, as an error. `lists[r]` is rank r's items in JSON.
fn difference(lists: &[String], place: impl Fn(usize) -> String) -> Error {
    let lists: Vec<Vec<(String, String)>> =
        lists.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    for index in 0..longest {
        let here = lists[0].get(index);
        let Some(rank) = lists.iter().position(|list| list.get(index) != here) else { continue };
        let there = lists[rank].get(index);
        let text = match (here, there) {
            (Some((name, a)), Some((other, b))) if name == other => {
                format!("ranks differ in {name}: {a} ({}), {b} ({})", place(0), place(rank))
            }
            _ => {
                let show = |item: Option<&(String, String)>| {
                    item.map_or("nothing".to_string(), |(name, value)| format!("{name} = {value}"))
                };
                format!("ranks differ: {} ({}), {} ({})", show(here), place(0), show(there), place(rank))
            }
        };
        return Error::new(
            ErrorKind::Mismatch,
            format!("{text}; start every rank with the same program, flags and data"),
        );
    }
    Error::internal("ranks differ in a hash but in no item")
}

/// FNV-1a over all names and values, each followed by a byte that no text contains.
fn hash_of(items: &[(String, String)]) -> u64 {
    let texts = items.iter().flat_map(|(name, value)| [name, value]);
    fnv1a(texts.flat_map(|text| text.bytes().chain([0xff])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: usize) -> String {
        format!("rank {rank} on {}", ["a", "b", "c"][rank])
    }

    fn item(name: &str, value: &str) -> (String, String) {
        (name.to_string(), value.to_string())
    }

    #[test]
    fn the_lowest_failing_rank_speaks_and_is_named_unless_all_failed_alike() {
        let reports = ["", "3 labels: truncated", "1 other"].map(String::from);
        let error = common_error(&reports, place);
        assert_eq!(error, Error::new(ErrorKind::Data, "labels: truncated (rank 1 on b)"));
        let alike = ["2 --batch is 0", "2 --batch is 0"].map(String::from);
        assert_eq!(common_error(&alike, place), Error::usage("--batch is 0"));
    }

    #[test]
    fn the_first_item_that_differs_is_named_with_values_ranks_and_hosts() {
        let lists = [
            vec![item("model", "m"), item("batch", "32"), item("seed", "1")],
            vec![item("model", "m"), item("batch", "32"), item("seed", "2")],
            vec![item("model", "m"), item("batch", "64"), item("seed", "1")],
        ];
        let texts: Vec<String> = lists.iter().map(|list| serde_json::to_string(list).unwrap()).collect();
        let error = difference(&texts, place);
        assert_eq!(error.kind, ErrorKind::Mismatch);
        assert!(
            error.message.starts_with("ranks differ in batch: 32 (rank 0 on a), 64 (rank 2 on c)"),
            "{error}"
        );
        let missing = [texts[0].clone(), serde_json::to_string(&lists[1][..2]).unwrap()];
        let error = difference(&missing, place);
        assert!(error.message.contains("seed = 1 (rank 0 on a), nothing (rank 1 on b)"), "{error}");
    }

    #[test]
    fn a_hash_tells_items_from_their_neighbours() {
        assert_ne!(hash_of(&[item("a", "bc")]), hash_of(&[item("ab", "c")]));
        assert_ne!(hash_of(&[item("a", ""), item("", "")]), hash_of(&[item("a", "")]));
        assert_eq!(hash_of(&[item("a", "b")]), hash_of(&[item("a", "b")]));
    }
}
