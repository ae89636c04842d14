//! Arrays whose numbers are in other files: those that are put together of arrays there (virtual ones), and those whose
//! bytes lie there (external storage). For what a file lacks the HDF5 library gives the fill value or zeros, and says
//! nothing.

use std::path::{Path, PathBuf};

use hdf5::dataset::{DatasetCreate, Layout};
use hdf5::{Dataset, File};

use super::gaps::Gaps;
use super::library;

/// Virtual arrays of virtual ones that are followed.
const DEEPEST: usize = 8;

/// That all is there that a virtual array is put together of. Names with a pattern (`part-%b.h5`) stand for as many
/// files as there are.
///
/// # Errors
/// The array and the file that are not there.
pub(super) fn check_sources(dataset: &Dataset, list: &DatasetCreate) -> Result<(), String> {
    check(dataset, list, 0)
}

fn check(dataset: &Dataset, list: &DatasetCreate, depth: usize) -> Result<(), String> {
    check_external(dataset, list)?;
    if list.layout() != Layout::Virtual || depth == DEEPEST {
        return Ok(());
    }
    let own = dataset.file().map_err(|error| error.to_string())?;
    let mut last: Option<(String, File)> = None;
    for (name, array) in library::sources(list)? {
        if name.contains('%') || array.contains('%') {
            continue;
        }
        let file = match last.take_if(|(known, _)| *known == name) {
            Some((_, file)) => file,
            None if name == "." => own.clone(),
            None => opened(Path::new(&own.filename()), &name)?,
        };
        let source = file.dataset(&array).map_err(|_| {
            format!("numbers of {array} in {name}, which has no such array: HDF5 would give its fill value for them")
        })?;
        let list = source.dcpl().map_err(|error| error.to_string())?;
        check(&source, &list, depth + 1)?;
        if Gaps::of(&source, &list, &source.shape())? != Gaps::None {
            return Err(format!(
                "numbers of {array} in {name}, of which some were never written: HDF5 would give its fill value for \
                 them; read that file itself"
            ));
        }
        last = Some((name, file));
    }
    Ok(())
}

/// That the files which the bytes of an array lie in are as long as they have to be.
fn check_external(dataset: &Dataset, list: &DatasetCreate) -> Result<(), String> {
    let number = dataset.dtype().map_or(0, |datatype| datatype.size());
    let mut left = (dataset.size() * number) as u64;
    let files = list.external();
    if files.is_empty() {
        return Ok(());
    }
    let own = dataset.file().map_err(|error| error.to_string())?.filename();
    let origin = Path::new(&own).parent().unwrap_or(Path::new(""));
    let prefix = std::env::var("HDF5_EXTFILE_PREFIX").unwrap_or_default();
    let prefix = prefix.replace("${ORIGIN}", &origin.to_string_lossy());
    for file in files {
        // Without a prefix the library looks from the directory that it runs in.
        let path = Path::new(&prefix).join(&file.name);
        let needed = left.min(file.size as u64);
        left -= needed;
        let end = (file.offset as u64).saturating_add(needed);
        let bytes = std::fs::metadata(&path).map(|metadata| metadata.len());
        let bytes =
            bytes.map_err(|error| format!("numbers that are in the file {}: {error}", path.display()))?;
        if needed > 0 && bytes < end {
            return Err(format!(
                "numbers that are in the file {} up to byte {end}, and it has {bytes}: it was cut off",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Opens a file of which a virtual array of another has numbers.
fn opened(of: &Path, name: &str) -> Result<File, String> {
    let places = places(of, name);
    if let Some(file) = places.iter().find_map(|place| File::open(place).ok()) {
        return Ok(file);
    }
    let what = match places.iter().any(|place| place.exists()) {
        true => "which cannot be read as HDF5",
        false => "which is not there",
    };
    Err(format!("numbers of the file {name}, {what}: HDF5 would give its fill value for them"))
}

/// Where the HDF5 library looks for a file of which an array of another has numbers, in this order.
fn places(of: &Path, name: &str) -> Vec<PathBuf> {
    let directory = |path: &Path| path.parent().map(Path::to_path_buf).unwrap_or_default();
    let (own, mut places, mut rest) = (directory(of), Vec::new(), Path::new(name));
    if rest.is_absolute() {
        places.push(rest.to_path_buf());
        rest = rest.file_name().map_or(rest, Path::new);
    }
    let prefixes = std::env::var("HDF5_VDS_PREFIX").unwrap_or_default();
    for prefix in prefixes.split(':').filter(|prefix| !prefix.is_empty()) {
        places.push(Path::new(&prefix.replace("${ORIGIN}", &own.to_string_lossy())).join(rest));
    }
    places.extend([own.join(rest), rest.to_path_buf()]);
    places.extend(of.canonicalize().ok().map(|of| directory(&of).join(rest)));
    places
}
