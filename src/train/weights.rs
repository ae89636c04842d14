//! Weights from a file, and to one: which tensor of the file is which of the model's.

use std::collections::HashMap;

use super::doubts::Weights;
use super::evaluate::agree_on_statistics;
use super::groups::Groups;
use super::memory::Memories;
use super::network::Network;
use super::owned;
use super::parts;
use super::stages;
use crate::comm::World;
use crate::config::Config;
use crate::device::Device;
use crate::device::memory::bytes_of_mut;
use crate::error::{Error, Result};
use crate::graph::{Graph, Role, TensorId};
use crate::plan::Plan;
use crate::record::{self, About, Array, Contents, WeightsFile};

/// How many lines a message about names and shapes has at most.
const LINES: usize = 40;
/// What PyTorch counts in each normalisation; nothing here needs it.
const IGNORED: &str = "num_batches_tracked";

/// A file of weights that fits the model.
pub struct Start {
    file: WeightsFile,
    /// What a message calls the file.
    flag: String,
    /// The model's tensors that it gives values for, with their shapes as PyTorch has them.
    shapes: HashMap<String, Vec<usize>>,
}

impl Start {
    /// Opens the file of `--init-from`, or that of the network, if there is one, and compares it with the model and
    /// with what the other ranks read. Collective.
    ///
    /// # Errors
    /// `Data` with every tensor that is missing, unknown or of another shape; `Mismatch` when ranks have unlike files.
    pub fn agree(world: &World, config: &Config, network: &Network) -> Result<Option<Start>> {
        let start = world.agree(Self::open(config, network))?;
        if let Some(start) = &start {
            let checksum = world.agree(start.file.checksum())?;
            world.check_same(&[("the weights of --init-from".into(), format!("CRC-32 {checksum:08x}"))])?;
        }
        Ok(start)
    }

    fn open(config: &Config, network: &Network) -> Result<Option<Start>> {
        let of_network = network.model.file().filter(|_| !config.fresh_weights);
        let (file, flag) = match (&config.init_from, of_network) {
            (Some(path), _) => (WeightsFile::open(path)?, "--init-from"),
            (None, Some(_)) => (WeightsFile::of(&network.model), "its weights"),
            (None, None) => return Ok(None),
        };
        let graph = network.model.build_to_test(1, network.image, network.classes)?;
        let head = if config.reset_head { graph.head() } else { Vec::new() };
        Start::fitting(file, &graph, &head, [&config.model, flag]).map(Some)
    }

    /// The weights of a file for all parameters and statistics of a graph but these. An error calls the network and the
    /// file by these words.
    ///
    /// # Errors
    /// `Data` with every tensor that is missing, unknown or of another shape.
    pub fn fitting(
        file: WeightsFile,
        graph: &Graph,
        head: &[TensorId],
        [model, flag]: [&str; 2],
    ) -> Result<Start> {
        let head: Vec<&str> = head.iter().map(|&id| graph.tensor(id).name.as_str()).collect();
        let is_kept = |role| role == Role::Parameter || role == Role::Statistic;
        let kept = graph.tensors.iter().filter(|tensor| is_kept(tensor.role));
        let wanted: Vec<(&str, &[usize])> = kept
            .map(|tensor| (tensor.name.as_str(), &tensor.spec.shape.0[..]))
            .filter(|(name, _)| !head.contains(name))
            .collect();
        let wrong = differences(&wanted, file.shapes(), file.unread(), &head);
        if wrong.is_empty() {
            let shapes = wanted.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect();
            return Ok(Start { file, flag: flag.into(), shapes });
        }
        let is_of_head = |line: &String| {
            graph.head().iter().any(|&id| line.starts_with(&format!("{}:", graph.tensor(id).name)))
        };
        let hint = match wrong.iter().all(is_of_head) {
            true if flag == "the weights" => "; say with --classes how many they are for",
            true => "; for other classes add --reset-head, and the last layer starts anew",
            false => "",
        };
        let text = format!("{flag}: does not fit {model}{hint}:{}", listed(&wrong));
        Err(Error::data(file.path(), text))
    }

    /// What the file says of the network besides, and what to call the file.
    pub fn said(&self) -> Weights {
        let whose =
            if self.flag == "--init-from" { "the weights of --init-from" } else { "the network's file" };
        Weights { whose, about: self.file.about().clone() }
    }

    /// How many tensors it has values for.
    pub fn tensors(&self) -> usize {
        self.shapes.len()
    }

    /// The file's values for a tensor of the model; `None` where it starts as without a file.
    ///
    /// # Errors
    /// `Data` when they cannot be read, or no network can have them.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        if !self.shapes.contains_key(name) {
            return Ok(None);
        }
        let values = self.file.values(name)?;
        match impossible(name, &values) {
            None => Ok(Some(values)),
            Some(what) => {
                let flag = &self.flag;
                Err(Error::data(self.file.path(), format!("{flag}: tensor {name} {what}")))
            }
        }
    }
}

/// Why a network cannot have these values, if so. A ReLU makes zeros of NaN: the loss need not show them.
fn impossible(name: &str, values: &[f32]) -> Option<String> {
    let of_variance = name.ends_with("running_var");
    let (at, value) =
        values.iter().enumerate().find(|(_, value)| !value.is_finite() || (of_variance && **value < 0.0))?;
    Some(match value.is_finite() {
        false => format!("is not finite as f32: value {at} is {value}"),
        true => format!("has a variance below zero: value {at} is {value}"),
    })
}

/// Each on a line of its own, but not more than a screen can hold.
fn listed(lines: &[String]) -> String {
    let mut text: String = lines.iter().take(LINES).map(|line| format!("\n  {line}")).collect();
    if lines.len() > LINES {
        text += &format!("\n  … and {} more", lines.len() - LINES);
    }
    text
}

/// One line for each tensor that is missing, of another shape, or unknown.
fn differences(
    wanted: &[(&str, &[usize])],
    found: &[(String, Vec<usize>)],
    unread: &[(String, String)],
    head: &[&str],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, shape) in wanted {
        match found.iter().find(|(other, _)| other == name) {
            None => wrong.push(match unread.iter().find(|(other, _)| other == name) {
                Some((_, dtype)) => {
                    format!("{name}: is {dtype} in the file; f16, bf16, f32 and f64 are read")
                }
                None => format!("{name}: is not in the file"),
            }),
            Some((_, other)) if other != shape => {
                wrong.push(format!("{name}: is {other:?} in the file and {shape:?} in the model"))
            }
            Some(_) => {}
        }
    }
    for (name, _) in found {
        let is_known = wanted.iter().any(|(other, _)| other == name) || head.contains(&name.as_str());
        if !is_known && !name.ends_with(IGNORED) {
            wrong.push(format!("{name}: is not in the model"));
        }
    }
    wrong
}

/// Writes what was trained to the file of `--save-weights`, if there is one: the weights that evaluation uses, and
/// statistics agreed on by `peers`. Collective.
pub fn save(
    groups: &Groups,
    peers: &World,
    config: &Config,
    device: &dyn Device,
    (plan, about, run): (&Plan, &About, &str),
    memories: &Memories,
) -> Result<()> {
    let Some(path) = &config.save_weights else { return Ok(()) };
    agree_on_statistics(peers, device, &memories.regions.statistics)?;
    let parameters = memories.evaluated().parameters;
    let of = config.session.checkpoint.as_deref().map(|directory| (directory, run));
    let apart = memories.holds_own();
    let split = groups.split.is_some();
    let values = |name: &str| match plan.parameters.iter().find(|parameter| parameter.name == name) {
        Some(parameter) if apart => {
            let is_first = groups.data.is_first();
            let mut values = vec![0f32; if is_first { parameter.spec.shape.elements() } else { 0 }];
            let (own, room) = (&memories.regions.parameters, is_first.then_some(&mut values[..]));
            owned::gather(&groups.data, plan, memories, device, parameter, own, room)?;
            Ok(values)
        }
        Some(parameter) => match parameter.shard {
            None => memories.read(device, parameter, &parameters),
            Some(shard) => {
                let Some(group) = &memories.beside else { return Ok(Vec::new()) };
                let is_first = groups.job.is_first();
                let mut values = vec![0f32; if is_first { parameter.whole().elements() } else { 0 }];
                let room = is_first.then_some(&mut values[..]);
                parts::gather(group, memories, device, (parameter, shard), &parameters, room)?;
                Ok(values)
            }
        },
        None => {
            let statistic = plan.statistic(name)?;
            let mut values = vec![0f32; statistic.spec.shape.elements()];
            device.download(&statistic.of(&memories.regions.statistics), bytes_of_mut(&mut values))?;
            Ok(values)
        }
    };
    let learned = plan.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.whole().0));
    let counted = plan.statistics.iter().map(|of| (of.name.clone(), of.spec.shape.0.clone()));
    let mut shapes: Vec<_> = learned.chain(counted).collect();
    let world = &groups.job;
    if groups.stage.is_none() && !apart && !split {
        world.agree(record::once(world, || record::write_weights(path, &shapes, about, &values, of)))?;
    } else {
        let array = |(name, shape): &(String, Vec<usize>)| Array { path: name.clone(), shape: shape.clone() };
        let own: Vec<Array> = shapes.iter().map(array).collect();
        let read = || own.iter().map(|array| values(&array.path)).collect::<Result<Vec<_>>>();
        let mut all =
            (apart || split || groups.data.is_first()).then(read).transpose()?.map(|values| values.concat());
        all = all.filter(|_| groups.data.is_first());
        let arrays = stages::collect(groups, own, &mut all)?;
        let contents = Contents { arrays, values: all.unwrap_or_default(), ..Contents::default() };
        shapes = contents.arrays.iter().map(|array| (array.path.clone(), array.shape.clone())).collect();
        let lacks = |name: &str| Error::internal(format!("no values of {name}"));
        let of_all =
            |name: &str| contents.array(name).map(|(_, values)| values.to_vec()).ok_or_else(|| lacks(name));
        world.agree(record::once(world, || record::write_weights(path, &shapes, about, &of_all, of)))?;
    }
    record::say(world, &format!("weights: {}", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_network_can_have_is_named() {
        let said = |name: &str, values: &[f32]| impossible(name, values).unwrap_or_default();
        assert_eq!(said("a.weight", &[1.0, -2.0]), "");
        assert_eq!(said("a.running_var", &[1.0, 0.0, -0.0]), "");
        assert_eq!(said("a.weight", &[1.0, f32::NAN]), "is not finite as f32: value 1 is NaN");
        assert_eq!(said("a.bias", &[f32::NEG_INFINITY]), "is not finite as f32: value 0 is -inf");
        assert_eq!(said("a.running_var", &[1.0, -2.0]), "has a variance below zero: value 1 is -2");
        assert_eq!(said("a.running_mean", &[-2.0]), "");
    }

    #[test]
    fn every_difference_is_listed_once_and_what_nobody_needs_is_not() {
        let wanted: [(&str, &[usize]); 3] =
            [("a.weight", &[2, 3]), ("b.weight", &[4]), ("b.running_mean", &[4])];
        let found = |name: &str, shape: &[usize]| (name.to_string(), shape.to_vec());
        let file = [
            found("a.weight", &[2, 4]),
            found("b.num_batches_tracked", &[]),
            found("b.weight", &[4]),
            found("c.weight", &[1]),
            found("fc.weight", &[10, 4]),
        ];
        let unread = [("b.running_mean".to_string(), "I64".to_string())];
        assert_eq!(
            differences(&wanted, &file, &[], &["fc.weight"]),
            [
                "a.weight: is [2, 4] in the file and [2, 3] in the model",
                "b.running_mean: is not in the file",
                "c.weight: is not in the model",
            ]
        );
        let integers = "b.running_mean: is I64 in the file; f16, bf16, f32 and f64 are read";
        assert_eq!(differences(&wanted, &file, &unread, &["fc.weight"])[1], integers);
    }
}
