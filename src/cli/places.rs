//! What flags mean by a path: no two may mean one, unless both only read it, or both are directories.

use std::path::{Path, PathBuf};

use dltrain::error::{Error, Result};
use dltrain::{files, record};

/// What becomes of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Use {
    /// A file is read there, or a directory.
    Read,
    /// A file is made there.
    Write,
    /// Files are made in it.
    Directory,
}

/// Compares the paths that flags were given.
///
/// # Errors
/// `Usage`, naming two flags.
pub fn check(places: &[(&str, Option<&Path>, Use)]) -> Result<()> {
    let given = places.iter().filter_map(|&(flag, path, what)| Some((flag, path?, what)));
    let given: Vec<_> = given.map(|(flag, path, what)| (flag, path, what, files::whole(path))).collect();
    for (index, (flag, path, what, place)) in given.iter().enumerate() {
        let takes_hdf5 = *flag == "--checkpoint" || *flag == "--results" || record::is_hdf5(path);
        if *what != Use::Read && takes_hdf5 && path.to_str().is_none() {
            return Err(Error::usage(format!(
                "{flag} {}: the HDF5 library writes to names in UTF-8 alone, and this is none; choose another",
                path.display()
            )));
        }
        let clash = |other: &&(&str, &Path, Use, PathBuf)| {
            other.3 == *place && (*what == Use::Write || other.2 == Use::Write)
        };
        let has_such = |of: &(&str, &Path, Use, PathBuf)| {
            let name = place.file_name().unwrap_or_default().to_string_lossy();
            of.0 == "--checkpoint" && place.parent() == Some(&of.3) && record::is_checkpoint_name(&name)
        };
        if *what == Use::Write && given.iter().any(has_such) {
            return Err(Error::usage(format!(
                "{flag} {}: --checkpoint has files of this name in its directory; choose another",
                path.display()
            )));
        }
        if let Some((other, ..)) = given[..index].iter().find(clash) {
            return Err(Error::usage(format!(
                "{flag} {}: {other} means the same file; each needs one of its own",
                path.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_hdf5_cannot_write_to_is_refused_before_anything_is_trained() {
        use std::os::unix::ffi::OsStrExt;
        let name = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        let refused = |flag, name: PathBuf, what| check(&[(flag, Some(&name), what)]).is_err();
        assert!(refused("--checkpoint", name(b"kept\xe9"), Use::Directory));
        assert!(refused("--results", name(b"\xe9.h5"), Use::Write));
        assert!(refused("--save-weights", name(b"\xe9.h5"), Use::Write));
        assert!(refused("--save-weights", name(b"\xe9.hdf5"), Use::Write));
        assert!(!refused("--save-weights", name(b"\xe9.safetensors"), Use::Write));
        assert!(!refused("--data", name(b"\xe9.h5"), Use::Read));
    }

    #[test]
    fn names_of_checkpoints_are_theirs() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("kept")).unwrap();
        let kept = directory.path().join("kept");
        let refused = |file: &str| {
            let file = directory.path().join(file);
            let (results, kept) = (("--results", Some(&*file), Use::Write), Some(&*kept));
            check(&[results, ("--checkpoint", kept, Use::Directory)])
        };
        for file in ["kept/best.h5", "kept/step-00000044.h5", "kept/../kept/best.h5"] {
            assert!(
                refused(file).unwrap_err().message.contains("--checkpoint has files of this name"),
                "{file}"
            );
        }
        for file in ["kept/run.h5", "best.h5", "kept/steps.h5"] {
            refused(file).unwrap();
        }
    }

    #[test]
    fn one_file_is_one_file_however_it_is_called() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::os::unix::fs::symlink(at("sub"), at("link")).unwrap();
        let [file, same, linked] = ["sub/a.h5", "sub/../link/./a.h5", "link/a.h5"].map(at);
        let clash = |a: (&Path, Use), b: (&Path, Use)| {
            check(&[("--a", Some(a.0), a.1), ("--none", None, Use::Write), ("--b", Some(b.0), b.1)]).is_err()
        };
        assert!(clash((&file, Use::Write), (&same, Use::Write)));
        assert!(clash((&file, Use::Write), (&linked, Use::Read)));
        assert!(clash((&linked, Use::Directory), (&file, Use::Write)));
        assert!(!clash((&file, Use::Write), (&at("a.h5"), Use::Write)));
        assert!(!clash((&file, Use::Read), (&same, Use::Read)));
        assert!(!clash((&file, Use::Directory), (&same, Use::Directory)));
        // A place that cannot be written is somebody else's to say.
        assert!(clash((Path::new("/nowhere/a"), Use::Write), (Path::new("/nowhere/a"), Use::Write)));
    }
}
