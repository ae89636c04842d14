//! What a transfer asks of the network, round by round.

/// Messages whose bytes are on their links at a time, by a number that whoever knows the network has given them.
pub type Load = usize;

/// A link that all who name it have equal parts of, and that carries a byte a second: where nothing is known of links.
pub const COMMON: Load = usize::MAX;

/// Rounds of a transfer that are alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// How many.
    pub count: usize,
    /// Seconds of each before links carry anything of it.
    pub before: f64,
    /// What they carry in each, and the bytes of its largest message.
    pub carried: Option<(Load, f64)>,
    /// Seconds of each when they have.
    pub behind: f64,
}

impl Rounds {
    /// What takes so many seconds, if nothing else is under way.
    pub fn whole(seconds: f64) -> Rounds {
        Rounds { count: 1, before: 0.0, carried: Some((COMMON, seconds)), behind: 0.0 }
    }

    /// Seconds of which links carry nothing.
    pub fn off_links(seconds: f64) -> Rounds {
        Rounds { count: 1, before: seconds, carried: None, behind: 0.0 }
    }

    /// Whether all is known of it.
    pub fn is_known(&self) -> bool {
        self.before.is_finite()
            && self.behind.is_finite()
            && self.carried.is_none_or(|(_, bytes)| bytes.is_finite())
    }

    /// A part of each.
    pub fn shortened(self, share: f64) -> Rounds {
        let carried = self.carried.map(|(load, bytes)| (load, bytes * share));
        Rounds { before: self.before * share, carried, behind: self.behind * share, ..self }
    }
}
