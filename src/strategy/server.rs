//! Synchronous parameter servers: the last ranks own the parameters and compute nothing else. Mu Li et al.: "Scaling
//! distributed machine learning with the parameter server", OSDI 2014; MXNet's `dist_sync`.

use super::{Number, Owners, Ranks, Way};

#[derive(Debug)]
pub(super) struct Servers;

impl Way for Servers {
    fn name(&self) -> &'static str {
        "server"
    }

    fn help(&self) -> &'static str {
        "the last K ranks, which do nothing else: a synchronous parameter server"
    }

    fn numbers(&self) -> &'static [Number] {
        &[Number { name: "K", what: "servers", usual: Some(1.0), counts: true }]
    }

    fn computing(&self, servers: usize, ranks: usize) -> usize {
        ranks.saturating_sub(servers)
    }

    fn is_central(&self) -> bool {
        true
    }

    fn owners(&self, servers: usize, at: Ranks) -> Owners {
        let computing = at.ranks - servers;
        Owners::Apart { first: computing, count: servers, computing }
    }
}
