//! Which of cuDNN's engines serves a convolution best, by timing: found once for each GPU, library version, shape and type,
//! and kept in a file, so that the next run starts at once and computes the same bits.
//!
//! The file is `$DLTRAIN_CUDNN_CACHE`, else `cudnn.json` in `~/.cache/dltrain`. It may be deleted at any time. A file that
//! cannot be read or written is a warning: the choice is then made again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What was chosen for one convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// cuDNN's number of it.
    pub engine: i64,
    /// Which of the ways that serve, in cuDNN's order: an engine has several settings.
    pub place: usize,
}

/// The choices for one machine.
pub struct Tuned {
    /// GPU and versions: what every key begins with.
    machine: String,
    path: Option<PathBuf>,
    choices: RefCell<BTreeMap<String, Choice>>,
}

impl Tuned {
    pub fn load(machine: &str) -> Tuned {
        let path = path();
        let choices = path.as_deref().map(read).unwrap_or_default();
        Tuned { machine: machine.into(), path, choices: RefCell::new(choices) }
    }

    /// The choice for a convolution, if it was made.
    pub fn choice(&self, convolution: &str) -> Option<Choice> {
        self.choices.borrow().get(&self.key(convolution)).copied()
    }

    fn key(&self, convolution: &str) -> String {
        format!("{}: {convolution}", self.machine)
    }

    /// Writes the file, with this choice and what other ranks have written meanwhile.
    pub fn keep(&self, convolution: &str, choice: Choice) {
        self.choices.borrow_mut().insert(self.key(convolution), choice);
        let Some(path) = &self.path else { return };
        let mut all = read(path);
        all.extend(self.choices.borrow().clone());
        if let Err(e) = write(path, &all) {
            log::warn!("{}: the choice of cuDNN's engines is not kept: {e}", path.display());
        }
    }
}

fn path() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let path = set("DLTRAIN_CUDNN_CACHE").or_else(|| Some(cache()?.join("dltrain/cudnn.json")));
    path.filter(|path| may_be_written(path))
}

/// Nothing is kept in what is no file (/dev/null), which renaming would replace.
fn may_be_written(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |there| there.is_file())
}

fn read(path: &Path) -> BTreeMap<String, Choice> {
    let Ok(text) = std::fs::read_to_string(path) else { return BTreeMap::new() };
    serde_json::from_str(&text).unwrap_or_else(|e| {
        log::warn!("{}: is not a list of cuDNN's engines ({e}); choosing anew", path.display());
        BTreeMap::new()
    })
}

/// Under another name first: ranks write at the same time, and each file is whole.
fn write(path: &Path, choices: &BTreeMap<String, Choice>) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let text = serde_json::to_string_pretty(choices).map_err(std::io::Error::other)?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cudnn.json");
        assert!(may_be_written(&file) && !may_be_written(directory.path()));
        std::fs::write(&file, "{}").unwrap();
        assert!(may_be_written(&file) && !may_be_written(Path::new("/dev/null")));
    }

    #[test]
    fn a_choice_is_made_once_for_a_machine_and_survives_a_broken_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/cudnn.json");
        let tuned = |machine: &str| Tuned {
            machine: machine.into(),
            choices: RefCell::new(read(&path)),
            path: Some(path.clone()),
        };
        let choice = |engine| Choice { engine, place: 3 };
        assert_eq!(tuned("a").choice("x"), None);
        tuned("a").keep("x", choice(1));
        tuned("b").keep("x", choice(2));
        let found = ["a", "b", "c"].map(|machine| tuned(machine).choice("x").map(|choice| choice.engine));
        assert_eq!(found, [Some(1), Some(2), None]);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(tuned("a").choice("x"), None);
        tuned("a").keep("x", choice(5));
        assert_eq!(tuned("a").choice("x"), Some(choice(5)));
    }
}
