//! Ranks that may use few of a node's many cores, most often by a launcher's usual binding: that is to be said, since
//! nothing but their speed shows it.

use std::collections::BTreeSet;

use super::launcher::Launch;
use super::topology::Topology;
use crate::host::{self, group, group::Quota};

/// Cores of a node, each by its first logical processor.
type Cores = BTreeSet<usize>;

/// What this rank tells the others of its cores: its node, its binding, and the control group that bounds their time.
pub fn told(topology: &Topology) -> String {
    let group = group::quota().map_or("-".into(), |quota| quota.id);
    format!("{} {} {group}", topology.node(), host::binding())
}

/// A rank's part of the cores of its node.
pub struct CoreShare {
    /// Logical processors that it is bound to.
    bound: usize,
    /// How many ranks are bound to these.
    ranks: usize,
    /// The cores' time that its control group has, and how many ranks have it together.
    quota: Option<(Quota, usize)>,
}

impl CoreShare {
    /// That of a rank which told `mine`, among what all told.
    pub fn of(mine: &str, all: &[String]) -> CoreShare {
        let own = parts(mine);
        let alike = |same: fn([&str; 3], [&str; 3]) -> bool| {
            all.iter().filter(|other| same(parts(other), own)).count().max(1)
        };
        let bound = host::numbers(own[1]).len();
        CoreShare {
            bound: if bound == 0 { host::cores() } else { bound },
            ranks: alike(|one, other| one[..2] == other[..2]),
            quota: group::quota()
                .map(|quota| (quota, alike(|one, other| one[0] == other[0] && one[2] == other[2]))),
        }
    }

    /// How many ranks may use the same cores.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The cores that this rank could use if the others left them alone.
    pub fn most(&self) -> usize {
        let quota = self.quota.as_ref().map_or(f64::INFINITY, |(quota, _)| quota.cores.floor());
        (self.bound as f64).min(quota).max(1.0) as usize
    }

    /// Threads for this rank, so that all ranks have the cores that they need.
    pub fn threads(&self) -> usize {
        let quota = self.quota.as_ref().map_or(f64::INFINITY, |(quota, ranks)| quota.cores / *ranks as f64);
        ((self.bound / self.ranks) as f64).min(quota).max(1.0) as usize
    }

    /// Which part of the time that they ask for so many threads a rank have: less than 1 where cores are too few.
    pub fn part(&self, threads: usize) -> f64 {
        let of = |cores: f64, ranks: usize| cores / (threads * ranks).max(1) as f64;
        let quota = self.quota.as_ref().map_or(1.0, |(quota, ranks)| of(quota.cores, *ranks));
        of(self.bound as f64, self.ranks).min(quota).min(1.0)
    }

    /// What to tell the user where the group has less time than the cores that its ranks are bound to; with threads as
    /// they are wanted, only where these are more than that.
    fn of_quota(&self, wanted: Option<usize>, used: usize, host: &str) -> Option<String> {
        let (Quota { cores, group, .. }, ranks) = self.quota.as_ref()?;
        if wanted.is_some_and(|threads| threads > self.most()) {
            return None; // Which is said of each rank.
        }
        let most = wanted.map_or(used, |threads| threads * ranks);
        (*cores < most as f64).then(|| {
            let who = who(*ranks);
            let meant = if wanted.is_none() { " (--threads says that it is meant)" } else { "" };
            let what = match wanted {
                None => format!("may use {used} cores of {host}"),
                Some(_) => format!("have {most} threads on {host}"),
            };
            format!(
                "{who} {what}, and control group {group} allows them the time of {cores}: give the job or its \
                 container more{meant}"
            )
        })
    }
}

fn who(ranks: usize) -> String {
    if ranks == 1 { "this rank".to_string() } else { format!("these {ranks} ranks") }
}

/// Node, binding and group of what a rank told.
fn parts(told: &str) -> [&str; 3] {
    let mut words = told.splitn(3, ' ');
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

/// What to tell the user of this node, on the lowest of its ranks: empty where there is nothing. `all` is what every
/// rank of the job has told.
pub fn warning(topology: &Topology, all: &[String], share: &CoreShare, wanted: Option<usize>) -> String {
    if !topology.is_leader() {
        return String::new();
    }
    let ranks = topology.ranks_of(topology.node());
    let used: BTreeSet<usize> = ranks.iter().flat_map(|&rank| host::numbers(parts(&all[rank])[1])).collect();
    let of_quota = share.of_quota(wanted, used.len(), topology.host());
    if wanted.is_some() || of_quota.is_some() {
        return of_quota.unwrap_or_default();
    }
    let reach = host::within_reach();
    let node = NodeCores {
        ranks: ranks.len(),
        cpus: host::cores(),
        used: host::cores_of(used),
        last: reach.last().copied().unwrap_or(0),
        reach: host::cores_of(reach),
        online: host::cores_of(host::numbers(&host::online())).len(),
    };
    node.warning(Launch::at_start(), topology.host()).unwrap_or_default()
}

/// The cores of a node and of this job's ranks there.
struct NodeCores {
    ranks: usize,
    /// Logical processors of one of them.
    cpus: usize,
    used: Cores,
    /// What they could have if they asked.
    reach: Cores,
    /// The last logical processor of these.
    last: usize,
    /// How many there are.
    online: usize,
}

impl NodeCores {
    fn warning(&self, launch: &Launch, host: &str) -> Option<String> {
        let NodeCores { ranks, .. } = *self;
        let few = |of: usize| 2 * self.used.len() <= of;
        // What a group of processes is kept from nobody can have; but Slurm gives a job more if it is asked.
        let all = if launch.in_slurm() { self.online } else { self.reach.len() };
        if !few(all) || launch.asked_for(self.cpus) {
            return None;
        }
        let by_slurm = launch.is_srun() || !few(self.reach.len());
        let who = who(ranks);
        let remedy = match by_slurm {
            true => format!("ask for more: `srun --exclusive --cpus-per-task={}`", all.div_ceil(ranks)),
            false => launch.unbinding(self.last),
        };
        Some(format!(
            "{who} may use {} of {all} cores of {host}: {remedy} (--threads says that it is meant)",
            self.used.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(
        pairs: &[(&str, &str)],
        ranks: usize,
        used: usize,
        reach: usize,
        online: usize,
    ) -> Option<String> {
        let node = NodeCores {
            ranks,
            cpus: used / ranks,
            used: (0..used).collect(),
            reach: (0..reach).collect(),
            last: reach - 1,
            online,
        };
        let find =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        node.warning(&Launch::read(find), "n0")
    }

    #[test]
    fn few_of_many_cores_are_said_with_the_launchers_remedy() {
        let mpirun = [("OMPI_COMM_WORLD_SIZE", "2")];
        let text = said(&mpirun, 2, 2, 64, 64).unwrap();
        assert!(text.starts_with("these 2 ranks may use 2 of 64 cores of n0: "), "{text}");
        assert!(text.contains("--bind-to none"), "{text}");
        let text = said(&[("PMI_SIZE", "1"), ("HYDI_CONTROL_FD", "7")], 1, 1, 64, 64).unwrap();
        assert!(
            text.starts_with("this rank may use 1 of 64") && text.contains("mpiexec -bind-to none"),
            "{text}"
        );
        let text = said(&[], 1, 4, 64, 64).unwrap();
        assert!(text.contains("taskset --cpu-list 0-63 dltrain"), "{text}");
        let step = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_ID", "0")];
        // With a plugin that binds, and with one that keeps tasks in a group of their own.
        for reach in [64, 2] {
            let text = said(&step, 2, 2, reach, 64).unwrap();
            assert!(text.contains("srun --exclusive --cpus-per-task=32"), "{text}");
        }
        // mpirun within an allocation of whole nodes binds by itself.
        let inner = [("SLURM_JOB_ID", "7"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert!(said(&inner, 2, 2, 64, 64).unwrap().contains("--bind-to none"));
        assert!(said(&inner, 2, 2, 2, 64).unwrap().contains("srun --exclusive"));
    }

    #[test]
    fn what_is_meant_or_cannot_be_otherwise_is_not_said() {
        assert_eq!(said(&[("OMPI_COMM_WORLD_SIZE", "2")], 2, 2, 2, 2), None);
        // A container has two cores of the machine's 64.
        assert_eq!(said(&[], 1, 2, 2, 64), None);
        // More than half are many.
        assert_eq!(said(&[("OMPI_COMM_WORLD_SIZE", "4")], 4, 40, 64, 64), None);
        // Who tells Slurm the cores of a rank wants so many; but srun may have forgotten it.
        let step = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_ID", "0")];
        let asked = |cpus| [&step[..], &[("SLURM_CPUS_PER_TASK", cpus)]].concat();
        assert_eq!(said(&asked("2"), 2, 4, 4, 64), None);
        assert!(said(&asked("16"), 2, 2, 2, 64).is_some());
    }
}
