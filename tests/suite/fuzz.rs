//! What a user relies on when files are damaged, or made to do harm: no parser panics, or takes memory that the file
//! does not justify.
//!
//! The seeds of `fuzz/` and some thousand changes of them, the same every time, go through the targets of `make fuzz`,
//! on stable Rust and in seconds; for as many seconds a target as `DLTRAIN_FUZZ_SECONDS` says.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dltrain::random::Stream;

/// Changed inputs of each target.
const CHANGES: u32 = 3000;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = format!("{}/fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// One to four changes, of the kinds that fuzzers make: bits, bytes, numbers of all widths, cuts, repetitions, and
/// parts of another seed.
fn change(bytes: &mut Vec<u8>, other: &[u8], stream: &mut Stream) {
    const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX];
    for _ in 0..=stream.below(4) {
        let at = stream.below(bytes.len().max(1) as u32) as usize;
        let length = bytes.len();
        match stream.below(7) {
            0 if length > 0 => bytes[at] ^= 1 << stream.below(8),
            1 if length > 0 => bytes[at] = stream.below(256) as u8,
            2 => {
                let number = NUMBERS[stream.below(8) as usize].wrapping_add(u64::from(stream.below(3)));
                let width = 1 << stream.below(4);
                let digits = if stream.below(2) == 0 {
                    number.to_le_bytes()
                } else {
                    number.rotate_right(width * 8).to_be_bytes()
                };
                let into = bytes.iter_mut().skip(at);
                into.zip(&digits[..width as usize]).for_each(|(byte, digit)| *byte = *digit);
            }
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..(at + stream.below(16) as usize).min(length))),
            5 => {
                let part = bytes[at..(at + stream.below(64) as usize).min(length)].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let from = stream.below(other.len().max(1) as u32) as usize;
                let part = other[from..(from + stream.below(128) as usize).min(other.len())].to_vec();
                bytes.splice(at..(at + part.len()).min(length), part);
            }
        }
    }
}

fn survives(target: &str) {
    let seeds = seeds(target);
    // Or no change of them would get far.
    assert!(
        seeds.iter().filter(|seed| targets::run(target, seed)).count() * 2 >= seeds.len(),
        "few sound seeds"
    );
    let seconds = std::env::var("DLTRAIN_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (begun, least) = (std::time::Instant::now(), std::time::Duration::from_secs(seconds));
    for number in (0..u32::MAX).take_while(|&number| number < CHANGES || begun.elapsed() < least) {
        let mut bytes = seeds[number as usize % seeds.len()].clone();
        let mut stream = Stream::at([1, 2], [number, 0]);
        let other = &seeds[stream.below(seeds.len() as u32) as usize];
        change(&mut bytes, other, &mut stream);
        if catch_unwind(AssertUnwindSafe(|| targets::run(target, &bytes))).is_err() {
            let file = std::env::temp_dir().join(format!("dltrain-fuzz-{target}-{number}"));
            fs::write(&file, &bytes).unwrap();
            panic!("{target}: input {number}, kept as {}", file.display());
        }
    }
}

macro_rules! survive {
    ($($target:ident)*) => { $(#[test] fn $target() { survives(stringify!($target)); })* };
}

survive!(idx cifar picture tar packed weights onnx checkpoint config view chunk);

#[test]
fn every_target_has_a_test_and_a_program() {
    let names = targets::TARGETS.map(|(name, ..)| name);
    assert_eq!(
        names,
        [
            "idx",
            "cifar",
            "picture",
            "tar",
            "packed",
            "weights",
            "onnx",
            "checkpoint",
            "config",
            "view",
            "chunk"
        ]
    );
    let manifest = include_str!("../../fuzz/Cargo.toml");
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}
