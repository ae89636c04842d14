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
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doubles/fake_cuda-{:016x}", hasher.finish()));
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    // Of several processes one builds. Whole or not at all: what is left of a build that was cut off has another name.
    let lock = directory.with_extension("lock");
    let once = r#"[ -e "$1" ] || { rm -rf "$1.new" && "$0" "$1.new" && mv "$1.new" "$1"; }"#;
    let mut build = Command::new("flock");
    build.arg(lock).args(["sh", "-c", once]).arg(root.join("tests/fake_cuda/build.sh")).arg(&directory);
    let built = build.status().expect("flock starts").success();
    assert!(built, "tests/fake_cuda/build.sh failed (it needs a C++ compiler, c++)");
    directory
}
