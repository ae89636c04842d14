//! The doubles of CUDA's libraries (tests/fake_cuda/README.md), built once for what their sources are.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory that holds them: put it first in LD_LIBRARY_PATH.
pub fn libraries() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(build)
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut hasher = DefaultHasher::new();
    for folder in ["kernels", "tests/fake_cuda"] {
        let mut files: Vec<_> =
            fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let is_source = |file: &PathBuf| {
            file.extension().is_some_and(|end| ["cu", "cuh", "cpp", "hpp", "sh"].iter().any(|of| end == *of))
        };
        files
            .iter()
            .filter(|file| is_source(file))
            .for_each(|file| fs::read(file).unwrap().hash(&mut hasher));
    }
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake_cuda-{:016x}", hasher.finish()));
    if !directory.exists() {
        // Under a name of its own first: two processes may build at a time.
        let new = directory.with_extension(std::process::id().to_string());
        let status = Command::new(root.join("tests/fake_cuda/build.sh")).arg(&new).status().unwrap();
        assert!(status.success(), "tests/fake_cuda/build.sh failed (it needs a C++ compiler, c++)");
        if fs::rename(&new, &directory).is_err() {
            fs::remove_dir_all(&new).unwrap();
        }
    }
    directory
}
