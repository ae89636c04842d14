//! The clock that all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: the same number in every process of a node at the same time, unrelated ones on two
/// nodes.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How the clock of a rank differs from rank 0's at one time: what the rank's shows, less what rank 0's does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offset {
    /// When it was measured, by rank 0's clock.
    pub at: u64,
    /// What the rank's clock shows, less what rank 0's does.
    pub nanoseconds: i64,
    /// The truth lies within so many nanoseconds of it.
    pub uncertainty: u64,
}

/// Questions asked of each rank; the answer that came soonest counts.
pub const QUESTIONS: usize = 16;

impl Offset {
    /// From a question asked and answered at these times by the asker's clock, when the other clock showed `there`.
    /// Flaviu Cristian: "Probabilistic clock synchronization", Distributed Computing 3 (1989).
    pub fn from_answer(asked: u64, there: u64, answered: u64) -> Offset {
        let round_trip = answered.saturating_sub(asked);
        let middle = asked + round_trip / 2;
        let nanoseconds = there.wrapping_sub(middle).cast_signed();
        Offset { at: middle, nanoseconds, uncertainty: round_trip.div_ceil(2) }
    }

    /// Where the clock is known to be rank 0's own, it does not differ.
    pub fn of_one_clock(self, same_node: bool) -> Offset {
        let one = same_node && self.nanoseconds.unsigned_abs() <= self.uncertainty;
        if one { Offset { nanoseconds: 0, uncertainty: 0, ..self } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_offset_lies_within_the_uncertainty() {
        // The other clock is 1000 ahead; the way there takes 30, the way back 50.
        let offset = Offset::from_answer(100, 100 + 30 + 1000, 180);
        assert_eq!(offset, Offset { at: 140, nanoseconds: 990, uncertainty: 40 });
        let behind = Offset::from_answer(5000, 5030 - 1000, 5080);
        assert_eq!((behind.nanoseconds, behind.of_one_clock(true)), (-1010, behind));
        let same = Offset::from_answer(100, 130, 180).of_one_clock(true);
        assert_eq!(same, Offset { at: 140, nanoseconds: 0, uncertainty: 0 });
    }
}
