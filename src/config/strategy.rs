//! Who holds and updates parameters and optimizer state.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Which ranks update which parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Strategy {
    /// Plain data parallelism: gradients go to all ranks, which share the updates only within a node.
    Allreduce,
    /// ZeRO-1: all ranks share the updates and the optimizer's state. Samyam Rajbhandari et al.: "ZeRO: memory
    /// optimizations toward training trillion parameter models", SC 2020.
    Zero1,
    /// Rank 0 does all updates, as `torch.nn.DataParallel`.
    Root,
    /// The last so many ranks do all updates, and compute nothing else: a synchronous parameter server.
    Servers(usize),
}

impl Strategy {
    /// How many of so many ranks compute gradients.
    pub fn computing(self, ranks: usize) -> usize {
        match self {
            Strategy::Servers(servers) => ranks.saturating_sub(servers),
            _ => ranks,
        }
    }

    /// Whether gradients are summed by few ranks in the order of ranks, whatever `--allreduce` has.
    pub fn is_central(self) -> bool {
        matches!(self, Strategy::Root | Strategy::Servers(_))
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> String {
        strategy.to_string()
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::Allreduce => f.write_str("--sync allreduce"),
            Strategy::Zero1 => f.write_str("--zero 1"),
            Strategy::Root => f.write_str("--sync root"),
            Strategy::Servers(1) => f.write_str("--sync server"),
            Strategy::Servers(servers) => write!(f, "--sync server:{servers}"),
        }
    }
}

/// As `--sync` has it.
impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
        let servers = |number: &str| match number.parse() {
            Ok(servers) if servers > 0 => Ok(Strategy::Servers(servers)),
            _ => Err(format!("`{number}` is no number of servers")),
        };
        match (name, number) {
            ("allreduce", None) => Ok(Strategy::Allreduce),
            ("root", None) => Ok(Strategy::Root),
            ("server", number) => servers(number.unwrap_or("1")),
            _ => Err("it is allreduce, root, server or server:K".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_are_refused() {
        for (text, strategy) in [
            ("allreduce", Strategy::Allreduce),
            ("root", Strategy::Root),
            ("server", Strategy::Servers(1)),
            ("server:3", Strategy::Servers(3)),
        ] {
            assert_eq!(text.parse(), Ok(strategy));
        }
        assert_eq!(Strategy::Servers(3).computing(4), 1);
        for text in ["server:0", "server:-1", "server:", "root:1", "leader", ""] {
            assert!(text.parse::<Strategy>().is_err(), "{text}");
        }
    }
}
