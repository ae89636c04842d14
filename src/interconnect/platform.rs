//! The same network as SimGrid's platforms have it.
//!
//! Henri Casanova et al.: "Versatile, scalable, and accurate simulation of distributed applications and platforms",
//! J. Parallel Distrib. Comput. 74 (2014). Its clusters know these topologies and route as `routes` does.

use super::{Interconnect, Topology};
use crate::error::{Error, Result};

impl Interconnect {
    /// A platform file of so many nodes, on each of which `cores` things are computed side by side without being in
    /// each other's way. Messages within a node move so many bytes a second, in no time before.
    ///
    /// # Errors
    /// `Usage` where SimGrid's cluster of this topology is another one.
    pub fn platform(&self, nodes: usize, cores: usize, within: f64) -> Result<String> {
        if self.links_a_node > 1 && self.topology != Topology::Flat {
            return Err(Error::usage(format!(
                "--export-trace: SimGrid's trees and Dragonflies have one link a node, and {} has {}; predict without \
                 a trace, or give a file with links_a_node = 1",
                self.name, self.links_a_node
            )));
        }
        let topology = match &self.topology {
            Topology::Flat => String::new(),
            Topology::FatTree { down, up } => {
                let list =
                    |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                let ones = vec![1; down.len()];
                let numbers = format!("{};{};{};{}", down.len(), list(down), list(up), list(&ones));
                format!(" topology=\"FAT_TREE\" topo_parameters=\"{numbers}\"")
            }
            Topology::Dragonfly { groups, switches, nodes, between_groups, between_switches } => format!(
                " topology=\"DRAGONFLY\" \
                 topo_parameters=\"{groups},{between_groups};1,1;{switches},{between_switches};{nodes}\""
            ),
        };
        let bandwidth = if self.topology == Topology::Flat { self.of_node() } else { self.bandwidth };
        Ok(format!(
            "<?xml version='1.0'?>\n\
             <!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n\
             <platform version=\"4.1\">\n  \
             <cluster id=\"machine\" prefix=\"n\" suffix=\"\" radical=\"0-{}\" speed=\"1Gf\" core=\"{cores}\" \
             bw=\"{bandwidth:?}Bps\" lat=\"{:?}s\" sharing_policy=\"SPLITDUPLEX\" loopback_bw=\"{within:?}Bps\" \
             loopback_lat=\"0s\"{topology}/>\n\
             </platform>\n",
            self.room().unwrap_or(nodes) - 1,
            self.hop,
        ))
    }

    /// Seconds of a message between nodes that are none of its links': the sender has them to itself before.
    pub fn before_links(&self) -> f64 {
        self.latency - 2.0 * self.hop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_has_the_numbers_of_its_network() {
        let tree = Interconnect {
            hop: 2e-7,
            topology: Topology::FatTree { down: vec![4, 3], up: vec![1, 2] },
            ..Interconnect::flat(1.5e-6, 1e10)
        };
        let text = tree.platform(7, 3, 3e9).unwrap();
        for part in [
            "radical=\"0-11\"",
            "bw=\"10000000000.0Bps\" lat=\"2e-7s\"",
            "topology=\"FAT_TREE\" topo_parameters=\"2;4,3;1,2;1,1\"",
            "core=\"3\"",
            "loopback_bw=\"3000000000.0Bps\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!((tree.before_links() - 1.1e-6).abs() < 1e-15);
        let twofold = Interconnect { links_a_node: 2, ..tree };
        assert!(twofold.platform(7, 1, 1.0).unwrap_err().message.contains("links_a_node = 1"));
        let flat = Interconnect { links_a_node: 2, ..Interconnect::flat(1e-6, 1e9) };
        assert!(flat.platform(5, 1, 1.0).unwrap().contains("radical=\"0-4\""));
        assert!(flat.platform(5, 1, 1.0).unwrap().contains("bw=\"2000000000.0Bps\""));
    }
}
