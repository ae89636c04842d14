//! How a network is cut into stages that ranks compute one behind the other.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pipeline {
    /// Ranks that compute one network.
    pub stages: usize,
    /// In which order they do so.
    pub schedule: PipelineSchedule,
    /// The first layer of each piece but the first one; none: cut by predicted times.
    pub cuts: Vec<String>,
    /// How many networks the ranks compute, each with images of its own; `None`: as many as there are ranks for.
    pub data: Option<usize>,
}

/// In which order passes are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PipelineSchedule {
    /// All forward passes first.
    GPipe,
    /// One forward, one backward.
    #[default]
    OneForwardOneBackward,
    /// 1F1B with so many chunks a stage.
    Interleaved(usize),
    /// 1F1B with one chunk, and the gradients of weights whenever there is nothing else to do.
    ZeroBubble,
}

impl PipelineSchedule {
    /// How many chunks a stage has.
    pub fn chunks(self) -> usize {
        match self {
            PipelineSchedule::Interleaved(chunks) => chunks,
            _ => 1,
        }
    }

    /// Whether the gradients of weights are passes of their own.
    pub fn splits_weights(self) -> bool {
        self == PipelineSchedule::ZeroBubble
    }
}

impl fmt::Display for PipelineSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipelineSchedule::GPipe => f.write_str("gpipe"),
            PipelineSchedule::OneForwardOneBackward => f.write_str("1f1b"),
            PipelineSchedule::Interleaved(chunks) => write!(f, "interleaved:{chunks}"),
            PipelineSchedule::ZeroBubble => f.write_str("zb-h1"),
        }
    }
}

impl FromStr for PipelineSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<PipelineSchedule, String> {
        match text {
            "gpipe" => Ok(PipelineSchedule::GPipe),
            "1f1b" => Ok(PipelineSchedule::OneForwardOneBackward),
            "zb-h1" => Ok(PipelineSchedule::ZeroBubble),
            _ => {
                let chunks = text.strip_prefix("interleaved:").and_then(|chunks| chunks.parse().ok());
                let wanted = "it is gpipe, 1f1b, zb-h1 or interleaved:V, with V chunks of the network a stage, from 2 to 64";
                let chunks = chunks.filter(|chunks| (2..=64).contains(chunks)).ok_or(wanted)?;
                Ok(PipelineSchedule::Interleaved(chunks))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_are_refused() {
        for schedule in [
            PipelineSchedule::GPipe,
            PipelineSchedule::OneForwardOneBackward,
            PipelineSchedule::Interleaved(2),
            PipelineSchedule::ZeroBubble,
        ] {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        for text in ["", "GPipe", "interleaved", "interleaved:1", "interleaved:65", "interleaved:-2", "zb"] {
            assert!(text.parse::<PipelineSchedule>().is_err(), "{text}");
        }
    }
}
