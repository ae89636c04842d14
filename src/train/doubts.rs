//! Whether data, network and weights go together. What would run, and whose figures would mean something else, is
//! refused with the flag that says how it is meant; what is assumed is told.

use std::path::Path;

use super::network::Network;
use crate::config::Config;
use crate::data::{Sets, are_numbers, listed_classes};
use crate::error::{Error, Result};
use crate::model::Preprocessing;
use crate::record::ModelMetadata;

/// What the checkpoint is called whose run goes on.
pub const CHECKPOINT: &str = "the checkpoint";

/// What is said by the weights that a run begins with.
pub struct Weights {
    /// "the weights of --init-from".
    pub whose: &'static str,
    pub about: ModelMetadata,
}

/// The sets as the weights expect images, with what is to be told of that.
///
/// # Errors
/// `Data` and `Usage`, with the flag that settles it.
pub fn fitting(
    sets: Sets,
    path: &Path,
    config: &Config,
    network: &Network,
    weights: Option<Weights>,
) -> Result<Sets> {
    classes(&sets, path, config, network)?;
    if let Some(weights) = &weights {
        size(config, network, weights)?;
        names(&sets, path, config, weights)?;
    }
    let Sets { training, test, mut said, colours, begins_at_0, seconds } = sets;
    let expected = weights.as_ref().and_then(|weights| weights.about.preprocessing.clone());
    let (training, test) = match &expected {
        None => (training, test),
        Some(expected) => {
            // Where nothing is learned images are also cut as they were; else as these data are.
            let frame = if config.evaluate { expected.frame } else { training.expected().frame };
            let expected = Preprocessing { frame, ..expected.clone() };
            (training.expecting(&expected), test.map(|test| test.expecting(&expected)))
        }
    };
    let whose = match (&weights, &expected) {
        (Some(weights), Some(_)) => format!("from {}", weights.whose),
        (Some(weights), None) => format!("{colours}; nothing is said by {}", weights.whose),
        (None, _) => colours.to_string(),
    };
    said.push(normalised(training.expected(), &whose));
    let (found, has) = (training.set().class_names(), network.classes);
    if are_numbers(found) && found.len() < has && config.network.classes.is_none() && !config.evaluate {
        let (model, found) = (network.model.name(), found.len());
        said.push(format!(
            "{model} tells {has} classes apart, of which the data have {found}; --classes {found} for these alone"
        ));
    }
    Ok(Sets { training, test, said, colours, begins_at_0, seconds })
}

/// "images are normalised by mean 0.485 0.456 0.406 and deviation 0.229 0.224 0.225 (ImageNet's)".
fn normalised(expected: &Preprocessing, whose: &str) -> String {
    let list = |values: &[f64]| values.iter().map(|v| format!("{v:.3}")).collect::<Vec<_>>().join(" ");
    let [mean, deviation] = [list(&expected.mean), list(&expected.std)];
    format!("images are normalised by mean {mean} and deviation {deviation} ({whose})")
}

/// Classes of the data, and scores of the network.
fn classes(sets: &Sets, path: &Path, config: &Config, network: &Network) -> Result<()> {
    let names = sets.training.set().class_names();
    if config.predict.is_some() || config.max_batch.is_some() {
        return Ok(());
    }
    let (found, has) = (listed_classes(names), network.classes);
    let model = network.model.name();
    if names.len() == 1
        && config.network.classes != Some(1)
        && config.input.format.is_none()
        && !config.evaluate
    {
        let what = format!("{found}: there is nothing to tell apart; if it is meant so, say --classes 1");
        return Err(Error::data(path, what));
    }
    if config.network.classes.is_some() {
        return Ok(());
    }
    if !are_numbers(names) && names.len() < has {
        let count = names.len();
        let reset = if config.network.init_from.is_some() || network.model.file().is_some() {
            " --reset-head"
        } else {
            ""
        };
        let what = match config.evaluate {
            true => format!("if they are the first of these, in this order, say --classes {has}"),
            false => format!("say --classes {count}{reset}, or --classes {has} if the others are meant"),
        };
        return Err(Error::data(path, format!("{found}, and {model} tells {has} apart: {what}")));
    }
    if !sets.begins_at_0 {
        let what = format!(
            "no image has class 0, from which labels are counted; they go up to {}. If it is meant so, say \
             --classes {has}",
            names.len() - 1
        );
        return Err(Error::data(path, what));
    }
    Ok(())
}

/// The size of images that the weights were learned from, and the network's here.
fn size(config: &Config, network: &Network, weights: &Weights) -> Result<()> {
    let Some(expected) = weights.about.preprocessing.as_ref().filter(|_| config.network.image_size.is_none())
    else {
        return Ok(());
    };
    let [[_, height, width], [_, own_height, own_width]] = [expected.image, network.image.rows()];
    if [height, width] == [own_height, own_width] || height != width {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{}: learned from images of {height}×{width}, and {} reads {own_height}×{own_width} unless it is told: say \
         --image-size {height}, or --image-size {own_height}",
        weights.whose,
        network.model.name()
    )))
}

/// What the weights call the classes, and the data: a label means the class of its number.
fn names(sets: &Sets, path: &Path, config: &Config, weights: &Weights) -> Result<()> {
    let (theirs, own) = (&weights.about.class_names, sets.training.set().class_names());
    let alike =
        are_numbers(theirs) || are_numbers(own) || theirs.iter().zip(own).all(|(their, own)| their == own);
    let is_meant = config.input.format.is_some() || config.network.reset_head || config.predict.is_some();
    if alike || is_meant {
        return Ok(());
    }
    if config.session.resume.is_some() && !config.evaluate && weights.whose == CHECKPOINT {
        let what = format!("{}, and {} is of {}", listed_classes(own), weights.whose, listed_classes(theirs));
        return Err(Error::data(path, format!("{what}: a run goes on with the data that it began with")));
    }
    let anew = if config.evaluate { "" } else { ", or --reset-head to learn them anew" };
    // Of a folder an empty directory gives a class its number.
    let lacking = match theirs.iter().find(|name| !own.contains(name)) {
        Some(name) if own.iter().all(|own| theirs.contains(own)) => {
            format!("; a directory for each of these, be it empty as {name}, gives them their numbers")
        }
        _ => String::new(),
    };
    Err(Error::data(
        path,
        format!(
            "{}, and {} are for {}{lacking}; if they are the same in this order, say what the data are by \
             --data-format (folder, tar, packed or cifar){anew}",
            listed_classes(own),
            weights.whose,
            listed_classes(theirs),
        ),
    ))
}
