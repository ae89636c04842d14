//! The files that a path means: one, those of a directory, or those whose names fit a pattern.

use std::path::{Path, PathBuf};

use super::universe::Universe;
use crate::error::{Error, OrError, Result};

/// Files of a directory that are taken.
const ENDINGS: [&str; 6] = ["h5", "hdf5", "hdf", "he5", "nc", "nc4"];

/// The files that a path means: itself, those of a directory, those whose names fit where it has * or ?, or
/// universes.
///
/// # Errors
/// `Data`: there is none.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    if let Some(universes) = Universe::set(path) {
        return universes;
    }
    // One universe has a name of its own, by which alone what is inside opens it.
    if path.to_string_lossy().split(':').next() == Some("synthetic") && !path.exists() {
        return Err(Universe::no_set(path));
    }
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).or_data(path)? {
            let file = entry.or_data(path)?.path();
            let ending = file.extension().map(|ending| ending.to_ascii_lowercase());
            if ending.is_some_and(|ending| ENDINGS.iter().any(|&known| ending == known)) && file.is_file() {
                files.push(file);
            }
        }
    } else if !path.exists() && path.to_string_lossy().contains(['*', '?']) {
        let pattern = path.to_string_lossy();
        for file in glob::glob(&pattern).or_data(path)? {
            let file = file.or_data(path)?;
            files.extend(file.is_file().then_some(file));
        }
        if files.is_empty() {
            return Err(Error::data(path, "no file has such a name"));
        }
    } else {
        files.push(path.to_path_buf());
    }
    files.sort_by_cached_key(|file| in_order(file));
    match files.is_empty() {
        true => Err(Error::data(path, format!("no file whose name ends in .{}", ENDINGS.join(", .")))),
        false => Ok(files),
    }
}

/// By which files are in order: their names, of which numbers count as numbers (run9 before run10).
fn in_order(path: &Path) -> Vec<(String, Option<u128>)> {
    let text = path.to_string_lossy();
    let mut parts: Vec<(String, Option<u128>)> = Vec::new();
    for letter in text.chars() {
        match (letter.to_digit(10), parts.last_mut()) {
            (Some(digit), Some((_, number))) => {
                *number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(u128::from(digit)))
            }
            (Some(digit), None) => parts.push((String::new(), Some(u128::from(digit)))),
            (None, Some((text, None))) => text.push(letter),
            (None, _) => parts.push((letter.to_string(), None)),
        }
    }
    parts
}
