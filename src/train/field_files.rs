//! The files of a data set of arrays, each of which one rank opens. It tells the others what it found.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::comm::World;
use crate::data::ArraysOf;
use crate::error::{Error, Result};
use crate::fields::{FileArray, Universe};
use crate::files::{Crc, crc32};

/// The files with their arrays. Collective.
///
/// # Errors
/// `Data` for files that cannot be read or that ranks do not have alike.
pub fn find(
    world: &World,
    files: Result<Vec<PathBuf>>,
    look: ArraysOf<'_>,
) -> Result<Vec<(PathBuf, Vec<FileArray>)>> {
    let files = world.agree(files)?;
    let is_computed = Universe::of(&files[0]).is_some();
    world.check_same(&[("files of samples".into(), list(&files, is_computed))])?;
    if is_computed || world.size() == 1 {
        return files.into_iter().map(|path| Ok((path.clone(), look(&path)?))).collect();
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
    let text = world.agree(own.and_then(|own| serde_json::to_string(&own).map_err(damaged)))?;
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
        Ok((path.clone(), FileArray::found(arrays, path, there[0])))
    };
    world.agree(files.iter().map(&mut next).collect())
}

/// What ranks must have alike of the files that they were given. Where there are several their names count, and where
/// they lie does not.
pub fn list(files: &[PathBuf], is_computed: bool) -> String {
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
