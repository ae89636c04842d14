//! Runs on arrays: opening them before the network is built for their shape, whether network and target go together,
//! and by what they are rescaled.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::doubts::Weights;
use super::field_files;
use super::network::Network;
use super::source;
use crate::comm::World;
use crate::config::values::first;
use crate::config::{Config, JpegDecoder};
use crate::data::{ArraysOf, Dataset, Field, FieldSet, SampleAxis, Samples, Sets, TrainingLoader};
use crate::error::{Error, Result};
use crate::fields::{Amount, Universe, extents, six_digits};
use crate::graph::squeezed;
use crate::model::onnx::{OnnxFile, TargetAxes};
use crate::model::{self, LearnedArray, Model};
use crate::plan::{describe_bytes as bytes, describe_seconds};
use crate::record::WeightsFile;

/// Samples by which a rescaling is found out, at most, and numbers of these: evenly spread over the training samples.
const MEASURED: [usize; 2] = [1024, 1 << 30];
/// Samples whose sums are in memory at a time.
const GROUP: usize = 16;

/// The configuration with the shape of the samples, where these are arrays, and the model, which is read for that if it
/// is a file. Collective.
///
/// # Errors
/// As for `FieldSet::open`; `Usage` for a flag that pictures alone have.
pub fn shaped(
    world: &World,
    mut config: Config,
    mut model: Option<Model>,
) -> Result<(Config, Option<Model>)> {
    let Some(path) = config.data.as_deref().filter(|_| config.fields.are_given()) else {
        return Ok((config, model));
    };
    let of_pictures = [
        (config.network.image_size.is_some(), "image-size"),
        (config.input.format.is_some(), "data-format"),
        (config.input.augment.is_some(), "augment"),
        (config.input.strict, "strict"),
        (config.input.jpeg_decoder != JpegDecoder::Auto, "jpeg-decoder"),
    ];
    if let Some(flag) = first(&of_pictures) {
        return world.agree(Err(Error::usage(format!("--{flag} is for pictures, and --input names arrays"))));
    }
    let gives = config.fields.network_output();
    // What a file's network is given says how it reads it.
    let file = match &model {
        Some(model) => model.file().map(|file| file.path().to_path_buf()),
        None => Some(PathBuf::from(&config.model)).filter(|_| model::is_file(&config.model)),
    };
    let of_file = |path: &PathBuf| OnnxFile::inputs_of(path, gives).map_err(|error| error.context("--model"));
    let inputs = world.agree(file.as_ref().map(of_file).transpose())?.unwrap_or_default();
    // The first file says what samples are like.
    let head = |files: Vec<PathBuf>| files[..1].to_vec();
    let find = |files: Result<_>, look: ArraysOf<'_>| field_files::find(world, files.map(head), look);
    let set = world.agree(FieldSet::open(Some(&find), path, &config.fields, &inputs))?;
    (config.network.sample, config.network.weights) = (Some(set.image()), set.weights());
    let mut samples = set.arrays();
    if samples.target.is_none() {
        samples.target = config.network.init_from.as_deref().and_then(|path| learned_target(path, &config));
    }
    model = match (file, model) {
        (Some(path), Some(_)) => Some(model::open_for(&path, gives, Some(&samples))),
        (_, Some(model)) => Some(Ok(model)),
        (_, None) => Some(model::find_for(&config.model, gives, Some(&samples))),
    }
    .map(|model| world.agree(model))
    .transpose()?;
    Ok((config, model))
}

/// What weights say of the targets that they learned from.
fn learned_target(weights: &Path, config: &Config) -> Option<TargetAxes> {
    let file = WeightsFile::open(weights).ok()?;
    let targets = file.about().fields.get(config.fields.inputs.len()..)?;
    Field::target_axes(targets)
}

/// The arrays, rescaled as the weights expect them or as is found out here. Collective.
///
/// # Errors
/// As for `FieldSet::open`; `Usage` where they do not fit the network or the weights.
pub fn open(
    world: &World,
    config: &Config,
    network: &Network,
    path: &Path,
    weights: Option<&Weights>,
) -> Result<Sets> {
    // Universes have others to test on.
    let test = config.fields.test_data.clone().or_else(|| Universe::tests_of(path));
    let test = test.as_deref().filter(|_| !config.evaluate && config.predict.is_none());
    let is_there = if test.is_some() { "given" } else { "none" };
    world.check_same(&[("--test-data".into(), is_there.into())])?;
    let opened = || -> Result<(FieldSet, Option<FieldSet>)> {
        let inputs = network.model.file().map_or_else(Vec::new, OnnxFile::inputs);
        let find = |files, look: ArraysOf<'_>| field_files::find(world, files, look);
        let open = |path: &Path| FieldSet::open(Some(&find), path, &config.fields, &inputs);
        let set = open(path)?;
        fits(&set, config, network)?;
        let beside = |path| open(path).and_then(|test| test.beside(&set));
        let test = test.map(|path| beside(path).map_err(|error| error.context("--test-data"))).transpose()?;
        Ok((set.telling_apart(network.classes), test.map(|test| test.telling_apart(network.classes))))
    };
    let (set, others) = world.agree(opened())?;
    let (set, opposed) = lying(world, set)?;
    let known =
        weights.map(|weights| (weights.whose, &weights.about.fields)).filter(|(_, of)| !of.is_empty());
    let (scales, whose, by_files) = match known {
        Some((whose, scales)) => (scales.clone(), format!("as {whose} expect them"), Vec::new()),
        // To compute universes takes minutes, and a dry run none.
        None if config.plan.dry_run && set.universe().is_some() => {
            (set.scales().to_vec(), String::new(), Vec::new())
        }
        None => measured(world, &set)?,
    };
    let units = known.map_or(Ok(Vec::new()), |(whose, _)| in_units_of(whose, &scales, set.scales(), path));
    let mut otherwise = known.map_or(Vec::new(), |(whose, _)| called_otherwise(whose, &scales, set.scales()));
    otherwise.extend(known.map_or(Vec::new(), |(whose, _)| placed_otherwise(whose, &scales, set.scales())));
    otherwise.extend(opposed);
    let set = world.agree(set.scaled(&scales))?;
    let others = world.agree(others.map(|set| set.scaled(&scales)).transpose())?;
    let units = world.agree(units)?;
    let purpose = purpose(config);
    let mut said = [set.lines(path, purpose, test.zip(others.as_ref())), units, otherwise].concat();
    said.extend(rescaled(&scales, |at| by_files.get(at).and_then(Option::as_deref).unwrap_or(&whose)));
    if whose.is_empty() && set.is_to_be_measured() {
        said.push("rescaling: by universes that are computed when a run begins".into());
    }
    let (lines, seconds) = world.agree(reading(world, config, &set, others.as_ref()))?;
    said.extend(lines);
    let to_test = if config.evaluate { Some(set.clone()) } else { others };
    Ok(Sets {
        training: Samples::of_fields(set, config.input.repeat),
        test: to_test.map(|test| Samples::of_fields(test, 1)),
        said,
        colours: "",
        begins_at_0: true,
        seconds,
    })
}

/// What the run does with the samples.
fn purpose(config: &Config) -> &'static str {
    match (config.predict.is_some(), config.evaluate) {
        (true, _) => "predict",
        (_, true) => "test",
        _ => "train",
    }
}

/// That the network's output can be compared with the target.
fn fits(set: &FieldSet, config: &Config, network: &Network) -> Result<()> {
    let output = network.output()?;
    let is_of_classes = config.fields.is_of_classes();
    let wanted = &output[usize::from(is_of_classes).min(output.len())..];
    let Some(target) = set.target().filter(|target| squeezed(wanted) != squeezed(target)) else {
        return Ok(());
    };
    let name = network.model.name();
    let [gives, sample, places, target] = [&output[..], &set.image()[..], wanted, target].map(extents);
    let scores = format!(", the scores of classes for each of {places}");
    let scores = if is_of_classes { &*scores } else { "" };
    let advice = match network.model.file() {
        Some(_) => "",
        None => "; --classes says how many channels a network by name gives",
    };
    Err(Error::usage(format!(
        "{name} gives {gives} of a sample of {sample}{scores}, and a --target has {target}{advice}"
    )))
}

/// What is to be told of arrays whose unit only the weights say, or only the files.
///
/// # Errors
/// `Usage`: an array has another unit than the weights learned from.
fn in_units_of(
    whose: &str,
    known: &[LearnedArray],
    own: &[LearnedArray],
    path: &Path,
) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for (known, own) in known.iter().zip(own).filter(|(known, own)| known.unit != own.unit) {
        let of = |of: &LearnedArray| {
            of.unit.as_ref().map_or("in no unit that is said".into(), |unit| format!("in {unit}"))
        };
        let text = format!(
            "{} is {} in {}, and {whose} learned from it {}",
            own.field,
            of(own),
            path.display(),
            of(known)
        );
        if known.unit.is_some() && own.unit.is_some() {
            let advice =
                "convert one; where both mean the same, give the file's attribute units the other's text";
            return Err(Error::usage(format!("{text}: {advice}")));
        }
        said.push(text);
    }
    Ok(said)
}

/// Of which arrays the flags say another name, other places or another rescaling than the weights learned from. A
/// rescaling may be left out.
fn called_otherwise(whose: &str, known: &[LearnedArray], own: &[LearnedArray]) -> Vec<String> {
    let line = |(known, own): (&LearnedArray, &LearnedArray)| {
        let (known, own): (Field, Field) = (known.field.parse().ok()?, own.field.parse().ok()?);
        let is_other = own.is_rescaled() && (own.log1p, &own.rescaling) != (known.log1p, &known.rescaling);
        let how = match known.is_rescaled() {
            true => "it is rescaled as that was",
            false => "it is not rescaled, as that was not",
        };
        (is_other || own.view != known.view)
            .then(|| format!("{}: {whose} learned from {}, and {how}", own.text, known.text))
    };
    known.iter().zip(own).filter_map(line).collect()
}

/// The set, with the axes of its arrays as the first rank reads them, and the lines of `opposed`. Collective.
fn lying(world: &World, set: FieldSet) -> Result<(FieldSet, Vec<String>)> {
    let damaged = |error: serde_json::Error| Error::internal(format!("axes of arrays as text: {error}"));
    let own = match world.is_first() {
        true => set.sample_axes().and_then(|axes| serde_json::to_string(&axes).map_err(damaged)),
        false => Ok(String::new()),
    };
    let text = world.broadcast_text(&world.agree(own)?)?;
    let axes: Vec<(String, Vec<SampleAxis>)> = serde_json::from_str(&text).map_err(damaged)?;
    let said = opposed(&axes);
    Ok((set.lying(axes.into_iter().map(|(_, axes)| axes)), said))
}

/// Which axes lie elsewhere than those of the samples that weights learned from, or the other way round.
fn placed_otherwise(whose: &str, known: &[LearnedArray], own: &[LearnedArray]) -> Vec<String> {
    let of_array = |(known, own): (&LearnedArray, &LearnedArray)| {
        let line = |(learned, here): (&SampleAxis, &SampleAxis)| {
            let (field, name) = (&own.field, &here.name);
            if *name != learned.name {
                let [here, there] =
                    [name, &learned.name].map(|name| if name.is_empty() { "none" } else { name });
                return Some(format!("{field}: an axis is called {here}, and {whose} learned from {there}"));
            }
            let there = learned.said()?;
            let Some(is) = here.said() else {
                return Some(format!(
                    "{field}: nothing says where {name} is, and {whose} learned from it {there}"
                ));
            };
            let how = match (here.is_elsewhere(learned), here.is_opposite(learned)) {
                (false, _) => return None,
                (_, true) => ": the other way round",
                _ if is == there => ", with other places between",
                _ => "",
            };
            Some(format!("{field}: {name} is {is}, and {whose} learned from it {there}{how}"))
        };
        known.axes.iter().zip(&own.axes).filter_map(line).collect::<Vec<_>>()
    };
    known.iter().zip(own).flat_map(of_array).collect()
}

/// Which axes of arrays lie elsewhere than the first input's of the same name or unit, as far as points go together, or
/// come in another order.
fn opposed(own: &[(String, Vec<SampleAxis>)]) -> Vec<String> {
    let Some(((first, axes), others)) = own.split_first() else { return Vec::new() };
    let of_array = |(field, own): &(String, Vec<SampleAxis>)| {
        let line = |axis: &SampleAxis| {
            let is_same = |other: &&SampleAxis| {
                axis.name == other.name || axis.unit.is_some() && axis.has_unit_of(other)
            };
            let other = axes.iter().find(is_same).filter(|other| axis.is_elsewhere(other))?;
            let how = match axis.is_opposite(other) {
                true => ": the other way round",
                false if axis.is_of_degrees() && axis.along == other.along => "",
                false => return None,
            };
            let (name, [is, there]) = (&axis.name, [axis.said()?, other.said()?]);
            let text = format!("{field}: {name} is {is}, and in {first} {there}{how}");
            Some(format!("{text}; points go together as they lie"))
        };
        let mut lines: Vec<String> = own.iter().filter_map(line).collect();
        // Those that both have, in the order of each.
        let shared = |of: &[SampleAxis], beside: &[SampleAxis]| {
            let is_shared = |axis: &&SampleAxis| {
                !axis.name.is_empty() && beside.iter().any(|other| other.name == axis.name)
            };
            of.iter().filter(is_shared).map(|axis| axis.name.clone()).collect::<Vec<_>>().join(", ")
        };
        let [here, there] = [shared(own, axes), shared(axes, own)];
        lines.extend((here != there).then(|| {
            format!(
                "{field}: its axes are {here}, and those of {first} {there}; points go together as they lie"
            )
        }));
        lines
    };
    others.iter().flat_map(of_array).collect()
}

/// The rescaling by some of the samples, each of which one rank reads: the same numbers whatever the number of ranks;
/// of which samples they are; and for each field what arrays of a file it is by, if that is so.
fn measured(world: &World, set: &FieldSet) -> Result<(Vec<LearnedArray>, String, Vec<Option<String>>)> {
    let all = set.len();
    let [samples, numbers] = MEASURED;
    let each = set.image().iter().product::<usize>() + set.target_len();
    let most = samples.min(numbers / each.max(1)).max(1);
    let taken = if set.is_to_be_measured() { all.min(most) } else { 0 };
    let width = set.moment_count();
    let mut total: Vec<f64> = Vec::new();
    for group in (0..taken).collect::<Vec<_>>().chunks(GROUP) {
        let mut moments = vec![0.0; group.len() * width];
        let mut outcome = Ok(());
        for (&number, own) in group.iter().zip(moments.chunks_exact_mut(width.max(1))) {
            // What others read are zeros here, so that sums are exact.
            if number % world.size() == world.rank() && outcome.is_ok() {
                outcome = set.moments(number * all / taken).map(|found| own.copy_from_slice(&found));
            }
        }
        world.agree(outcome)?;
        world.sum_f64(&mut moments)?;
        total = FieldSet::together(total, &moments, width);
    }
    let whose = if taken == all { "of all samples".into() } else { format!("of {taken} of {all} samples") };
    let (scales, by_files) = world.agree(set.rescaling(&total))?;
    Ok((scales, whose, by_files))
}

/// Where files do not agree, what of them does not count and what reading an epoch takes, by some samples that the
/// first rank reads: for rank 0, which says it; and the seconds of one. Of a prediction what does not count alone, of a
/// test where files do not agree.
fn reading(
    world: &World,
    config: &Config,
    set: &FieldSet,
    test: Option<&FieldSet>,
) -> Result<(Vec<String>, Option<f64>)> {
    let purpose = purpose(config);
    if !world.is_first() {
        return Ok((Vec::new(), None));
    }
    let mut lines: Vec<String> = set.unlike_places(test)?.into_iter().collect();
    if purpose == "predict" {
        lines.extend(set.uncounted(1, false)?);
        return Ok((lines, None));
    }
    if purpose == "test" {
        return Ok((lines, None));
    }
    lines.extend(set.uncounted(config.spatial, true)?);
    let samples = Samples::of_fields(set.clone(), config.input.repeat);
    let mut sharding = source::training_sharding(world, config);
    // The stages of a pipeline share samples.
    sharding.ranks = (sharding.ranks / config.stages()).max(1);
    let orders = TrainingLoader::first_epoch(&samples, sharding, config.seed)?;
    let (amounts, seconds) = set.reading(orders, config.spatial)?;
    let is_advised = set.has_better_chunks(&amounts);
    let Amount { read, decoded, used } = amounts.into_iter().sum();
    let count = sharding.steps(samples.len())? * sharding.global_batch();
    let times = decoded as f64 / used.max(1) as f64;
    let advice = match is_advised {
        true => ": dltrain inspect says what chunks would be read whole",
        false => "",
    };
    // Ranks with the same samples read a part of the rows each; of chunks with rows of several each reads all.
    let about = if config.spatial > 1 { "about " } else { "" };
    let beside = if set.is_by_library() { ", without what the HDF5 library reads" } else { "" };
    let text = format!(
        "reading: {about}{} an epoch, {} a rank, {} a sample{beside}, {times:.2} times what it uses is \
         decoded{advice}; of {} files each rank opens those that it reads; {:.2} ms of a thread a sample",
        bytes(read as usize),
        bytes(read as usize / (sharding.ranks * config.spatial)),
        bytes(read as usize / count),
        set.files(),
        1000.0 * seconds
    );
    lines.push(text);
    Ok((lines, Some(seconds)))
}

/// How reading the samples of a step goes beside computing it, where a sample takes so many seconds of a thread.
pub fn beside(config: &Config, sample: f64, step: f64) -> String {
    let samples = config.batch * config.accumulation;
    let threads = config.input.loader_threads.unwrap_or(0);
    let all = sample * samples as f64;
    let read = all / threads.max(1) as f64;
    let by = match threads {
        0 => "the rank itself, between its steps".into(),
        1 => "a loader thread".into(),
        threads => format!("{threads} loader threads"),
    };
    let bound = match (threads, read > step) {
        (0, _) => "both add up; --loader-threads 1 reads meanwhile".into(),
        (_, false) => "computing decides".into(),
        (_, true) => format!("reading decides; so fast read --loader-threads {}", (all / step).ceil()),
    };
    let [read, step] = [read, step].map(describe_seconds);
    format!(
        "input: {samples} samples a step and rank take {read} of {by}, and computing takes {step}: {bound}"
    )
}

/// "t[n,h,w]:standard is (x - 280.12) / 15.3 (of all samples)", of the first channels of each field that is rescaled.
fn rescaled<'a>(scales: &[LearnedArray], whose: impl Fn(usize) -> &'a str) -> Vec<String> {
    /// Channels that are shown.
    const SHOWN: usize = 4;
    let of = |(at, scale): (usize, &LearnedArray)| {
        let channels = scale.scale.iter().zip(&scale.shift);
        let channel = |(&scale, &shift): (&f32, &f32)| {
            let (scale, shift) = (f64::from(scale), f64::from(shift));
            let sign = if shift > 0.0 { '+' } else { '-' };
            format!("(x {sign} {}) / {}", six_digits((shift / scale).abs()), six_digits(1.0 / scale))
        };
        let mut shown: Vec<String> = channels.take(SHOWN).map(channel).collect();
        if scale.scale.len() > SHOWN {
            shown.push(format!("and {} channels more", scale.scale.len() - SHOWN));
        }
        format!("{} becomes {} ({})", scale.field, shown.join(", "), whose(at))
    };
    let changes = |(_, scale): &(usize, &LearnedArray)| {
        scale.scale.iter().any(|&factor| factor != 1.0) || scale.shift.iter().any(|&shift| shift != 0.0)
    };
    let mut lines: Vec<String> = scales.iter().enumerate().filter(changes).map(of).collect();
    // An array may be input and target.
    let mut known = HashSet::new();
    lines.retain(|line| known.insert(line.clone()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_one_run_are_told_apart_by_their_places() {
        let axis =
            |name: &str, places: &[f32], unit: &str| SampleAxis::new(name.into(), places, Some(unit.into()));
        let north = axis("latitude", &[90.0, -90.0], "degrees_north");
        let south = axis("lat", &[-90.0, 90.0], "degrees_north");
        let east = axis("longitude", &[0.0, 180.0, 359.0], "degrees_east");
        let level = axis("level", &[1000.0, 10.0], "hPa");
        let t = ("t[n,c,h,w]".to_string(), vec![level, north.clone(), east.clone()]);
        let rain = ("rain[n,h,w]".to_string(), vec![south.clone(), east.clone()]);
        let line = "rain[n,h,w]: lat is from -90 to 90 degrees_north, and in t[n,c,h,w] from 90 to -90 \
                    degrees_north: the other way round; points go together as they lie";
        assert_eq!(opposed(&[t.clone(), t.clone(), rain.clone()]), [line]);
        assert!(opposed(&[rain.clone(), rain.clone()]).is_empty());
        let turned = ("land[h,w]".to_string(), vec![east.clone(), north]);
        let line = "land[h,w]: its axes are longitude, latitude, and those of t[n,c,h,w] latitude, longitude; points \
                    go together as they lie";
        assert_eq!(opposed(&[t, turned]), [line]);
        // The same meridians, half a turn away, other meridians for others, and levels that are others.
        let beside = |places: &[f32]| ("rain[w]".to_string(), vec![axis("x", places, "degree_east")]);
        let around = axis("longitude", &[0.0, 90.0, 180.0, 270.0], "degrees_east");
        let rain = ("rain[n,h,w]".to_string(), vec![south.clone(), around]);
        let [turn, half] = [&[-360.0, -270.0, 180.0, 270.0], &[180.0, 270.0, 0.0, 90.0]].map(|of| beside(of));
        let all = [rain.clone(), turn, half];
        let line = "rain[w]: x is from 180 to 90 degree_east, and in rain[n,h,w] from 0 to 270 degrees_east; points \
                    go together as they lie";
        assert_eq!(opposed(&all), [line]);
        assert!(opposed(&[rain.clone(), beside(&[180.0, 190.0])]).is_empty());
        let levels = |places: &[f32]| ("q".to_string(), vec![axis("lev", places, "hPa")]);
        assert!(opposed(&[levels(&[1000.0, 10.0]), levels(&[500.0, 50.0])]).is_empty());
        // Of weights and a file.
        let array = |axes| LearnedArray {
            field: "rain[n,h,w]".into(),
            scale: vec![1.0],
            shift: vec![0.0],
            unit: None,
            axes,
        };
        let said = |learned: Vec<SampleAxis>, here: Vec<SampleAxis>| {
            let said = placed_otherwise("the weights", &[array(learned)], &[array(here)]);
            said.iter().map(|line| line.trim_start_matches("rain[n,h,w]: ").to_string()).collect::<Vec<_>>()
        };
        let tropics = axis("lat", &[-30.0, 30.0], "degrees_north");
        assert_eq!(
            said(vec![south.clone(), east.clone()], vec![tropics, east.clone()]),
            [
                "lat is from -30 to 30 degrees_north, and the weights learned from it from -90 to 90 degrees_north"
            ]
        );
        let level = |places: &[f32]| vec![axis("level", places, "hPa")];
        assert_eq!(
            said(level(&[1000.0, 500.0, 100.0]), level(&[1000.0, 300.0, 100.0])),
            [
                "level is from 1000 to 100 hPa, and the weights learned from it from 1000 to 100 hPa, with other \
              places between"
            ]
        );
        assert_eq!(
            said(level(&[1000.0]), level(&[100.0])),
            ["level is at 100 hPa, and the weights learned from it at 1000 hPa"]
        );
        assert_eq!(
            said(vec![south.clone()], vec![SampleAxis::new("lat".into(), &[], None)]),
            ["nothing says where lat is, and the weights learned from it from -90 to 90 degrees_north"]
        );
        assert_eq!(
            said(vec![south.clone(), east.clone()], vec![east, south]),
            [
                "an axis is called longitude, and the weights learned from lat",
                "an axis is called lat, and the weights learned from longitude"
            ]
        );
        assert!(said(Vec::new(), level(&[1.0])).is_empty());
    }
}
