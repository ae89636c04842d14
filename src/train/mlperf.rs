//! What MLPerf's log says of a run before its first step, by the keys of MLPerf HPC.

use serde_json::{Value, json};

use super::plans::{Planning, computing};
use crate::comm::World;
use crate::config::{Config, Rule, ScheduleKind, SyncBatchNorm};
use crate::graph::{Graph, Op};
use crate::record::MlperfKeys;

/// How large a run is.
pub struct RunExtent {
    /// Samples to train and to test on.
    pub samples: [usize; 2],
    /// Samples of all ranks in an update.
    pub global_batch: usize,
    /// Steps of an epoch, and epochs.
    pub steps: usize,
    pub epochs: usize,
}

/// The keys, where a log is asked for; those of `--mllog-key` last, in place of what the run would say.
pub fn keys(of: &Planning, world: &World, graph: &Graph, extent: &RunExtent) -> Option<MlperfKeys> {
    let Planning { config, device, .. } = *of;
    let path = config.outputs.mllog.clone()?;
    let (ranks, nodes) = (world.size(), world.nodes());
    let mut keys = vec![
        ("submission_benchmark", json!(config.model)),
        ("submission_org", json!("unknown")),
        ("submission_platform", json!(computing(config, device))),
        ("submission_division", json!("open")),
        ("submission_status", json!("research")),
        ("number_of_nodes", json!(nodes)),
        ("accelerators_per_node", json!(if device.is_host() { 0 } else { ranks.div_ceil(nodes) })),
        ("seed", json!(config.seed)),
        ("global_batch_size", json!(extent.global_batch)),
        ("train_samples", json!(extent.samples[0])),
        ("eval_samples", json!(extent.samples[1])),
        ("gradient_accumulation_steps", json!(config.accumulation)),
        ("gradient_accumulation_frequency", json!(config.accumulation)),
        (
            "batchnorm_group_size",
            json!(match config.sync_bn {
                SyncBatchNorm::Off => 1,
                SyncBatchNorm::All => ranks,
                SyncBatchNorm::Groups(ranks) => ranks,
            }),
        ),
    ];
    keys.extend(optimizer(config));
    keys.extend(rate(config, extent, ranks));
    let dropout = graph.nodes.iter().find_map(|node| match node.op {
        Op::Dropout { p, whole: false, .. } => Some(p),
        _ => None,
    });
    keys.push(("dropout", number(dropout.unwrap_or(0.0))));
    let mut keys: Vec<(String, Value)> =
        keys.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    for given in &config.outputs.mllog_keys {
        let (key, text) = given.split_once('=').unwrap_or((given, ""));
        let value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        keys.retain(|(known, _)| known != key);
        keys.push((key.into(), value));
    }
    Some(MlperfKeys { path, keys })
}

/// A number with the digits that were given: 0.9 is no f64 of another number.
fn number(value: f32) -> Value {
    serde_json::from_str(&value.to_string()).unwrap_or(Value::Null)
}

fn optimizer(config: &Config) -> Vec<(&'static str, Value)> {
    let mut rule = config.optimizer.rule;
    let name = match rule {
        Rule::Adam { decoupled: false, .. } => "Adam",
        Rule::Adam { .. } => "AdamW",
        Rule::Lamb { .. } => "LAMB",
        _ => rule.name(),
    };
    let mut keys = vec![("opt_name", json!(name))];
    let mut of = |name: &str| rule.number(name).map(|value| number(*value));
    if let (Some(first), Some(second)) = (of("beta1"), of("beta2")) {
        keys.push(("opt_betas", json!([first, second])));
    }
    for (key, name) in
        [("opt_eps", "epsilon"), ("opt_weight_decay", "weight_decay"), ("opt_momentum", "momentum")]
    {
        keys.extend(of(name).map(|value| (key, value)));
    }
    if name == "LAMB" {
        // Moments are corrected for their bias, and are averages.
        keys.extend([("opt_bias_correction", json!(true)), ("opt_grad_averaging", json!(true))]);
    }
    keys.extend(config.optimizer.clip_norm.map(|norm| ("opt_max_grad_norm", number(norm))));
    keys
}

fn rate(config: &Config, extent: &RunExtent, ranks: usize) -> Vec<(&'static str, Value)> {
    let rate = &config.rate;
    let scale = if rate.scale_by_ranks { ranks as f32 } else { 1.0 };
    let is_step = rate.schedule == ScheduleKind::Step;
    let every = if is_step { rate.step_epochs.max(1) } else { usize::MAX };
    let boundaries: Vec<usize> =
        (1..).map_while(|step| every.checked_mul(step)).take_while(|&at| at < extent.epochs).collect();
    let milestones: Vec<usize> = boundaries.iter().map(|epoch| epoch * extent.steps).collect();
    let factor = number(if is_step { rate.gamma } else { 1.0 });
    let mut keys = vec![
        ("opt_base_learning_rate", number(rate.base)),
        ("opt_lr", number(rate.base * scale)),
        ("opt_learning_rate_warmup_epochs", number(rate.warmup_epochs)),
        ("opt_learning_rate_warmup_factor", json!(0.0)),
        ("opt_learning_rate_decay_boundary_epochs", json!(boundaries)),
        ("opt_learning_rate_decay_factor", factor.clone()),
        ("scheduler_lr_warmup_steps", json!((rate.warmup_epochs * extent.steps as f32).round())),
        ("scheduler_lr_warmup_factor", json!(1.0)),
    ];
    keys.extend(match rate.schedule {
        ScheduleKind::Cosine => vec![
            ("scheduler_type", json!("cosine_annealing")),
            ("scheduler_t_max", json!(extent.steps * extent.epochs)),
            ("scheduler_eta_min", json!(0.0)),
        ],
        ScheduleKind::Polynomial => vec![("scheduler_type", json!("polynomial"))],
        ScheduleKind::Constant | ScheduleKind::Step => vec![
            ("scheduler_type", json!("multistep")),
            ("scheduler_milestones", json!(milestones)),
            ("scheduler_decay_rate", factor),
        ],
    });
    keys
}
