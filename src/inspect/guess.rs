//! Which axes of an array number the samples, by what the file calls them, else by their lengths.

use std::collections::HashMap;

use super::numbers::ArrayNumbers;
use super::{Alike, in_quotes};
use crate::config::values::lists;
use crate::fields::{ArrayStorage, FileArray, View};

/// What netCDF files call the axes that a view has names for.
const NAMES: [(char, &str); 5] = [
    ('n', "time t sample samples n batch record realization member trajectory"),
    ('c', "channel channels variable c field band bnds"),
    ('d', "depth level lev plev height altitude model_level_number pressure z deptht"),
    ('h', "latitude lat y nj j rlat projection_y_coordinate grid_latitude height_px"),
    ('w', "longitude lon x ni i rlon projection_x_coordinate grid_longitude"),
];

/// The most channels that an axis of a picture is taken for where nothing is said of it.
const MOST_CHANNELS: usize = 32;

/// The edge of the smallest cube that arrays are taken for by their lengths.
const SMALLEST_CUBE: usize = 16;

/// The edge of the smallest cube that cosmoflow takes.
const COSMOFLOW: usize = 32;

/// Samples of which a batch of the size that a run has by itself may be made.
const ENOUGH: usize = 64;

/// Whether an array may be input or target: one that was written, has several numbers, and is no coordinate.
fn may_be_read(array: &FileArray) -> bool {
    let several = array.shape.iter().product::<usize>() > 1;
    several && !array.is_coordinate && array.storage != ArrayStorage::Unwritten
}

/// Why there is no view of an array, where nothing else that is said of it tells.
pub fn why_not(array: &FileArray) -> Option<String> {
    if array.shape.contains(&0) {
        return Some("it has no numbers".into());
    }
    let is_odd = may_be_read(array) && view(array).is_none();
    is_odd.then(|| format!("it has {} axes, and --view says which these are", array.shape.len()))
}

/// A view of an array that may be input or target.
pub fn view(array: &FileArray) -> Option<View> {
    if !may_be_read(array) {
        return None;
    }
    let named: Vec<Option<char>> = array.axes.iter().map(|axis| letter(axis)).collect();
    let distinct = |letters: &[char]| (1..letters.len()).all(|at| !letters[..at].contains(&letters[at]));
    let letters = named.into_iter().collect::<Option<Vec<char>>>().filter(|letters| distinct(letters));
    let letters = letters.or_else(|| by_lengths(&array.shape))?;
    let axes = letters.iter().map(char::to_string).collect::<Vec<_>>().join(",");
    format!("{}[{axes}]", array.name).parse().ok()
}

/// A command that trains from arrays with these views, as a first try: classes of points where an array of integers has
/// the places of another one; else what follows in time; else the smaller of two arrays from the larger. Of arrays with
/// three axes of space, numbers of the cube that each file is; none of arrays whose numbers are all the same. `known`:
/// the numbers of those arrays that could be read.
pub fn command(
    kind: &Alike,
    views: &[View],
    known: &HashMap<&str, ArrayNumbers>,
    data: &str,
) -> Option<String> {
    let differs = |array: &&FileArray| !known.get(&*array.name).is_some_and(ArrayNumbers::are_alike);
    let with_array = |view| Some((view, kind.array(view).filter(differs)?));
    let mut arrays: Vec<(&View, &FileArray)> = views.iter().filter_map(with_array).collect();
    arrays.sort_by_key(|(_, array)| std::cmp::Reverse(array.bytes()));
    if let Some(command) = of_cubes(kind, &arrays, data) {
        return Some(command);
    }
    let &(view, input) = arrays.iter().find(|(_, array)| !may_be_classes(array))?;
    let names = view.names().into_iter().flatten();
    let axes: Vec<(char, usize)> = names.zip(input.shape.iter().copied()).collect();
    let along = |name: char| axes.iter().find(|(of, _)| *of == name).map(|&(_, along)| along);
    if along('d').is_some() {
        return None;
    }
    let is_picture = along('h').is_some() && along('w').is_some();
    let edge = along('h').min(along('w')).filter(|_| is_picture);
    let model = edge.map_or(Some("mlp".into()), network_of)?;
    let standard = |view: &View| in_quotes(&format!("{view}:standard"));
    let train = |target: &View, how: String| {
        let samples = kind.samples(view).min(kind.samples(target));
        let missing =
            [view, target].map(|view| known.get(&*view.array).is_some_and(ArrayNumbers::are_missing));
        let mask = if missing.contains(&true) { " --missing mask" } else { "" };
        let (batch, input) = (batch(samples), standard(view));
        format!("dltrain --model {model} --data {data} --input {input} --target {how}{mask}{batch}")
    };
    if is_picture {
        let points = axes.iter().filter(|(name, _)| *name != 'c');
        let (names, shape): (Vec<String>, Vec<usize>) =
            points.map(|(name, along)| (name.to_string(), *along)).unzip();
        let of_points =
            |array: &&FileArray| may_be_classes(array) && !array.is_coordinate && array.shape == shape;
        let mut of_points = kind.arrays().iter().filter(of_points);
        let classes = of_points.find_map(|array| Some((array, known.get(&*array.name)?.classes()?)));
        if let Some((array, classes)) = classes {
            let target: View = format!("{}[{}]", array.name, names.join(",")).parse().ok()?;
            let classes = classes.max(2);
            let how = format!("{} --loss cross-entropy --classes {classes}", in_quotes(&target.to_string()));
            return Some(train(&target, how));
        }
    }
    let samples = along('n')?;
    if is_picture {
        let (next, channels) = (next(kind, view, &axes)?, along('c').unwrap_or(1));
        return Some(train(&next, format!("{} --loss mse --classes {channels}", standard(&next))));
    }
    let is_target = |(other, array): &&(&View, &FileArray)| {
        other.array != view.array && array.shape.first() == Some(&samples)
    };
    let &(target, array) = arrays.iter().rev().find(is_target)?;
    let numbers = array.shape[1..].iter().product::<usize>();
    Some(train(target, format!("{} --loss mse --classes {numbers}", standard(target))))
}

/// What follows each sample of a view, where each file has pairs of a sample and the next.
fn next(kind: &Alike, view: &View, axes: &[(char, usize)]) -> Option<View> {
    kind.fewest(view).filter(|&places| places > 1)?;
    let next = axes.iter().map(|(name, _)| if *name == 'n' { "n+1".into() } else { name.to_string() });
    format!("{}[{}]", view.array, next.collect::<Vec<String>>().join(",")).parse().ok()
}

/// A network of pictures whose shorter edge this is.
fn network_of(edge: usize) -> Option<String> {
    /// The smallest edge that `unet_small` takes.
    const UNET_SMALL: usize = 16;
    match edge {
        UNET_SMALL.. => Some("unet_small".into()),
        2.. => Some(format!("unet:depth={},width=16", edge.ilog2())),
        _ => None,
    }
}

/// The same where each file is one cube, with a few numbers that are to be found out from it.
fn of_cubes(kind: &Alike, arrays: &[(&View, &FileArray)], data: &str) -> Option<String> {
    let &(view, input) = arrays.first()?;
    let axes: String = view.names().into_iter().flatten().collect();
    if !["dhwc", "cdhw", "dhw"].contains(&&*axes) {
        return None;
    }
    let edges = axes.chars().zip(&input.shape).filter(|(name, _)| *name != 'c').map(|(_, edge)| *edge);
    let is_small = |array: &&FileArray| array.shape.len() == 1 && array.shape[0] <= MOST_CHANNELS;
    let target = arrays.iter().map(|&(_, array)| array).find(is_small)?;
    if edges.min()? < COSMOFLOW {
        return None;
    }
    // Integers are counts.
    let how = if input.element.is_integer() { "log1p" } else { "standard" };
    Some(format!(
        "dltrain --model cosmoflow --data {data} --input {} --target {} --loss mse --classes {}{}",
        in_quotes(&format!("{view}:{how}")),
        in_quotes(&format!("{}[c]", target.name)),
        target.shape[0],
        batch(kind.samples(view))
    ))
}

/// The batch of so few samples; none where that which a run has by itself will do.
fn batch(samples: usize) -> String {
    if samples < ENOUGH { format!(" --batch {}", samples.clamp(1, 4)) } else { String::new() }
}

/// Whether an array's numbers may be numbers of classes. Packed integers stand for real numbers.
pub fn may_be_classes(array: &FileArray) -> bool {
    array.element.is_integer() && array.packing.is_none()
}

fn letter(axis: &str) -> Option<char> {
    let axis = axis.to_lowercase();
    NAMES.iter().find(|(_, names)| lists(names, &axis)).map(|&(letter, _)| letter)
}

fn by_lengths(shape: &[usize]) -> Option<Vec<char>> {
    let few = |axis: usize| shape[axis] <= MOST_CHANNELS;
    let is_cube = |axes: &[usize]| axes.iter().all(|&along| along == axes[0]) && axes[0] >= SMALLEST_CUBE;
    let letters = match shape.len() {
        1 => "n",
        2 => "nc",
        3 if few(2) && !few(1) && !few(0) => "hwc",
        3 => "nhw",
        // Small cubes, and small pictures, have axes that are no longer than many channels.
        4 if is_cube(&shape[..3]) && shape[3] < shape[0] && few(3) => "dhwc",
        4 if few(3) && !few(2) && !few(1) && !few(0) && shape[0] == shape[1] => "dhwc",
        4 if few(3) && (!few(2) || is_cube(&shape[1..3]) && shape[3] < shape[1]) => "nhwc",
        4 => "nchw",
        5 if few(4) && !few(3) => "ndhwc",
        5 => "ncdhw",
        _ => return None,
    };
    Some(letters.chars().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_known_by_their_names_and_lengths() {
        assert_eq!(["Time", "lat", "x", "bogus"].map(letter), [Some('n'), Some('h'), Some('w'), None]);
        let of = |shape: &[usize]| by_lengths(shape).map(|letters| letters.iter().collect::<String>());
        assert_eq!(of(&[768, 1152, 16]).unwrap(), "hwc");
        assert_eq!(of(&[512, 512, 512, 4]).unwrap(), "dhwc");
        assert_eq!([of(&[32, 32, 32, 4]).unwrap(), of(&[100, 32, 32, 3]).unwrap()], ["dhwc", "nhwc"]);
        assert_eq!(of(&[1460, 21, 720, 1440]).unwrap(), "nchw");
        assert_eq!(of(&[1; 6]), None);
    }
}
