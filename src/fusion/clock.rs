//! How far the present step is: what is enqueued, computed, and was waited for.

use std::time::Instant;

use crate::device::DeviceEvent;

/// How far a step is.
pub struct StepClock {
    pub begun: Instant,
    /// Seconds that this step has waited for other lines than sums of gradients, and for norms.
    pub waited: f64,
    /// Whether the tail of this step was found summed.
    pub summed: bool,
    /// Whether all steps are enqueued, the point behind the last one where the buckets do not tell, and when the device
    /// was seen to have come to it.
    pub enqueued: bool,
    pub computed: Option<DeviceEvent>,
    pub computed_at: Option<f64>,
}

impl StepClock {
    /// Nothing is enqueued yet, so that a host has computed all of it.
    pub fn new(begun: Instant, is_host: bool) -> StepClock {
        let computed_at = is_host.then_some(0.0);
        StepClock { begun, waited: 0.0, summed: false, enqueued: false, computed: None, computed_at }
    }
}
