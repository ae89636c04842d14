//! Networks of others, for tests/torchvision/zoo.py, exporters.py and nodes.py.

use super::without_dropout;
use crate::support::bound;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use bound::Bound;
use dltrain::device::memory::bytes_of;
use dltrain::device::onednn::Cpu;
use dltrain::device::{Device, Scalars};
use dltrain::graph::Graph;
use dltrain::model;
use dltrain::model::onnx::export;

/// Steps of gradient descent.
const STEPS: usize = 2;

/// What a network gives, written down for whoever knows what it should: scores in evaluation, the loss in training and
/// the gradient of every parameter, and the losses after steps of gradient descent; or why it is refused. Each line of
/// the file that `DLTRAIN_NETWORKS` names is a directory with `net.onnx`, `images` and `labels` (raw numbers), `rate`,
/// and in `learned` the names of those parameters that the steps change, or all; numbers are written to its `ours`.
#[test]
#[ignore = "a scene"]
fn scene_of_networks() {
    let Some(list) = std::env::var_os("DLTRAIN_NETWORKS") else { return };
    let cpu = Cpu::new(1).unwrap();
    for place in std::fs::read_to_string(list).unwrap().lines().map(Path::new) {
        std::fs::create_dir_all(place.join("ours")).unwrap();
        let attempt = std::panic::AssertUnwindSafe(|| write_what_it_gives(place, &cpu));
        if let Ok(Err(refused)) = std::panic::catch_unwind(attempt) {
            std::fs::write(place.join("ours/refused"), refused).unwrap();
        }
    }
}

fn raw<const N: usize, T>(path: &Path, of: impl Fn([u8; N]) -> T) -> Vec<T> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|bytes| of(*bytes)).collect()
}

fn write_what_it_gives(place: &Path, device: &dyn Device) -> Result<(), String> {
    let model = model::open(&place.join("net.onnx")).map_err(|error| error.message)?;
    let images = raw(&place.join("images"), f32::from_le_bytes);
    let labels = raw(&place.join("labels"), i32::from_le_bytes);
    let rate: f32 = std::fs::read_to_string(place.join("rate")).unwrap().trim().parse().unwrap();
    let write = |name: &str, numbers: &[f32]| {
        std::fs::write(place.join("ours").join(name), bytes_of(numbers)).unwrap();
    };
    let batch = labels.len();
    let values = |name: &str| model.file().unwrap().values(name).unwrap();
    let build = |batch| model.build_to_test(batch, model.image, model.classes);
    let graph = build(batch).map_err(|error| error.message)?;
    std::fs::write(place.join("ours/count"), graph.parameter_count().to_string()).unwrap();
    let scores = |graph: Graph, values: &dyn Fn(&str) -> Vec<f32>| {
        let mut run = Bound::new(device, graph.for_evaluation().simplify(), 1 << 20);
        run.set_batch(&images, &labels);
        run.plan.parameters.iter().for_each(|of| run.set_parameter(of, &values(&of.name)));
        for statistic in &run.plan.statistics {
            let memory = run.statistic(statistic);
            device.upload(bytes_of(&values(&statistic.name)), &memory).unwrap();
        }
        run.run(0..run.program.steps.len(), &Scalars::default());
        run.logits()
    };
    write("logits", &scores(graph, &values));
    if rate == 0.0 {
        return Ok(());
    }

    let graph = model.build(batch, model.image, model.classes).map_err(|error| error.message)?;
    let mut run = Bound::new(device, without_dropout(graph).simplify().differentiate(), 1 << 20);
    run.set_batch(&images, &labels);
    run.plan.parameters.iter().for_each(|of| run.set_parameter(of, &values(&of.name)));
    let steps = run.program.steps.len();
    let scalars = Scalars { gradient_scale: 1.0 / batch as f32, ..Scalars::default() };
    run.run(0..steps, &scalars);
    let named = std::fs::read_to_string(place.join("learned")).ok();
    let named: Option<HashSet<&str>> = named.as_deref().map(|names| names.lines().collect());
    let (mut losses, mut learned) = (vec![run.loss() as f32], HashMap::new());
    for step in 0..STEPS {
        for parameter in &run.plan.parameters {
            let (name, gradient) = (&parameter.name, run.gradient(parameter));
            if step == 0 {
                // TensorFlow's names are paths.
                write(&format!("gradient {}", name.replace('/', "~")), &gradient);
            }
            if named.as_ref().is_none_or(|named| named.contains(&**name)) {
                let now = learned.remove(name).unwrap_or_else(|| values(name));
                let next: Vec<f32> = now.iter().zip(&gradient).map(|(w, g)| w - rate * g).collect();
                run.set_parameter(parameter, &next);
                learned.insert(name.clone(), next);
            }
        }
        let is_last = step + 1 == STEPS;
        run.run(0..if is_last { run.program.forward_steps } else { steps }, &scalars);
        losses.push(run.loss() as f32);
    }
    write("losses", &losses);
    drop(run);
    // What it has learned goes back into a file.
    let values = |name: &str| learned.get(name).cloned().unwrap_or_else(|| values(name));
    match export::network(build, 4, false, &|name| Ok(values(name))) {
        Ok(network) => {
            network.write(&place.join("ours/again.onnx"), export::LARGEST).unwrap();
            write("logits again", &scores(build(batch).map_err(|error| error.message)?, &values));
        }
        Err(error) => std::fs::write(place.join("ours/not again"), error.message).unwrap(),
    }
    Ok(())
}
