//! What every rank does in a step, message by message, as a file that `benchmarks/predict/simgrid.py` makes traces for
//! SimGrid of: a check of predictions by another simulator.
//!
//! The first line says what the ranks are, and each other one what one of them does: in `computes` itself, and in
//! `carries` each line of its transfers (`plan::Line`), which are carried out one after the other, as the rehearsal has
//! them. A round of a collective is one message each way.

use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::plans::{ADDING, Plans};
use super::prediction::Case;
use crate::error::{Error, OrError, Result};
use crate::files;
use crate::plan::{Action, Axis, Kind, Line, Manner, Plan, Script, Transfer, TransferId};
use crate::simulate::{Course, Deed, Machine};

/// Steps that are to be replayed: as many as are rehearsed.
const STEPS: usize = 2;

/// Writes what ranks do, and says what that is expected to take.
///
/// # Errors
/// `Usage` where a rank's actions are decided while it runs, or a library does some; `Output`.
pub fn export(path: &Path, case: &Case) -> Result<String> {
    let Some(machine) = case.of.averaging.machine() else { return Ok(String::new()) };
    let refused = |why: String| Error::usage(format!("--export-trace {}: {why}", path.display()));
    if case.of.config.strategy.is_asynchronous() {
        return Err(refused(format!("what {} does is decided while it runs", case.of.config.strategy)));
    }
    let manners = case.plans.manners(&case.of);
    let manner = manners.last().ok_or_else(|| Error::internal("a round without steps"))?;
    let cast = Cast::new(case, machine, manner)
        .ok_or_else(|| refused("a library adds up; use another --allreduce".into()))?;
    files::write_new(path, "what ranks do", |to| {
        cast.write(to).or_output(path, "cannot write what ranks do")
    })?;
    let ranks = cast.scripts.len();
    // As it is predicted: the first place of a group stands for all.
    let alike = |_: &Plan, manner: &Manner| (0..manner.mesh.data).collect();
    let scripts =
        if cast.parts > 1 { case.plans.scripts(manner, case.of.config, &alike) } else { cast.scripts };
    let rehearsal = case.play(&scripts, &|_| 1.0)?;
    Ok(format!(
        "what {ranks} ranks do is in {}, for benchmarks/predict/simgrid.py: {STEPS} steps, which are expected to take \
         {:.6} s in all, the last of them {:.6} s\n",
        path.display(),
        rehearsal.both,
        rehearsal.seconds
    ))
}

/// What a rank, or one of its lines, does, and then it does the next.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Doing {
    /// Is busy for so many seconds.
    Work(f64),
    /// Starts a transfer on a line, or waits for one.
    Start(TransferId, usize),
    Wait(TransferId, usize),
    /// Tells the others of its node that it is there, or waits until they are; both at a time.
    Arrive,
    Await,
    Meet,
    /// Sends and receives all of these at a time: a rank, its line, bytes.
    Messages(Vec<[usize; 3]>, Vec<[usize; 3]>),
}

/// What the ranks of a stage have in common, or those that have the same rows of images; else all of them.
struct Stage {
    /// Of each transfer; `None` of what ranks of several stages do.
    courses: Vec<Option<Course>>,
    /// Of each transfer: its line, counted in the order in which lines are first started. Its ranks have the same
    /// transfers.
    line_of: Vec<usize>,
    /// How many there are.
    lines: usize,
    /// Of each step of the plan.
    seconds: Vec<f64>,
}

/// The ranks, and what their actions are made of.
struct Cast<'a> {
    case: &'a Case<'a>,
    /// The ranks of a stage.
    machine: &'a Machine,
    /// By rank.
    scripts: Vec<Script>,
    stages: Vec<Stage>,
    /// How many ranks share images: each of these has a plan of its own.
    parts: usize,
    /// Seconds for a byte that is read or written.
    per_byte: f64,
}

impl<'a> Cast<'a> {
    /// `None` where a library adds up.
    fn new(case: &'a Case<'a>, machine: &'a Machine, manner: &Manner) -> Option<Cast<'a>> {
        let (layout, parts) = (case.places.layout(), 1 + case.beside.len());
        let plans: Vec<&Plans> = std::iter::once(case.plans).chain(case.beside).collect();
        let of_place = |(place, plans): (usize, &&Plans)| {
            plans.scripts(manner, case.of.config, &|_, manner| {
                (place..manner.mesh.data).step_by(parts).collect()
            })
        };
        let mut scripts: Vec<Script> = plans.iter().enumerate().flat_map(of_place).collect();
        scripts.sort_by_key(|script| script.rank);
        let (mut stages, mut lines) = (Vec::new(), Vec::new());
        for of_place in &plans {
            let setting = of_place.setting(&case.of);
            for plan in of_place.of_stages() {
                let script = &scripts[stages.len() * if parts > 1 { 1 } else { layout.data.size() }];
                let course = |transfer: &Transfer| match transfer.kind {
                    // The two ends of an edge, and what few bytes go round among all stages, have messages of their
                    // own.
                    Kind::Send { .. } | Kind::Receive { .. } => Some(None),
                    _ if transfer.axis == Axis::Job && layout.mesh.is_cut() => Some(None),
                    _ => case.of.averaging.course(transfer, setting, machine).map(Some),
                };
                let courses = script.transfers.iter().map(course).collect::<Option<Vec<_>>>()?;
                // Places of a group find each other's lines by the same numbers; stages have others.
                if layout.mesh.is_cut() {
                    lines.clear();
                }
                let line_of = numbered(script, &mut lines);
                let seconds = case.of.step_seconds(plan);
                stages.push(Stage { courses, line_of, lines: lines.len(), seconds });
            }
        }
        if parts > 1 {
            stages.iter_mut().for_each(|stage| stage.lines = lines.len());
        }
        let per_byte = case.of.per_byte();
        Some(Cast { case, machine, scripts, stages, parts, per_byte })
    }

    fn write(&self, to: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(to)?);
        let within = &self.machine.parameters.within;
        let lines: Vec<usize> = self.scripts.iter().map(|script| self.stage(script).lines).collect();
        let head = serde_json::json!({
            "steps": STEPS, "lines": lines, "ranks_a_node": self.case.places.all.local_size(),
            "ranks_that_meet": self.machine.local, "network": self.machine.network,
            "within": { "latency": within.latency(), "bandwidth": 1.0 / within.per_byte() },
        });
        writeln!(file, "{head}")?;
        for script in &self.scripts {
            let carries: Vec<_> =
                (0..self.stage(script).lines).map(|line| self.carries(script, line)).collect();
            serde_json::to_writer(
                &mut file,
                &serde_json::json!({ "computes": self.computes(script), "carries": carries }),
            )?;
            writeln!(file)?;
        }
        file.flush()
    }

    fn stage(&self, script: &Script) -> &Stage {
        &self.stages[if self.parts > 1 { script.rank % self.parts } else { script.place(Axis::Pipeline) }]
    }

    fn computes(&self, script: &Script) -> Vec<Doing> {
        let Stage { seconds, line_of, .. } = self.stage(script);
        let rule = self.case.of.config.optimizer.rule;
        let doing = |action: &Action| match action {
            Action::Run { steps, .. } => Some(Doing::Work(seconds[steps.clone()].iter().sum())),
            Action::Update(part)
            | Action::Drift(part)
            | Action::Pull(part)
            | Action::Meet(part)
            | Action::Mix(part) => {
                let moved = rule.bytes_moved(script.parts[*part].bytes.len());
                Some(Doing::Work(moved as f64 * self.per_byte))
            }
            Action::Accumulate { pass, .. } => {
                Some(Doing::Work(ADDING * script.added(*pass).len() as f64 * self.per_byte))
            }
            Action::Start(id) => Some(Doing::Start(*id, line_of[*id])),
            Action::Wait(id) => Some(Doing::Wait(*id, line_of[*id])),
            Action::Arrive => Some(Doing::Arrive),
            Action::Await { .. } => Some(Doing::Await),
            _ => None,
        };
        script.actions.iter().filter_map(doing).collect()
    }

    /// The transfers of a line, in their order, each with what it is made of.
    fn carries(&self, script: &Script, line: usize) -> Vec<(TransferId, Vec<Doing>)> {
        let stage = self.stage(script);
        let of = |id: TransferId| match &stage.courses[id] {
            Some(course) => {
                let deeds = course.of_rank(script.rank % self.machine.ranks(), self.machine);
                deeds.into_iter().map(|deed| self.deed(script.rank, line, deed)).collect()
            }
            None => self.between_stages(script, &script.transfers[id]),
        };
        started(script).filter(|&id| stage.line_of[id] == line).map(|id| (id, of(id))).collect()
    }

    fn deed(&self, rank: usize, line: usize, deed: Deed) -> Doing {
        let first = rank - rank % self.machine.ranks();
        let end = |(place, bytes): (usize, usize)| [first + place, line, bytes];
        let (to, from) = match deed {
            Deed::Work(seconds) => return Doing::Work(seconds),
            Deed::Meet => return Doing::Meet,
            Deed::Exchange { send, receive } => (Vec::from_iter(send), Vec::from_iter(receive)),
            Deed::Together { sends, receives } => (sends, receives),
        };
        Doing::Messages(to.into_iter().map(end).collect(), from.into_iter().map(end).collect())
    }

    /// What ranks of several stages do. Few bytes of all go round: each rank sends what it has to the next ones at
    /// growing distances. Debra Hensgen, Raphael Finkel, Udi Manber: "Two algorithms for barrier synchronization",
    /// 1988. Of a power of two that is one round less than is reckoned.
    fn between_stages(&self, script: &Script, transfer: &Transfer) -> Vec<Doing> {
        let (bytes, line) = (transfer.cuts.range().len(), script.line(transfer));
        let end = |rank: usize| {
            let peer = &self.scripts[rank];
            let there = peer.transfers.iter().position(|transfer| peer.line(transfer) == line);
            vec![[rank, self.stage(peer).line_of[there.unwrap_or(0)], bytes]]
        };
        match transfer.kind {
            Kind::Send { to, .. } => vec![Doing::Messages(end(script.peer(transfer.axis, to)), Vec::new())],
            Kind::Receive { from, .. } => {
                vec![Doing::Messages(Vec::new(), end(script.peer(transfer.axis, from)))]
            }
            _ => {
                let (rank, ranks) = (script.rank, self.scripts.len());
                let rounds = ranks.max(2).ilog2() + 1;
                let distances =
                    (0..rounds).map(|round| (1 << round) % ranks).filter(|&distance| distance > 0);
                let round = |distance| {
                    Doing::Messages(end((rank + distance) % ranks), end((rank + ranks - distance) % ranks))
                };
                distances.map(round).collect()
            }
        }
    }
}

/// The number of the line of each transfer, in the order in which lines are first started. `lines` has those that are
/// known, and is given the others.
fn numbered(script: &Script, lines: &mut Vec<Line>) -> Vec<usize> {
    let mut line_of = vec![0; script.transfers.len()];
    for id in started(script) {
        let line = match script.line(&script.transfers[id]) {
            // Whatever group it is.
            Line::Group(axis, _, members, kind) => Line::Group(axis, 0, 0..members.len(), kind),
            line => line,
        };
        line_of[id] = lines.iter().position(|known| *known == line).unwrap_or_else(|| {
            lines.push(line);
            lines.len() - 1
        });
    }
    line_of
}

/// The transfers of a script in the order in which they are started.
fn started(script: &Script) -> impl Iterator<Item = TransferId> {
    script.actions.iter().filter_map(|action| match action {
        Action::Start(id) => Some(*id),
        _ => None,
    })
}
