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
