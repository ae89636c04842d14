//! Scripts in words: an action, a transfer, a summary.

use std::fmt::{self, Write};

use super::{Action, Area, Kind, Part, Script, Transfer, TransferId};
use crate::plan::describe_bytes;

impl Script {
    /// Which actions there are and how many, in a line; and what they send.
    pub fn summary(&self) -> String {
        let count = |of: fn(&Action) -> bool| self.actions.iter().filter(|action| of(action)).count();
        format!(
            "{} actions: {} runs of steps, {} transfers, {} updates; {}; a rank sends {} or more",
            self.actions.len(),
            count(|action| matches!(action, Action::Run { .. })),
            count(|action| matches!(action, Action::Start(_))),
            count(|action| matches!(action, Action::Update(_))),
            self.owners,
            describe_bytes(self.bytes_sent()),
        )
    }

    /// An action in words, by its number.
    pub fn describe(&self, action: usize) -> String {
        let text = match &self.actions[action] {
            Action::Read { micro } => format!("read the images of micro-step {micro}"),
            Action::Run { steps, micro } => {
                format!("run steps {}–{} of micro-step {micro}", steps.start, steps.end - 1)
            }
            Action::Start(id) => format!("start {}", self.named(*id)),
            Action::Wait(id) => format!("wait for {}", self.named(*id)),
            Action::Spread(id) => format!("copy this rank's part of transfer {id} to its window"),
            Action::Pad(bucket) => format!("zero what lies between the gradients of bucket {bucket}"),
            Action::Keep(part) => format!("keep the sum of {}", self.parts[*part]),
            Action::Losses { micro } => format!("send the losses of micro-step {micro} to the host"),
            Action::Prefetch { micro } => format!("send the images behind micro-step {micro} to the device"),
            Action::Accumulate { micro, pass: 0 } => format!("add up the gradients of micro-step {micro}"),
            Action::Accumulate { micro, pass } => {
                format!("add up the gradients of micro-step {micro}, backward pass {pass}")
            }
            Action::Statistics { micro } => format!("take the running statistics of micro-step {micro}"),
            Action::Metrics { micro } => format!("read the losses of micro-step {micro}"),
            Action::Tail => "write losses, hits and flags to the tail".into(),
            Action::Unscale => "unscale the gradients".into(),
            Action::Check => "check that no gradient was broken".into(),
            Action::Norm => "compute the norm of the gradients".into(),
            Action::Clip => "clip the gradients".into(),
            Action::Update(part) => format!("update {}", self.parts[*part]),
            Action::Average(part) => format!("average {}", self.parts[*part]),
            Action::Drift(part) => format!("compute the way from the anchor of {}", self.parts[*part]),
            Action::Pull(part) => format!("draw towards the anchor {}", self.parts[*part]),
            Action::Meet(part) => format!("move the anchor of {}", self.parts[*part]),
            Action::Mix(part) => format!("average with another rank's {}", self.parts[*part]),
            Action::Forget => "forget the optimizer's state".into(),
            Action::Arrive => "arrive at the barrier of the node".into(),
            Action::Await { updated: false } => {
                "wait at the barrier for the node's ranks to have read the parameters".into()
            }
            Action::Await { updated: true } => {
                "wait at the barrier for the node's ranks to have updated theirs".into()
            }
            Action::Knock => "tell the first server losses, hits and flags".into(),
            Action::Hear => "hear from it those of all ranks".into(),
            Action::Serve => "take a push of every rank, update by it and answer it".into(),
        };
        format!("{action} ({text})")
    }

    fn named(&self, id: TransferId) -> String {
        format!("transfer {id}, {}", self.transfers[id])
    }

    /// All actions, one a line.
    pub fn lines(&self) -> String {
        (0..self.actions.len()).fold(String::new(), |mut text, action| {
            let _ = writeln!(text, "  {}", self.describe(action));
            text
        })
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Sum => "sum".to_string(),
            Kind::SumToOwners => "sum to owners".to_string(),
            Kind::FromOwners => "from owners".to_string(),
            Kind::Push => "push".to_string(),
            Kind::Pull => "pull".to_string(),
            Kind::Gather => "gather".to_string(),
            Kind::Trade { .. } => "trade of rows".to_string(),
            Kind::AllToAll => "all to all".to_string(),
            Kind::Send { to, .. } => format!("send to place {to}"),
            Kind::Receive { from, .. } => format!("receive from place {from}"),
            Kind::Mix { distance } => format!("gossip over {distance} places"),
        };
        let axis = format!("{:?}", self.axis).to_lowercase();
        let area = match self.area {
            Area::Of(region) => format!("{region:?}").to_lowercase(),
            area => format!("{area:?}").to_lowercase(),
        };
        let range = self.cuts.range();
        write!(f, "{kind} of {area} {}..{} over {axis}", range.start, range.end)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{} of bucket {}", self.bytes.start, self.bytes.end, self.bucket)
    }
}
