//! A directory with the files of runs, and flags made of words.

use std::fs;
use std::path::{Path, PathBuf};

use super::job::{run, series};

pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Words with DIR for this directory.
    pub fn words(&self, words: &str) -> Vec<String> {
        let directory = self.0.path().to_str().unwrap();
        words.split_whitespace().map(|word| word.replace("DIR", directory)).collect()
    }

    /// Trains; results and weights in the end, of a name of their own, and what was said.
    pub fn train_to_files(&self, ranks: usize, words: &str) -> ([PathBuf; 2], String) {
        let number = fs::read_dir(self.0.path()).unwrap().count();
        let [results, weights] = ["h5", "safetensors"].map(|kind| self.path(&format!("run{number}.{kind}")));
        let places = format!("--results {} --save-weights {}", results.display(), weights.display());
        let words = self.words(&format!("{words} {places}"));
        let said = run(ranks, &words.iter().map(String::as_str).collect::<Vec<_>>());
        ([results, weights], said)
    }

    /// Trains; the losses, and the weights in the end.
    pub fn train(&self, ranks: usize, words: &str) -> (Vec<f64>, Vec<u8>) {
        let ([results, weights], _) = self.train_to_files(ranks, words);
        (series(&results, "steps/loss"), fs::read(weights).unwrap())
    }
}
