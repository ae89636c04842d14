//! Files of arrays to train from, and a network for them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hdf5::File;
use ndarray::{Array1, Array2, Array3, Array4};

/// Two channels of 12×10 to one (tests/fixtures/make_arrays.py).
pub const EMULATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx/emulator.onnx");

/// Writes `air/wind` (N, 12, 10, 2) in compressed chunks of four samples, channels last; `heat` (N, 12, 10), a function
/// of it; `params` (N, 5), `flux` (N), and `holes`, which is `heat` with a number that is missing; and what may weigh
/// points: `area` (12), `land` (12, 10), which is 0 or 1, and `quality` (N); and `kind` (N), one of three classes.
pub fn write(path: &Path, number: usize, samples: usize) {
    let file = File::create(path).unwrap();
    let value = |n: usize, y: usize, x: usize, c: usize| {
        let wave = (0.3 * (y + 2 * n + number) as f32 + 0.5 * (x * (c + 1)) as f32).sin();
        100.0 * (c + 1) as f32 + 10.0 * wave
    };
    let wind = Array4::from_shape_fn((samples, 12, 10, 2), |(n, y, x, c)| value(n, y, x, c));
    let heat = |n, y, x| 5.0 + 0.2 * (value(n, y, x, 0) - value(n, y, x, 1));
    let heat = Array3::from_shape_fn((samples, 12, 10), |(n, y, x)| heat(n, y, x));
    let mut holes = heat.clone();
    holes[[3, 4, 5]] = f32::NAN;
    let params = Array2::from_shape_fn((samples, 5), |(n, k)| ((n * 5 + k + number) as f64 * 0.7).cos());
    let flux = Array1::from_shape_fn(samples, |n| params.row(n).sum() as f32);
    let build = || file.new_dataset_builder();
    build().chunk((4, 6, 10, 2)).shuffle().deflate(4).with_data(&wind).create("air/wind").unwrap();
    build().with_data(&heat).create("heat").unwrap();
    build().with_data(&holes).create("holes").unwrap();
    build().with_data(&params).create("params").unwrap();
    build().with_data(&flux).create("flux").unwrap();
    let area = Array1::from_shape_fn(12, |y| (0.25 * (y as f64 - 5.5)).cos());
    let land = Array2::from_shape_fn((12, 10), |(y, x)| u8::from((y * x + x) % 3 > 0));
    let quality = Array1::from_shape_fn(samples, |n| ((n + number) % 4) as f32 / 2.0);
    build().with_data(&area).create("area").unwrap();
    build().with_data(&land).create("land").unwrap();
    build().with_data(&quality).create("quality").unwrap();
    build().with_data(&Array1::from_shape_fn(samples, |n| (n * n % 3) as u8)).create("kind").unwrap();
}

/// A file of 64 samples, and the flags that train the emulator from it.
pub fn emulator_flags() -> String {
    static FILE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = FILE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("arrays.h5");
        write(&path, 0, 64);
        (directory, path)
    });
    format!(
        "--model {EMULATOR} --data {} --input air/wind[n,h,w,c]:standard --target heat[n,h,w]:standard --loss mse",
        path.display()
    )
}
