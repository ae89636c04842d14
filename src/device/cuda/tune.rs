//! Which of cuDNN's engines serves a convolution best: found once for each GPU, library version, shape and type, and
//! kept with the engine's plan, so that the next run starts at once and computes the same bits. An engine that was
//! compiled when it was wanted is kept compiled.
//!
//! Every choice has a file of its own below `$DLTRAIN_CUDNN_CACHE`, else `~/.cache/dltrain/cudnn`, in a directory for
//! the GPU and the versions. They may be deleted at any time. One that cannot be read or written is a warning: the
//! choice is then made again.

use std::env;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::environment;

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TunedChoice {
    /// cuDNN's number of an engine, which of the ways that serve it is (in cuDNN's order: an engine has several
    /// settings), and its plan in cuDNN's own words, where it gives them.
    Engine { number: i64, place: usize, plan: Option<String> },
    /// No engine that does several things at once is faster than one after the other.
    Apart,
    /// Engines of several products are, which are chosen by themselves.
    Together,
}

/// The choices for one machine.
pub struct Tuned {
    directory: Option<PathBuf>,
}

impl Tuned {
    /// For this GPU with these versions.
    pub fn of(machine: &str) -> Tuned {
        Tuned { directory: root().map(|root| root.join(slug(machine))) }
    }

    /// The choice for a convolution, if it was made.
    pub fn choice(&self, convolution: &str) -> Option<TunedChoice> {
        let path = self.path(convolution)?;
        let text = std::fs::read_to_string(&path).ok()?;
        let read = serde_json::from_str(&text).inspect_err(|e| {
            log::warn!("{}: is no choice of cuDNN's engines ({e}); choosing anew", path.display());
        });
        read.ok()
    }

    /// Removes a choice that does not serve any more. Nobody minds who did.
    pub fn forget(&self, convolution: &str) {
        if let Some(Err(e)) = self.path(convolution).map(std::fs::remove_file) {
            log::debug!("the choice for {convolution}: {e}");
        }
    }

    /// Keeps a choice, unless another rank has kept its own meanwhile, which serves (`serves`): returns that. So the
    /// ranks of a node compute alike, and as the next run does.
    pub fn keep(
        &self,
        convolution: &str,
        choice: &TunedChoice,
        serves: impl Fn(&TunedChoice) -> bool,
    ) -> Option<TunedChoice> {
        let path = self.path(convolution)?;
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let written = write(&new, choice).and_then(|()| match std::fs::hard_link(&new, &path) {
            Ok(()) => std::fs::remove_file(&new).map(|()| None),
            Err(_) => match self.choice(convolution).filter(&serves) {
                Some(other) => std::fs::remove_file(&new).map(|()| Some(other)),
                // Nothing that serves, or a file system without links.
                None => std::fs::rename(&new, &path).map(|()| None),
            },
        });
        written.unwrap_or_else(|e| {
            log::warn!("{}: the choice of cuDNN's engines is not kept: {e}", path.display());
            None
        })
    }

    fn path(&self, convolution: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(slug(convolution) + ".json"))
    }
}

fn root() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let root =
        environment::CUDNN_CACHE.value().map(PathBuf::from).or_else(|| Some(cache()?.join("dltrain/cudnn")));
    root.filter(|root| may_hold(root))
}

/// Nothing is kept where something else than a directory is (/dev/null).
fn may_hold(root: &Path) -> bool {
    std::fs::metadata(root).map_or(true, |there| there.is_dir())
}

/// The words of a name that may be a file's, with lines between them.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

fn write(path: &Path, choice: &TunedChoice) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, serde_json::to_string(choice).map_err(std::io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_is_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        assert!(may_hold(&file) && may_hold(directory.path()));
        std::fs::write(&file, "{}").unwrap();
        assert!(!may_hold(&file) && !may_hold(Path::new("/dev/null")));
    }

    #[test]
    fn names_are_told_apart_as_files() {
        assert_eq!(
            slug("NVIDIA H100 80GB HBM3, cuDNN 9.26.0, CUDA 13"),
            "NVIDIA-H100-80GB-HBM3-cuDNN-9.26.0-CUDA-13"
        );
        assert_eq!(slug("../f32 [1, 23] [1, 2]"), "..-f32-1-23-1-2");
        assert_ne!(slug("[1, 23] [1, 2]"), slug("[12, 3] [1, 2]"));
    }

    #[test]
    fn a_choice_is_made_once_for_a_machine_and_survives_a_broken_file() {
        let directory = tempfile::tempdir().unwrap();
        let tuned =
            |machine: &str| Tuned { directory: Some(directory.path().join("below").join(slug(machine))) };
        let engine = |number| TunedChoice::Engine { number, place: 3, plan: Some("{\"a\": \"b\"}".into()) };
        let keep = |machine: &str, convolution: &str, choice: TunedChoice| {
            tuned(machine).keep(convolution, &choice, |other| *other != TunedChoice::Apart)
        };
        assert_eq!(tuned("a").choice("x"), None);
        assert_eq!(keep("a", "x", engine(1)), None);
        assert_eq!(keep("a", "y", TunedChoice::Apart), None);
        assert_eq!(keep("b", "x", engine(2)), None);
        let kept = ["a", "b", "c"].map(|machine| tuned(machine).choice("x"));
        assert_eq!(kept, [Some(engine(1)), Some(engine(2)), None]);
        assert_eq!(tuned("a").choice("y"), Some(TunedChoice::Apart));
        // Who comes second takes what is there, if it serves.
        assert_eq!(keep("a", "x", engine(7)), Some(engine(1)));
        assert_eq!(keep("a", "y", engine(7)), None);
        assert_eq!(["x", "y"].map(|name| tuned("a").choice(name)), [Some(engine(1)), Some(engine(7))]);
        tuned("a").forget("x");
        assert_eq!((tuned("a").choice("x"), keep("a", "x", engine(1))), (None, None));
        let path = tuned("a").path("x").unwrap();
        std::fs::write(&path, "{").unwrap();
        assert_eq!(tuned("a").choice("x"), None);
        assert_eq!(keep("a", "x", engine(5)), None);
        assert_eq!(tuned("a").choice("x"), Some(engine(5)));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 2, "nothing else is left");
    }
}
