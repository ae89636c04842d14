//! When everything happens: every rank goes on as far as it can, and each has a clock.

use std::ops::Range;

use super::check::wrong;
use super::{Outstanding, RehearsedRank, Rendezvous, StepSimulation, Touch, transfer_of};
use crate::error::Result;
use crate::plan::{Action, Axis, Kind, Line, Script, Transfer};
use crate::simulate::network::Rounds;

impl StepSimulation<'_> {
    /// Lets every rank go on as far as it can until all are through.
    pub(super) fn play(&mut self) -> Result<()> {
        loop {
            let mut moved = false;
            for rank in 0..self.ranks.len() {
                while !self.ranks[rank].is_done() && self.advance(rank)? {
                    self.ranks[rank].at += 1;
                    moved = true;
                }
            }
            if self.ranks.iter().all(RehearsedRank::is_done) {
                return Ok(());
            }
            // All wait: nothing can begin before the next transfer is over of those that share links.
            if !moved && !self.settle() {
                return Err(self.stuck());
            }
        }
    }

    /// Does the next action of a rank, if that need not wait for another.
    fn advance(&mut self, rank: usize) -> Result<bool> {
        let player = &self.ranks[rank];
        let (script, now) = (player.script, player.clock);
        let pace = (self.prices.pace)(script.rank);
        let action = &script.actions[player.at];
        player.touches(action).iter().try_for_each(|touch| player.check(touch))?;
        let mut until = now;
        let mut busy = Vec::new();
        match action {
            Action::Run { steps, micro } => {
                let context = micro % script.contexts.count;
                for facts in &self.steps[script.place(Axis::Pipeline)][steps.clone()] {
                    facts
                        .touches
                        .iter()
                        .try_for_each(|touch| player.check(&player.in_context(touch, context)))?;
                    busy.push([until, until + pace * facts.seconds]);
                    until += pace * facts.seconds;
                }
            }
            Action::Update(part)
            | Action::Drift(part)
            | Action::Pull(part)
            | Action::Meet(part)
            | Action::Mix(part) => {
                until += pace * (self.prices.update)(script.parts[*part].bytes.len());
            }
            Action::Accumulate { pass, .. } => until += pace * (self.prices.add)(script.added(*pass).len()),
            Action::Start(id) => self.start(rank, *id)?,
            Action::Wait(id) => {
                let Some(over) = self.awaited(rank, *id)? else { return Ok(false) };
                until = now.max(over);
                self.ranks[rank].flights.retain(|flight| flight.id != *id);
                self.ranks[rank].exposed += until - now;
            }
            Action::Knock => self.ranks[rank].pushed.push(now),
            Action::Serve => match self.serve(rank) {
                Some(served) => until = served,
                None => return Ok(false),
            },
            Action::Arrive => self.ranks[rank].arrivals.push(now),
            Action::Await { .. } => {
                if self.missing(rank).is_some() {
                    return Ok(false);
                }
                let come = self.ranks[rank].arrivals.len();
                let others = self.beside(rank).filter_map(|other| other.arrivals[..come].last().copied());
                until = others.fold(now, f64::max);
                self.ranks[rank].exposed += until - now;
            }
            _ => {}
        }
        self.ranks[rank].computes(&busy);
        self.ranks[rank].clock = until;
        self.ranks[rank].schedule.push([now, until]);
        Ok(true)
    }

    /// What rank 0 did from this time on.
    pub(super) fn schedule(&self, begun: f64) -> Vec<[f64; 2]> {
        let mut schedule = self.ranks.first().map(|rank| rank.schedule.clone()).unwrap_or_default();
        for meeting in self.meetings.values().flatten() {
            for &(rank, action, when) in &meeting.started {
                if let (0, Some(over), true) = (rank, meeting.over, when >= begun) {
                    // The step before may have ended with it at that very time.
                    schedule[action][1] = schedule[action][1].max(over);
                }
            }
        }
        schedule.iter().map(|times| times.map(|time| time - begun)).collect()
    }

    /// When all is over.
    pub(super) fn end(&self) -> f64 {
        let transfers = self.meetings.values().flatten().filter_map(|meeting| meeting.over);
        self.ranks.iter().map(|rank| rank.clock).chain(transfers).fold(0.0, f64::max)
    }

    /// The place among the scripts of a rank, if it is there.
    pub(super) fn at(&self, rank: usize) -> Option<usize> {
        self.ranks.binary_search_by_key(&rank, |player| player.script.rank).ok()
    }

    /// How many ranks of a line's members are there.
    fn present(&self, script: &Script, axis: Axis, members: &Range<usize>) -> usize {
        match self.ranks.len() == script.mesh.ranks() {
            true => members.len(),
            false => {
                let is_member = |player: &&RehearsedRank| {
                    let place = player.script.place(axis);
                    members.contains(&place) && script.peer(axis, place) == player.script.rank
                };
                self.ranks.iter().filter(is_member).count()
            }
        }
    }

    /// Finds when the next transfer is over of those that share links, if there are any.
    pub(super) fn settle(&mut self) -> bool {
        let Some(((line, index), over)) = self.traffic.next(self.prices.rates) else { return false };
        let meetings = self.meetings.get_mut(&line).expect("what is under way was started");
        meetings[index].over = Some(over);
        if meetings.len() > index + 1 {
            self.hold(&line, index + 1);
        }
        true
    }

    fn beside(&self, rank: usize) -> impl Iterator<Item = &RehearsedRank<'_>> {
        let node = self.ranks[rank].script.node;
        self.ranks.iter().filter(move |other| other.script.node == node)
    }

    /// Those who answer pushes.
    pub(super) fn servers(&self) -> impl Iterator<Item = &RehearsedRank<'_>> {
        self.ranks.iter().filter(|player| player.script.owners.serves(player.script.rank))
    }

    /// A rank that has not pushed so often.
    pub(super) fn unheard(&self, step: usize) -> Option<usize> {
        let computes = |player: &&RehearsedRank| !player.script.owners.serves(player.script.rank);
        let late = |player: &RehearsedRank| player.pushed.len() <= step;
        self.ranks.iter().filter(computes).find(|player| late(player)).map(|player| player.script.rank)
    }

    /// A server takes the pushes of a step in the order in which they came, one after the other; returns when it is
    /// through, or nothing while a rank has yet to push.
    fn serve(&mut self, server: usize) -> Option<f64> {
        let step = self.ranks[server].served.len();
        if self.unheard(step).is_some() {
            return None;
        }
        let script = self.ranks[server].script;
        let there_and_back = |transfer: &&Transfer| matches!(transfer.kind, Kind::Push | Kind::Pull);
        let travels = script.transfers.iter().filter(there_and_back).map(self.prices.transfer);
        let updates = script.parts.iter().map(|part| (self.prices.update)(part.bytes.len()));
        let seconds: f64 = travels.chain(updates).sum();
        self.unknown |= !seconds.is_finite();
        let computing = self.ranks.iter().filter(|player| !player.script.owners.serves(player.script.rank));
        let mut order: Vec<(f64, usize)> = computing.map(|p| (p.pushed[step], p.script.rank)).collect();
        order.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (mut clock, mut served) = (self.ranks[server].clock, vec![0.0; order.len()]);
        for (pushed, rank) in order {
            clock = clock.max(pushed) + seconds;
            served[rank] = clock;
            self.ends_there(rank, step, clock);
        }
        self.ranks[server].served.push(served);
        Some(clock)
    }

    /// What a rank has pushed in a step, and pulls, is over at that time or later.
    fn ends_there(&mut self, rank: usize, step: usize, at: f64) {
        let RehearsedRank { flights, schedule, .. } = &mut self.ranks[rank];
        for flight in flights.iter().filter(|flight| flight.number == step) {
            if let (Line::Served(_), Some(times)) = (&flight.line, schedule.get_mut(flight.action)) {
                times[1] = times[1].max(at);
            }
        }
    }

    /// The place of a rank of the node that has not come as often to the barrier.
    pub(super) fn missing(&self, rank: usize) -> Option<usize> {
        let count = self.ranks[rank].arrivals.len();
        let late = self.beside(rank).find(|other| other.arrivals.len() < count);
        late.and_then(|other| self.at(other.script.rank))
    }

    fn start(&mut self, rank: usize, id: usize) -> Result<()> {
        let player = &mut self.ranks[rank];
        let transfer = &player.script.transfers[id];
        let writes = !transfer.kind.only_reads();
        player.check(&Touch { area: transfer.area, bytes: transfer.cuts.range().clone(), writes })?;
        let (line, action, clock) = (player.line(transfer), player.at, player.clock);
        if let Line::Served(_) = line {
            // Its server takes it by itself.
            let number = player.pushed.len().saturating_sub(1);
            player.flights.push(Outstanding { id, action, line, number });
            return Ok(());
        }
        // Both ends of a pair count for themselves, though they may be one line.
        let number = player.counts.entry(line.clone()).or_default();
        let index = *number;
        *number += 1;
        player.flights.push(Outstanding { id, action, line: line.clone(), number: index });
        let meetings = self.meetings.entry(line.clone()).or_default();
        if meetings.len() <= index {
            meetings.resize_with(index + 1, Rendezvous::default);
        }
        meetings[index].started.push((rank, action, clock));
        self.agree(rank, transfer_of(&self.ranks, rank, action), &line, index)?;
        self.hold(&line, index);
        Ok(())
    }

    /// Transfers of a line take place one after the other, each when all have started it.
    fn hold(&mut self, line: &Line, index: usize) {
        let meetings = &self.meetings[line];
        let wanted = match line {
            Line::Group(axis, _, members, _) => {
                self.present(self.ranks[meetings[index].started[0].0].script, *axis, members)
            }
            Line::Pair(..) | Line::Served(_) => 2,
        };
        if meetings[index].started.len() < wanted {
            return;
        }
        let before = match index.checked_sub(1).map(|before| meetings[before].over) {
            None => 0.0,
            Some(Some(over)) => over,
            // It is held when that is over.
            Some(None) => return,
        };
        let begun = meetings[index].started.iter().fold(before, |latest, (_, _, when)| latest.max(*when));
        let (rank, action, _) = meetings[index].started[0];
        let transfer = transfer_of(&self.ranks, rank, action);
        let mut rounds = (self.prices.rounds)(transfer, line);
        if !rounds.is_empty() {
            self.unknown |= !rounds.iter().all(Rounds::is_known);
            rounds.retain(Rounds::is_known);
            // Ranks with the same parts of layers do the same as others with theirs.
            let joins = transfer.kind == Kind::Sum && transfer.axis == Axis::Data;
            self.traffic.begin((line.clone(), index), begun, rounds, joins);
            return;
        }
        let over = begun + (self.prices.transfer)(transfer);
        self.unknown |= !over.is_finite();
        let meeting = &mut self.meetings.get_mut(line).expect("the line was looked up")[index];
        (meeting.begun, meeting.over) = (Some(begun), Some(over));
    }

    /// When a transfer is over; `None` while some have yet to start it.
    fn awaited(&self, rank: usize, id: usize) -> Result<Option<f64>> {
        let player = &self.ranks[rank];
        match player.flights.iter().find(|flight| flight.id == id) {
            Some(Outstanding { line: Line::Served(pusher), number, .. }) => {
                let answered = |server: &RehearsedRank| Some(*server.served.get(*number)?.get(*pusher)?);
                Ok(self.servers().map(answered).try_fold(0.0, |latest, at| Some(f64::max(latest, at?))))
            }
            Some(flight) => {
                let meeting = &self.meetings[&flight.line][flight.number];
                let (Some(begun), Some(over)) = (meeting.begun, meeting.over) else {
                    return Ok(meeting.over);
                };
                let rounds = (self.prices.relayed)(&player.script.transfers[id]);
                Ok(Some(over.max(player.passed_on(begun, &rounds))))
            }
            None if player.first && player.carries(id) => Ok(Some(player.clock)),
            None => Err(wrong(format!("{}, which nobody started", player.says(player.at)))),
        }
    }
}
