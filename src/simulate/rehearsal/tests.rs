//! Scripts that are right, and some that are made wrong.

use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::config::{MeshShape, PipelineSchedule, Wire};
use crate::cuts::{Cuts, segment};
use crate::device::Rule;
use crate::device::reference::Reference;
use crate::graph::{BatchNorm, Builder, Conv, Graph};
use crate::plan::{
    Axis, Bucket, Contexts, Kind, Manner, Outline, Part, Pass, Region, TAIL, TransferId, representatives,
    scripts,
};
use crate::plan::{Compiled, Options, Phase, Stage, Stages, Turns, plan};
use crate::strategy::{OuterFlags, Owners, Ranks, Strategy};

/// Two blocks with a way around each, and a linear layer that is larger than all else.
fn blocks() -> Graph {
    let (mut net, x) = Builder::new("blocks", 4, [3, 8, 8]);
    let x = net.conv("stem", x, 16, Conv::square(3).padding(1)).unwrap();
    let x = net.batch_norm("norm0", x, BatchNorm::default()).unwrap();
    let mut x = net.relu("relu0", x);
    for block in ["a", "b"] {
        let y = net.conv(&format!("{block}.conv1"), x, 16, Conv::square(3).padding(1)).unwrap();
        let y = net.batch_norm(&format!("{block}.norm"), y, BatchNorm::default()).unwrap();
        let y = net.relu(&format!("{block}.relu1"), y);
        let y = net.conv(&format!("{block}.conv2"), y, 16, Conv::square(3).padding(1)).unwrap();
        let sum = net.add(&format!("{block}.add"), y, x).unwrap();
        x = net.relu(&format!("{block}.relu2"), sum);
    }
    let x = net.linear("fc1", x, 64);
    let x = net.relu("relu1", x);
    let x = net.linear("fc2", x, 10);
    net.finish(x).simplify().differentiate()
}

/// Its plan, whose gradients take turns in windows.
fn in_windows(turns: Turns) -> Plan {
    let options = Options::whole(2 << 10);
    let compiled = Compiled::new(blocks(), &Reference, None).unwrap();
    let plain = compiled.plan(&Reference, &options).unwrap();
    let mut plan = match turns.gathers {
        true => compiled.plan_gathering(&Reference, &options).unwrap(),
        false => compiled.plan(&Reference, &options).unwrap(),
    };
    plan.cut_as(&plain).unwrap();
    plan.in_windows(turns)
}

/// Buckets of so many bytes, each ready after a backward step of its own, and as many forward steps that read their
/// parameters, the last bucket's first. Steps and transfers take a second.
struct Example {
    buckets: Vec<Bucket>,
    steps: Vec<StepFacts>,
    /// How many ranks tell each other statistics, if not all.
    neighbours: Option<usize>,
    /// Bytes of the gradients of split layers.
    split: usize,
    /// Whether a device copies all parameters in halves.
    copies: bool,
}

impl Example {
    fn new(sizes: &[usize]) -> Example {
        let count = sizes.len();
        let mut end = 0;
        let mut bucket = |(index, size): (usize, &usize)| {
            let start = end;
            end += 64 * size;
            Bucket { bytes: start..end + if index + 1 == count { TAIL } else { 0 }, after: count + index }
        };
        let buckets: Vec<Bucket> = sizes.iter().enumerate().map(&mut bucket).collect();
        let step = |region, bytes: Range<usize>| StepFacts {
            seconds: 1.0,
            touches: vec![Touch { area: Area::Of(region), bytes, writes: region == Region::Gradients }],
        };
        let of = |index: usize| buckets[index].bytes.start..buckets[index].bytes.end.min(end);
        let forward = (0..count).rev().map(|index| step(Region::Parameters, of(index)));
        let backward = (0..count).map(|index| step(Region::Gradients, of(index)));
        Example {
            steps: forward.chain(backward).collect(),
            buckets,
            neighbours: None,
            split: 0,
            copies: false,
        }
    }

    fn sums(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.bytes.end)
    }

    fn share(&self, bucket: usize, index: usize, count: usize) -> Range<usize> {
        let bytes = &self.buckets[bucket].bytes;
        let lines = segment(&(bytes.start / 64..bytes.end.min(self.sums() - TAIL) / 64), count, index);
        64 * lines.start..64 * lines.end
    }

    fn scripts(&self, manner: &Manner) -> Vec<Script> {
        self.scripts_of(manner, (0..manner.mesh.data).collect())
    }

    fn scripts_of(&self, manner: &Manner, ranks: Vec<usize>) -> Vec<Script> {
        let serves = |rank: &usize| manner.owners.serves(*rank);
        let computing = (0..manner.mesh.data).filter(|rank| !serves(rank)).count();
        scripts(
            manner,
            &Outline {
                steps: self.steps.len(),
                buckets: &self.buckets,
                readers: (0..self.buckets.len()).rev().collect(),
                last_readers: self.buckets.iter().map(|bucket| bucket.after).collect(),
                copies: self.copies,
                exchanges: vec![(0, 0..64, Kind::Gather, self.neighbours.unwrap_or(computing))],
                split: self.split,
                windows: None,
                sums: self.sums(),
                share: &|bucket, index, count| self.share(bucket, index, count),
                edges: &[],
                passes: Pass::of_whole(self.buckets.len(), self.steps.len()).to_vec(),
                gradients: Vec::new(),
                contexts: Contexts::ONE,
                ends: [true; 2],
            },
            ranks,
        )
    }

    fn rehearse(&self, scripts: &[Script]) -> Result<Rehearsal> {
        rehearse(scripts, &[&self.steps], &Prices { transfer: &|_| 1.0, ..Prices::FREE })
    }
}

/// Two ranks a node.
fn manner(ranks: usize, strategy: Strategy, in_common: bool) -> Manner {
    let at = Ranks { ranks, nodes: ranks.div_ceil(2), in_common };
    let (owners, even) = (strategy.owners(at), ranks.is_multiple_of(2));
    let in_common = in_common && ranks > 1 && strategy.shares_memory(at, even);
    let asynchronous = strategy.is_asynchronous() && ranks > 1;
    Manner { owners, in_common, asynchronous, ..Manner::plain((0..ranks).map(|rank| rank / 2).collect()) }
}

/// One node of each kind stands for all. A transfer takes as long as it has bytes and an update twice that: where
/// shares differ by a cache line, those of the ranks that stand for others do so by one a bucket at most.
#[test]
fn few_ranks_stand_for_all() {
    let example = Example::new(&[48, 24, 7]);
    let transfer = |transfer: &Transfer| 1e-3 * transfer.cuts.range().len() as f64;
    let update = |bytes: usize| 2e-3 * bytes as f64;
    let prices = Prices { transfer: &transfer, update: &update, ..Prices::FREE };
    let share = |bucket, index, count| example.share(bucket, index, count);
    for strategy in Strategy::all().filter(|strategy| !strategy.is_asynchronous()) {
        for (ranks, in_common) in [(2, false), (4, true), (8, false), (12, true), (24, false), (24, true)] {
            let relaxed = strategy.relaxed(&OuterFlags::default(), ranks);
            for manner in manner(ranks, strategy, in_common).of_round(relaxed) {
                let all = rehearse(&example.scripts(&manner), &[&example.steps], &prices).unwrap();
                let chosen = representatives(&manner, example.buckets.len(), &share);
                assert!(chosen.len() < 24 || ranks < 24, "{strategy} with {ranks} ranks: {chosen:?}");
                let few = example.scripts_of(&manner, chosen);
                let few = rehearse(&few, &[&example.steps], &prices).unwrap();
                let most = |rehearsal: &Rehearsal| rehearsal.exposed.iter().copied().fold(0.0, f64::max);
                let line =
                    if ranks <= 2 || manner.owners == Owners::Everyone { 1e-9 } else { 3.0 * 64.0 * 2e-3 };
                assert!(
                    (few.seconds - all.seconds).abs() <= line,
                    "{strategy} with {ranks}: {few:?}, not {all:?}"
                );
                assert!((few.both - all.both).abs() <= 2.0 * line && most(&few) <= most(&all) + line);
            }
        }
    }
}

/// A rank that computes half as fast holds up the others.
#[test]
fn a_slow_rank_is_waited_for() {
    let example = Example::new(&[4, 4]);
    let scripts = example.scripts(&plain(4));
    let of = |slow: f64| {
        let pace = |rank: usize| if rank == 2 { slow } else { 1.0 };
        let prices = Prices { transfer: &|_| 0.5, pace: &pace, ..Prices::FREE };
        rehearse(&scripts, &[&example.steps], &prices).unwrap()
    };
    let (even, uneven) = (of(1.0), of(2.0));
    assert_eq!(uneven.seconds, even.seconds + 4.0);
    assert_eq!([uneven.exposed[0], uneven.exposed[2]], [even.exposed[0] + 4.0, even.exposed[2]]);
}

/// What ranks pass on which compute leaves when their step is over; what waits for them leaves at once.
#[test]
fn messages_are_passed_on_between_steps() {
    let example = Example::new(&[8, 1]);
    let scripts = example.scripts(&plain(4));
    let transfer = |transfer: &Transfer| 1e-3 * transfer.cuts.range().len() as f64;
    let seconds = |rounds: usize| {
        let relayed = |of: &Transfer| vec![(rounds, transfer(of) / rounds as f64)];
        let prices = Prices { transfer: &transfer, relayed: &relayed, ..Prices::FREE };
        rehearse(&scripts, &[&example.steps], &prices).unwrap().seconds
    };
    let at_once = Prices { transfer: &transfer, ..Prices::FREE };
    let at_once = rehearse(&scripts, &[&example.steps], &at_once).unwrap().seconds;
    assert_eq!(seconds(1), at_once);
    // The first bucket, of 512 bytes, is complete when the last step begins, and would be there before its end; but
    // three of its four rounds wait for that. The second one, of 128 bytes, is over meanwhile.
    assert!((seconds(4) - at_once - (3.0 * 0.128 - 0.128)).abs() < 1e-9, "{} and {at_once}", seconds(4));
}

/// What neighbours tell each other the others do not wait for; what all add up they do.
#[test]
fn groups_wait_for_their_own_and_all_for_all_in_the_end() {
    let example = Example { neighbours: Some(2), ..Example::new(&[4, 4]) };
    let scripts = example.scripts(&plain(4));
    let pace = |rank: usize| if rank == 2 { 3.0 } else { 1.0 };
    let prices = Prices {
        transfer: &|transfer| if transfer.kind == Kind::Gather { 0.5 } else { 0.25 },
        pace: &pace,
        ..Prices::FREE
    };
    let found = rehearse(&scripts, &[&example.steps], &prices).unwrap();
    // Rank 2 computes for 12 seconds, its neighbour waits for the exchange after its first step, and both first
    // ranks only in the end: all are through with the last bucket a quarter later.
    assert_eq!(found.seconds, 12.75);
    assert_eq!(found.exposed, [8.75, 8.75, 0.75, 8.75]);
    let exchange = |rank: usize| {
        let script: &Script = &scripts[rank];
        let transfer = script.transfers.iter().find(|transfer| transfer.kind == Kind::Gather).unwrap();
        (script.line(transfer), transfer.bytes_sent(0, Wire::F32))
    };
    assert_eq!(exchange(3), (Line::Group(Axis::Data, 2, 2..4, None), 32));
    assert_eq!(exchange(0).0, exchange(1).0);
}

/// Sums among ranks with the same parts, and among all: as long as the bytes of both, but what is not on the links
/// is in nobody's way.
#[test]
fn sums_of_split_layers_and_of_the_others_share_their_links() {
    let example = Example { split: 4 * 64, ..Example::new(&[4, 4]) };
    let mesh = MeshShape { data: 2, pipeline: 1, tensor: 2 };
    let of_place = |tensor| example.scripts(&Manner { mesh, tensor, ..plain(4) });
    let mut scripts: Vec<Script> = (0..2).flat_map(of_place).collect();
    scripts.sort_by_key(|script| script.rank);
    // Losses and hits, which are added up by themselves, are no bytes to speak of.
    let is_sum = |transfer: &Transfer| transfer.kind == Kind::Sum && transfer.cuts.range().len() > TAIL;
    let seconds = |rounds: &dyn Fn(&Transfer, &Line) -> Vec<Rounds>| {
        let prices =
            Prices { transfer: &|transfer| if is_sum(transfer) { 4.0 } else { 0.0 }, rounds, ..Prices::FREE };
        rehearse(&scripts, &[&example.steps], &prices).unwrap().seconds
    };
    let of = |before: f64, carried: f64| {
        let sum = Rounds { before, ..Rounds::whole(carried) };
        // Both groups of ranks with the same parts have links of their own.
        let of_one = |line: &Line| !matches!(line, Line::Group(Axis::Data, 1, ..));
        seconds(&|transfer, line| if is_sum(transfer) && of_one(line) { vec![sum] } else { Vec::new() })
    };
    // The first begins behind the third step, the other behind the fourth.
    assert_eq!([of(0.0, 4.0), of(4.0, 0.0), of(2.0, 2.0)], [11.0, 8.0, 9.0]);
    assert_eq!(seconds(&|_, _| Vec::new()), 8.0);
}

/// Of two messages over one link none waits for the other, whichever rank is looked at first, and what comes behind
/// one waits for that alone.
#[test]
fn messages_between_stages_share_their_links_from_when_they_begin() {
    let mesh = MeshShape { data: 1, pipeline: 3, tensor: 1 };
    // Rank 0 sends to 1 and to 2, and then again to 1.
    let scripts = tangle(mesh, &[(1, 0, 1, 9), (1, 0, 2, 9), (1, 0, 1, 9)]);
    let found = |scripts: &[Script], bytes: f64| {
        let prices = Prices {
            transfer: &|_| unreachable!(),
            rounds: &|_, line| match line {
                Line::Pair(..) => vec![Rounds { before: 1.0, ..Rounds::whole(bytes) }],
                _ => Vec::new(),
            },
            ..Prices::FREE
        };
        rehearse(scripts, &[&Example::new(&[1]).steps], &prices).unwrap()
    };
    // A second each, then four seconds' bytes of both; the third has one, and its four are alone.
    assert_eq!(found(&scripts, 4.0).seconds, 1.0 + 8.0 + 1.0 + 4.0);
    assert_eq!(found(&scripts, 0.0).seconds, 2.0);
    // Rank 2 is through with its message after nine, and goes on with that of the next step.
    assert_eq!(found(&scripts, 4.0).exposed, [14.0; 3]);
}

fn plain(ranks: usize) -> Manner {
    manner(ranks, Strategy::Allreduce, false)
}

/// What went wrong, in words.
fn fault(example: &Example, scripts: &[Script]) -> String {
    example.rehearse(scripts).expect_err("a fault was planted").message
}

/// Takes an action away, or puts it elsewhere.
fn moved(script: &mut Script, wanted: impl Fn(&Action) -> bool, to: Option<usize>) {
    let at = script.actions.iter().position(wanted).expect("the action");
    let action = script.actions.remove(at);
    to.into_iter().for_each(|to| script.actions.insert(to, action.clone()));
}

/// Transfers between random ranks of a mesh in one order that all ranks keep, each awaited some time later.
fn tangle(mesh: MeshShape, events: &[(u8, usize, usize, usize)]) -> Vec<Script> {
    let mut transfers: Vec<Vec<Transfer>> = vec![Vec::new(); mesh.ranks()];
    let mut actions: Vec<Vec<Action>> = vec![Vec::new(); mesh.ranks()];
    let mut pending: Vec<Vec<(usize, TransferId)>> = vec![Vec::new(); mesh.ranks()];
    for (number, &(what, whose, peer, delay)) in events.iter().enumerate() {
        let axis = [Axis::Data, Axis::Pipeline, Axis::Tensor][what as usize % 3];
        let at = mesh.coordinates(whose % mesh.ranks());
        let length = [mesh.data, mesh.pipeline, mesh.tensor][axis as usize];
        let (own, other) = (at[axis as usize], peer % length);
        let kinds: Vec<(usize, Kind)> = match what / 3 {
            0 | 1 if own != other => {
                vec![(own, Kind::Send { to: other, tag: 0 }), (other, Kind::Receive { from: own, tag: 0 })]
            }
            2 => (0..length).map(|place| (place, Kind::SumToOwners)).collect(),
            _ => (0..length).map(|place| (place, Kind::Sum)).collect(),
        };
        for (place, kind) in kinds {
            let mut coordinates = at;
            coordinates[axis as usize] = place;
            let rank = mesh.rank(coordinates);
            let cuts = Cuts::even(&(64 * number..64 * number + 64), length);
            transfers[rank].push(Transfer { axis, members: 0..length, kind, area: Area::Sums, cuts });
            let id = transfers[rank].len() - 1;
            actions[rank].push(Action::Start(id));
            pending[rank].push((number + delay, id));
        }
        for (rank, waiting) in pending.iter_mut().enumerate() {
            waiting.retain(|(due, id)| {
                if *due <= number {
                    actions[rank].push(Action::Wait(*id));
                }
                *due > number
            });
        }
    }
    let each = transfers.into_iter().zip(actions).zip(pending).enumerate();
    each.map(|(rank, ((transfers, mut actions), pending))| {
        actions.extend(pending.into_iter().map(|(_, id)| Action::Wait(id)));
        Script {
            contexts: Contexts::ONE,
            passes: Vec::new(),
            windows: Vec::new(),
            keeps: false,
            rank,
            node: 0,
            mesh,
            owners: Owners::Everyone,
            wire: Wire::F32,
            accumulates: false,
            relaxed: false,
            sums: 0,
            transfers: Rc::new(transfers),
            parts: Vec::new(),
            actions,
        }
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whoever owns what: all ranks get through, and send what the table of docs/algorithms.md says.
    #[test]
    fn every_manner_of_data_parallelism_gets_through(
        sizes in prop::collection::vec(1usize..40, 1..8),
        ranks in 1usize..9,
        strategy in prop::sample::select(Strategy::all().collect::<Vec<_>>()),
        micro_steps in 1usize..4,
        flags in 0u8..32,
    ) {
        let [clip, unscale, average, overlap, in_common] = [1, 2, 4, 8, 16].map(|bit| flags & bit > 0);
        let manner = manner(ranks, strategy, in_common);
        let owners = manner.owners;
        let manner = Manner { micro_steps, clip, unscale, average, overlap, ..manner };
        let example = Example::new(&sizes);
        let mut round = manner.of_round(strategy.relaxed(&OuterFlags::default(), ranks));
        let last = round.pop().expect("a step");
        for manner in round {
            let found = example.rehearse(&example.scripts(&manner));
            prop_assert!(found.is_ok(), "{:?}", found);
        }
        let scripts = example.scripts(&last);
        let found = example.rehearse(&scripts);
        prop_assert!(found.is_ok(), "{:?}", found);
        let found = found.unwrap();
        let computing = 2 * sizes.len() * micro_steps;
        prop_assert!(found.seconds >= computing as f64 && found.exposed.iter().all(|&s| s <= found.seconds));
        // Every byte of the parameters is updated by each of its owners once.
        let updated: usize = scripts.iter().flat_map(|script| &script.parts).map(|part| part.bytes.len()).sum();
        let owned = match owners {
            Owners::Everyone => ranks,
            Owners::Node => ranks.div_ceil(2),
            Owners::Apart { .. } => 1,
        };
        prop_assert_eq!(updated, owned * 64 * sizes.iter().sum::<usize>());
    }

    /// Sums and messages on all axes of a mesh, in one order: nobody waits for ever. Without any one receive
    /// somebody does.
    #[test]
    fn what_all_start_in_one_order_gets_through(
        data in 1usize..4, pipeline in 1usize..4, tensor in 1usize..4,
        events in prop::collection::vec((0u8..12, 0usize..64, 0usize..64, 0usize..6), 1..40),
    ) {
        let mesh = MeshShape { data, pipeline, tensor };
        let mut scripts = tangle(mesh, &events);
        let example = Example::new(&[1]);
        let found = example.rehearse(&scripts);
        prop_assert!(found.is_ok(), "{:?}", found);
        let receives = |script: &Script| {
            let of = |action: &&Action| match action {
                Action::Start(id) => matches!(script.transfers[*id].kind, Kind::Receive { .. }),
                _ => false,
            };
            script.actions.iter().find(of).cloned()
        };
        if let Some((rank, Action::Start(id))) = (0..scripts.len()).find_map(|r| Some((r, receives(&scripts[r])?))) {
            let sender = match scripts[rank].transfers[id].kind {
                Kind::Receive { from, .. } => scripts[rank].peer(scripts[rank].transfers[id].axis, from),
                _ => unreachable!(),
            };
            moved(&mut scripts[rank], |action| *action == Action::Start(id), None);
            moved(&mut scripts[rank], |action| *action == Action::Wait(id), None);
            let message = fault(&example, &scripts);
            // A later message on the same line takes its place, and what waits for that one may come to a circle.
            let named = [format!("rank {sender}, action "), "meets".into(), "cycle of".into()];
            prop_assert!(named.iter().any(|named| message.contains(named)), "{}", message);
        }
    }
}

/// Steps and transfers of a second each. Two buckets leave after the third and the fourth step, one after the
/// other.
#[test]
fn a_rehearsal_says_how_long_a_step_takes_and_how_long_ranks_wait() {
    let example = Example::new(&[4, 4]);
    let mut scripts = example.scripts(&plain(2));
    // The exchange after the first step is waited for: a second. Sums: from 4 to 5 and from 5 to 6.
    let found = example.rehearse(&scripts).unwrap();
    assert_eq!((found.seconds, &found.exposed), (6.0, &vec![2.0, 2.0]));
    let of = |wanted: fn(&Action) -> bool| scripts[0].actions.iter().position(wanted).expect("the action");
    assert_eq!(found.schedule[of(|action| *action == Action::Start(0))], [4.0, 5.0]);
    assert_eq!(found.schedule[of(|action| *action == Action::Wait(1))], [5.0, 6.0]);
    assert!(found.schedule.windows(2).all(|pair| pair[0][0] <= pair[1][0]));
    scripts.iter_mut().for_each(|script| {
        moved(script, |action| matches!(action, Action::Start(2)), None);
        moved(script, |action| matches!(action, Action::Wait(2)), None);
    });
    assert_eq!(example.rehearse(&scripts).unwrap().seconds, 5.0);
}

#[test]
fn a_transfer_without_a_price_leaves_no_time_known() {
    let example = Example::new(&[4, 4]);
    let scripts = example.scripts(&plain(2));
    let prices = Prices { transfer: &|_| f64::NAN, ..Prices::FREE };
    let found = rehearse(&scripts, &[&example.steps], &prices).unwrap();
    assert!(found.seconds.is_nan() && found.exposed.iter().all(|seconds| seconds.is_nan()));
    assert_eq!(found.schedule.len(), scripts[0].actions.len());
    assert!(found.schedule.iter().flatten().all(|time| time.is_nan()));
}

#[test]
fn new_parameters_of_all_owners_leave_in_the_order_of_their_readers() {
    let order = |strategy: &str, copies: bool| -> Vec<(usize, usize)> {
        let strategy = strategy.parse().expect("a strategy");
        let example = Example { copies, ..Example::new(&[24, 36, 4]) };
        let script = example.scripts(&manner(2, strategy, false)).swap_remove(0);
        let updated = script.actions.iter().filter_map(|action| match action {
            Action::Update(bucket) => Some(*bucket),
            _ => None,
        });
        let left = script.actions.iter().filter_map(|action| match action {
            Action::Start(id) if script.transfers[*id].kind == Kind::FromOwners => {
                let start = script.transfers[*id].cuts.range().start;
                example.buckets.iter().position(|bucket| bucket.bytes.start == start)
            }
            _ => None,
        });
        updated.zip(left).collect()
    };
    assert_eq!(order("zero1", false), [(2, 2), (1, 1), (0, 0)]);
    // The first reader waits for the last bucket, and so for all.
    assert_eq!(order("zero1", true), [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(order("root", false), [(0, 0), (1, 1), (2, 2)]);
}

/// The first bucket's new parameters come while the second one's gradients are computed and sent, unless updates
/// wait for all gradients.
#[test]
fn ranks_that_own_nothing_ask_for_new_parameters_while_they_compute() {
    let example = Example::new(&[4, 4]);
    for strategy in ["server", "root"] {
        let strategy: Strategy = strategy.parse().expect("a strategy");
        let seconds = |clip: bool| {
            let scripts = example.scripts(&Manner { clip, ..manner(3, strategy, false) });
            let script = &scripts[1];
            let asks = |action: &Action| {
                let Action::Start(id) = action else { return false };
                script.transfers[*id].kind == Kind::FromOwners
            };
            let first = script.actions.iter().position(asks).expect("it asks");
            let computed = script.actions.iter().rposition(|action| matches!(action, Action::Run { .. }));
            assert_eq!(first < computed.expect("it computes"), !clip, "{strategy}");
            assert_eq!(script.actions.iter().filter(|action| asks(action)).count(), 2);
            example.rehearse(&scripts).unwrap().both
        };
        assert!(seconds(false) < seconds(true));
    }
}

#[test]
fn a_strategy_sends_what_its_table_says() {
    let n = 64 * 60;
    let example = Example::new(&[24, 36]);
    let sent_as = |wire, ranks, strategy: &str| -> Vec<usize> {
        let strategy = strategy.parse().expect("a strategy");
        let scripts = example.scripts(&Manner { wire, ..manner(ranks, strategy, false) });
        // Without the tail and the statistics.
        let small = |script: &Script| {
            let of = |t: &Transfer| t.cuts.range().len() <= 64;
            let each = script.actions.iter().filter_map(|action| match action {
                Action::Start(id) if of(&script.transfers[*id]) => Some(*id),
                _ => None,
            });
            let without = Script { actions: each.map(Action::Start).collect(), ..script.clone() };
            without.bytes_sent()
        };
        scripts.iter().map(|script| script.bytes_sent() - small(script)).collect()
    };
    let sent = |ranks, strategy: &str| sent_as(Wire::F32, ranks, strategy);
    for d in [2, 3, 4, 6] {
        // Plain: with the tail.
        let plain = 2 * (n + TAIL) * (d - 1) / d;
        assert!(sent(d, "allreduce").iter().all(|bytes| bytes.abs_diff(plain) <= 2 * d), "{d} ranks");
        assert_eq!(sent(d, "zero1"), vec![2 * n * (d - 1) / d; d]);
        let root = sent(d, "root");
        assert_eq!((root[0], root.iter().sum()), ((d - 1) * n, 2 * (d - 1) * n));
        let served = sent(d, "server");
        assert_eq!((served[0], served[d - 1]), (n, (d - 1) * n));
        assert_eq!(sent(d, "server-async")[0], n);
        // In halves: what is added, and not the parameters that come back.
        let halves = |strategy: &str| sent_as(Wire::Bf16, d, strategy);
        assert!(halves("allreduce").iter().all(|bytes| bytes.abs_diff(plain / 2) <= d), "{d} ranks");
        assert_eq!(halves("zero1"), vec![3 * n * (d - 1) / d / 2; d]);
        assert_eq!((halves("root")[0], halves("root")[1]), ((d - 1) * n, n / 2));
    }
}

/// Four steps and four transfers of a second each: a rank alone takes eight seconds, and the server four for each
/// rank. A step is longer than a rank's own where the server is busy all the time.
#[test]
fn an_asynchronous_server_answers_one_rank_after_the_other() {
    let example = Example::new(&[4, 4]);
    let scripts = |computing: usize| {
        let strategy = "server-async".parse().expect("a strategy");
        let mut scripts = example.scripts(&manner(computing + 1, strategy, false));
        for script in &mut scripts[..computing] {
            // Ranks that exchange statistics would wait for each other.
            let exchange = script.transfers.len() - 1;
            moved(script, |action| *action == Action::Start(exchange), None);
            moved(script, |action| *action == Action::Wait(exchange), None);
        }
        scripts
    };
    for (computing, seconds) in [(1, 8.0), (2, 8.0), (3, 12.0), (5, 20.0)] {
        assert_eq!(example.rehearse(&scripts(computing)).unwrap().seconds, seconds, "{computing} ranks");
    }
    let mut silent = scripts(2);
    moved(&mut silent[1], |action| *action == Action::Knock, None);
    let message = fault(&example, &silent);
    assert!(message.contains("rank 2, action 0 (take a push of every rank"), "{message}");
    assert!(message.contains("waits for rank 1, which never starts its part"), "{message}");
    let mut alone = scripts(2);
    moved(&mut alone[2], |action| *action == Action::Serve, None);
    let message = fault(&example, &alone);
    assert!(message.contains("push of sums 0..256") && message.contains("waits for rank 2"), "{message}");
}

#[test]
fn a_receive_that_is_missing_is_found_by_name() {
    let mesh = MeshShape { data: 1, pipeline: 2, tensor: 1 };
    // Rank 0 sends to rank 1, and both sum.
    let mut scripts = tangle(mesh, &[(1, 0, 1, 2), (10, 0, 0, 0)]);
    assert!(Example::new(&[1]).rehearse(&scripts).is_ok());
    moved(&mut scripts[1], |action| *action == Action::Start(0), None);
    moved(&mut scripts[1], |action| *action == Action::Wait(0), None);
    let message = fault(&Example::new(&[1]), &scripts);
    assert!(
        message.contains("rank 0, action 3 (wait for transfer 0, send to place 1 of sums 0..64"),
        "{message}"
    );
    assert!(message.contains("rank 1, which never starts its part"), "{message}");
    assert!(message.contains("ends with action 1 (wait for transfer 1, sum of sums 64..128"), "{message}");
}

#[test]
fn a_cycle_is_found_by_name() {
    let mesh = MeshShape { data: 1, pipeline: 2, tensor: 1 };
    let mut scripts = tangle(mesh, &[(1, 0, 1, 0), (1, 1, 0, 0)]);
    // Each waits for the other's message before it sends its own.
    scripts[0].actions = [Action::Start(1), Action::Wait(1), Action::Start(0), Action::Wait(0)].to_vec();
    let message = fault(&Example::new(&[1]), &scripts);
    assert!(message.contains("rank 0, action 1 (wait for transfer 1, receive from place 1"), "{message}");
    assert!(message.contains("rank 1, action 1 (wait for transfer 0, receive from place 0"), "{message}");
    assert!(message.contains("a cycle of 2 ranks"), "{message}");
}

#[test]
fn a_range_touched_on_its_way_is_found_by_name() {
    let example = Example::new(&[4, 4]);
    // An update before its sum is there.
    let mut scripts = example.scripts(&plain(2));
    let at = scripts[1].actions.iter().position(|action| *action == Action::Wait(0)).unwrap();
    moved(&mut scripts[1], |action| *action == Action::Update(0), Some(at));
    let message = fault(&example, &scripts);
    assert!(message.contains("(update bytes 0..256 of bucket 0) touches"), "{message}");
    assert!(message.contains("(start transfer 0, sum of sums 0..256 over data)"), "{message}");
    // A forward step that reads parameters which have yet to come from their owners.
    let mut scripts = example.scripts(&manner(2, Strategy::Zero(1), false));
    let at = scripts[0].actions.iter().position(|action| *action == Action::Wait(1)).unwrap();
    moved(&mut scripts[0], |action| *action == Action::Wait(1), Some(at + 1));
    let message = fault(&example, &scripts);
    assert!(
        message.contains("from owners of parameters 0..256") && message.contains("(run steps "),
        "{message}"
    );
}

#[test]
fn ranks_that_do_unlike_things_together_are_named() {
    let example = Example::new(&[4, 4]);
    let mut scripts = example.scripts(&plain(2));
    let mut transfers = (*scripts[1].transfers).clone();
    transfers[0].cuts = Cuts::whole(&(0..256), 2, 1);
    scripts[1].transfers = Rc::new(transfers);
    let message = fault(&example, &scripts);
    // Whoever came first.
    let named =
        [0, 1].map(|rank| format!("rank {rank}, action 7 (start transfer 0, sum of sums 0..256 over data)"));
    assert!(message.contains(" meets ") && named.iter().all(|named| message.contains(named)), "{message}");
    // A barrier that one rank of the node passes by.
    let mut scripts = example.scripts(&manner(2, Strategy::Allreduce, true));
    moved(&mut scripts[1], |action| *action == Action::Arrive, None);
    let message = fault(&example, &scripts);
    assert!(message.contains("at the barrier"), "{message}");
    assert_eq!(scripts[0].parts[0], Part { bucket: 0, bytes: 0..128, sum: 0 });
}

const SGD: Rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

/// All stages' scripts, rehearsed with passes that take equally long and messages that take no time: nobody waits
/// for ever, nothing in flight is touched, and what a step takes is the formula's.
#[test]
fn schedules_never_wait_for_ever_and_idle_as_the_papers_say() {
    let cuts = ["a.conv1", "a.conv2", "b.conv1", "b.conv2", "fc1"];
    for (ranks, count, schedule, micro_batches) in [
        (2, 1, PipelineSchedule::GPipe, 4),
        (2, 1, PipelineSchedule::OneForwardOneBackward, 1),
        (3, 2, PipelineSchedule::OneForwardOneBackward, 8),
        (3, 2, PipelineSchedule::GPipe, 2),
        (2, 3, PipelineSchedule::Interleaved(2), 4),
        (2, 5, PipelineSchedule::Interleaved(3), 6),
        (3, 5, PipelineSchedule::Interleaved(2), 6),
        (2, 1, PipelineSchedule::ZeroBubble, 4),
        (3, 2, PipelineSchedule::ZeroBubble, 8),
        (4, 3, PipelineSchedule::ZeroBubble, 12),
    ] {
        let stages = Stages { ranks, cuts: cuts[..count].iter().map(ToString::to_string).collect() };
        for data in [1, 3] {
            let (mut scripts, mut facts) = (Vec::new(), Vec::new());
            for own in 0..ranks {
                let contexts = schedule.in_flight(own, ranks, micro_batches);
                let splits_weights = schedule.splits_weights();
                let stage = Stage { stages: &stages, own, contexts, splits_weights };
                let options = Options { fusion_threshold: 1 << 10, training: None, stage };
                let plan = plan(blocks(), &Reference, &options).unwrap();
                let mesh = MeshShape { data, pipeline: ranks, tensor: 1 };
                let manner = Manner {
                    mesh,
                    stage: own,
                    schedule,
                    micro_steps: micro_batches,
                    clip: data == 3,
                    ..Manner::plain(vec![0; data])
                };
                scripts.extend(plan.scripts(&manner, &SGD, 0..data));
                let seconds = |step: usize| {
                    let pass = plan.passes.iter().find(|pass| pass.steps.contains(&step)).unwrap();
                    let whole = match pass.phase {
                        Phase::Backward if !schedule.splits_weights() => 2.0,
                        _ => 1.0,
                    };
                    whole / schedule.chunks() as f64 / pass.steps.len() as f64
                };
                facts.push(step_facts(&plan, &(0..plan.steps.len()).map(seconds).collect::<Vec<_>>()));
            }
            let facts: Vec<_> = facts.iter().map(Vec::as_slice).collect();
            let prices = Prices { ..Prices::FREE };
            let found = rehearse(&scripts, &facts, &prices).unwrap();
            let work = 3.0 * micro_batches as f64;
            let expected = work / (1.0 - schedule.bubble(ranks, micro_batches));
            let idle = found.seconds - work;
            match schedule {
                // Its order is found by playing it, and where there are more than two stages not always the best.
                PipelineSchedule::ZeroBubble => {
                    let of_1f1b = 3.0 * (ranks - 1) as f64;
                    assert!(found.seconds >= expected - 1e-9 && idle < 0.6 * of_1f1b, "{idle} of {of_1f1b}");
                }
                _ => assert!((found.seconds - expected).abs() < 1e-9 * expected, "{schedule}: {idle}"),
            }
            assert!(
                found.exposed.iter().all(|wait| (wait - idle).abs() < 1e-9 * expected),
                "{:?}",
                found.exposed
            );
            // A micro-batch too many in flight is found.
            let last = scripts.len() - 1;
            let sent = |action: &Action| matches!(action, Action::Wait(id) if matches!(scripts[last].transfers[*id].kind, Kind::Send { .. }));
            if let Some(at) = scripts[last].actions.iter().position(sent) {
                scripts[last].actions.remove(at);
                assert!(rehearse(&scripts, &facts, &prices).is_err(), "{schedule}");
            }
        }
    }
}

/// Whatever else a step has to do: nobody waits for ever, and nothing is touched that is on its way.
#[test]
fn scripts_in_windows_get_through() {
    let all = [
        (false, true, false),
        (true, true, false),
        (true, false, false),
        (false, false, false),
        (false, true, true),
        (true, true, true),
    ];
    for (gathers, overlap, accumulates) in all {
        let turns = Turns { gathers, overlap, accumulates };
        let plan = in_windows(turns);
        let facts = step_facts(&plan, &vec![1.0; plan.steps.len()]);
        for ranks in [2, 3] {
            for flags in 0..4 {
                let strategy = if turns.gathers { Strategy::Zero(3) } else { Strategy::Zero(2) };
                let at =
                    Ranks { ranks, nodes: if turns.gathers { ranks } else { 1 }, in_common: flags & 2 > 0 };
                let manner = Manner {
                    owners: strategy.owners(at),
                    in_common: at.in_common && strategy.shares_memory(at, true),
                    micro_steps: if turns.accumulates { 2 } else { 1 },
                    clip: flags & 1 > 0,
                    average: flags & 2 > 0,
                    overlap: turns.overlap,
                    ..Manner::plain((0..ranks).map(|rank| rank % at.nodes).collect())
                };
                let scripts = plan.scripts(&manner, &SGD, 0..ranks);
                let prices = Prices { transfer: &|_| 2.5, update: &|_| 0.5, add: &|_| 0.25, ..Prices::FREE };
                let found = rehearse(&scripts, &[&facts], &prices);
                assert!(found.is_ok(), "{turns:?}, {ranks} ranks, {flags}: {found:?}");
                // A window that is used again too early is found.
                let mut early = scripts.clone();
                let actions = &mut early[0].actions;
                let is_sum = |id: usize| scripts[0].transfers[id].kind == Kind::SumToOwners;
                let waits = |action: &Action| matches!(action, Action::Wait(id) if is_sum(*id));
                let at = actions.iter().position(waits).unwrap();
                let wait = actions.remove(at);
                actions.push(wait);
                let in_time = plan.windows.as_ref().unwrap().freed_in_time(plan.steps.len()) > 0;
                if in_time && !turns.accumulates {
                    assert!(rehearse(&early, &[&facts], &prices).is_err(), "{turns:?}");
                }
            }
        }
    }
}
