//! A bar for work that is not training.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{RankInfo, terminal};

/// Where a person is watching: the progress of rank 0, which stands for that of the others.
pub struct ProgressLine {
    shown: bool,
    done: AtomicU64,
}

impl ProgressLine {
    /// A bar of `len` parts, at its beginning.
    pub fn start(place: RankInfo, len: u64) -> ProgressLine {
        let shown = place.rank == 0;
        if shown {
            terminal::start_bar(len);
        }
        ProgressLine { shown, done: AtomicU64::new(0) }
    }

    /// So many more are done.
    pub fn advance(&self, by: u64) {
        let done = self.done.fetch_add(by, Ordering::Relaxed) + by;
        if self.shown {
            terminal::move_bar(done, || (String::new(), String::new()));
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if self.shown {
            terminal::end_bar();
        }
    }
}
