//! How much a rank sends out of turn: as much as keeps its links busy, and no more. The MPI library sends first in,
//! first out, so that what is needed first waits behind it.

use std::time::Instant;

/// Steps take longer than the last time, and links carry more than was measured.
const MARGIN: f64 = 1.25;

/// What the MPI library was given and has yet to send, by the links' rate.
pub struct Backlog {
    /// Bytes a second that leave this rank; infinite where nobody measured it.
    rate: f64,
    /// Bytes.
    left: f64,
    /// Bytes given so far, and when they were counted.
    sent: u64,
    at: Instant,
}

impl Backlog {
    pub fn new(rate: f64) -> Backlog {
        Backlog { rate, left: 0.0, sent: 0, at: Instant::now() }
    }

    /// How many more bytes keep the links busy for so many seconds from now, when `sent` bytes were given in all.
    pub fn room(&mut self, sent: u64, now: Instant, seconds: f64) -> u64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        let (rate, handed) = (self.rate, (sent - self.sent) as f64);
        self.left = if rate.is_finite() { (self.left + handed - since * rate).max(0.0) } else { 0.0 };
        (self.sent, self.at) = (sent, now);
        // As an integer the infinite is the largest one.
        (MARGIN * seconds * rate - self.left).max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rank_sends_out_of_turn_what_its_links_carry_during_a_step() {
        let mut backlog = Backlog::new(1000.0);
        let after = |milliseconds| Duration::from_millis(milliseconds);
        let begun = backlog.at;
        assert_eq!(backlog.room(0, begun, 2.0), 2500);
        // Half of that has left; what is left takes a second and a quarter.
        assert_eq!(backlog.room(2500, begun + after(1250), 2.0), 1250);
        assert_eq!(backlog.room(2500, begun + after(1250), 1.0), 0);
        // An idle link saves nothing up.
        assert_eq!(backlog.room(2500, begun + after(60_000), 1.0), 1250);
    }

    #[test]
    fn where_no_rate_or_no_time_is_known_all_of_it_goes() {
        assert_eq!(Backlog::new(f64::INFINITY).room(1 << 40, Instant::now(), 1e-9), u64::MAX);
        assert_eq!(Backlog::new(1000.0).room(1 << 40, Instant::now(), f64::INFINITY), u64::MAX);
    }
}
