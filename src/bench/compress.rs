//! `dltrain bench compress`: how fast one thread of this machine encodes and decodes gradients, for the question
//! whether `--compress` pays on its network (docs/algorithms.md has the formula).

use std::ops::Range;
use std::time::Instant;

use crate::comm::World;
use crate::config::Compression;
use crate::error::{Error, Result};
use crate::fusion::compress::codec::{Codec, codec, pieces};
use crate::fusion::compress::powersgd;
use crate::random::{Purpose, key, normals, philox};
use crate::record::{self, RankInfo};

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Scheme, as for --compress; may be given several times [default: one of each]
    #[arg(long)]
    scheme: Vec<Compression>,
    /// Rounds to time; the fastest counts
    #[arg(long, default_value_t = 10)]
    repeats: usize,
}

/// The gradient: that of a layer with so many inputs and outputs, 4 MB.
const SIDE: usize = 1024;
const BYTES: f64 = (4 * SIDE * SIDE) as f64;

/// What a scheme came to.
struct SchemeResult {
    bytes: usize,
    encode: f64,
    decode: f64,
}

/// Rank 0 measures, the others wait.
pub fn run(args: &Args, world: &World) -> Result<()> {
    if args.repeats == 0 {
        return world.agree(Err(Error::usage("--repeats 0: must be at least 1")));
    }
    let schemes = match args.scheme.is_empty() {
        true => ["topk", "1bit", "2bit", "powersgd"].iter().filter_map(|name| name.parse().ok()).collect(),
        false => args.scheme.clone(),
    };
    let place = RankInfo::from(world);
    record::say(place, "one thread, a gradient of 1024 x 1024 numbers (4 MB)");
    record::say(place, "scheme            share   encode GB/s   decode GB/s   ms in all");
    for scheme in schemes {
        let measured = if place.rank == 0 { measure(scheme, args.repeats).map(Some) } else { Ok(None) };
        if let Some(SchemeResult { bytes, encode, decode }) = world.agree(measured)? {
            let share = format!("{:.2}%", 100.0 * bytes as f64 / BYTES);
            let line = format!(
                "{:<15} {share:>7} {:>13.2} {:>13.2} {:>11.2}",
                scheme.to_string(),
                BYTES / encode / 1e9,
                BYTES / decode / 1e9,
                1e3 * (encode + decode),
            );
            record::say(place, &line);
        }
    }
    Ok(())
}

/// Encodes and decodes, and checks that what is decoded and what stays behind are what there was.
///
/// # Errors
/// `Internal` when they are not.
fn measure(scheme: Compression, repeats: usize) -> Result<SchemeResult> {
    let gradient = gradient();
    let mut codec = codec(scheme, 1);
    let mut right = Vec::new();
    if let Compression::PowerSgd { rank } = scheme {
        right.resize(rank * SIDE, 0.0);
        powersgd::renew(&mut right, SIDE, 0);
    }
    let mut best = SchemeResult { bytes: 0, encode: f64::INFINITY, decode: f64::INFINITY };
    let (mut residual, mut sum) = (gradient.clone(), gradient.clone());
    for _ in 0..repeats {
        residual.copy_from_slice(&gradient);
        sum.fill(0.0);
        let [encode, decode] = match &mut codec {
            Some(codec) => gathered(&mut **codec, &mut residual, &mut sum, &mut best.bytes),
            None => factored(&mut right, &mut residual, &mut sum, &mut best.bytes),
        };
        (best.encode, best.decode) = (best.encode.min(encode), best.decode.min(decode));
        let lost = |((&sum, &rest), &whole): ((&f32, &f32), &f32)| (sum + rest - whole).abs() > 1e-4;
        if sum.iter().zip(&residual).zip(&gradient).any(lost) {
            return Err(Error::internal(format!("{scheme}: decoded and residual do not add up")));
        }
    }
    Ok(best)
}

/// Numbers as they are in gradients: normal.
fn gradient() -> Vec<f32> {
    let key = key(1, Purpose::Synthetic, 0);
    (0..(SIDE * SIDE / 4) as u32).flat_map(|block| normals(philox(key, [block, 0, 0, 0]))).collect()
}

/// Seconds of encoding and of decoding.
fn gathered(codec: &mut dyn Codec, residual: &mut [f32], sum: &mut [f32], bytes: &mut usize) -> [f64; 2] {
    let message = |piece: Range<usize>| vec![0u8; codec.bytes(piece.len())];
    let mut messages: Vec<Vec<u8>> = pieces(SIDE * SIDE).map(message).collect();
    *bytes = messages.iter().map(Vec::len).sum();
    let begun = Instant::now();
    for (piece, message) in pieces(SIDE * SIDE).zip(&mut messages) {
        codec.encode(&mut residual[piece], message);
    }
    let encoded = begun.elapsed().as_secs_f64();
    for (piece, message) in pieces(SIDE * SIDE).zip(&messages) {
        codec.add(message, &mut sum[piece]);
    }
    [encoded, begun.elapsed().as_secs_f64() - encoded]
}

/// A step of compression by factors.
fn factored(right: &mut [f32], residual: &mut [f32], sum: &mut [f32], bytes: &mut usize) -> [f64; 2] {
    let rank = right.len() / SIDE;
    *bytes = 4 * 2 * right.len();
    let mut left = vec![0f32; rank * SIDE];
    let begun = Instant::now();
    powersgd::project(residual, SIDE, right, &mut left);
    powersgd::orthogonalise(&mut left, rank);
    right.fill(0.0);
    powersgd::back_project(residual, SIDE, &left, right);
    powersgd::add_product(residual, SIDE, -1.0, &left, right);
    let encoded = begun.elapsed().as_secs_f64();
    powersgd::add_product(sum, SIDE, 1.0, &left, right);
    [encoded, begun.elapsed().as_secs_f64() - encoded]
}
