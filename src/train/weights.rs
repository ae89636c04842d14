//! Weights from a file, and to one: which tensor of the file is which of the model's.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::doubts::Weights;
use super::evaluate::agree_on_statistics;
use super::network::Network;
use super::owned::Owned;
use super::parts;
use super::setup::Job;
use super::stages;
use crate::comm::World;
use crate::config::Config;
use crate::device::Memory;
use crate::device::memory::bytes_of_mut;
use crate::error::{Error, Result};
use crate::graph::{Graph, Role, TensorId};
use crate::model::onnx::export::TensorValues;
use crate::record::{self, Array, Contents, WeightsFile};

/// How many lines a message about names and shapes has at most.
const LINES: usize = 40;
/// What messages call weights that are exported.
pub const EXPORTED: &str = "the weights";
/// What PyTorch counts in each normalisation; nothing here needs it.
const IGNORED: &str = "num_batches_tracked";

/// A file of weights that fits the model.
pub struct Start {
    file: WeightsFile,
    /// What a message calls the file.
    flag: String,
    /// The model's tensors that it gives values for, with what the file calls them.
    names: HashMap<String, String>,
    /// What is assumed of the file's names, in words.
    note: Option<String>,
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
            start.note.iter().for_each(|note| record::say(world, note));
            let checksum = world.agree(start.file.checksum())?;
            world.check_same(&[("the weights of --init-from".into(), format!("CRC-32 {checksum:08x}"))])?;
            if config.plan.dry_run {
                // Nobody else reads the numbers then.
                let each = || start.names.keys().try_for_each(|name| start.values(name).map(drop));
                world.agree(record::once(world, each))?;
            }
        }
        Ok(start)
    }

    fn open(config: &Config, network: &Network) -> Result<Option<Start>> {
        let of_network = network.model.file().filter(|_| !config.network.fresh_weights);
        let (file, flag) = match (&config.network.init_from, of_network) {
            (Some(path), _) => (WeightsFile::open(path)?, "--init-from"),
            (None, Some(_)) => (WeightsFile::of(&network.model), "its weights"),
            (None, None) => return Ok(None),
        };
        let graph = network.model.build_to_test(1, network.image, network.classes)?;
        let head = if config.network.reset_head { graph.head() } else { Vec::new() };
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
        let called = Called::of(file.shapes(), wanted.iter().map(|(name, _)| *name));
        let found: Vec<(String, Vec<usize>)> =
            file.shapes().iter().map(|(name, shape)| (called.in_model(name), shape.clone())).collect();
        let unread: Vec<(String, String)> =
            file.unread().iter().map(|(name, dtype)| (called.in_model(name), dtype.clone())).collect();
        let wrong = differences(&wanted, &found, &unread, &head);
        if wrong.is_empty() {
            let names = found.into_iter().zip(file.shapes());
            let names = names.map(|((name, _), (stored, _))| (name, stored.clone()));
            let names = names.filter(|(name, _)| wanted.iter().any(|(other, _)| other == name)).collect();
            let note = called.note(file.path());
            return Ok(Start { file, flag: flag.into(), names, note });
        }
        let is_of_head = |line: &String| {
            graph.head().iter().any(|&id| line.starts_with(&format!("{}:", graph.tensor(id).name)))
        };
        let hint = match wrong.iter().all(is_of_head) {
            true if flag == EXPORTED => "; say with --classes how many they are for",
            true => "; for other classes add --reset-head, and the last layer starts anew",
            false => "",
        };
        let of_shape = wrong.iter().any(|line| line.contains(" in the file and ") && !is_of_head(line));
        let hint = if of_shape { unlike_samples(&file, graph, flag) } else { hint.into() };
        let text = format!("{flag}: does not fit {model}{hint}:{}", listed(&wrong));
        Err(Error::data(file.path(), text))
    }

    /// What the file says of the network besides, and what to call the file.
    pub fn said(&self) -> Weights {
        let whose =
            if self.flag == "--init-from" { "the weights of --init-from" } else { "the network's file" };
        Weights { whose, about: self.file.about().clone() }
    }

    /// What is assumed of the file's names, in words.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The most bytes that a tensor takes while it is read.
    pub fn largest(&self) -> usize {
        let of = |(_, shape): &(String, Vec<usize>)| size_of::<f32>() * shape.iter().product::<usize>();
        self.file.shapes().iter().map(of).max().unwrap_or(0)
    }

    /// How many tensors it has values for.
    pub fn tensors(&self) -> usize {
        self.names.len()
    }

    /// The file's values for a tensor of the model; `None` where it starts as without a file.
    ///
    /// # Errors
    /// `Data` when they cannot be read, or no network can have them.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(stored) = self.names.get(name) else { return Ok(None) };
        let values = self.file.values(stored)?;
        match impossible(name, &values) {
            None => Ok(Some(values)),
            Some(what) => {
                let flag = &self.flag;
                Err(Error::data(self.file.path(), format!("{flag}: tensor {name} {what}")))
            }
        }
    }
}

/// How a file names the tensors of a model, where it does so otherwise.
#[derive(Debug, Default, PartialEq)]
struct Called {
    /// What a wrapper of the model (DDP's "module.", torch.compile's "_orig_mod.") has put before every name.
    wrapper: String,
    /// Names with "/" in the model, by those that HDF5 has for them where its groups are parts of names.
    slashes: HashMap<String, String>,
}

impl Called {
    fn of<'a>(found: &[(String, Vec<usize>)], wanted: impl Iterator<Item = &'a str>) -> Called {
        let wanted: HashSet<&str> = wanted.collect();
        let Some((first, _)) = found.first() else { return Called::default() };
        if found.iter().any(|(name, _)| wanted.contains(name.as_str())) {
            return Called { wrapper: String::new(), slashes: slashes(found, &wanted) };
        }
        let is_wrapper = |prefix: &&str| {
            let bare: Option<Vec<&str>> = found.iter().map(|(name, _)| name.strip_prefix(prefix)).collect();
            bare.is_some_and(|names| names.iter().any(|name| wanted.contains(name)))
        };
        let wrapper = first.match_indices('.').map(|(at, _)| &first[..=at]).find(is_wrapper);
        match wrapper {
            Some(wrapper) => Called { wrapper: wrapper.into(), slashes: HashMap::new() },
            None => Called { wrapper: String::new(), slashes: slashes(found, &wanted) },
        }
    }

    /// What the model calls what the file calls so.
    fn in_model(&self, name: &str) -> String {
        let name = name.strip_prefix(&self.wrapper).unwrap_or(name);
        self.slashes.get(name).cloned().unwrap_or_else(|| name.into())
    }

    fn note(&self, file: &Path) -> Option<String> {
        let file = file.display();
        match (self.wrapper.as_str(), self.slashes.iter().next()) {
            ("", None) => None,
            ("", Some((stored, name))) => {
                Some(format!("{file}: has {stored} for {name} and others with \"/\" in their names"))
            }
            (wrapper, _) => Some(format!("{file}: \"{wrapper}\", with which all names begin, is left out")),
        }
    }
}

/// Names with "/" that a file has with dots, as HDF5's groups are read.
fn slashes(found: &[(String, Vec<usize>)], wanted: &HashSet<&str>) -> HashMap<String, String> {
    let dotted = |name: &str| name.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
    let of_dotted: HashMap<String, &str> =
        wanted.iter().filter(|name| name.contains('/')).map(|name| (dotted(name), *name)).collect();
    let is_own = |name: &str| wanted.contains(name);
    let there = |name: &str| found.iter().any(|(other, _)| other == name);
    let other = |name: &String| {
        let slashed = of_dotted.get(name).filter(|slashed| !is_own(name) && !there(slashed))?;
        Some((name.clone(), slashed.to_string()))
    };
    found.iter().filter_map(|(name, _)| other(name)).collect()
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

/// Why tensors may have other shapes in a file: its weights learned from other samples.
fn unlike_samples(file: &WeightsFile, graph: &Graph, flag: &str) -> String {
    let Some(own) = graph.tensor(graph.images).spec.shape.sample() else { return String::new() };
    match file.about().sample {
        Some(learned) if learned != own => {
            format!("; these weights learned from samples of {learned}, and here samples are {own}")
        }
        None if flag == EXPORTED => {
            format!("; --image-size says of what samples they are, if not of {own}")
        }
        _ => String::new(),
    }
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
            // As PyTorch has those of sequences, or of normalisations, without axes of one place.
            Some((_, other)) if !without_ones(other).eq(without_ones(shape)) => {
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

fn without_ones(shape: &[usize]) -> impl Iterator<Item = &usize> {
    shape.iter().filter(|&&extent| extent != 1)
}

/// Writes what was trained to the file of `--save-weights`, if there is one: the weights that evaluation uses, and
/// statistics agreed on by `peers`. Collective.
pub fn save(job: &Job, config: &Config) -> Result<()> {
    let Some(path) = &config.outputs.save_weights else { return Ok(()) };
    let Job { groups, peers, device, plan, memories, about, .. } = job;
    agree_on_statistics(peers, &**device, &memories.regions.statistics)?;
    let parameters = memories.evaluated().parameters;
    let of = config.session.checkpoint.as_deref().map(|directory| (directory, job.saving.saver.run()));
    let apart = memories.holds_own();
    let split = groups.split.is_some();
    let values = |name: &str| value(job, name, &parameters);
    let learned = plan.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.whole().0));
    let counted = plan.statistics.iter().map(|of| (of.name.clone(), of.spec.shape.0.clone()));
    let shapes: Vec<_> = learned.chain(counted).collect();
    let world = &groups.job;
    let write = |shapes: &[(String, Vec<usize>)], values: TensorValues| {
        let written = || record::write_weights(path, shapes, about, values, of);
        world.agree(record::once(world, || written().map_err(|error| error.context("--save-weights"))))
    };
    if !(groups.mesh.is_cut() || apart || split) {
        write(&shapes, &values)?;
    } else {
        let array = |(name, shape): &(String, Vec<usize>)| Array { path: name.clone(), shape: shape.clone() };
        let own: Vec<Array> = shapes.iter().map(array).collect();
        let read = || own.iter().map(|array| values(&array.path)).collect::<Result<Vec<_>>>();
        let mut all =
            (apart || split || groups.data.is_first()).then(read).transpose()?.map(|values| values.concat());
        all = all.filter(|_| groups.data.is_first());
        let arrays = stages::collect(groups, own, &mut all)?;
        let contents = Contents { arrays, values: all.unwrap_or_default(), ..Contents::default() };
        let shapes: Vec<_> =
            contents.arrays.iter().map(|array| (array.path.clone(), array.shape.clone())).collect();
        let lacks = |name: &str| Error::internal(format!("no values of {name}"));
        let of_all =
            |name: &str| contents.array(name).map(|(_, values)| values.to_vec()).ok_or_else(|| lacks(name));
        write(&shapes, &of_all)?;
    }
    record::say(world, &format!("weights: {}", path.display()));
    Ok(())
}

/// The numbers of a parameter or statistic, among the trained `parameters`: on the first rank where several have parts
/// of it. Collective there.
fn value(job: &Job, name: &str, parameters: &Memory) -> Result<Vec<f32>> {
    let Job { groups, plan, memories, .. } = job;
    let device = &*job.device;
    match plan.parameters.iter().find(|parameter| parameter.name == name) {
        Some(parameter) if memories.holds_own() => {
            let is_first = groups.data.is_first();
            let mut values = vec![0f32; if is_first { parameter.spec.shape.elements() } else { 0 }];
            let (own, room) = (&memories.regions.parameters, is_first.then_some(&mut values[..]));
            Owned { world: &groups.data, plan, memories, device }.gather(parameter, own, room)?;
            Ok(values)
        }
        Some(parameter) => match parameter.shard {
            None => memories.read(device, parameter, parameters),
            Some(shard) => {
                let Some(group) = &memories.beside else { return Ok(Vec::new()) };
                let is_first = groups.job.is_first();
                let mut values = vec![0f32; if is_first { parameter.whole().elements() } else { 0 }];
                let room = is_first.then_some(&mut values[..]);
                parts::gather(group, memories, device, (parameter, shard), parameters, room)?;
                Ok(values)
            }
        },
        None => {
            let statistic = plan.statistic(name)?;
            let mut values = vec![0f32; statistic.spec.shape.elements()];
            device.download(&statistic.of(&memories.regions.statistics), bytes_of_mut(&mut values))?;
            Ok(values)
        }
    }
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

    /// Names of a file and of a model, and what is left out or taken for what.
    #[test]
    fn what_a_file_calls_otherwise_is_found() {
        let called = |found: &[&str], wanted: &[&str]| {
            let found: Vec<_> = found.iter().map(|name| (name.to_string(), vec![1])).collect();
            let called = Called::of(&found, wanted.iter().copied());
            let names: Vec<String> = found.iter().map(|(name, _)| called.in_model(name)).collect();
            (names.join(" "), called.note(Path::new("w")).unwrap_or_default())
        };
        let model = ["fc.bias", "fc.weight"];
        let left = |wrapper: &str| format!("w: \"{wrapper}\", with which all names begin, is left out");
        for wrapper in ["module.", "_orig_mod.", "module._orig_mod.", "state_dict.model."] {
            let file = model.map(|name| format!("{wrapper}{name}"));
            let file = [&*file[0], &*file[1], &format!("{wrapper}bn.num_batches_tracked")];
            assert_eq!(
                called(&file, &model),
                ("fc.bias fc.weight bn.num_batches_tracked".into(), left(wrapper))
            );
        }
        // Of one that not all have, or that the model has, nothing is left out.
        let some = ["module.fc.bias", "fc.weight"];
        assert_eq!(called(&some, &model), ("module.fc.bias fc.weight".into(), String::new()));
        assert_eq!(called(&some[..1], &some[..1]), ("module.fc.bias".into(), String::new()));
        assert_eq!(called(&["other.scale"], &model), ("other.scale".into(), String::new()));
        // HDF5's groups, where "/" is part of names.
        let (names, note) = called(&["conv.weight", "fc.bias"], &["/conv/weight", "fc.bias"]);
        assert_eq!(names, "/conv/weight fc.bias");
        assert!(note.contains("conv.weight for /conv/weight"), "{note}");
        let both = ["a.b", "a/b"];
        assert_eq!(called(&both, &both), ("a.b a/b".into(), String::new()));
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
        // As PyTorch has a convolution of sequences, and a scale.
        let of_sequences: [(&str, &[usize]); 2] = [("conv", &[8, 4, 1, 3]), ("scale", &[8, 1])];
        let found = |conv: Vec<usize>| [("conv".to_string(), conv), ("scale".to_string(), vec![8])];
        assert!(differences(&of_sequences, &found(vec![8, 4, 3]), &[], &[]).is_empty());
        assert_eq!(differences(&of_sequences, &found(vec![8, 3, 4]), &[], &[]).len(), 1);
    }
}
