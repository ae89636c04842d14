//! `dltrain models`: what there is to train, and what it takes.
//!
//! May use: every module. Used by: `main`.

use std::fmt::Write;

use crate::comm::World;
use crate::device::reference::Reference;
use crate::error::Result;
use crate::model::{self, Model};
use crate::plan::{self, Options, describe_bytes as bytes, describe_flops as flops, group};
use crate::record;

/// Prints one table for the whole job.
///
/// # Errors
/// Those of planning, which are defects.
pub fn print(world: &World) -> Result<()> {
    let text = world.agree(table())?;
    record::say(world, text.trim_end());
    Ok(())
}

fn table() -> Result<String> {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{:<14} {:>11} {:>12} {:>14} {:>14} {:>14} {:>8}",
        "model", "parameters", "FLOP forward", "FLOP training", "memory/image", "image", "classes"
    );
    for model in model::MODELS {
        let _ = writeln!(text, "{}", row(model)?);
    }
    text += "\nFor arrays, with --target; --classes says how many channels they give:\n";
    for model in model::FIELD_MODELS {
        let _ = writeln!(text, "{}", row(model)?);
    }
    text += "\nFLOP and memory are those of one image; memory is what each further image of a batch adds in training \
             (activations and their gradients, plain layouts).\n`dltrain --model M --dry-run` says it for a device; \
             --classes and --image-size change a model.";
    Ok(text)
}

fn row(model: &Model) -> Result<String> {
    // The reference device plans without compiling anything, and its layouts have no padding.
    let plan = |batch| {
        let graph = model.build(batch, model.image, model.classes)?.with_usual_loss()?;
        let graph = graph.simplify().differentiate();
        plan::plan(graph, &Reference, &Options::whole(0))
    };
    // A normalisation behind which an image is a single pixel cannot train on one image.
    let [two, three] = [plan(2)?, plan(3)?];
    let graph = &two.graph;
    let memory = three.sizes.activations.saturating_sub(two.sizes.activations);
    Ok(format!(
        "{:<14} {:>11} {:>12} {:>14} {:>14} {:>14} {:>8}",
        model.name(),
        group(graph.parameter_count()),
        flops(graph.total_cost(true).flops / 2),
        flops(graph.total_cost(false).flops / 2),
        bytes(memory),
        model.image.to_string(),
        model.classes,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiply-adds count twice: torchvision states 0.71 and 15.47 GFLOP (multiply-adds) for these two.
    #[test]
    fn the_table_has_every_model_with_the_published_arithmetic() {
        let table = table().unwrap();
        for model in model::all() {
            assert!(table.lines().any(|line| line.starts_with(&format!("{} ", model.name()))), "{table}");
        }
        for (name, giga) in [("alexnet", 1.42), ("vgg16", 30.94)] {
            let graph = crate::model::find(name).unwrap().build(1, [3, 224, 224], 1000).unwrap();
            let flops = graph.total_cost(true).flops as f64 / 1e9;
            assert!((flops - giga).abs() < 0.01 * giga, "{name}: {flops}");
        }
    }
}
