//! Scripts of plans: in stages, and in windows.

use super::*;
use crate::config::{MeshShape, PipelineSchedule};
use crate::device::Rule;
use crate::device::reference::Reference;
use crate::plan::stage::tests::network;
use crate::plan::windows::tests::{ALL, network as in_windows, plans};
use crate::plan::{Kind, Manner, Options, Phase, Stage, Stages, plan};
use crate::strategy::{Ranks, Strategy};

const SGD: Rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

/// All stages' scripts, rehearsed with passes that take equally long and messages that take no time: nobody waits
/// for ever, nothing in flight is touched, and what a step takes is the formula's.
#[test]
fn schedules_never_wait_for_ever_and_idle_as_the_papers_say() {
    let cuts = ["a.conv1", "a.conv2", "b.conv1", "b.conv2", "fc"];
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
                let plan = plan(network(), &Reference, &options).unwrap();
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
                facts.push(plan.facts(&(0..plan.steps.len()).map(seconds).collect::<Vec<_>>()));
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
    for turns in ALL {
        let [_, plan] = plans(in_windows(), &Reference, turns);
        let facts = plan.facts(&vec![1.0; plan.steps.len()]);
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
