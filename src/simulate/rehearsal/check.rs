//! What is wrong with scripts, whatever things take: what is touched while it is on its way, ranks that do not the same
//! together, and those who wait for ever.

use std::ops::Range;

use super::{Outstanding, RehearsedRank, StepSimulation, Touch, transfer_of};
use crate::error::{Error, Result};
use crate::plan::{Action, Area, Axis, Line, Region, TAIL, Transfer};

pub(super) fn wrong(what: String) -> Error {
    Error::internal(format!("the ranks' scripts do not fit together: {what}"))
}

impl RehearsedRank<'_> {
    /// "rank 3, action 12 (wait for …)".
    pub(super) fn says(&self, action: usize) -> String {
        format!("rank {}, action {}", self.script.rank, self.script.describe(action))
    }

    /// What an action touches, but for steps.
    pub(super) fn touches(&self, action: &Action) -> Vec<Touch> {
        let script = self.script;
        let of = |area, bytes: &Range<usize>| Touch { area, bytes: bytes.clone(), writes: true };
        let gradients = 0..script.sums.saturating_sub(TAIL);
        match action {
            Action::Accumulate { pass, .. } => {
                let own = &script.added(*pass);
                let written = script.windows.get(*pass).unwrap_or(own);
                vec![of(Area::Sums, own), of(Area::Of(Region::Gradients), written)]
            }
            Action::Tail => vec![of(Area::Sums, &(gradients.end..script.sums))],
            Action::Spread(id) => {
                let transfer = &script.transfers[*id];
                vec![of(transfer.area, transfer.cuts.part(script.place(transfer.axis)))]
            }
            Action::Pad(bucket) => script
                .windows
                .get(*bucket)
                .map(|own| of(Area::Of(Region::Gradients), own))
                .into_iter()
                .collect(),
            Action::Keep(part) => vec![of(Area::Sums, &script.parts[*part].summed())],
            Action::Unscale | Action::Norm | Action::Clip if script.keeps => Vec::new(),
            Action::Unscale | Action::Norm | Action::Clip
                if script.owners.are_apart() && !script.actions.contains(&Action::Knock) =>
            {
                script.parts.iter().map(|part| of(Area::Sums, &part.summed())).collect()
            }
            Action::Unscale | Action::Norm | Action::Clip => vec![of(Area::Sums, &gradients)],
            Action::Update(part)
            | Action::Average(part)
            | Action::Drift(part)
            | Action::Pull(part)
            | Action::Meet(part)
            | Action::Mix(part) => {
                let part = &script.parts[*part];
                let sum = (!script.keeps).then(|| of(Area::Sums, &part.summed()));
                sum.into_iter().chain([of(Area::Of(Region::Parameters), &part.bytes)]).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The flight that memory is lent to.
    fn lent(&self, Touch { area, bytes, writes }: &Touch) -> Option<&Outstanding> {
        // Without accumulation steps write where sums are made.
        let area = match area {
            Area::Of(Region::Gradients) if !self.script.accumulates => Area::Sums,
            area => *area,
        };
        self.flights.iter().find(|flight| {
            let transfer = &self.script.transfers[flight.id];
            let range = transfer.cuts.range();
            let is_lent = *writes || !transfer.kind.only_reads();
            is_lent && transfer.area == area && range.start < bytes.end && bytes.start < range.end
        })
    }

    /// What a step touches of a micro-batch in this context.
    pub(super) fn in_context(&self, touch: &Touch, context: usize) -> Touch {
        let shift = match touch.area {
            Area::Of(Region::Arena) => self.script.contexts.shift(touch.bytes.start, context),
            _ => 0,
        };
        Touch { bytes: touch.bytes.start + shift..touch.bytes.end + shift, ..touch.clone() }
    }

    pub(super) fn check(&self, touch: &Touch) -> Result<()> {
        let Some(flight) = self.lent(touch) else { return Ok(()) };
        Err(wrong(format!(
            "{} touches what is on its way since action {}",
            self.says(self.at),
            self.script.describe(flight.action)
        )))
    }
}

impl StepSimulation<'_> {
    /// What two ranks do together they must do alike.
    pub(super) fn agree(&self, rank: usize, transfer: &Transfer, line: &Line, index: usize) -> Result<()> {
        let (first, action, _) = self.meetings[line][index].started[0];
        let other = transfer_of(&self.ranks, first, action);
        let alike = match line {
            // Ranks of one plan have one list of transfers.
            Line::Group(..) => {
                // Stages have gradients of unlike sizes, and the step's own numbers behind them.
                let fits = match transfer.axis {
                    Axis::Job => other.cuts.range().len() == transfer.cuts.range().len(),
                    _ => other.cuts == transfer.cuts,
                };
                std::ptr::eq(other, transfer)
                    || (other.kind, other.area) == (transfer.kind, transfer.area) && fits
            }
            Line::Pair(..) | Line::Served(_) => {
                first == rank || other.cuts.range().len() == transfer.cuts.range().len()
            }
        };
        if alike {
            return Ok(());
        }
        let [one, two] = [self.ranks[first].says(action), self.ranks[rank].says(self.ranks[rank].at)];
        Err(wrong(format!("{one} meets {two}")))
    }

    /// What is wrong where no rank can go on: somebody will never come, or some wait for each other.
    pub(super) fn stuck(&self) -> Error {
        let mut seen: Vec<usize> = Vec::new();
        let Some(mut rank) = self.ranks.iter().position(|player| !player.is_done()) else {
            return wrong("no rank can go on".into());
        };
        loop {
            let player = &self.ranks[rank];
            let Some(next) = self.lacks(rank) else {
                return wrong(format!("{} never ends", player.says(player.at)));
            };
            let other = &self.ranks[next];
            if !self.comes(rank, next) {
                let where_it_is = match other.script.actions.len().checked_sub(1) {
                    None => "does nothing".to_string(),
                    Some(last) if other.is_done() => {
                        format!("ends with action {}", other.script.describe(last))
                    }
                    Some(_) => format!("stands at action {}", other.script.describe(other.at)),
                };
                return wrong(format!(
                    "{} waits for rank {}, which never starts its part and {where_it_is}",
                    player.says(player.at),
                    other.script.rank
                ));
            }
            seen.push(rank);
            if let Some(first) = seen.iter().position(|&before| before == next) {
                return wrong(format!(
                    "{} waits for rank {}, and {} waits in turn: a cycle of {} ranks",
                    player.says(player.at),
                    other.script.rank,
                    other.says(other.at),
                    seen.len() - first
                ));
            }
            rank = next;
        }
    }

    /// The place of a rank that a waiting one lacks.
    fn lacks(&self, rank: usize) -> Option<usize> {
        let player = &self.ranks[rank];
        match &player.script.actions[player.at] {
            Action::Await { .. } => self.missing(rank),
            Action::Serve => self.unheard(player.served.len()).and_then(|rank| self.at(rank)),
            Action::Wait(id) => {
                let flight = player.flights.iter().find(|flight| flight.id == *id)?;
                let here = |wanted: usize| {
                    self.meetings[&flight.line][flight.number]
                        .started
                        .iter()
                        .any(|(other, ..)| *other == wanted)
                };
                match &flight.line {
                    Line::Served(_) => {
                        let server = self.servers().find(|to| to.served.len() <= flight.number)?;
                        self.at(server.script.rank)
                    }
                    Line::Group(axis, _, members, _) => members
                        .clone()
                        .filter_map(|place| self.at(player.script.peer(*axis, place)))
                        .find(|&rank| !here(rank)),
                    Line::Pair(_, ends, _) => {
                        ends.iter().filter_map(|&rank| self.at(rank)).find(|&rank| !here(rank))
                    }
                }
            }
            _ => None,
        }
    }

    /// Whether what a waiting rank lacks of another is still to come.
    fn comes(&self, rank: usize, other: usize) -> bool {
        let (player, other) = (&self.ranks[rank], &self.ranks[other]);
        let mut rest = other.script.actions[other.at..].iter();
        match &player.script.actions[player.at] {
            Action::Serve => rest.any(|action| *action == Action::Knock),
            Action::Wait(id) if player.line(&player.script.transfers[*id]) == Line::Served(rank) => {
                rest.any(|action| *action == Action::Serve)
            }
            Action::Wait(id) => {
                let line = player.line(&player.script.transfers[*id]);
                rest.any(|action| matches!(action, Action::Start(id) if other.line(&other.script.transfers[*id]) == line))
            }
            _ => rest.any(|action| *action == Action::Arrive),
        }
    }

    /// Nothing may be left behind but what the next step waits for.
    pub(super) fn finish(&self) -> Result<()> {
        for player in &self.ranks {
            if let Some(flight) = player.flights.iter().find(|flight| !player.carries(flight.id)) {
                return Err(wrong(format!("{}, and nobody waits for it", player.says(flight.action))));
            }
        }
        for (line, meetings) in &self.meetings {
            if let Some(meeting) = meetings.iter().find(|meeting| meeting.over.is_none()) {
                let (rank, action, _) = meeting.started[0];
                return Err(wrong(format!("{} has no other end ({line:?})", self.ranks[rank].says(action))));
            }
        }
        Ok(())
    }
}
