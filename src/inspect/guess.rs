//! Which axes of an array number the samples, by what the file calls them, else by their lengths.

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
/// the places of another one; else what follows in time; else the smaller of two arrays from the larger.
pub fn command(arrays: &[FileArray], views: &[View], data: &str) -> Option<String> {
    let array = |view: &View| arrays.iter().find(|array| array.name == view.array);
    let mut known: Vec<(&View, &FileArray)> =
        views.iter().filter_map(|view| Some((view, array(view)?))).collect();
    known.sort_by_key(|(_, array)| std::cmp::Reverse(array.bytes()));
    let &(view, input) = known.iter().find(|(_, array)| !array.element.is_integer())?;
    let letters = letters_of(view);
    let places: Vec<(char, usize)> = letters.iter().copied().zip(input.shape.iter().copied()).collect();
    let [pictures, volumes] = ["hw", "d"].map(|axes| axes.chars().all(|axis| letters.contains(&axis)));
    if volumes {
        // Cubes are not trained from so far.
        return None;
    }
    let model = if pictures { "unet_small" } else { "mlp" };
    let start = format!("dltrain --model {model} --data {data} --input '{view}:standard'");
    let without =
        |axis: char| places.iter().filter(|(letter, _)| *letter != axis).copied().collect::<Vec<_>>();
    let [of_points, of_samples] =
        [without('c'), places.iter().filter(|(letter, _)| *letter == 'n').copied().collect()];
    let classes = arrays.iter().find(|array| {
        let shape = |places: &[(char, usize)]| places.iter().map(|(_, along)| *along).collect::<Vec<_>>();
        array.element.is_integer() && !array.is_coordinate && array.shape == shape(&of_points) && pictures
    });
    if let Some(classes) = classes {
        let axes = of_points.iter().map(|(letter, _)| letter.to_string()).collect::<Vec<_>>().join(",");
        let target = format!("{}[{axes}]", classes.name);
        return Some(format!("{start} --target '{target}' --loss cross-entropy --classes CLASSES"));
    }
    let channels = places.iter().find(|(letter, _)| *letter == 'c').map_or(1, |(_, along)| *along);
    if pictures && letters.contains(&'n') {
        let next = view.to_string().replacen("[n", "[n+1", 1);
        return Some(format!("{start} --target '{next}:standard' --loss mse --classes {channels}"));
    }
    let is_target = |(other, array): &&(&View, &FileArray)| {
        other.array != view.array && array.shape.first() == of_samples.first().map(|(_, along)| along)
    };
    let &(target, array) = known.iter().rev().find(is_target).filter(|_| !of_samples.is_empty())?;
    let numbers: usize = array.shape[1..].iter().product();
    Some(format!("{start} --target '{target}:standard' --loss mse --classes {numbers}"))
}

fn letters_of(view: &View) -> Vec<char> {
    let text = view.to_string();
    let axes = text.split_once('[').map_or("", |(_, axes)| axes.trim_end_matches(']'));
    axes.split(',').filter_map(|axis| axis.chars().next()).collect()
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
