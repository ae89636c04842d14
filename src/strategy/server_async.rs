//! Asynchronous parameter servers: each rank's gradients update as they come, and nobody waits for another rank.
//!
//! Jeffrey Dean et al.: "Large scale distributed deep networks", NeurIPS 2012 (Downpour SGD); MXNet's `dist_async`;
//! CNTK's `DataParallelASGD`.

use serde::Serialize;

use super::server::Servers;
use super::{Number, Owners, Ranks, Way};

#[derive(Debug)]
pub(super) struct AsyncServers;

impl Way for AsyncServers {
    fn name(&self) -> &'static str {
        "server-async"
    }

    fn help(&self) -> &'static str {
        "the same for each rank's gradients by themselves, as they come: an asynchronous one"
    }

    fn numbers(&self) -> &'static [Number] {
        Servers.numbers()
    }

    fn computing(&self, servers: usize, ranks: usize) -> usize {
        Servers.computing(servers, ranks)
    }

    fn is_central(&self) -> bool {
        true
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn owners(&self, servers: usize, at: Ranks) -> Owners {
        Servers.owners(servers, at)
    }
}

/// Whose gradients a server takes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AsyncOrder {
    /// Those that are there first: fastest, and another order each time.
    #[default]
    Arrival,
    /// Those of one rank after the other: the same bits each time.
    RoundRobin,
}
