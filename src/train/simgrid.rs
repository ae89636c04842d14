//! What every rank does in a step, message by message, as traces that SimGrid replays (`smpirun -replay`): a check of
//! predictions by another simulator.
//!
//! Frédéric Desprez et al.: "Improving the accuracy and efficiency of time-independent trace replay", PMBS 2012.
//!
//! A rank is several processes of SimGrid's on one node: one computes, and one for each line of transfers
//! (`plan::Line`) carries these out, one after the other, as the rehearsal has them. They tell each other by messages
//! of no bytes, which within a node take no time, when a transfer starts and when it is over. A round of a collective
//! is one message each way, which both ends wait for. What is added, and what ranks do in memory in common, is
//! computing. Seconds of a message that are none of its links' the sender sleeps before it.

use std::fmt::Write;
use std::path::Path;

use super::plans::{self, ADDING, Plans, step_seconds};
use super::prediction::Case;
use crate::collective::course::{Course, Deed, Machine};
use crate::error::{Error, Result};
use crate::plan::{Action, Axis, Kind, Line, Manner, Plan, Script, Transfer};

/// Steps that are traced: as many as are rehearsed.
const STEPS: usize = 2;

/// FLOP/s of a core of the platform: what is computed is written in nanoseconds.
const SPEED: f64 = 1e9;

/// Tags that are no transfer's: barriers of a node, among those that compute and among those that carry.
const BARRIER: usize = 30_000;
const MEETING: usize = 30_001;
/// That of all messages with bytes: between two processes they keep their order.
const MESSAGE: usize = 30_002;

/// Writes the traces of a case, and says how they are replayed.
///
/// # Errors
/// `Usage` where a rank's actions are decided while it runs, or a library does some; `Output`.
pub fn export(directory: &Path, case: &Case) -> Result<String> {
    let Some(machine) = case.averaging.machine() else { return Ok(String::new()) };
    let refused = |why: String| Error::usage(format!("--export-trace {}: {why}", directory.display()));
    if case.config.strategy.is_asynchronous() {
        return Err(refused(format!("what {} does is decided while it runs", case.config.strategy)));
    }
    let layout = case.places.layout();
    let manners = case.plans.manners(layout, case.config);
    let manner = manners.last().ok_or_else(|| Error::internal("a round without steps"))?;
    // Where images are cut by rows each place of a group has a plan of its own.
    let parts = 1 + case.beside.len();
    let plans: Vec<&Plans> = std::iter::once(case.plans).chain(case.beside).collect();
    let of_place = |(place, plans): (usize, &&Plans)| {
        plans.scripts(manner, case.config, &|_, manner| (place..manner.mesh.data).step_by(parts).collect())
    };
    let mut scripts: Vec<Script> = plans.iter().enumerate().flat_map(of_place).collect();
    scripts.sort_by_key(|script| script.rank);
    let rule = case.config.optimizer.rule;
    let per_byte = plans::per_byte(case.config, case.averaging);
    let (mut stages, mut lines) = (Vec::new(), Vec::new());
    for of_place in &plans {
        let setting = of_place.setting(layout, case.config, case.averaging);
        for plan in of_place.of_stages(layout.stage) {
            let script = &scripts[stages.len() * if parts > 1 { 1 } else { layout.data.size() }];
            let courses = script.transfers.iter().map(|transfer| match transfer.kind {
                // The two ends of an edge, and what few bytes go round among all stages, have messages of their own.
                Kind::Send { .. } | Kind::Receive { .. } => Some(None),
                _ if transfer.axis == Axis::Job && layout.stage.is_some() => Some(None),
                _ => case.averaging.course(transfer, setting, machine).map(Some),
            });
            let courses: Option<Vec<Option<Course>>> = courses.collect();
            let courses =
                courses.ok_or_else(|| refused("a library adds up; use another --allreduce".into()))?;
            let seconds = step_seconds(plan, case.config, case.averaging);
            // Places of a group find each other's carriers by the same numbers; stages have others.
            if layout.stage.is_some() {
                lines.clear();
            }
            stages.push(Stage::new(script, courses, seconds, &mut lines));
        }
    }
    if parts > 1 {
        stages.iter_mut().for_each(|stage| stage.lines = lines.len());
    }
    let stage_of =
        |script: &Script| if parts > 1 { script.rank % parts } else { script.place(Axis::Pipeline) };
    let cast = Cast {
        machine,
        local: case.places.all.local_size(),
        first: first_processes(scripts.iter().map(|script| &stages[stage_of(script)])),
        scripts: &scripts,
        stages: &stages,
        stage_of: &stage_of,
        update: &|bytes: usize| rule.bytes_moved(bytes) as f64 * per_byte,
        add: &|bytes: usize| ADDING * bytes as f64 * per_byte,
        steps: STEPS,
    };
    let written = write(directory, &cast)?;
    // As it is predicted: the first place of a group stands for all.
    let alike = |_: &Plan, manner: &Manner| (0..manner.mesh.data).collect();
    let scripts = if parts > 1 { case.plans.scripts(manner, case.config, &alike) } else { scripts };
    let rehearsal = case.play(&scripts, &|_| 1.0)?;
    Ok(format!(
        "{written} are in {}: {STEPS} steps, to be replayed by {}/replay.sh; they are expected to take {:.6} s in all, \
         the last of them {:.6} s\n",
        directory.display(),
        directory.display(),
        rehearsal.both,
        rehearsal.seconds
    ))
}

/// Of each rank the number of its first process, in their order.
fn first_processes<'a>(stages: impl Iterator<Item = &'a Stage>) -> Vec<usize> {
    let mut next = 0;
    let first = |stage: &Stage| {
        next += 1 + stage.lines;
        next - 1 - stage.lines
    };
    stages.map(first).collect()
}

/// What the ranks of a stage have in common, or those that have the same rows of images; else all of them.
struct Stage {
    /// Of each transfer; `None` of what ranks of several stages do.
    courses: Vec<Option<Course>>,
    /// Of each transfer: the carrier of its line, counted in the order in which lines are first started. Its ranks have
    /// the same transfers.
    carriers: Vec<usize>,
    /// How many there are.
    lines: usize,
    /// Of each step of the plan.
    seconds: Vec<f64>,
}

impl Stage {
    /// `lines` has those that are known, and is given the others.
    fn new(script: &Script, courses: Vec<Option<Course>>, seconds: Vec<f64>, lines: &mut Vec<Line>) -> Stage {
        let mut carriers = vec![0; script.transfers.len()];
        for action in &script.actions {
            let Action::Start(id) = action else { continue };
            let line = match script.line(&script.transfers[*id]) {
                // Whatever group it is.
                Line::Group(axis, _, members, kind) => Line::Group(axis, 0, 0..members.len(), kind),
                line => line,
            };
            carriers[*id] = lines.iter().position(|known| *known == line).unwrap_or_else(|| {
                lines.push(line);
                lines.len() - 1
            });
        }
        Stage { courses, carriers, lines: lines.len(), seconds }
    }
}

/// What processes are made of.
struct Cast<'a> {
    /// The ranks of a stage.
    machine: &'a Machine,
    /// Ranks on a node.
    local: usize,
    /// By rank.
    scripts: &'a [Script],
    first: Vec<usize>,
    stages: &'a [Stage],
    stage_of: &'a dyn Fn(&Script) -> usize,
    update: &'a dyn Fn(usize) -> f64,
    add: &'a dyn Fn(usize) -> f64,
    /// Steps that are traced.
    steps: usize,
}

fn write(directory: &Path, cast: &Cast) -> Result<String> {
    let wrong = |error: std::io::Error| Error::output(directory, format!("cannot write the traces: {error}"));
    std::fs::create_dir_all(directory).map_err(wrong)?;
    let put = |name: &str, text: String| std::fs::write(directory.join(name), text).map_err(wrong);
    let (mut traces, mut hosts) = (String::new(), String::new());
    for script in cast.scripts {
        let host = script.rank / cast.local;
        for (index, text) in cast.rank(script).into_iter().enumerate() {
            let name = match index {
                0 => format!("rank-{}.txt", script.rank),
                line => format!("rank-{}-line-{}.txt", script.rank, line - 1),
            };
            put(&name, text)?;
            let _ = writeln!(traces, "{name}");
            let _ = writeln!(hosts, "n{host}");
        }
    }
    let within = 1.0 / cast.machine.parameters.within.per_byte();
    let ranks = cast.scripts.len();
    let most = cast.stages.iter().map(|stage| 1 + stage.lines).max().unwrap_or(1);
    let (nodes, cores) = (ranks.div_ceil(cast.local), cast.local * most);
    put("platform.xml", cast.machine.network.platform(nodes, cores, within)?)?;
    put("traces.txt", traces)?;
    put("hosts.txt", hosts)?;
    let processes = cast.scripts.iter().map(|script| 1 + cast.stage(script.rank).lines).sum();
    put("replay.sh", replay(processes))?;
    Ok(format!("traces of {ranks} ranks"))
}

/// The command. Bandwidths and latencies are taken as they are, and every message with bytes is one that both ends wait
/// for.
fn replay(processes: usize) -> String {
    format!(
        "#!/bin/sh\n\
         # Replays these traces by SimGrid's smpirun (Debian: libsimgrid-dev) and prints the simulated seconds.\n\
         cd \"$(dirname \"$0\")\" || exit\n\
         ulimit -n {} 2>/dev/null\n\
         smpirun -replay traces.txt -platform platform.xml -hostfile hosts.txt -np {processes} \\\n    \
         --cfg=network/model:CM02 --cfg=network/crosstraffic:0 --cfg=network/TCP-gamma:1e15 \\\n    \
         --cfg=smpi/send-is-detached-thresh:1 --cfg=contexts/stack-size:256 \\\n    \
         --log=root.thres:critical --log=smpi_replay.thres:info 2>&1 | sed -n 's/^.*Simulation time //p'\n",
        processes + 64
    )
}

impl Cast<'_> {
    fn stage(&self, rank: usize) -> &Stage {
        &self.stages[(self.stage_of)(&self.scripts[rank])]
    }

    /// The process of a rank that computes, or that carries a line.
    fn process(&self, rank: usize, line: Option<usize>) -> usize {
        self.first[rank] + line.map_or(0, |line| line + 1)
    }

    /// The process that carries a transfer of a rank.
    fn carrier(&self, rank: usize, id: usize) -> usize {
        self.process(rank, Some(self.stage(rank).carriers[id]))
    }

    /// The process at the other end of an edge.
    fn across(&self, script: &Script, transfer: &Transfer, place: usize) -> usize {
        let (line, peer) = (script.line(transfer), &self.scripts[script.peer(transfer.axis, place)]);
        let there = peer.transfers.iter().position(|transfer| peer.line(transfer) == line);
        self.carrier(peer.rank, there.unwrap_or(0))
    }

    /// The traces of a rank: of the process that computes, then of each line.
    fn rank(&self, script: &Script) -> Vec<String> {
        let lines = self.stage(script.rank).lines;
        let carriers = (0..lines).map(|line| self.carries(script, line));
        std::iter::once(self.computes(script)).chain(carriers).collect()
    }

    fn computes(&self, script: &Script) -> String {
        let me = self.process(script.rank, None);
        let mut trace = Trace::new(me);
        let carrier = |id: usize| self.carrier(script.rank, id);
        let seconds = &self.stage(script.rank).seconds;
        let mut under_way: Vec<usize> = Vec::new();
        for _ in 0..self.steps {
            for action in &script.actions {
                match action {
                    Action::Run { steps, .. } => trace.compute(seconds[steps.clone()].iter().sum()),
                    Action::Update(part)
                    | Action::Drift(part)
                    | Action::Pull(part)
                    | Action::Meet(part)
                    | Action::Mix(part) => trace.compute((self.update)(script.parts[*part].bytes.len())),
                    Action::Accumulate { pass, .. } => trace.compute((self.add)(script.added(*pass).len())),
                    Action::Start(id) => {
                        trace.tell(carrier(*id), *id);
                        under_way.push(*id);
                    }
                    // Into the first step nothing is carried over.
                    Action::Wait(id) if under_way.contains(id) => {
                        trace.hear(carrier(*id), *id);
                        under_way.retain(|other| other != id);
                    }
                    Action::Arrive => {
                        self.beside(script.rank)
                            .for_each(|other| trace.tell(self.process(other, None), BARRIER));
                    }
                    Action::Await { .. } => {
                        self.beside(script.rank)
                            .for_each(|other| trace.hear(self.process(other, None), BARRIER));
                    }
                    _ => {}
                }
            }
        }
        under_way.into_iter().for_each(|id| trace.hear(carrier(id), id));
        trace.end()
    }

    fn carries(&self, script: &Script, line: usize) -> String {
        let (me, computes) = (self.process(script.rank, Some(line)), self.process(script.rank, None));
        let mut trace = Trace::new(me);
        let stage = self.stage(script.rank);
        let started = script.actions.iter().filter_map(|action| match action {
            Action::Start(id) if stage.carriers[*id] == line => Some(*id),
            _ => None,
        });
        let started: Vec<usize> = started.collect();
        for _ in 0..self.steps {
            for id in &started {
                trace.hear(computes, *id);
                match &stage.courses[*id] {
                    Some(course) => {
                        let place = script.rank % self.machine.ranks();
                        let deeds = course.of_rank(place, self.machine);
                        deeds.iter().for_each(|deed| self.deed(script.rank, line, deed, &mut trace));
                    }
                    None => self.between_stages(script, *id, &mut trace),
                }
                trace.tell(computes, *id);
            }
        }
        trace.end()
    }

    /// What ranks of several stages do.
    fn between_stages(&self, script: &Script, id: usize, trace: &mut Trace) {
        let transfer = &script.transfers[id];
        let bytes = transfer.cuts.range().len();
        match transfer.kind {
            Kind::Send { to, .. } => {
                let to = (script.peer(transfer.axis, to), self.across(script, transfer, to));
                self.message(script.rank, Some((to, bytes)), None, trace);
            }
            Kind::Receive { from, .. } => {
                let from = self.across(script, transfer, from);
                self.message(script.rank, None, Some((from, bytes)), trace);
            }
            _ => self.around(script, transfer, trace),
        }
    }

    /// Few bytes of all: each rank sends what it has to the next ones at growing distances. Debra Hensgen, Raphael
    /// Finkel, Udi Manber: "Two algorithms for barrier synchronization", 1988. Of a power of
    /// two that is one round less than is reckoned.
    fn around(&self, script: &Script, transfer: &Transfer, trace: &mut Trace) {
        let (rank, ranks, bytes) = (script.rank, self.scripts.len(), transfer.cuts.range().len());
        let line = script.line(transfer);
        let process = |rank: usize| {
            let of = &self.scripts[rank];
            self.carrier(rank, of.transfers.iter().position(|other| of.line(other) == line).unwrap_or(0))
        };
        let rounds = ranks.max(2).ilog2() + 1;
        for distance in (0..rounds).map(|round| (1 << round) % ranks).filter(|&distance| distance > 0) {
            let [to, from] = [(rank + distance) % ranks, (rank + ranks - distance) % ranks];
            self.message(rank, Some(((to, process(to)), bytes)), Some((process(from), bytes)), trace);
        }
    }

    /// One each way, which both ends wait for: `send` has the rank, its process and the bytes.
    fn message(
        &self,
        rank: usize,
        send: Option<((usize, usize), usize)>,
        receive: Option<(usize, usize)>,
        trace: &mut Trace,
    ) {
        if let Some((from, bytes)) = receive {
            trace.add("irecv", &[from, MESSAGE, bytes]);
        }
        if let Some(((to, process), bytes)) = send {
            let near = to / self.local == rank / self.local;
            trace.sleep(match near {
                true => self.machine.parameters.within.latency(),
                false => self.machine.network.before_links(),
            });
            trace.add("isend", &[process, MESSAGE, bytes]);
        }
        trace.add("waitall", &[]);
    }

    fn deed(&self, rank: usize, line: usize, deed: &Deed, trace: &mut Trace) {
        let first = rank - rank % self.machine.ranks();
        let there = |place: usize| (first + place, self.process(first + place, Some(line)));
        match deed {
            Deed::Work(seconds) => trace.compute(*seconds),
            Deed::Meet => {
                let others: Vec<usize> =
                    self.beside(rank).map(|other| self.process(other, Some(line))).collect();
                others.iter().for_each(|&other| trace.tell(other, MEETING));
                others.iter().for_each(|&other| trace.hear(other, MEETING));
            }
            Deed::Exchange { send, receive } => {
                let send = send.map(|(to, bytes)| (there(to), bytes));
                let receive = receive.map(|(from, bytes)| (there(from).1, bytes));
                self.message(rank, send, receive, trace);
            }
            Deed::Together { sends, receives } => {
                let is_near = |to: usize| to / self.local == rank / self.local;
                for &(from, bytes) in receives {
                    trace.add("irecv", &[there(from).1, MESSAGE, bytes]);
                }
                // All that leaves the node is on its way at a time; what stays there is copied one after the other.
                let (near, far): (Vec<_>, Vec<_>) = sends.iter().partition(|(to, _)| is_near(first + to));
                for (sends, latency) in [
                    (&far, self.machine.network.before_links()),
                    (&near, self.machine.parameters.within.latency()),
                ] {
                    trace.sleep(if sends.is_empty() { 0.0 } else { latency });
                    for (to, bytes) in sends {
                        let process = there(*to).1;
                        trace.add("isend", &[process, MESSAGE, *bytes]);
                        if near.len() > 1 && is_near(first + to) {
                            trace.add("wait", &[trace.process, process, MESSAGE]);
                        }
                    }
                }
                trace.add("waitall", &[]);
            }
        }
    }

    /// The other ranks of a node.
    fn beside(&self, rank: usize) -> impl Iterator<Item = usize> {
        let first = rank - rank % self.machine.local;
        (first..first + self.machine.local).filter(move |&other| other != rank)
    }
}

/// What one process does, a line an action.
struct Trace {
    process: usize,
    text: String,
    /// Seconds of computing that are not written yet.
    pending: f64,
}

impl Trace {
    fn new(process: usize) -> Trace {
        Trace { process, text: format!("{process} init\n"), pending: 0.0 }
    }

    fn compute(&mut self, seconds: f64) {
        self.pending += seconds;
    }

    /// What was to be computed comes before what is next.
    fn settle(&mut self) {
        let seconds = std::mem::take(&mut self.pending);
        if seconds > 0.0 {
            let _ = writeln!(self.text, "{} compute {:.3}", self.process, seconds * SPEED);
        }
    }

    fn add(&mut self, action: &str, numbers: &[usize]) {
        self.settle();
        let _ = write!(self.text, "{} {action}", self.process);
        numbers.iter().for_each(|number| {
            let _ = write!(self.text, " {number}");
        });
        self.text.push('\n');
    }

    fn sleep(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.settle();
            let _ = writeln!(self.text, "{} sleep {seconds:.9}", self.process);
        }
    }

    fn tell(&mut self, process: usize, tag: usize) {
        self.add("send", &[process, tag, 0]);
    }

    fn hear(&mut self, process: usize, tag: usize) {
        self.add("recv", &[process, tag, 0]);
    }

    fn end(mut self) -> String {
        self.settle();
        let _ = writeln!(self.text, "{} finalize", self.process);
        self.text
    }
}
