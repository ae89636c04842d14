//! How much of a device is in use, as its own meter shows it.

/// What a meter shows at a moment; NaN where it does not show that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Share of the last moments in which anything ran, 0 to 1.
    pub busy: f64,
    /// Bytes of the device that are taken, by whomever.
    pub memory: f64,
    /// Watts.
    pub power: f64,
}

/// Usage over some time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Metered {
    seconds: f64,
    busy: f64,
    memory: f64,
    power: f64,
}

impl Metered {
    /// Adds what was shown after a step of so many seconds.
    pub fn add(&mut self, seconds: f64, shown: Option<Usage>) {
        let Some(Usage { busy, memory, power }) = shown else { return };
        self.seconds += seconds;
        self.busy += seconds * busy;
        self.power += seconds * power;
        // Of a number and NaN the number.
        self.memory = self.memory.max(memory);
    }

    /// Means over the time, but for memory, which is the most; `None` where nothing was shown.
    pub fn usage(&self) -> Option<Usage> {
        (self.seconds > 0.0).then(|| Usage {
            busy: self.busy / self.seconds,
            memory: if self.memory > 0.0 { self.memory } else { f64::NAN },
            power: self.power / self.seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_time_and_memory_is_the_most() {
        let mut metered = Metered::default();
        assert_eq!(metered.usage(), None);
        metered.add(1.0, Some(Usage { busy: 0.5, memory: 7.0, power: 100.0 }));
        metered.add(1.0, None);
        metered.add(3.0, Some(Usage { busy: 0.9, memory: 5.0, power: 300.0 }));
        assert_eq!(metered.usage(), Some(Usage { busy: 0.8, memory: 7.0, power: 250.0 }));
    }
}
