//! Control groups, of either version: what those that this process is in (a container's, a job's), and those around
//! them, leave it of memory and of cores' time. Which cores it may use is its binding (`host::binding`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where systems mount them.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// The control groups of this process, as it sees them.
pub(super) fn own() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// What a group's limit of memory leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLeft {
    /// Bytes that processes in the group can still be given.
    pub bytes: usize,
    /// Bytes that all of them may have.
    pub limit: usize,
    /// The group's name, as this process sees it.
    pub group: String,
}

/// A limit of the time of cores.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    /// So many cores' time have all processes of the group together.
    pub cores: f64,
    /// The group's name, as this process sees it.
    pub group: String,
    /// The group: equal for two processes of a machine that have this quota together.
    pub id: String,
}

/// The least quota of the groups of this process.
pub fn quota() -> Option<Quota> {
    quota_of(Path::new(ROOT), &own())
}

/// The memory that the limits of this process's groups leave it, where there are limits.
pub fn memory_left() -> Option<MemoryLeft> {
    left_by_groups(Path::new(ROOT), &own())
}

/// A group and those around it, each with its directory and its name.
fn around(root: &Path, name: &str) -> Vec<(PathBuf, String)> {
    // A container sees its own group in the place of the root.
    let place = root.join(name.trim_start_matches('/'));
    let groups = place.ancestors().take_while(|group| group.starts_with(root));
    let named = groups.map(|group| {
        let name = group.strip_prefix(root).unwrap_or(group).display();
        (group.to_path_buf(), format!("/{name}"))
    });
    named.collect()
}

/// A line of /proc/self/cgroup: the controllers ("" for all of version 2) and the group's name.
fn entry(line: &str) -> Option<(&str, &str)> {
    line.split_once(':')?.1.split_once(':')
}

fn number(path: PathBuf) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Files in the cache that nobody reads any more make room when it is needed.
pub(super) fn left_by_groups(root: &Path, groups: &str) -> Option<MemoryLeft> {
    /// What the first version has where there is no limit is near this.
    const NO_LIMIT: usize = 1 << 62;
    let of_line = |line: &str| {
        let (controllers, name) = entry(line)?;
        let (root, [limit, used, cached]) = match controllers {
            "" => (root.to_path_buf(), ["memory.max", "memory.current", "inactive_file "]),
            "memory" => {
                let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];
                (root.join("memory"), names)
            }
            _ => return None,
        };
        let left = |(place, group): (PathBuf, String)| {
            let read = |name| usize::try_from(number(place.join(name))?).ok();
            let (limit, used) = (read(limit)?, read(used)?);
            let of_cache =
                super::value(&fs::read_to_string(place.join("memory.stat")).unwrap_or_default(), cached);
            let cached = of_cache.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
            let bytes = limit.saturating_sub(used.saturating_sub(cached));
            (limit < NO_LIMIT).then_some(MemoryLeft { bytes, limit, group })
        };
        around(&root, name).into_iter().filter_map(left).min_by_key(|left| left.bytes)
    };
    groups.lines().filter_map(of_line).min_by_key(|left| left.bytes)
}

fn quota_of(root: &Path, groups: &str) -> Option<Quota> {
    let of_line = |line: &str| {
        let (controllers, name) = entry(line)?;
        let second = controllers.is_empty();
        if !second && !controllers.split(',').any(|controller| controller == "cpu") {
            return None;
        }
        // "cpu,cpuacct" is mounted by that name, which "cpu" leads to.
        let root = if second { root.to_path_buf() } else { root.join("cpu") };
        let of_group = |(place, group): (PathBuf, String)| {
            let (time, period) = if second {
                let text = fs::read_to_string(place.join("cpu.max")).ok()?;
                let (time, period) = text.trim().split_once(' ')?;
                (time.parse().ok()?, period.parse().ok()?)
            } else {
                (number(place.join("cpu.cfs_quota_us"))?, number(place.join("cpu.cfs_period_us"))?)
            };
            let found = fs::metadata(&place).ok()?;
            let id = format!("{}:{}", found.dev(), found.ino());
            (time > 0 && period > 0).then(|| Quota { cores: time as f64 / period as f64, group, id })
        };
        around(&root, name)
            .into_iter()
            .filter_map(of_group)
            .min_by(|one, other| one.cores.total_cmp(&other.cores))
    };
    groups.lines().filter_map(of_line).min_by(|one, other| one.cores.total_cmp(&other.cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, group: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(group)).unwrap();
        files.iter().for_each(|(name, text)| fs::write(root.join(group).join(name), text).unwrap());
    }

    #[test]
    fn the_least_limit_of_the_groups_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, files: &[(&str, &str)]| write(root.path(), group, files);
        let left = |groups: &str| left_by_groups(root.path(), groups);
        let bytes = |groups: &str| left(groups).map(|left| left.bytes);
        assert_eq!(left("0::/job/step\n"), None);
        write("job", &[("memory.max", "1000\n"), ("memory.current", "700\n")]);
        write("job/step", &[("memory.max", "max\n"), ("memory.current", "600\n")]);
        let of_job = MemoryLeft { bytes: 300, limit: 1000, group: "/job".into() };
        assert_eq!(left("1:cpu:/\n0::/job/step\n"), Some(of_job));
        // What is cached can be had; a group within has less.
        write("job", &[("memory.stat", "anon 500\ninactive_file 150\nactive_file 50\n")]);
        assert_eq!(bytes("0::/job/step\n"), Some(450));
        write("job/step", &[("memory.max", "650\n")]);
        assert_eq!(bytes("0::/job/step\n"), Some(50));
        // The first version, as a container sees it: its path is the host's.
        let files = [("memory.limit_in_bytes", "90\n"), ("memory.usage_in_bytes", "100\n")];
        write("memory", &files);
        assert_eq!(bytes("4:memory:/docker/abc\n0::/\n"), Some(0));
        write("memory", &[("memory.stat", "inactive_file 1\ntotal_inactive_file 30\n")]);
        let of_root = MemoryLeft { bytes: 20, limit: 90, group: "/".into() };
        assert_eq!(left("4:memory:/docker/abc\n0::/\n"), Some(of_root));
        // Without a limit it has this one.
        write("memory", &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(left("4:memory:/docker/abc\n0::/\n"), None);
    }

    #[test]
    fn the_least_quota_of_the_groups_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, files: &[(&str, &str)]| write(root.path(), group, files);
        let quota = |groups: &str| {
            quota_of(root.path(), groups).map(|Quota { cores, group, id }| (cores, group, id.contains(':')))
        };
        assert_eq!(quota("0::/job/step\n"), None);
        write("job", &[("cpu.max", "150000 100000\n")]);
        write("job/step", &[("cpu.max", "max 100000\n")]);
        assert_eq!(quota("4:memory:/\n0::/job/step\n"), Some((1.5, "/job".into(), true)));
        let files = |time| [("cpu.cfs_quota_us", time), ("cpu.cfs_period_us", "50000\n")];
        write("cpu/pod", &files("-1\n"));
        assert_eq!(quota("3:cpuset:/pod\n2:cpu,cpuacct:/pod\n"), None);
        write("cpu/pod", &files("50000\n"));
        assert_eq!(quota("2:cpu,cpuacct:/pod\n"), Some((1.0, "/pod".into(), true)));
        assert_eq!(quota("2:cpuacct:/pod\n"), None);
    }
}
