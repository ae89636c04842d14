//! A machine's network as prediction sees it: what a message between two nodes takes, and which links it shares with
//! others. Pure arithmetic; nothing here sends anything.
//!
//! A message of n bytes takes α + n/b seconds (Hockney, as in `collective::cost`), where α grows with the links that it
//! passes and b is the bandwidth of the link of its way that is shared most. Messages that share a link have equal
//! parts of it, and each way of a link is a link by itself. Routes are the shortest ones, one for each pair of nodes:
//! d-mod-k in a fat tree (Eitan Zahavi: "D-Mod-K routing providing non-blocking traffic for shift permutations on real
//! life fat trees", CCIT report 776, 2010), and by way of the one link between two groups in a Dragonfly (John Kim et
//! al.: "Technology-driven, highly-scalable Dragonfly topology", ISCA 2008). Networks that route adaptively spread
//! their load better than that.

mod contention;
mod file;
mod rounds;
mod routes;

pub use contention::{Contention, Loads, Routes};
pub use rounds::{COMMON, Load, Rounds};

/// A network of nodes.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Interconnect {
    /// What people call it.
    pub name: String,
    /// Seconds of a short message between two nodes that are as close as can be: two links.
    pub latency: f64,
    /// Seconds more for every further link.
    pub hop: f64,
    /// Bytes a second of a link, each way.
    pub bandwidth: f64,
    /// Links between a node and the network; a message may use all of them.
    pub links_a_node: usize,
    /// What is between the nodes.
    pub topology: Topology,
}

/// How nodes are joined.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One switch with as many ports as are wanted: no message is in the way of another but at a node.
    Flat,
    /// Levels of switches, from the nodes up.
    FatTree {
        /// How many children a switch of each level has; those of the first are nodes.
        down: Vec<usize>,
        /// How many parents a node, or a switch of the level below, has.
        up: Vec<usize>,
    },
    /// Groups of switches. Within a group each switch has a link to each other; each pair of groups has one place where
    /// it is joined.
    Dragonfly {
        /// How many groups.
        groups: usize,
        /// Switches of a group: at least as many as there are groups.
        switches: usize,
        /// Nodes of a switch.
        nodes: usize,
        /// Links side by side between two groups.
        between_groups: usize,
        /// The same between two switches of a group.
        between_switches: usize,
    },
}

impl Interconnect {
    /// One switch, by what was measured between nodes: seconds, and bytes a second of a node.
    pub fn flat(latency: f64, bandwidth: f64) -> Interconnect {
        Interconnect {
            name: "flat".into(),
            latency,
            hop: 0.0,
            bandwidth,
            links_a_node: 1,
            topology: Topology::Flat,
        }
    }

    /// How many nodes it has; `None`: as many as are wanted.
    pub fn room(&self) -> Option<usize> {
        match &self.topology {
            Topology::Flat => None,
            Topology::FatTree { down, .. } => Some(down.iter().product()),
            Topology::Dragonfly { groups, switches, nodes, .. } => Some(groups * switches * nodes),
        }
    }

    /// Bytes a second between a node and the network, each way.
    pub fn of_node(&self) -> f64 {
        self.links_a_node as f64 * self.bandwidth
    }

    /// What it is, in words.
    pub fn describe(&self) -> String {
        let topology = match &self.topology {
            Topology::Flat => "flat".to_string(),
            Topology::FatTree { down, up } => {
                let levels: Vec<String> =
                    down.iter().zip(up).map(|(down, up)| format!("{down}/{up}")).collect();
                format!("a fat tree of {} (children/parents)", levels.join(", "))
            }
            Topology::Dragonfly { groups, switches, nodes, .. } => {
                format!("a Dragonfly of {groups} groups × {switches} switches × {nodes} nodes")
            }
        };
        format!(
            "{}: {topology}; {:.2} µs, {:.2} µs a further link, {} × {:.2} GB/s a node",
            self.name,
            1e6 * self.latency,
            1e6 * self.hop,
            self.links_a_node,
            1e-9 * self.bandwidth
        )
    }
}
