//! Which axes of an array number the samples, by what the file calls them, else by their lengths.

use super::in_quotes;
use crate::fields::{ArrayStorage, FileArray, View};

/// What netCDF files call the axes that a view has names for.
const NAMES: [(char, &[&str]); 5] = [
    ('n', &["time", "t", "sample", "samples", "n", "batch", "record", "realization", "member", "trajectory"]),
    ('c', &["channel", "channels", "variable", "c", "field", "band", "bnds"]),
    (
        'd',
        &[
            "depth",
            "level",
            "lev",
            "plev",
            "height",
            "altitude",
            "model_level_number",
            "pressure",
            "z",
            "deptht",
        ],
    ),
    (
        'h',
        &["latitude", "lat", "y", "nj", "j", "rlat", "projection_y_coordinate", "grid_latitude", "height_px"],
    ),
    ('w', &["longitude", "lon", "x", "ni", "i", "rlon", "projection_x_coordinate", "grid_longitude"]),
];

/// The most channels that an axis of a picture is taken for where nothing is said of it.
const MOST_CHANNELS: usize = 32;

/// A view of an array that may be input or target: one that was written, has several numbers, and is no coordinate.
pub fn view(array: &FileArray) -> Option<View> {
    let several = array.shape.iter().product::<usize>() > 1;
    if !several || array.is_coordinate || array.storage == ArrayStorage::Unwritten {
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
/// the places of another one; else what follows in time; else the smaller of two arrays from the larger. None of arrays
/// with three axes of space.
pub fn command(arrays: &[FileArray], views: &[View], data: &str) -> Option<String> {
    let array = |view: &View| arrays.iter().find(|array| array.name == view.array);
    let mut known: Vec<(&View, &FileArray)> =
        views.iter().filter_map(|view| Some((view, array(view)?))).collect();
    known.sort_by_key(|(_, array)| std::cmp::Reverse(array.bytes()));
    let &(view, input) = known.iter().find(|(_, array)| !array.element.is_integer())?;
    let names = view.names().into_iter().flatten();
    let axes: Vec<(char, usize)> = names.zip(input.shape.iter().copied()).collect();
    let along = |name: char| axes.iter().find(|(of, _)| *of == name).map(|&(_, along)| along);
    if along('d').is_some() {
        return None;
    }
    let is_picture = along('h').is_some() && along('w').is_some();
    let model = if is_picture { "unet_small" } else { "mlp" };
    let quoted = |view: &str| in_quotes(&format!("{view}:standard"));
    let start = format!("dltrain --model {model} --data {data} --input {}", quoted(&view.to_string()));
    if is_picture {
        let points = axes.iter().filter(|(name, _)| *name != 'c');
        let (names, shape): (Vec<String>, Vec<usize>) =
            points.map(|(name, along)| (name.to_string(), *along)).unzip();
        let of_points =
            |array: &&FileArray| array.element.is_integer() && !array.is_coordinate && array.shape == shape;
        if let Some(classes) = arrays.iter().find(of_points) {
            let target = in_quotes(&format!("{}[{}]", classes.name, names.join(",")));
            return Some(format!("{start} --target {target} --loss cross-entropy --classes CLASSES"));
        }
    }
    let samples = along('n')?;
    if is_picture {
        let next = axes.iter().map(|(name, _)| if *name == 'n' { "n+1".into() } else { name.to_string() });
        let next = quoted(&format!("{}[{}]", view.array, next.collect::<Vec<String>>().join(",")));
        let channels = along('c').unwrap_or(1);
        return Some(format!("{start} --target {next} --loss mse --classes {channels}"));
    }
    let is_target = |(other, array): &&(&View, &FileArray)| {
        other.array != view.array && array.shape.first() == Some(&samples)
    };
    let &(target, array) = known.iter().rev().find(is_target)?;
    let (target, numbers) = (quoted(&target.to_string()), array.shape[1..].iter().product::<usize>());
    Some(format!("{start} --target {target} --loss mse --classes {numbers}"))
}

fn letter(axis: &str) -> Option<char> {
    let axis = axis.to_lowercase();
    NAMES.iter().find(|(_, names)| names.contains(&axis.as_str())).map(|&(letter, _)| letter)
}

fn by_lengths(shape: &[usize]) -> Option<Vec<char>> {
    let few = |axis: usize| shape[axis] <= MOST_CHANNELS;
    let letters = match shape.len() {
        1 => "n",
        2 => "nc",
        3 if few(2) && !few(1) && !few(0) => "hwc",
        3 => "nhw",
        4 if few(3) && !few(2) && !few(1) && !few(0) && shape[0] == shape[1] => "dhwc",
        4 if few(3) && !few(2) => "nhwc",
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
        assert_eq!(of(&[1460, 21, 720, 1440]).unwrap(), "nchw");
        assert_eq!(of(&[1; 6]), None);
    }
}
