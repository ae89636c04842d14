//! The files that a path means: one, those of a directory, or those whose names fit a pattern.

use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

use super::universe::Universe;
use crate::error::{Error, OrError, Result};

/// Files of a directory that are taken.
const ENDINGS: [&str; 6] = ["h5", "hdf5", "hdf", "he5", "nc", "nc4"];

/// The files that a path means: itself, those of a directory, those whose names fit where it is a pattern, or
/// universes.
///
/// # Errors
/// `Usage`: it is the name of a set that nobody computes. `Data`: there is no file, or what is called like one is none.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    if let Some(universes) = Universe::set(path) {
        return universes;
    }
    // One universe has a name of its own, by which alone what is inside opens it.
    if path.to_string_lossy().split(':').next() == Some("synthetic") && !path.exists() {
        return Err(Universe::no_set(path));
    }
    let text = path.to_string_lossy();
    let is_there = path.symlink_metadata().is_ok();
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).or_data(path)? {
            let file = entry.or_data(path)?.path();
            if is_called_a_file(&file) {
                check_file(&file)?;
                files.push(file);
            }
        }
        if files.is_empty() {
            return Err(Error::data(path, format!("no file whose name ends in .{}", ENDINGS.join(", ."))));
        }
    } else if !is_there && is_pattern(&text) {
        check_links_above(path)?;
        for file in glob::glob(&text).or_data(path)? {
            let file = file.or_data(path)?;
            // Files lie beside directories.
            if !file.is_dir() || is_called_a_file(&file) {
                check_file(&file)?;
                files.push(file);
            }
        }
        if files.is_empty() {
            let braces = if text.contains('{') { BRACES } else { "" };
            return Err(Error::data(path, format!("no file has such a name{braces}")));
        }
    } else if !is_there && text.contains('{') {
        return Err(Error::data(path, format!("no file has such a name{BRACES}")));
    } else {
        // A universe is computed.
        if Universe::of(path).is_none() {
            check_file(path)?;
        }
        files.push(path.to_path_buf());
    }
    files.sort_by_cached_key(|file| in_order(file));
    Ok(files)
}

const BRACES: &str = ": patterns are *, ? and [..], and braces are the shell's";

/// Whether a path, of which there is nothing, is a pattern.
fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?']) || text.contains('[') && glob::Pattern::new(text).is_ok()
}

/// Whether a name ends as those of files of arrays do.
fn is_called_a_file(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
    ending.is_some_and(|ending| ENDINGS.iter().any(|&known| ending == known))
}

/// That what is called like a file is one: else its samples would be left out.
fn check_file(path: &Path) -> Result<()> {
    let what = match path.metadata() {
        Ok(known) if known.is_file() => return Ok(()),
        Ok(known) if known.is_dir() => "is a directory, which is called like a file: give it another name",
        Ok(_) => "is no regular file",
        Err(error) if error.kind() == NotFound && path.is_symlink() => NOWHERE,
        Err(error) => return Err(Error::data(path, error)),
    };
    Err(Error::data(path, what))
}

const NOWHERE: &str = "is a link that leads nowhere: is the file system mounted that it leads to?";

/// That no link leads nowhere where a pattern has directories: their files would be left out.
fn check_links_above(pattern: &Path) -> Result<()> {
    let above = pattern.ancestors().skip(1).map(Path::to_string_lossy);
    for above in above.filter(|above| is_pattern(above) && !above.ends_with("**")) {
        let found = glob::glob(&above).or_data(pattern)?;
        if let Some(link) = found.flatten().find(|path| path.is_symlink() && path.metadata().is_err()) {
            return Err(Error::data(&link, NOWHERE));
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    /// What is called like a file and is none would be samples that nobody misses.
    #[test]
    fn a_file_that_is_none_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["set", "runs/0"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["set/a.h5", "set/b.nc", "set/note.txt", "runs/0/out.h5"] {
            fs::write(at(name), "").unwrap();
        }
        let refused = |pattern: &str, name: &str, what: &str| {
            let error = files_of(&at(pattern)).unwrap_err().message;
            assert!(error.contains(&format!("{name}: {what}")), "{pattern}: {error}");
        };
        assert_eq!(files_of(&at("set")).unwrap(), [at("set/a.h5"), at("set/b.nc")]);
        assert_eq!(files_of(&at("runs/*/out.h5")).unwrap(), [at("runs/0/out.h5")]);
        fs::create_dir(at("set/more")).unwrap();
        assert_eq!(files_of(&at("set/*[!t]")).unwrap(), [at("set/a.h5"), at("set/b.nc")]);
        symlink(at("set/a.h5"), at("set/there.h5")).unwrap();
        assert_eq!(files_of(&at("set/*.h5")).unwrap(), [at("set/a.h5"), at("set/there.h5")]);
        let nowhere = "is a link that leads nowhere: is the file system mounted that it leads to?";
        for wanted in ["set", "set/*.h5", "set/c*", "set/c.h5"] {
            symlink("/nowhere", at("set/c.h5")).unwrap();
            refused(wanted, "set/c.h5", nowhere);
            fs::remove_file(at("set/c.h5")).unwrap();
        }
        symlink("/nowhere", at("runs/1")).unwrap();
        refused("runs/*/out.h5", "runs/1", nowhere);
        fs::remove_file(at("runs/1")).unwrap();
        fs::create_dir(at("runs/1")).unwrap();
        symlink("/nowhere", at("runs/1/out.h5")).unwrap();
        refused("runs/*/out.h5", "runs/1/out.h5", nowhere);
        let socket = UnixListener::bind(at("set/d.h5")).unwrap();
        for wanted in ["set", "set/*", "set/d.h5"] {
            refused(wanted, "set/d.h5", "is no regular file");
        }
        drop(socket);
        fs::remove_file(at("set/d.h5")).unwrap();
        fs::create_dir(at("set/e.h5")).unwrap();
        for wanted in ["set", "set/*.h5"] {
            refused(wanted, "set/e.h5", "is a directory, which is called like a file");
        }
    }

    #[test]
    fn brackets_are_a_pattern_unless_a_file_is_called_so() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["f0.h5", "f1.h5", "f2.h5"] {
            fs::write(at(name), "").unwrap();
        }
        assert_eq!(files_of(&at("f[01].h5")).unwrap(), [at("f0.h5"), at("f1.h5")]);
        fs::write(at("f[01].h5"), "").unwrap();
        assert_eq!(files_of(&at("f[01].h5")).unwrap(), [at("f[01].h5")]);
        for (name, what) in [
            ("f{0,1}.h5", "no file has such a name: patterns are *, ? and [..], and braces are the shell's"),
            ("*{0,1}.h5", "no file has such a name: patterns are *, ? and [..], and braces are the shell's"),
            ("f[34].h5", "no file has such a name"),
            ("f[3.h5", "No such file"),
            ("f3.h5", "No such file"),
        ] {
            let error = files_of(&at(name)).unwrap_err().message;
            assert!(error.contains(what), "{name}: {error}");
        }
    }
}
