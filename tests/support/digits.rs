//! The handwritten digits.

use std::path::Path;
use std::sync::OnceLock;

/// With all 360 test images, as they are in the repository.
pub const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// With 24 test images, for runs of which the steps are looked at: testing a network on all takes longer than they do.
pub fn few_tests() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(make)
}

fn make() -> String {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits-24");
    std::fs::create_dir_all(&directory).unwrap();
    for (part, file, header) in [
        ("train", "images-idx3-ubyte", 16),
        ("train", "labels-idx1-ubyte", 8),
        ("t10k", "images-idx3-ubyte", 16),
        ("t10k", "labels-idx1-ubyte", 8),
    ] {
        let name = format!("{part}-{file}");
        let mut bytes = std::fs::read(Path::new(DIGITS).join(&name)).unwrap();
        if part == "t10k" {
            let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let each = if header == 16 { number(8) * number(12) } else { 1 };
            bytes.truncate(header + 24 * each);
            bytes[4..8].copy_from_slice(&24u32.to_be_bytes());
        }
        // Other processes may read them.
        let new = directory.join(format!("{name}.{}", std::process::id()));
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(new, directory.join(name)).unwrap();
    }
    directory.display().to_string()
}
