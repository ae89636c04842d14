//! What messages take that are all under way at a time.

use std::collections::HashMap;

use super::Interconnect;
use super::routes::Link;

/// What each of some messages of one size takes: seconds, and seconds a byte.
#[derive(Debug, Clone, PartialEq)]
pub struct Loads(Vec<[f64; 2]>);

impl Loads {
    /// Of the slowest. Where nothing is sent, nothing is waited for.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.each(bytes).fold(0.0, f64::max)
    }

    /// Of each, in the order in which they were counted.
    pub fn each(&self, bytes: f64) -> impl Iterator<Item = f64> {
        self.0.iter().map(move |[fixed, per_byte]| fixed + per_byte * bytes)
    }

    /// Lines that none of the others lies above: enough to know the slowest.
    pub fn slowest(self) -> Loads {
        let mut lines: Vec<[f64; 2]> = Vec::new();
        let is_below = |one: &[f64; 2], other: &[f64; 2]| one[0] <= other[0] && one[1] <= other[1];
        for line in self.0 {
            if !lines.iter().any(|other| is_below(&line, other)) {
                lines.retain(|other| !is_below(other, &line));
                lines.push(line);
            }
        }
        Loads(lines)
    }
}

/// The links of messages that are on their way at a time.
#[derive(Debug, Clone)]
pub struct Routes {
    links: Vec<Link>,
    /// Of each message: where its links end, and how many bytes it has for each of the largest.
    messages: Vec<(usize, f64)>,
}

impl Routes {
    fn each(&self) -> impl Iterator<Item = (&[Link], f64)> {
        let starts = std::iter::once(0).chain(self.messages.iter().map(|(end, _)| *end));
        starts.zip(&self.messages).map(|(start, (end, weight))| (&self.links[start..*end], *weight))
    }
}

/// A link while it is divided.
#[derive(Debug, Clone, Copy, Default)]
struct Divided {
    /// Bytes a second that are left.
    room: f64,
    /// How many messages have none of it yet, and the sum of their weights.
    waiting: u32,
    weight: f64,
}

/// What is closer than that is equal: sums of the same numbers in another order.
const EQUAL: f64 = 1.0 + 1e-9;

/// Counts what each link carries. It keeps its memory from one count to the next.
#[derive(Debug)]
pub struct Contention {
    network: Interconnect,
    carried: Vec<u32>,
    touched: Vec<Link>,
    links: Vec<Link>,
    divided: Vec<Divided>,
}

impl Contention {
    /// Of a network with so many nodes.
    pub fn new(network: &Interconnect, nodes: usize) -> Contention {
        let links = network.links(nodes);
        let (carried, divided) = (vec![0; links], vec![Divided::default(); links]);
        Contention { network: network.clone(), carried, touched: Vec::new(), links: Vec::new(), divided }
    }

    /// The ways of messages of so many bytes each, and the seconds of the longest way for the first byte. Those within
    /// a node have none, and are left out.
    pub fn routes(&mut self, messages: impl Iterator<Item = ([usize; 2], f64)> + Clone) -> (Routes, f64) {
        let far = messages.filter(|([from, to], bytes)| from != to && *bytes > 0.0);
        let largest = far.clone().map(|(_, bytes)| bytes).fold(0.0, f64::max);
        let (mut routes, mut latency) = (Routes { links: Vec::new(), messages: Vec::new() }, 0.0f64);
        for ([from, to], bytes) in far {
            self.network.route(from, to, &mut self.links);
            latency = latency.max(self.network.latency + self.network.hop * (self.links.len() - 2) as f64);
            routes.links.extend(&self.links);
            routes.messages.push((routes.links.len(), bytes / largest));
        }
        (routes, latency)
    }

    /// Bytes a second that the slowest message of each has while all are on their way. Links are divided fairly: of the
    /// one with the least for each, all of its messages get as much and leave the rest of their other links to others,
    /// which are divided in the same way (Dimitri Bertsekas, Robert Gallager: "Data Networks", 1992, 6.5.2).
    pub fn rates(&mut self, loads: &[&Routes]) -> Vec<f64> {
        let mut touched: Vec<Link> = Vec::new();
        for (links, weight) in loads.iter().flat_map(|routes| routes.each()) {
            for &link in links {
                if self.divided[link].waiting == 0 {
                    touched.push(link);
                    self.divided[link] = Divided { room: self.network.capacity(link), ..Divided::default() };
                }
                self.divided[link].waiting += 1;
                self.divided[link].weight += weight;
            }
        }
        let mut rates = vec![f64::INFINITY; loads.len()];
        let mut open: Vec<(usize, &[Link], f64)> = Vec::new();
        for (index, routes) in loads.iter().enumerate() {
            open.extend(routes.each().map(|(links, weight)| (index, links, weight)));
        }
        while rates.iter().zip(loads).any(|(rate, routes)| rate.is_infinite() && !routes.messages.is_empty())
        {
            let share = |link: &Link| self.divided[*link].room / self.divided[*link].weight;
            let least = touched.iter().map(share).fold(f64::INFINITY, f64::min);
            let is_full = |link: &Link| share(link) <= least * EQUAL;
            let (settled, left): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|(_, links, _)| links.iter().any(is_full));
            for (index, links, weight) in settled {
                rates[index] = rates[index].min(least);
                for &link in links {
                    let divided = &mut self.divided[link];
                    divided.room -= least * weight;
                    divided.weight -= weight;
                    divided.waiting -= 1;
                }
            }
            touched.retain(|&link| self.divided[link].waiting > 0);
            open = left;
        }
        touched.iter().for_each(|&link| self.divided[link].waiting = 0);
        rates
    }

    /// Of members that each send some messages: which of them have the same part of all links whenever all do the same,
    /// since they meet as many of the same kind. A member's class is the number of the first that is as it is. Where
    /// there are more than `most` classes they are as in the last round that has fewer.
    ///
    /// By refinement: links are alike that carry as many of the same kind and class, and members whose ways are over
    /// links that are alike.
    pub fn alike(&mut self, members: &[Vec<[usize; 2]>], most: usize) -> Vec<usize> {
        let mut classes = vec![0; members.len()];
        let mut count = 1;
        loop {
            // Of each link the sum over what it carries, in any order.
            let mut carried = vec![0u64; self.divided.len()];
            for (member, messages) in members.iter().enumerate() {
                for (kind, [from, to]) in messages.iter().enumerate() {
                    self.network.route(*from, *to, &mut self.links);
                    for &link in &self.links {
                        carried[link] =
                            carried[link].wrapping_add(mixed([kind as u64, classes[member] as u64]));
                    }
                }
            }
            let mut firsts: HashMap<u64, usize> = HashMap::new();
            let mut next = Vec::with_capacity(members.len());
            for (member, messages) in members.iter().enumerate() {
                let mut sign = classes[member] as u64;
                for [from, to] in messages {
                    self.network.route(*from, *to, &mut self.links);
                    for &link in &self.links {
                        sign = mixed([sign, carried[link]]);
                        sign = mixed([sign, self.network.capacity(link).to_bits()]);
                    }
                    sign = mixed([sign, self.links.len() as u64]);
                }
                next.push(*firsts.entry(sign).or_insert(member));
            }
            if firsts.len() > most {
                return classes;
            }
            let is_stable = firsts.len() == count;
            (classes, count) = (next, firsts.len());
            if is_stable {
                return classes;
            }
        }
    }

    /// Messages from node to node, all of one size, that start at one time. Those within a node pass no link: `within`
    /// has their seconds and seconds a byte.
    ///
    /// The last of them ends when the link that is shared most has carried all of its own. That is exact where
    /// messages have fair parts of a link: on it all get the same part from the start, and every other gets more.
    pub fn of(&mut self, messages: &[(usize, usize)], within: [f64; 2]) -> Loads {
        for &link in &self.touched {
            self.carried[link] = 0;
        }
        self.touched.clear();
        for &(from, to) in messages {
            self.network.route(from, to, &mut self.links);
            for &link in &self.links {
                self.carried[link] += 1;
            }
            self.touched.extend(&self.links);
        }
        let mut line = |&(from, to): &(usize, usize)| {
            self.network.route(from, to, &mut self.links);
            if self.links.is_empty() {
                return within;
            }
            let fixed = self.network.latency + self.network.hop * (self.links.len() - 2) as f64;
            let per_byte = |&link: &Link| f64::from(self.carried[link]) / self.network.capacity(link);
            [fixed, self.links.iter().map(per_byte).fold(0.0, f64::max)]
        };
        Loads(messages.iter().map(&mut line).collect())
    }

    /// Seconds until the last of some messages of unlike sizes is there, all of which start at a time; those within a
    /// node are left out. The link with most to carry for its capacity has carried all of it then, and is never idle
    /// before.
    pub fn together(&mut self, messages: &[([usize; 2], f64)]) -> f64 {
        let mut carried: HashMap<Link, f64> = HashMap::new();
        let far = || messages.iter().filter(|([from, to], bytes)| from != to && *bytes > 0.0);
        for ([from, to], bytes) in far() {
            self.network.route(*from, *to, &mut self.links);
            for &link in &self.links {
                *carried.entry(link).or_default() += bytes;
            }
        }
        let mut last = 0.0f64;
        for ([from, to], _) in far() {
            self.network.route(*from, *to, &mut self.links);
            let fixed = self.network.latency + self.network.hop * (self.links.len() - 2) as f64;
            let busiest = self.links.iter().map(|link| carried[link] / self.network.capacity(*link));
            last = last.max(fixed + busiest.fold(0.0, f64::max));
        }
        last
    }
}

/// Two numbers in one that tells them apart (the last steps of SplitMix64).
fn mixed([one, other]: [u64; 2]) -> u64 {
    let mut bits = one.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other.rotate_left(31);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::Topology;
    use super::*;

    /// A second for the first two links and a tenth for each further one; a byte a second.
    fn with(topology: Topology) -> Interconnect {
        Interconnect { hop: 0.1, topology, ..Interconnect::flat(1.0, 1.0) }
    }

    #[test]
    fn messages_that_share_a_link_have_equal_parts_of_it() {
        let flat = with(Topology::Flat);
        let mut contention = Contention::new(&flat, 4);
        let ring: Vec<_> = (0..4).map(|node| (node, (node + 1) % 4)).collect();
        assert_eq!(contention.of(&ring, [0.5, 0.0]).seconds(10.0), 11.0);
        // Three to one node: its link carries thirty bytes.
        assert_eq!(contention.of(&[(1, 0), (2, 0), (3, 0)], [0.5, 0.0]).seconds(10.0), 31.0);
        // Both ways at a time, and one that stays at home.
        assert_eq!(contention.of(&[(1, 0), (0, 1), (2, 2)], [0.5, 0.0]).seconds(10.0), 11.0);
        assert_eq!(contention.of(&[(2, 2)], [0.5, 0.0]).seconds(10.0), 0.5);
        assert_eq!(contention.of(&[], [0.5, 0.0]).seconds(10.0), 0.0);
        let twofold = Interconnect { links_a_node: 2, ..flat };
        assert_eq!(Contention::new(&twofold, 4).of(&ring, [0.0; 2]).seconds(10.0), 6.0);
    }

    /// Two leaves of four nodes with two links up: four messages across share two each way.
    #[test]
    fn a_thin_tree_is_shared_above_and_farther_is_later() {
        let tree = with(Topology::FatTree { down: vec![4, 2], up: vec![1, 2] });
        let mut contention = Contention::new(&tree, 8);
        let across: Vec<_> = (0..4).map(|node| (node, node + 4)).collect();
        assert!((contention.of(&across, [0.0; 2]).seconds(10.0) - 21.2).abs() < 1e-12);
        // The short messages are slower per byte, the far one later: whichever ends last counts.
        let mixed = contention.of(&[(1, 0), (2, 0), (0, 7)], [0.0; 2]);
        assert!((mixed.seconds(0.0) - 1.2).abs() < 1e-12 && (mixed.seconds(10.0) - 21.0).abs() < 1e-12);
    }

    #[test]
    fn between_two_groups_there_are_as_many_links_as_the_file_says() {
        let of = |between_groups| {
            with(Topology::Dragonfly {
                groups: 2,
                switches: 2,
                nodes: 2,
                between_groups,
                between_switches: 4,
            })
        };
        let across: Vec<_> = (0..4).map(|node| (node, node + 4)).collect();
        let seconds = |links| Contention::new(&of(links), 8).of(&across, [0.0; 2]).seconds(10.0);
        // One of both groups' links is on the way besides: 1 + 2 × 0.1, and four share the way out.
        assert!((seconds(1) - 41.2).abs() < 1e-9, "{}", seconds(1));
        assert!((seconds(4) - 11.2).abs() < 1e-9);
    }

    fn routes(contention: &mut Contention, messages: &[(usize, usize, f64)]) -> Routes {
        contention.routes(messages.iter().map(|&(from, to, bytes)| ([from, to], bytes))).0
    }

    /// What others leave of a link goes to those that have use for it.
    #[test]
    fn links_are_divided_fairly_among_all_that_is_under_way() {
        let flat = with(Topology::Flat);
        let mut contention = Contention::new(&flat, 6);
        // Three into node 0, of which one shares its way out with a message that goes elsewhere.
        let [into, beside] = [
            routes(&mut contention, &[(1, 0, 10.0), (2, 0, 10.0), (3, 0, 10.0)]),
            routes(&mut contention, &[(3, 4, 7.0)]),
        ];
        let rates = contention.rates(&[&into, &beside]);
        assert!((rates[0] - 1.0 / 3.0).abs() < 1e-12 && (rates[1] - 2.0 / 3.0).abs() < 1e-12, "{rates:?}");
        assert_eq!(contention.rates(&[&beside]), [1.0]);
        assert_eq!(contention.rates(&[&beside, &beside]), [0.5, 0.5]);
        // Nothing of it stays for the next count, and the other way of counting has its own.
        assert_eq!(contention.of(&[(1, 0), (2, 0)], [0.0; 2]).seconds(10.0), 21.0);
        assert_eq!(contention.rates(&[&into]), [1.0 / 3.0]);
        assert_eq!(contention.of(&[(1, 0), (2, 0)], [0.0; 2]).seconds(10.0), 21.0);
        // Messages of half the bytes have half the rate, and those within a node none at all.
        let unlike = routes(&mut contention, &[(1, 0, 10.0), (2, 0, 5.0), (5, 5, 90.0)]);
        assert!((contention.rates(&[&unlike])[0] - 2.0 / 3.0).abs() < 1e-12);
        assert!(
            contention.rates(&[&routes(&mut Contention::new(&flat, 6), &[(5, 5, 1.0)])])[0].is_infinite()
        );
        // The longest way counts: 1.2 seconds through both levels of a tree.
        let mut tree = Contention::new(&with(Topology::FatTree { down: vec![4, 2], up: vec![1, 2] }), 8);
        let (_, latency) = tree.routes([([0, 1], 1.0), ([0, 7], 1.0)].into_iter());
        assert!((latency - 1.2).abs() < 1e-12);
    }

    /// Members of a class have the same rate at every time; those that are told apart do not.
    #[test]
    fn members_are_alike_that_have_the_same_part_of_all_links() {
        // Two leaves of four nodes with one link up. Nodes 0 to 2 send across, 3 to its neighbour.
        let tree = with(Topology::FatTree { down: vec![4, 2], up: vec![1, 1] });
        let mut contention = Contention::new(&tree, 8);
        let members = [vec![[0, 4]], vec![[1, 5]], vec![[2, 6]], vec![[3, 2]]];
        assert_eq!(contention.alike(&members, 9), [0, 0, 0, 3]);
        assert_eq!(contention.alike(&members, 1), [0, 0, 0, 0]);
        let flat = with(Topology::Flat);
        let ring: Vec<_> = (0..4).map(|node| vec![[node, (node + 1) % 4], [(node + 1) % 4, node]]).collect();
        assert_eq!(Contention::new(&flat, 4).alike(&ring, 9), [0; 4]);
        // Two into one node: the third, which has its way out in common with one of these, tells them apart.
        let three = [vec![[0, 2]], vec![[1, 2]], vec![[1, 3]]];
        assert_eq!(Contention::new(&flat, 4).alike(&three, 9), [0, 1, 2]);
    }
}
