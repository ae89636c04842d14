//! What every rank does in a step, message by message, as traces that SimGrid replays (`smpirun -replay`): a check of
//! predictions by another simulator.
//!
//! Frédéric Desprez et al.: "Improving the accuracy and efficiency of time-independent trace replay", PMBS 2012.
//!
//! A rank is several processes of SimGrid's on one node: one computes, and one for each line of transfers (`plan::Line`)
//! carries these out, one after the other, as the rehearsal has them. They tell each other by messages of no bytes,
//! which within a node take no time, when a transfer starts and when it is over. A round of a collective is one message
//! each way, which both ends wait for. What is added, and what ranks do in memory in common, is computing. Seconds of
//! a message that are none of its links' the sender sleeps before it.

use std::fmt::Write;
use std::path::Path;

use super::plans::step_seconds;
use super::prediction::Case;
use crate::collective::course::{Course, Deed, Machine};
use crate::error::{Error, Result};
use crate::plan::{Action, Line, Script, Transfer};

/// Steps that are traced: as many as are rehearsed.
const STEPS: usize = 2;

/// FLOP/s of a core of the platform: what is computed is written in nanoseconds.
const SPEED: f64 = 1e9;

/// Tags that are no transfer's: barriers of a node, among those that compute and among those that carry.
const BARRIER: usize = 30_000;
const MEETING: usize = 30_001;

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
    if case.config.pipeline.is_some() {
        return Err(refused("the stages of --pipeline have no traces yet".into()));
    }
    let layout = case.places.layout();
    let manners = case.plans.manners(layout, case.config);
    let manner = manners.last().ok_or_else(|| Error::internal("a round without steps"))?;
    let scripts = case.plans.training.scripts(manner, &case.config.optimizer.rule, 0..case.places.all.size());
    let setting = case.plans.setting(layout, case.config, case.averaging);
    let courses: Option<Vec<Course>> = scripts[0]
        .transfers
        .iter()
        .map(|transfer| case.averaging.course(transfer, setting, machine))
        .collect();
    let courses = courses.ok_or_else(|| refused("a library adds up; use another --allreduce".into()))?;
    let seconds = step_seconds(&case.plans.training, case.config, case.averaging);
    let rule = case.config.optimizer.rule;
    let per_byte = case.plans.per_byte(case.config, case.averaging);
    let update = |bytes: usize| rule.bytes_moved(bytes) as f64 * per_byte;
    let lines = lines(&scripts[0]);
    let steps = STEPS;
    let cast = Cast { machine, courses: &courses, lines: &lines, seconds: &seconds, update: &update, steps };
    let written = write(directory, &scripts, &cast)?;
    let rehearsal = case.play(&scripts, &|_| 1.0)?;
    Ok(format!(
        "{written} are in {}: {steps} steps, to be replayed by {}/replay.sh; they are expected to take {:.6} s in all, \
         the last of them {:.6} s\n",
        directory.display(),
        directory.display(),
        rehearsal.both,
        rehearsal.seconds
    ))
}

/// The lines of a job's transfers, in the order in which they are started.
fn lines(script: &Script) -> Vec<Line> {
    let mut lines = Vec::new();
    for action in &script.actions {
        if let Action::Start(id) = action {
            let line = script.line(&script.transfers[*id]);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// What processes are made of.
struct Cast<'a> {
    machine: &'a Machine,
    /// Of each transfer.
    courses: &'a [Course],
    lines: &'a [Line],
    /// Of each step of the plan.
    seconds: &'a [f64],
    update: &'a dyn Fn(usize) -> f64,
    /// Steps that are traced.
    steps: usize,
}

fn write(directory: &Path, scripts: &[Script], cast: &Cast) -> Result<String> {
    let wrong = |error: std::io::Error| Error::output(directory, format!("cannot write the traces: {error}"));
    std::fs::create_dir_all(directory).map_err(wrong)?;
    let put = |name: &str, text: String| std::fs::write(directory.join(name), text).map_err(wrong);
    let (mut traces, mut hosts) = (String::new(), String::new());
    for script in scripts {
        let host = script.rank / cast.machine.local;
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
    let cores = cast.machine.local * cast.processes();
    put("platform.xml", cast.machine.network.platform(cast.machine.nodes, cores, within)?)?;
    put("traces.txt", traces)?;
    put("hosts.txt", hosts)?;
    put("replay.sh", replay(scripts.len() * cast.processes()))?;
    Ok(format!("traces of {} ranks", scripts.len()))
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
    /// Processes of a rank.
    fn processes(&self) -> usize {
        1 + self.lines.len()
    }

    /// The process of a rank that computes, or that carries a line.
    fn process(&self, rank: usize, line: Option<usize>) -> usize {
        rank * self.processes() + line.map_or(0, |line| line + 1)
    }

    fn line(&self, script: &Script, transfer: &Transfer) -> usize {
        let wanted = script.line(transfer);
        self.lines.iter().position(|line| *line == wanted).unwrap_or(0)
    }

    /// The traces of a rank: of the process that computes, then of each line.
    fn rank(&self, script: &Script) -> Vec<String> {
        let carriers = (0..self.lines.len()).map(|line| self.carries(script, line));
        std::iter::once(self.computes(script)).chain(carriers).collect()
    }

    fn computes(&self, script: &Script) -> String {
        let me = self.process(script.rank, None);
        let mut trace = Trace::new(me);
        let carrier = |id: usize| self.process(script.rank, Some(self.line(script, &script.transfers[id])));
        let mut under_way: Vec<usize> = Vec::new();
        for _ in 0..self.steps {
            for action in &script.actions {
                match action {
                    Action::Run { steps, .. } => trace.compute(self.seconds[steps.clone()].iter().sum()),
                    Action::Update(part)
                    | Action::Drift(part)
                    | Action::Pull(part)
                    | Action::Meet(part)
                    | Action::Mix(part) => trace.compute((self.update)(script.parts[*part].bytes.len())),
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
        let started = script.actions.iter().filter_map(|action| match action {
            Action::Start(id) if self.line(script, &script.transfers[*id]) == line => Some(*id),
            _ => None,
        });
        let started: Vec<usize> = started.collect();
        let deeds: Vec<Vec<Deed>> =
            started.iter().map(|&id| self.courses[id].of_rank(script.rank, self.machine)).collect();
        for _ in 0..self.steps {
            for (id, deeds) in started.iter().zip(&deeds) {
                trace.hear(computes, *id);
                deeds.iter().for_each(|deed| self.deed(script.rank, line, *deed, &mut trace));
                trace.tell(computes, *id);
            }
        }
        trace.end()
    }

    fn deed(&self, rank: usize, line: usize, deed: Deed, trace: &mut Trace) {
        match deed {
            Deed::Work(seconds) => trace.compute(seconds),
            Deed::Meet => {
                let others: Vec<usize> =
                    self.beside(rank).map(|other| self.process(other, Some(line))).collect();
                others.iter().for_each(|&other| trace.tell(other, MEETING));
                others.iter().for_each(|&other| trace.hear(other, MEETING));
            }
            Deed::Exchange { send, receive } => {
                if let Some((from, bytes)) = receive {
                    trace.add("irecv", &[self.process(from, Some(line)), line, bytes]);
                }
                if let Some((to, bytes)) = send {
                    let near = to / self.machine.local == rank / self.machine.local;
                    trace.sleep(match near {
                        true => self.machine.parameters.within.latency(),
                        false => self.machine.network.before_links(),
                    });
                    trace.add("isend", &[self.process(to, Some(line)), line, bytes]);
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
