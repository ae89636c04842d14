//! Which ranks share a node.

/// The ranks of a job, or of a group of them, and the nodes they run on, as one rank sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    rank: usize,
    /// The node of each rank; nodes are numbered by the lowest rank on them.
    node_of: Vec<usize>,
    host_of: Vec<String>,
    nodes: usize,
    /// The number in the job of each rank.
    job_ranks: Vec<usize>,
}

impl Topology {
    /// `leaders[r]` is the lowest rank on the node of rank r, `host_of[r]` its host's name, `job_ranks[r]` its number
    /// in the job.
    pub(super) fn new(
        rank: usize,
        leaders: &[usize],
        host_of: Vec<String>,
        job_ranks: Vec<usize>,
    ) -> Topology {
        let mut distinct = leaders.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let node_of = leaders.iter().map(|leader| distinct.partition_point(|other| other < leader)).collect();
        Topology { rank, node_of, host_of, nodes: distinct.len(), job_ranks }
    }

    /// The topology of a job that is not there, as rank 0 of it would see it: so many nodes with as many ranks each.
    pub fn of_nodes(nodes: usize, ranks: usize) -> Topology {
        Topology {
            rank: 0,
            node_of: (0..nodes * ranks).map(|rank| rank / ranks).collect(),
            host_of: (0..nodes * ranks).map(|rank| format!("node {}", rank / ranks)).collect(),
            nodes,
            job_ranks: (0..nodes * ranks).collect(),
        }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Whether this is rank 0: the one that others give their numbers to, and that has the file.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// The number that a rank of this group has in the job: the one to tell people. In the job itself it is the same.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn job_rank(&self, rank: usize) -> usize {
        self.job_ranks[rank]
    }

    /// "rank 3 on node7": what to tell people of a rank.
    pub fn place_of(&self, rank: usize) -> String {
        format!("rank {} on {}", self.job_ranks[rank], self.host_of[rank])
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.node_of.len()
    }

    /// This rank's place among the ranks of its node.
    pub fn local_rank(&self) -> usize {
        let node = self.node();
        self.node_of[..self.rank].iter().filter(|&&other| other == node).count()
    }

    /// How many ranks share this node.
    pub fn local_size(&self) -> usize {
        let node = self.node();
        self.node_of.iter().filter(|&&other| other == node).count()
    }

    /// The number of this rank's node.
    pub fn node(&self) -> usize {
        self.node_of[self.rank]
    }

    /// The number of a rank's node.
    pub fn node_of(&self, rank: usize) -> usize {
        self.node_of[rank]
    }

    /// The ranks of a node, in order: a rank's place among them is its local rank.
    pub fn ranks_of(&self, node: usize) -> Vec<usize> {
        (0..self.size()).filter(|&rank| self.node_of[rank] == node).collect()
    }

    /// The ranks of every node.
    pub fn ranks_by_node(&self) -> Vec<Vec<usize>> {
        let mut nodes = vec![Vec::new(); self.nodes];
        self.node_of.iter().enumerate().for_each(|(rank, &node)| nodes[node].push(rank));
        nodes
    }

    /// Whether a rank is on this node.
    pub fn same_node(&self, rank: usize) -> bool {
        self.node_of[rank] == self.node()
    }

    /// Whether every node has as many ranks as this one.
    pub fn is_even(&self) -> bool {
        let local = self.local_size();
        self.ranks_by_node().iter().all(|ranks| ranks.len() == local)
    }

    /// On how many nodes there are ranks of it.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Whether this is the lowest rank of its node.
    pub fn is_leader(&self) -> bool {
        self.local_rank() == 0
    }

    /// The name of this rank's host.
    pub fn host(&self) -> &str {
        &self.host_of[self.rank]
    }

    /// The name of a rank's host.
    pub fn host_of(&self, rank: usize) -> &str {
        &self.host_of[rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_lowest_rank() {
        // Ranks dealt out in turn over two nodes, and a third node with one rank.
        let leaders = [0, 1, 0, 1, 4];
        let hosts: Vec<String> = ["a", "b", "a", "b", "c"].map(String::from).to_vec();
        let seen = |rank| Topology::new(rank, &leaders, hosts.clone(), vec![2, 5, 6, 7, 9]);
        let nodes: Vec<usize> = (0..5).map(|rank| seen(rank).node()).collect();
        assert_eq!(nodes, [0, 1, 0, 1, 2]);
        assert_eq!((seen(3).local_rank(), seen(3).local_size(), seen(3).nodes()), (1, 2, 3));
        assert_eq!((seen(0).ranks_of(1), seen(0).is_even()), (vec![1, 3], false));
        assert!(seen(4).is_leader() && !seen(2).is_leader());
        assert_eq!(seen(3).ranks_by_node(), [vec![0, 2], vec![1, 3], vec![4]]);
        let planned = Topology::of_nodes(3, 2);
        assert_eq!(
            (planned.size(), planned.nodes(), planned.local_size(), planned.is_even()),
            (6, 3, 2, true)
        );
        assert_eq!(planned.ranks_of(2), [4, 5]);
        assert_eq!((seen(3).host(), seen(3).host_of(4)), ("b", "c"));
        assert_eq!((seen(0).job_rank(0), seen(0).place_of(4)), (2, "rank 9 on c".to_string()));
    }
}
