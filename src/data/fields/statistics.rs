//! By what a file says that an array is rescaled: two arrays of numbers for each channel (`:standard(FILE)`,
//! `:minmax(FILE)`).

use std::path::Path;

use crate::error::{Error, Result};
use crate::fields::{ArrayBox, ArrayReader, Arrays, FileArray};
use crate::graph::squeezed;

/// What a file says of the channels of an array.
pub struct FileStatistics {
    /// For each channel the least and the greatest number, or mean and deviation.
    pub channels: Vec<[f64; 2]>,
    /// "mean_t2m and std_t2m of stats.h5".
    pub said: String,
}

impl FileStatistics {
    /// What a file says of an array in this unit, in two arrays whose names begin so.
    ///
    /// # Errors
    /// `Data`: it has no two such arrays, or several, or numbers in another unit or that nothing is rescaled by.
    pub fn of(
        path: &Path,
        starts: [&str; 2],
        (array, channels): (&str, usize),
        unit: Option<&str>,
    ) -> Result<FileStatistics> {
        let arrays = Arrays::of(path)?.arrays;
        let [first, second] = pair(path, &arrays, starts, (array, channels))?;
        for said in [first, second] {
            if let Some((own, unit)) = said.unit.as_deref().zip(unit).filter(|(own, unit)| own != unit) {
                let what = format!(
                    "{} is in {own}, and {array} in {unit}: convert one; where both mean the same, give both the same \
                     attribute units",
                    said.name
                );
                return Err(Error::data(path, what));
            }
        }
        let [low, high] = [numbers(first, channels)?, numbers(second, channels)?];
        let both: Vec<[f64; 2]> = low.into_iter().zip(high).map(|(low, high)| [low, high]).collect();
        for (channel, &[low, high]) in both.iter().enumerate() {
            let what = match starts {
                ["min", _] if low > high => format!(
                    "channel {channel}: {} is {low} and {} {high}, which is less",
                    first.name, second.name
                ),
                ["mean", _] if high <= 0.0 => {
                    format!("channel {channel}: {} is {high}, and a deviation is more than 0", second.name)
                }
                _ if !low.is_finite() || !high.is_finite() => {
                    format!("channel {channel}: {} or {} is no number", first.name, second.name)
                }
                _ => continue,
            };
            return Err(Error::data(path, what));
        }
        let said = format!("by {} and {} of {}", first.name, second.name, path.display());
        Ok(FileStatistics { channels: both, said })
    }
}

/// The two arrays of a file whose names begin so and that have a number for each channel: those that are named after
/// an array, or the only ones.
fn pair<'a>(
    path: &Path,
    arrays: &'a [FileArray],
    starts: [&str; 2],
    (own, channels): (&str, usize),
) -> Result<[&'a FileArray; 2]> {
    let candidates = starts.map(|start| {
        Vec::from_iter(arrays.iter().filter_map(|array| {
            let is_own = is_named_after(&array.name, start, own)?;
            Some((array, is_own))
        }))
    });
    let fits = |array: &FileArray| {
        let own = squeezed(&array.shape);
        array.shape.is_empty() || own == [channels] || (channels == 1 && own.is_empty())
    };
    let chosen = [0, 1].map(|at| {
        let fitting = || candidates[at].iter().filter(|(array, _)| fits(array));
        let own: Vec<&FileArray> = fitting().filter(|(_, is_own)| *is_own).map(|(array, _)| *array).collect();
        (fitting().map(|(array, _)| *array).collect::<Vec<_>>(), own)
    });
    match &chosen {
        [(first, _), (second, _)] if first.len() == 1 && second.len() == 1 => {
            return Ok([first[0], second[0]]);
        }
        [(_, first), (_, second)] if first.len() == 1 && second.len() == 1 => {
            return Ok([first[0], second[0]]);
        }
        _ => {}
    }
    let named = |of: &[(&FileArray, bool)]| {
        let each = of.iter().map(|(array, _)| format!("{} of {:?}", array.name, array.shape));
        if of.is_empty() { "none".into() } else { each.collect::<Vec<_>>().join(", ") }
    };
    for (at, start) in starts.iter().enumerate() {
        if chosen[at].0.is_empty() {
            let what = format!(
                "it has no array of {channels} numbers whose name begins with {start} (such names: {})",
                named(&candidates[at])
            );
            return Err(Error::data(path, what));
        }
    }
    let last = last_of(own);
    let [a, b] = starts;
    Err(Error::data(
        path,
        format!(
            "which arrays rescale {own} is in doubt: {}; {}. Name one pair after it ({a}_{last} and {b}_{last}), or \
             give a file with one pair",
            named(&candidates[0]),
            named(&candidates[1])
        ),
    ))
}

/// `None` where an array is none whose name begins so; else whether it is named after another one: "mean_t2m",
/// "t2m_mean", "t2m/mean", "mean/t2m".
fn is_named_after(name: &str, start: &str, own: &str) -> Option<bool> {
    let [name, own] = [name, last_of(own)].map(str::to_ascii_lowercase);
    let is_between = |letter: char| !letter.is_alphanumeric();
    let (groups, last) = name.rsplit_once('/').unwrap_or(("", &name));
    let before = last.strip_suffix(&*own).and_then(|rest| rest.strip_suffix(is_between));
    let behind = last.strip_prefix(&*own).and_then(|rest| rest.strip_prefix(is_between));
    let mut groups = groups.split('/');
    match () {
        () if [before, behind].into_iter().flatten().any(|rest| rest.starts_with(start)) => Some(true),
        () if last == own && groups.any(|group| group.starts_with(start)) => Some(true),
        () if last.starts_with(start) => Some(groups.any(|group| group == own)),
        () => None,
    }
}

/// The name of an array without its groups.
fn last_of(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// The numbers of an array; one number is that of all channels.
fn numbers(array: &FileArray, channels: usize) -> Result<Vec<f64>> {
    let mut values = vec![0f32; array.shape.iter().product()];
    let all = ArrayBox { first: vec![0; array.shape.len()], len: array.shape.clone() };
    ArrayReader::default().read_box(array, &all, &mut values)?;
    let of = |channel: usize| f64::from(values[if array.shape.is_empty() { 0 } else { channel }]);
    Ok((0..channels).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_statistics_are_those_of_an_array_in_either_order() {
        for (name, expected) in [
            ("mean_t2m", Some(true)),
            ("T2M_Mean", Some(true)),
            ("mean.t2m", Some(true)),
            ("stats/t2m/mean", Some(true)),
            ("means/t2m", Some(true)),
            ("t2m/mean_of_all", Some(true)),
            ("mean", Some(false)),
            ("mean_msl", Some(false)),
            ("msl/mean", Some(false)),
            // Of another array, whose name ends alike.
            ("mean_xt2m", Some(false)),
            ("msl_mean", None),
            ("t2m", None),
            ("sqmean", None),
        ] {
            assert_eq!(is_named_after(name, "mean", "era5/t2m"), expected, "{name}");
        }
    }
}
