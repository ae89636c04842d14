//! When sums are over that are under way at a time, over the same links: where layers are split, those of their
//! gradients among the ranks that have the same parts, and those of the others among all (`rehearse`).
//!
//! A sum is rounds, one after the other. In each a rank first does what no other sum keeps it from (the latency of a
//! message; adding); then its links carry bytes. Sums that have bytes on the links have equal parts of them, as flows
//! have of a network that is fair.

/// Rounds of a sum that are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// How many.
    pub count: usize,
    /// Seconds of each in which links carry nothing of it.
    pub alone: f64,
    /// Seconds of each in which they carry its bytes, if they carry nothing else.
    pub carried: f64,
}

/// A sum that all of its ranks have started.
pub(super) struct Sum {
    /// When the last of them did.
    pub started: f64,
    /// What it is made of.
    pub rounds: Vec<Rounds>,
}

/// What a line goes through.
enum Phase {
    Start(f64),
    Alone(f64),
    Carried(f64),
    Over,
}

/// What a line does at the moment.
enum State {
    Until(f64),
    /// Its links have so many seconds' bytes to carry.
    Left(f64),
    Done,
}

/// A line, and how far it is.
struct Way<'a> {
    phases: Box<dyn Iterator<Item = Phase> + 'a>,
    state: State,
    over: Vec<f64>,
}

impl<'a> Way<'a> {
    fn new(sums: &'a [Sum]) -> Way<'a> {
        let of_rounds = |rounds: &Rounds| {
            let Rounds { count, alone, carried } = *rounds;
            (0..count).flat_map(move |_| [Phase::Alone(alone), Phase::Carried(carried)])
        };
        let of = move |sum: &'a Sum| {
            let rounds = sum.rounds.iter().flat_map(of_rounds);
            std::iter::once(Phase::Start(sum.started)).chain(rounds).chain([Phase::Over])
        };
        Way { phases: Box::new(sums.iter().flat_map(of)), state: State::Until(0.0), over: Vec::new() }
    }

    /// What comes next at a time at which what was before is over.
    fn go_on(&mut self, now: f64) {
        self.state = loop {
            match self.phases.next() {
                Some(Phase::Start(started)) if started > now => break State::Until(started),
                Some(Phase::Alone(seconds)) if seconds > 0.0 => break State::Until(now + seconds),
                Some(Phase::Carried(seconds)) if seconds > 0.0 => break State::Left(seconds),
                Some(Phase::Over) => self.over.push(now),
                Some(_) => {}
                None => break State::Done,
            }
        };
    }

    /// When what it does is over if so many lines have bytes on the links all the while.
    fn end(&self, now: f64, carried: f64) -> f64 {
        match self.state {
            State::Until(end) => end,
            State::Left(seconds) => now + carried * seconds,
            State::Done => f64::INFINITY,
        }
    }
}

/// When each sum of each line is over. Those of a line take place one after the other, lines at a time.
pub(super) fn over(lines: &[Vec<Sum>]) -> Vec<Vec<f64>> {
    let mut ways: Vec<Way> = lines.iter().map(|sums| Way::new(sums)).collect();
    let mut now = 0.0;
    loop {
        let carried = ways.iter().filter(|way| matches!(way.state, State::Left(_))).count() as f64;
        let ends: Vec<f64> = ways.iter().map(|way| way.end(now, carried)).collect();
        let next = ends.iter().copied().fold(f64::INFINITY, f64::min);
        if next == f64::INFINITY {
            return ways.into_iter().map(|way| way.over).collect();
        }
        for (way, end) in ways.iter_mut().zip(ends) {
            if end <= next {
                way.go_on(next);
            } else if let State::Left(seconds) = &mut way.state {
                *seconds -= (next - now) / carried;
            }
        }
        now = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(started: f64, count: usize, alone: f64, carried: f64) -> Sum {
        Sum { started, rounds: vec![Rounds { count, alone, carried }] }
    }

    #[test]
    fn a_line_alone_takes_its_rounds_one_after_the_other() {
        let two = [vec![sum(1.0, 3, 0.5, 2.0), sum(2.0, 1, 1.0, 0.0), sum(20.0, 1, 0.0, 4.0)]];
        assert_eq!(over(&two), [[8.5, 9.5, 24.0]]);
        assert_eq!(over(&[vec![], vec![sum(1.0, 0, 1.0, 1.0)]]), [vec![], vec![1.0]]);
    }

    #[test]
    fn lines_have_equal_parts_of_their_links() {
        // Bytes alone: as long as one after the other, and what begins first is done with its own at half the rate.
        assert_eq!(over(&[vec![sum(0.0, 1, 0.0, 4.0)], vec![sum(2.0, 1, 0.0, 4.0)]]), [[6.0], [8.0]]);
        // What one does alone is hidden by what the other has carried, if they take turns.
        let turns = over(&[vec![sum(0.0, 4, 1.0, 1.0)], vec![sum(1.0, 4, 1.0, 1.0)]]);
        assert_eq!(turns, [[8.0], [9.0]]);
        // At the same time they are in each other's way: 1 + 2 a round.
        let alike = over(&[vec![sum(0.0, 4, 1.0, 1.0)], vec![sum(0.0, 4, 1.0, 1.0)]]);
        assert_eq!(alike, [[12.0], [12.0]]);
    }
}
