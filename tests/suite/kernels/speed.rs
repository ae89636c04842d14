//! What ptxas and the SASS say of the kernels (kernels/kernels.tsv, by `make kernels`), held against limits: on an H200
//! and an A100 memory bounds every kernel of ResNet-50's step, not the rate at which instructions are issued. No GPU is
//! asked.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A row of the table.
struct Kernel {
    registers: u64,
    spilled: u64,
    shared: u64,
    /// Of the costliest loop over wide accesses, a round; and bytes of memory there.
    instructions: f64,
    bytes: f64,
    in_flight: u64,
}

/// What a GPU has. The issue rate is in instructions of a warp a second; 0.65 of the most is what such loops reach.
struct Gpu {
    sm: u64,
    name: &'static str,
    multiprocessors: u64,
    clock: f64,
    /// Bytes a second of a copy.
    copy: f64,
    /// Of a multiprocessor, for blocks.
    shared: u64,
}

const GPUS: [Gpu; 2] = [
    Gpu { sm: 90, name: "H200", multiprocessors: 132, clock: 1.755e9, copy: 4.3e12, shared: 228 << 10 },
    Gpu { sm: 80, name: "A100", multiprocessors: 108, clock: 1.41e9, copy: 1.8e12, shared: 164 << 10 },
];

/// What starting a kernel takes anyway, in seconds: what is done sooner is not looked at.
const LAUNCH: f64 = 2e-6;

impl Gpu {
    fn issue(&self) -> f64 {
        0.65 * 4.0 * self.clock * self.multiprocessors as f64
    }

    /// Bytes under way on a multiprocessor that has as many blocks of 256 threads as registers and shared memory let it
    /// have.
    fn in_flight(&self, kernel: &Kernel) -> u64 {
        let by_registers = 65_536 / (256 * kernel.registers.next_multiple_of(8));
        // A block takes a KiB for itself.
        let blocks = by_registers.min(2048 / 256).min(self.shared / (kernel.shared + 1024));
        blocks * 256 * kernel.in_flight
    }
}

/// A kernel's part of a step: launches, bytes of memory of all of them, and how many of a round's bytes are, where the
/// table also counts what the cache gives.
struct Part {
    kernel: &'static str,
    launches: f64,
    bytes: f64,
    round: Option<f64>,
}

const BATCH: f64 = 256.0;
/// Numbers that normalisations read, and those of them behind which something is added, of an image.
const NORMALISED: f64 = 11_113_984.0;
const ADDED: f64 = 5_519_360.0;
const PARAMETERS: f64 = 25_557_032.0;

/// ResNet-50's step in bf16, with the images padded to eight channels, and every moment found by a kernel of our own.
fn resnet50() -> Vec<Part> {
    let part = |kernel, launches, bytes| Part { kernel, launches, bytes, round: None };
    let pooled = BATCH * 56.0 * 56.0 * 64.0 / 8.0;
    let pixels = BATCH * 224.0 * 224.0;
    // A bit a number.
    let mask = ADDED / 8.0;
    vec![
        part("batch_norm_partials_bf16", 53.0, BATCH * 2.0 * NORMALISED),
        part("batch_norm_moments", 53.0, 53.0 * 8.0 * 1584.0 * 64.0),
        part("batch_norm_bf16", 53.0, BATCH * (4.0 * NORMALISED + 2.125 * ADDED)),
        part("batch_norm_sums_bf16", 53.0, BATCH * (4.0 * NORMALISED + 2.0 * ADDED + mask)),
        part("batch_norm_sums_join", 53.0, 53.0 * 8.0 * 1584.0 * 64.0),
        part("batch_norm_backward_bf16", 53.0, BATCH * 6.0 * NORMALISED),
        part("add_bf16", 16.0, BATCH * 6.0 * ADDED),
        // A window reads nine neighbours, of which four are new; a patch of four writes them and reads one window's
        // gradient.
        Part { round: Some(88.0), ..part("max_pool_3x3s2p1_bf16", 1.0, 88.0 * pooled) },
        Part { round: Some(88.0), ..part("max_pool_backward_3x3s2p1_bf16", 1.0, 88.0 * pooled) },
        part("global_pool_bf16", 1.0, BATCH * 2.0 * 2048.0 * 50.0),
        part("global_pool_backward_bf16", 1.0, BATCH * 2.0 * 2048.0 * 50.0),
        Part { round: Some(28.0), ..part("colours_to_channels_last_f32_bf16", 1.0, 28.0 * pixels) },
        Part { round: Some(19.0), ..part("images_bf16", 1.0, 19.0 * pixels) },
        part("softmax_cross_entropy_f32", 1.0, BATCH * 4.0 * 1000.0),
        part("softmax_cross_entropy_backward_f32", 1.0, BATCH * 8.0 * 1000.0),
        part("column_sums_f32", 1.0, BATCH * 4.0 * 1000.0),
        part("cast_f32_bf16", 54.0, 6.0 * PARAMETERS),
        // Of every weight's gradient but the padded one's.
        part("widen_bf16", 1.0, 6.0 * PARAMETERS),
        part("update_sgd", 1.0, 20.0 * PARAMETERS),
    ]
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"))
}

/// By name and generation of GPUs.
fn table() -> BTreeMap<(String, u64), Kernel> {
    let text = fs::read_to_string(folder().join("kernels.tsv")).unwrap();
    let rows = text.lines().skip(2).map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |index: usize| cells[index].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
        let kernel = Kernel {
            registers: number(2),
            spilled: number(3),
            shared: number(4),
            instructions: number(5) as f64,
            bytes: number(6) as f64,
            in_flight: number(7),
        };
        ((cells[0].to_string(), number(1)), kernel)
    });
    rows.collect()
}

/// The table has every kernel of the PTX, of which it names the checksum.
#[test]
fn the_table_is_of_the_kernels_that_there_are() {
    let text = fs::read_to_string(folder().join("kernels.tsv")).unwrap();
    let ptx = fs::read(folder().join("dltrain.sm_80.ptx")).unwrap();
    let first = format!("# CRC-32 of dltrain.sm_80.ptx {:08x}", dltrain::files::crc32(&[&ptx]));
    assert_eq!(text.lines().next(), Some(first.as_str()), "kernels.tsv is older than the PTX: make kernels");
    let (table, entries) = (table(), String::from_utf8(ptx).unwrap());
    let names = entries.split(".entry ").skip(1).map(|entry| entry.split('(').next().unwrap());
    for gpu in &GPUS {
        let lacking: Vec<_> =
            names.clone().filter(|name| !table.contains_key(&(name.to_string(), gpu.sm))).collect();
        assert!(lacking.is_empty(), "{lacking:?} on {}: make kernels", gpu.name);
    }
}

#[test]
fn no_kernel_spills_registers() {
    let spilling: Vec<_> =
        table().into_iter().filter(|(_, kernel)| kernel.spilled > 0).map(|(name, _)| name).collect();
    assert!(spilling.is_empty(), "{spilling:?}");
}

/// A row of docs/gpu.md: times of a step in ms.
fn row(part: &Part, kernels: [&Kernel; 2]) -> String {
    let of = |which: usize| {
        let (gpu, kernel) = (&GPUS[which], kernels[which]);
        let (memory, issue) = times(part, gpu, kernel);
        let (registers, in_flight) = (kernel.registers, gpu.in_flight(kernel) / 1024);
        format!("{registers} | {in_flight} | {:.2} | {:.2}", 1e3 * memory, 1e3 * issue)
    };
    let each = kernels[0].instructions / part.round.unwrap_or(kernels[0].bytes) * 16.0;
    format!("| `{}` | {each:.0} | {} | {} |", part.kernel, of(0), of(1))
}

/// Seconds of a step by the memory's rate, and by that of instructions.
fn times(part: &Part, gpu: &Gpu, kernel: &Kernel) -> (f64, f64) {
    let rounds = part.bytes / part.round.unwrap_or(kernel.bytes);
    (part.bytes / gpu.copy, rounds / 32.0 * kernel.instructions / gpu.issue())
}

#[test]
fn memory_bounds_every_kernel_of_resnet50s_step() {
    let (table, docs) = (table(), fs::read_to_string(folder().join("../docs/gpu.md")).unwrap());
    let mut wrong = Vec::new();
    let mut rows = Vec::new();
    for part in resnet50() {
        let kernels = [0, 1].map(|which| &table[&(part.kernel.to_string(), GPUS[which].sm)]);
        for (gpu, kernel) in GPUS.iter().zip(kernels) {
            let (memory, issue) = times(&part, gpu, kernel);
            if issue > memory.max(LAUNCH * part.launches) {
                wrong.push(format!("{} on {}: {issue:.2e} s, memory {memory:.2e}", part.kernel, gpu.name));
            }
        }
        rows.push(row(&part, kernels));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let lacking: Vec<_> = rows.iter().filter(|row| !docs.contains(row.as_str())).collect();
    assert!(lacking.is_empty(), "docs/gpu.md lacks these rows:\n{}", rows.join("\n"));
}

/// At 4.3 TB/s and 700 ns from request to answer an H200 must have 23 KiB on the way to each multiprocessor, an A100 at
/// 1.8 TB/s and 600 ns ten.
#[test]
fn enough_bytes_are_on_the_way_where_most_bytes_go() {
    let table = table();
    for name in ["", "_partials", "_sums", "_backward"] {
        let name = format!("batch_norm{name}_bf16");
        for (gpu, least) in GPUS.iter().zip([23 << 10, 10 << 10]) {
            let in_flight = gpu.in_flight(&table[&(name.clone(), gpu.sm)]);
            assert!(in_flight >= least, "{name} on {}: {in_flight} bytes", gpu.name);
        }
    }
}
