//! Which links a message passes.

use super::{Interconnect, Topology};

/// A link in one direction, by its number.
pub type Link = usize;

impl Interconnect {
    /// The links from one node to another, of so many nodes; none where both are one.
    pub(super) fn route(&self, from: usize, to: usize, links: &mut Vec<Link>) {
        links.clear();
        if from == to {
            return;
        }
        match &self.topology {
            Topology::Flat => links.extend([2 * from, 2 * to + 1]),
            Topology::FatTree { down, up } => through_tree(down, up, [from, to], links),
            Topology::Dragonfly { groups, switches, nodes, .. } => {
                through_groups([*groups, *switches, *nodes], [from, to], links);
            }
        }
    }

    /// How many numbers of links there are, with so many nodes.
    pub(super) fn links(&self, nodes: usize) -> usize {
        match &self.topology {
            Topology::Flat => 2 * nodes,
            Topology::FatTree { down, up } => first_link(down, up, down.len()),
            Topology::Dragonfly { groups, switches, nodes, .. } => {
                2 * groups * switches * nodes + groups * switches * switches + groups * groups
            }
        }
    }

    /// Bytes a second of a link.
    pub(super) fn capacity(&self, link: Link) -> f64 {
        let side_by_side = match &self.topology {
            Topology::Flat => self.links_a_node,
            Topology::FatTree { down, up } if link < first_link(down, up, 1) => self.links_a_node,
            Topology::FatTree { .. } => 1,
            Topology::Dragonfly { groups, switches, nodes, between_groups, between_switches } => {
                let of_nodes = 2 * groups * switches * nodes;
                match link {
                    _ if link < of_nodes => self.links_a_node,
                    _ if link < of_nodes + groups * switches * switches => *between_switches,
                    _ => *between_groups,
                }
            }
        };
        side_by_side as f64 * self.bandwidth
    }
}

/// A vertex of level i is named by digits: those below i say which of the parents of each level it is, the others in
/// which subtree it lies. A message goes up until only one subtree is left, to the parent that the destination's number
/// says, so that all messages to one node come down one way.
fn through_tree(down: &[usize], up: &[usize], [from, to]: [usize; 2], links: &mut Vec<Link>) {
    let digits = |mut node: usize, sizes: &[usize]| -> Vec<usize> {
        let next = |size: &usize| {
            let digit = node % size;
            node /= size;
            digit
        };
        sizes.iter().map(next).collect()
    };
    let [from, target] = [from, to].map(|node| digits(node, down));
    let ways = digits(to, up);
    let height = (0..down.len()).rfind(|&level| from[level] != target[level]).map_or(0, |level| level + 1);
    let link = |level: usize, below: &[usize], direction: usize| {
        let digit = |at: usize| if at < level { (ways[at], up[at]) } else { (below[at], down[at]) };
        let child = (0..down.len()).rev().map(digit).fold(0, |number, (digit, size)| number * size + digit);
        first_link(down, up, level) + 2 * (child * up[level] + ways[level]) + direction
    };
    links.extend((0..height).map(|level| link(level, &from, 0)));
    links.extend((0..height).rev().map(|level| link(level, &target, 1)));
}

/// The first number of the links above the vertices of a level.
fn first_link(down: &[usize], up: &[usize], level: usize) -> Link {
    let above = |level: usize| {
        let vertices: usize = up[..level].iter().chain(&down[level..]).product();
        2 * vertices * up[level]
    };
    (0..level).map(above).sum()
}

/// Groups a and b are joined where switch b of group a is, and switch a of group b.
fn through_groups([groups, switches, nodes]: [usize; 3], [from, to]: [usize; 2], links: &mut Vec<Link>) {
    let place = |node: usize| (node / nodes / switches, node / nodes % switches);
    let ((group, switch), (last_group, last)) = (place(from), place(to));
    let of_nodes = 2 * groups * switches * nodes;
    let within = |group: usize, from: usize, to: usize| {
        (from != to).then_some(of_nodes + (group * switches + from) * switches + to)
    };
    links.push(2 * from);
    match group == last_group {
        true => links.extend(within(group, switch, last)),
        false => {
            links.extend(within(group, switch, last_group));
            links.push(of_nodes + groups * switches * switches + group * groups + last_group);
            links.extend(within(last_group, group, last));
        }
    }
    links.push(2 * to + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(topology: Topology) -> Interconnect {
        Interconnect { topology, ..Interconnect::flat(1.0, 1.0) }
    }

    fn route(network: &Interconnect, from: usize, to: usize) -> Vec<Link> {
        let mut links = Vec::new();
        network.route(from, to, &mut links);
        links
    }

    fn lengths(network: &Interconnect, pairs: &[(usize, usize)]) -> Vec<usize> {
        pairs.iter().map(|&(from, to)| route(network, from, to).len()).collect()
    }

    #[test]
    fn a_message_goes_no_higher_than_it_must() {
        let tree = with(Topology::FatTree { down: vec![4, 3, 2], up: vec![1, 2, 3] });
        assert_eq!(tree.room(), Some(24));
        assert_eq!(lengths(&tree, &[(0, 0), (0, 3), (0, 4), (3, 11), (0, 12), (23, 0)]), [0, 2, 4, 4, 6, 6]);
        let groups =
            Topology::Dragonfly { groups: 3, switches: 4, nodes: 2, between_groups: 1, between_switches: 1 };
        let dragonfly = with(groups);
        // Same switch; same group; straight over; with a link before, behind, and both.
        let pairs = [(0, 1), (0, 7), (2, 8), (0, 8), (2, 14), (7, 15)];
        assert_eq!(lengths(&dragonfly, &pairs), [2, 3, 3, 4, 4, 5]);
    }

    /// Every link has one number and is used by some pair; two nodes have as many links one way as back.
    #[test]
    fn links_are_numbered_without_gaps_and_ways_back_are_as_long() {
        let trees = [(vec![4, 3], vec![1, 2]), (vec![2, 2, 3], vec![1, 2, 2])];
        let of_trees = trees.map(|(down, up)| Topology::FatTree { down, up });
        let dragonfly =
            Topology::Dragonfly { groups: 3, switches: 3, nodes: 2, between_groups: 2, between_switches: 1 };
        for topology in of_trees.into_iter().chain([dragonfly, Topology::Flat]) {
            let network = with(topology);
            let nodes = network.room().unwrap_or(5);
            let mut used = vec![0usize; network.links(nodes)];
            for from in 0..nodes {
                for to in 0..nodes {
                    let links = route(&network, from, to);
                    links.iter().for_each(|&link| used[link] += 1);
                    assert_eq!(links.len(), route(&network, to, from).len(), "{from} and {to}: {network:?}");
                }
            }
            // A switch has no link to itself, nor a group.
            let spare = used.iter().filter(|&&count| count == 0).count();
            let expected = if matches!(network.topology, Topology::Dragonfly { .. }) { 9 + 3 } else { 0 };
            assert_eq!(spare, expected, "{network:?}");
        }
    }

    /// All messages to a node come down one way, and a shift by a whole leaf has every upper link to itself: Zahavi's
    /// point, with as many parents as children.
    #[test]
    fn a_shift_in_a_full_tree_shares_no_link() {
        let tree = with(Topology::FatTree { down: vec![4, 4], up: vec![1, 4] });
        for distance in [1, 4, 5, 12] {
            let mut used = vec![0usize; tree.links(16)];
            for node in 0..16 {
                route(&tree, node, (node + distance) % 16).into_iter().for_each(|link| used[link] += 1);
            }
            assert!(used.iter().all(|&count| count <= 1), "{distance}: {used:?}");
        }
    }
}
