//! The files of a data set of arrays: which they are, and that all have the same arrays.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::field::Field;
use super::group::{ProcessGroup, agreed};
use crate::error::{Error, Result};
use crate::fields::{FileArray, Universe, ViewSamples};
use crate::files::{Crc, crc32};

/// One file of a data set.
pub struct FieldFile {
    pub path: PathBuf,
    /// One array for each field.
    pub arrays: Vec<(FileArray, ViewSamples)>,
    /// The axes that number samples, of all fields: what they are called, the first number that all fields have, and
    /// how many.
    pub numbered: Vec<(char, i64, usize)>,
}

impl FieldFile {
    /// Samples that all fields have.
    pub fn len(&self) -> usize {
        self.numbered.iter().map(|&(_, _, count)| count).product()
    }
}

/// The axes that number samples, in the order in which they count.
const COUNTED: &str = "ntdhw";

/// By which of its axes an array numbers samples, tiles aside.
fn counted(samples: &ViewSamples) -> Vec<char> {
    samples.numbered().iter().map(|(name, ..)| *name).filter(|name| "nt".contains(*name)).collect()
}

/// The axes of samples that an array has none of, where others number samples by them and it by some: it is then the
/// same along these.
pub fn repeated(samples: &ViewSamples, of_all: &[(char, i64, usize)]) -> Vec<char> {
    let own = counted(samples);
    let missing =
        of_all.iter().map(|&(name, ..)| name).filter(|name| "nt".contains(*name) && !own.contains(name));
    if own.is_empty() { Vec::new() } else { missing.collect() }
}

/// That where arrays number samples by unlike axes one has all of them: else every pair would be a sample.
fn numbered_alike(fields: &[Field], arrays: &[(FileArray, ViewSamples)]) -> Result<()> {
    let all = || fields.iter().zip(arrays);
    let bare = all().find(|(field, _)| field.view.axes.is_none());
    let is_numbered = |(field, (_, samples)): (&Field, &(FileArray, ViewSamples))| {
        field.view.axes.is_some() && !counted(samples).is_empty()
    };
    let bracketed = all().find(|(field, _)| field.view.axes.is_some());
    if let (Some((bare, _)), Some((other, _)), false) = (bare, bracketed, all().any(is_numbered)) {
        return Err(Error::usage(format!(
            "{0} without brackets numbers samples by its first axis, and {1} has no such axis: say in brackets which \
             axes {0} has, n where one numbers samples ({0}[n,h,w]), none of it where all of {0} belongs to every \
             sample ({0}[c])",
            bare.view, other.view
        )));
    }
    let named =
        || all().map(|(field, (_, samples))| (field, counted(samples))).filter(|(_, by)| !by.is_empty());
    let Some((first, by)) = named().next().filter(|_| named().all(|(_, by)| by.len() == 1)) else {
        return Ok(());
    };
    match named().find(|(_, other)| *other != by) {
        Some((other, of_other)) => Err(Error::usage(format!(
            "{} numbers samples by {} and {} by {}: every pair would be a sample; give both the same, or one of them \
             both, and in brackets what all samples have (NAME[c])",
            first.view, by[0], other.view, of_other[0]
        ))),
        None => Ok(()),
    }
}

/// What a flag is called, by the number of its field.
type Flag<'a> = &'a dyn Fn(usize) -> &'static str;

/// The files with their arrays. Of ranks each opens some, so that each file is opened by one, and tells the others what
/// it found. Collective.
///
/// # Errors
/// `Data` for files that cannot be read or that ranks do not have alike; `Usage` for views that do not fit.
pub fn opened(
    ranks: Option<&dyn ProcessGroup>,
    files: Result<Vec<PathBuf>>,
    fields: &[Field],
    flag: Flag<'_>,
) -> Result<Vec<FieldFile>> {
    let look = |path: &PathBuf| -> Result<Vec<FileArray>> {
        let found = FileArray::several(path, fields.iter().map(|field| &*field.view.array))?.into_iter();
        let known = found.enumerate();
        let known = known.map(|(at, array)| array.map_err(|what| Error::data(path, what).context(flag(at))));
        let arrays = known.collect::<Result<Vec<_>>>()?;
        Ok(arrays)
    };
    let arranged = |path: &PathBuf, arrays| arranged(path, arrays, fields, flag);
    let Some(world) = ranks.filter(|ranks| ranks.size() > 1) else {
        let files = files?;
        return files.iter().map(|path| arranged(path, look(path)?)).collect();
    };
    let files = agreed(world, files)?;
    let is_computed = Universe::of(&files[0]).is_some();
    world.check_same(&[("files of samples".into(), list(&files, is_computed))])?;
    if is_computed {
        return files.iter().map(|path| arranged(path, look(path)?)).collect();
    }
    // Nodes may have disks of their own, and ranks other paths: of those who have the same of both, one looks whether
    // each file is there as another rank found it.
    let paths: Vec<&[u8]> = files.iter().map(|file| file.as_os_str().as_encoded_bytes()).collect();
    let place = format!("{:08x} {}", crc32(&paths), world.host());
    let places = world.gather_text(&place)?;
    let are_apart = places.iter().any(|other| *other != place);
    let looks = are_apart && places.iter().position(|other| *other == place) == Some(world.rank());
    // Who has copies of thousands of files has made them in one way.
    let apart = files.len().div_ceil(SKETCHED);
    let sketch = |at: usize, path: &Path| sketch(path, at.is_multiple_of(apart));
    let own = files.iter().enumerate().skip(world.rank()).step_by(world.size()).map(|(at, path)| {
        let arrays = look(path)?;
        Ok((if are_apart { sketch(at, path)? } else { [arrays[0].file_bytes(), 0] }, arrays))
    });
    let own = own.collect::<Result<Vec<_>>>();
    let damaged = |error: serde_json::Error| Error::internal(format!("arrays of files as text: {error}"));
    let text = agreed(world, own.and_then(|own| serde_json::to_string(&own).map_err(damaged)))?;
    let read = |text: &String| serde_json::from_str::<Vec<([u64; 2], Vec<FileArray>)>>(text).map_err(damaged);
    let all = world.gather_text(&text)?.iter().map(read).collect::<Result<Vec<_>>>()?;
    let mut all: Vec<_> = all.into_iter().map(Vec::into_iter).collect();
    let (mut at, ranks) = (0, all.len());
    let mut next = |path: &PathBuf| {
        let found =
            all[at % ranks].next().ok_or_else(|| Error::internal("fewer files than ranks were told"))?;
        let (there, arrays) = found;
        if looks {
            check_copy(path, sketch(at, path)?, there)?;
        }
        at += 1;
        arranged(path, FileArray::found(arrays, path, there[0]))
    };
    agreed(world, files.iter().map(&mut next).collect())
}

/// What ranks must have alike of the files that they were given. Where there are several their names count, and where
/// they lie does not.
fn list(files: &[PathBuf], is_computed: bool) -> String {
    let computed = if is_computed { ", computed" } else { "" };
    if let [_] = files {
        return format!("1{computed}");
    }
    let names = files.iter().filter_map(|file| file.file_name());
    let names: Vec<&[u8]> = names.flat_map(|name| [name.as_encoded_bytes(), b"/"]).collect();
    format!("{} with names whose CRC-32 is {:08x}{computed}", files.len(), crc32(&names))
}

/// Files of which more than their length is compared.
const SKETCHED: usize = 64;

/// Bytes of a file, and the CRC-32 of some of them all over it, where it is asked for.
fn sketch(path: &Path, sums: bool) -> Result<[u64; 2]> {
    const PIECES: u64 = 4;
    const PIECE: u64 = 4096;
    let read = || -> std::io::Result<[u64; 2]> {
        if !sums {
            return Ok([std::fs::metadata(path)?.len(), 0]);
        }
        let (file, mut sum) = (std::fs::File::open(path)?, Crc::new());
        let bytes = file.metadata()?.len();
        for piece in 0..PIECES {
            let mut part = vec![0; bytes.min(PIECE) as usize];
            file.read_exact_at(&mut part, bytes.saturating_sub(PIECE) * piece / (PIECES - 1))?;
            sum.update(&part);
        }
        Ok([bytes, sum.sum().into()])
    };
    read().map_err(|error| Error::data(path, error))
}

/// That a file is here what it is where another rank looked at it.
fn check_copy(path: &Path, here: [u64; 2], there: [u64; 2]) -> Result<()> {
    let what = match [here, there] {
        [[here, _], [there, _]] if here != there => {
            format!("has {here} bytes here, and {there} where another rank reads it")
        }
        [[_, here], [_, there]] if here != there => {
            "is as long as where another rank reads it, and holds something else".into()
        }
        _ => return Ok(()),
    };
    Err(Error::data(path, format!("{what}: every rank needs the same data")))
}

/// The arrays of one file, and which samples all fields have.
fn arranged(path: &Path, found: Vec<FileArray>, fields: &[Field], flag: Flag<'_>) -> Result<FieldFile> {
    let mut arrays = Vec::new();
    let mut numbered: Vec<(char, i64, usize)> = Vec::new();
    for (at, (field, array)) in fields.iter().zip(found).enumerate() {
        let samples = field.view.samples(&array.shape);
        let samples =
            samples.map_err(|what| Error::usage(format!("{} {what} ({})", flag(at), path.display())))?;
        for (name, first, count) in samples.numbered() {
            match numbered.iter_mut().find(|(of, ..)| *of == name) {
                Some((_, _, all)) if "dhw".contains(name) && *all != count => {
                    return Err(Error::usage(format!(
                        "{} {}: {count} tiles along {name}, and {all} of another array: they would be of other places",
                        flag(at),
                        field.view
                    )));
                }
                Some((_, known, all)) => {
                    let end = (*known + *all as i64).min(first + count as i64);
                    *known = (*known).max(first);
                    *all = (end - *known).max(0) as usize;
                }
                None => numbered.push((name, first, count)),
            }
        }
        arrays.push((array, samples));
    }
    numbered_alike(fields, &arrays)?;
    numbered.sort_by_key(|(name, ..)| COUNTED.find(*name));
    let file = FieldFile { path: path.into(), arrays, numbered };
    match file.len() {
        0 => Err(Error::data(path, "no sample has both its input and its target in this file")),
        _ => Ok(file),
    }
}

/// That files have the same arrays, but for how many samples.
pub fn alike(first: &FieldFile, file: &FieldFile) -> Result<()> {
    for ((a, of_a), (b, of_b)) in first.arrays.iter().zip(&file.arrays) {
        let shapes = [of_a.shape(), of_b.shape()];
        let differs = match () {
            () if shapes[0] != shapes[1] => format!("samples of {:?}, and not {:?}", shapes[1], shapes[0]),
            () if a.element != b.element => format!("numbers of {}, and not {}", b.element, a.element),
            () if a.unit != b.unit => {
                let unit = |array: &FileArray| array.unit.clone().unwrap_or("none".into());
                format!("unit {}, and not {}", unit(b), unit(a))
            }
            () => continue,
        };
        let what = format!("{} has {differs} as in {}", b.name, first.path.display());
        return Err(Error::data(&file.path, what));
    }
    Ok(())
}
