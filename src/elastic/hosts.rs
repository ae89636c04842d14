//! Hosts and their slots: read from lists, divided among ranks, and which of them may be used now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Failures count together for so long, and a host that failed too often is left out for as long.
pub const LEFT_OUT: Duration = Duration::from_secs(600);

/// A host with the ranks that it has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// As launchers and their agents call it.
    pub name: String,
    /// Ranks that it takes.
    pub slots: usize,
}

/// Reads entries, a host each: `name`, `name:slots` or `name slots=N`; what follows a # is a comment. `slots` holds
/// where an entry says none. A host that is named again has the slots of all its entries.
///
/// # Errors
/// `Usage` with the entry that is none, and `from`, where it was read.
pub fn read<'a>(entries: impl Iterator<Item = &'a str>, slots: usize, from: &str) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = Vec::new();
    for entry in entries {
        let entry = entry.split('#').next().unwrap_or("").trim();
        if entry.is_empty() {
            continue;
        }
        let (name, own) = parse(entry).ok_or_else(|| {
            Error::usage(format!("{from}: \"{entry}\" is no host; a line is a name, or name:slots"))
        })?;
        let slots = own.unwrap_or(slots);
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots += slots,
            None => hosts.push(Host { name, slots }),
        }
    }
    Ok(hosts)
}

/// The name, and the slots where they are said.
fn parse(entry: &str) -> Option<(String, Option<usize>)> {
    let mut words = entry.split_whitespace();
    let (name, slots) = match words.next()?.split_once(':') {
        Some((name, slots)) => (name, Some(slots.parse().ok()?)),
        None => (entry.split_whitespace().next()?, None),
    };
    let is_named = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_named) {
        return None;
    }
    // Open MPI's files have more of such settings.
    let settings: Vec<(&str, &str)> = words.map(|word| word.split_once('=')).collect::<Option<_>>()?;
    let said = settings.iter().find(|(key, _)| *key == "slots").map(|(_, value)| value.parse());
    Some((name.to_string(), said.transpose().ok()?.or(slots)))
}

/// Where up to `most` ranks go: the first hosts are filled first.
pub fn allot(hosts: &[Host], most: usize) -> Vec<Host> {
    let mut left = most;
    let mut places = Vec::new();
    for host in hosts {
        let slots = host.slots.min(left);
        left -= slots;
        if slots > 0 {
            places.push(Host { name: host.name.clone(), slots });
        }
    }
    places
}

/// Ranks on these hosts.
pub fn ranks(hosts: &[Host]) -> usize {
    hosts.iter().map(|host| host.slots).sum()
}

/// "h0:2,h1:2".
pub fn listed(hosts: &[Host]) -> String {
    let hosts: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.name, host.slots)).collect();
    hosts.join(",")
}

/// What a look at the hosts found.
#[derive(Debug, Clone, Default)]
pub struct HostsSeen {
    /// All that are named now.
    pub named: Vec<Host>,
    /// Those that were asked whether they start a program, with the answer.
    pub answers: Vec<(String, bool)>,
}

/// The hosts that are known, and which of them may be used.
#[derive(Debug)]
pub struct Roster {
    named: Vec<Host>,
    /// Named, and did not answer the last time.
    silent: BTreeSet<String>,
    failures: BTreeMap<String, Vec<Instant>>,
    /// Failed too often; until when they are not even asked.
    left_out: BTreeMap<String, Instant>,
    /// Failures that are too many.
    most_failures: usize,
}

impl Roster {
    /// Nothing is known yet. A host that failed `most_failures` times within `LEFT_OUT` is left out.
    pub fn new(most_failures: usize) -> Roster {
        let (silent, failures, left_out) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Roster { named: Vec::new(), silent, failures, left_out, most_failures }
    }

    /// The hosts that may be used.
    pub fn available(&self) -> Vec<Host> {
        let usable =
            |host: &&Host| !self.silent.contains(&host.name) && !self.left_out.contains_key(&host.name);
        self.named.iter().filter(usable).cloned().collect()
    }

    /// Those that need not be asked whether they start a program, unless a job has just failed. Hosts whose time is
    /// over are no longer left out, but are to be asked.
    pub fn unasked(&mut self, now: Instant, failed: bool) -> BTreeSet<String> {
        let over: Vec<String> =
            self.left_out.iter().filter(|(_, until)| **until <= now).map(|(name, _)| name.clone()).collect();
        for name in over {
            self.left_out.remove(&name);
            self.silent.insert(name);
        }
        let trusted = if failed { Vec::new() } else { self.available() };
        trusted.into_iter().map(|host| host.name).chain(self.left_out.keys().cloned()).collect()
    }

    /// Whether a host that is named is not used, but may be asked.
    pub fn misses_some(&self, now: Instant) -> bool {
        self.named.iter().any(|host| {
            self.silent.contains(&host.name)
                || self.left_out.get(&host.name).is_some_and(|until| *until <= now)
        })
    }

    /// Takes what was seen. `used` are the hosts of the job that has just failed, if one has. Returns what has changed,
    /// in words.
    pub fn learn(&mut self, seen: HostsSeen, used: &[Host], now: Instant) -> Vec<String> {
        let before = std::mem::replace(&mut self.named, seen.named);
        let mut said = self.renamed(&before);
        for (name, answers) in seen.answers {
            let is_new = !before.iter().any(|host| host.name == name);
            if answers {
                if self.silent.remove(&name) {
                    said.push(format!("{name} is back"));
                }
            } else if self.silent.insert(name.clone()) {
                said.push(format!("{name} does not answer"));
                said.extend(if is_new { None } else { self.failed(&name, now) });
            }
        }
        for Host { name, .. } in used {
            if !self.named.iter().any(|host| host.name == *name) {
                said.extend(self.failed(name, now));
            }
        }
        said
    }

    /// Says how the names differ from those before.
    fn renamed(&mut self, before: &[Host]) -> Vec<String> {
        let mut said = Vec::new();
        let slots = |hosts: &[Host], name: &str| hosts.iter().find(|h| h.name == name).map(|h| h.slots);
        for host in before {
            match slots(&self.named, &host.name) {
                None => {
                    self.silent.remove(&host.name);
                    said.push(format!("{} is no longer named", host.name));
                }
                Some(now) if now != host.slots => {
                    said.push(format!("{} has room for {now}, before for {}", host.name, host.slots));
                }
                Some(_) => {}
            }
        }
        let is_new = |host: &&Host| !before.is_empty() && slots(before, &host.name).is_none();
        said.extend(
            self.named
                .iter()
                .filter(is_new)
                .map(|host| format!("{} is new", listed(std::slice::from_ref(host)))),
        );
        said
    }

    /// Counts a failure of a host.
    fn failed(&mut self, name: &str, now: Instant) -> Option<String> {
        let failures = self.failures.entry(name.to_string()).or_default();
        failures.retain(|&at| now.duration_since(at) < LEFT_OUT);
        failures.push(now);
        if failures.len() < self.most_failures {
            return None;
        }
        failures.clear();
        self.left_out.insert(name.to_string(), now + LEFT_OUT);
        let minutes = LEFT_OUT.as_secs() / 60;
        Some(match self.most_failures {
            1 => format!("{name} is left out, and tried again in {minutes} minutes"),
            most => format!(
                "{name} failed {most} times in {minutes} minutes: left out, and tried again in {minutes} minutes"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Vec<Host> {
        read(text.split(','), 1, "list").unwrap()
    }

    fn seen(named: &str, answers: &[(&str, bool)]) -> HostsSeen {
        let answers = answers.iter().map(|&(name, answer)| (name.to_string(), answer)).collect();
        HostsSeen { named: hosts(named), answers }
    }

    #[test]
    fn lists_are_read_in_every_form_and_bad_lines_refused() {
        let text = "# nodes\nh0:2\n\n h1 # the slow one\nh2 slots=3 max_slots=4\nh0\nh3.site:0\n";
        let read_hosts = read(text.lines(), 5, "file").unwrap();
        assert_eq!(listed(&read_hosts), "h0:7,h1:5,h2:3,h3.site:0");
        for wrong in ["h0:", "h0:two", ":2", "h0;reboot", "--flag", "h0 2", "h0 slots=x", "h\x1b[2J", "h0:-1"]
        {
            let error = read(["h1:2", wrong].into_iter(), 1, "--hosts cat f").unwrap_err().message;
            assert!(error.starts_with(&format!("--hosts cat f: \"{wrong}\" is no host")), "{error}");
        }
    }

    #[test]
    fn ranks_fill_the_first_hosts_first() {
        let all = hosts("h0:2,h1:0,h2:3");
        assert_eq!(listed(&allot(&all, 4)), "h0:2,h2:2");
        assert_eq!(listed(&allot(&all, 2)), "h0:2");
        assert_eq!(ranks(&allot(&all, 9)), 5);
        assert!(allot(&[], 9).is_empty());
    }

    #[test]
    fn a_host_that_fails_twice_in_ten_minutes_is_left_out_for_ten() {
        let mut roster = Roster::new(2);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(roster.learn(seen("h0:2,h1:2", &[]), &[], start).is_empty());
        assert_eq!(roster.unasked(start, false).len(), 2);
        // A job failed: everyone is asked.
        assert!(roster.unasked(start, true).is_empty());
        let said = roster.learn(seen("h0:2,h1:2", &[("h0", true), ("h1", false)]), &[], at(1));
        assert_eq!(said, ["h1 does not answer"]);
        assert!(listed(&roster.available()) == "h0:2" && roster.misses_some(at(1)));
        assert!(!roster.unasked(at(2), false).contains("h1"));
        // That it is still away is no further failure.
        assert!(roster.learn(seen("h0:2,h1:2", &[("h1", false)]), &[], at(11)).is_empty());
        assert_eq!(roster.learn(seen("h0:2,h1:2", &[("h1", true)]), &[], at(21)), ["h1 is back"]);
        assert_eq!(listed(&roster.available()), "h0:2,h1:2");
        let said = roster.learn(seen("h0:2,h1:2", &[("h0", true), ("h1", false)]), &[], at(30));
        assert_eq!(said[1], "h1 failed 2 times in 10 minutes: left out, and tried again in 10 minutes");
        // Not asked until then.
        assert!(roster.unasked(at(629), true).contains("h1") && roster.misses_some(at(630)));
        assert!(!roster.unasked(at(630), false).contains("h1"));
        roster.learn(seen("h0:2,h1:2", &[("h1", true)]), &[], at(631));
        assert_eq!(listed(&roster.available()), "h0:2,h1:2");
        // Failures far apart do not add up.
        for seconds in [1000, 1700] {
            assert_eq!(roster.learn(seen("h0:2,h1:2", &[("h1", false)]), &[], at(seconds)).len(), 1);
            roster.learn(seen("h0:2,h1:2", &[("h1", true)]), &[], at(seconds + 1));
        }
    }

    #[test]
    fn what_the_command_names_is_followed() {
        let mut roster = Roster::new(2);
        let now = Instant::now();
        roster.learn(seen("h0:2", &[]), &[], now);
        let said = roster.learn(seen("h0:1,h1:4", &[("h1", false)]), &[], now);
        assert_eq!(said, ["h0 has room for 1, before for 2", "h1:4 is new", "h1 does not answer"]);
        assert_eq!(listed(&roster.available()), "h0:1");
        roster.learn(seen("h0:1,h1:4", &[("h1", true)]), &[], now);
        let used = roster.available();
        assert_eq!(listed(&used), "h0:1,h1:4");
        // Drained; and, later, gone when the job had failed, which counts.
        assert_eq!(roster.learn(seen("h0:1", &[]), &[], now), ["h1 is no longer named"]);
        for failure in 0..2 {
            roster.learn(seen("h0:1,h1:4", &[("h1", true)]), &[], now);
            let said = roster.learn(seen("h0:1", &[]), &used, now);
            assert_eq!(said.len(), 1 + failure, "{said:?}");
        }
        roster.learn(seen("h0:1,h1:4", &[]), &[], now);
        assert_eq!(listed(&roster.available()), "h0:1");
        // A node of Slurm's is not asked again and again.
        let mut roster = Roster::new(1);
        roster.learn(seen("n0:1,n1:1", &[]), &[], now);
        let said = roster.learn(seen("n0:1,n1:1", &[("n1", false)]), &[], now);
        assert_eq!(said[1], "n1 is left out, and tried again in 10 minutes");
    }
}
