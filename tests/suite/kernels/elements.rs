//! Conversions, element by element, layouts, images.

use half::{bf16, f16};

use dltrain::graph::{Activation, BackwardOp, Op};

use super::{
    STARTS, channels_first, channels_last, close, equal, pairs, random, random_in, reference, stream,
};
use crate::launch;
use crate::support::in_domain;
use crate::support::kernels::{Argument, Buffer, NUMBERS, Shape, all_rounded, rounded};

/// Lengths with and without a rest after fours.
const LENGTHS: [usize; 4] = [1, 7, 64, 1030];

#[test]
fn every_half_becomes_the_f32_that_it_is() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for t in ["bf16", "f16"] {
        let x = Buffer::of_bytes(&all, STARTS[0], 2);
        let y = Buffer::empty(65_536, "f32", STARTS[0]);
        launch!(format!("cast_{t}_f32"), Shape::any(), &x, &y, 65_536i64, 1.0f32);
        equal(&y.read("f32"), &x.read(t), t);
    }
}

#[test]
fn an_f32_is_rounded_to_the_nearest_half_and_nan_stays_nan() {
    let mut stream = stream(1);
    let mut values: Vec<f32> = (0..100_000).map(|_| f32::from_bits(stream.word())).collect();
    // All exponents that an f16 has, ties among them; its largest numbers, its smallest, and what is next to nothing.
    values.extend(
        (0..100_000).map(|_| f32::from_bits((stream.below(48) + 90) << 23 | stream.below(1 << 11) << 12)),
    );
    values.extend([0.0, -0.0, f32::INFINITY, -f32::INFINITY, 65_504.0, 65_519.9, 65_520.0, -65_536.0, 1e9]);
    values.extend([
        f32::NAN,
        -f32::NAN,
        f32::from_bits(0x7f80_0001),
        f32::MIN_POSITIVE,
        f32::MAX,
        5.96e-8,
        2.98e-8,
    ]);
    for t in ["bf16", "f16"] {
        let (x, y) = (Buffer::f32s(&values), Buffer::empty(values.len(), t, STARTS[0]));
        launch!(format!("cast_f32_{t}"), Shape::any(), &x, &y, values.len() as i64, 1.0f32);
        let expected: Vec<u8> = match t {
            "bf16" => values.iter().flat_map(|&v| bf16::from_f32(v * 1.0).to_ne_bytes()).collect(),
            _ => values.iter().flat_map(|&v| f16::from_f32(v * 1.0).to_ne_bytes()).collect(),
        };
        let (found, expected) = (y.bytes(), expected);
        for (i, (a, b)) in found.chunks(2).zip(expected.chunks(2)).enumerate() {
            assert_eq!(a, b, "{t} of {:e} ({:#x})", values[i], values[i].to_bits());
        }
    }
}

/// For every length, start and type of number.
fn each_case(mut test: impl FnMut(&str, usize, crate::support::kernels::Start)) {
    for t in NUMBERS {
        LENGTHS.into_iter().for_each(|n| STARTS.into_iter().for_each(|start| test(t, n, start)));
    }
}

#[test]
fn elements_are_changed_one_by_one() {
    each_case(|t, n, start| {
        let (a, b) = (random_in(t, n, 1), random_in(t, n, 2));
        // y from a and b; the formula is rounded once.
        let two = |kernel: &str, more: Argument, f: &dyn Fn(f32, f32) -> f32| {
            let (x, y) = (Buffer::of(&a, t, start), Buffer::of(&b, t, start));
            let out = Buffer::empty(n, t, start);
            launch!(format!("{kernel}_{t}"), Shape::any(), &x, &y, &out, n as i64, more);
            let expected: Vec<f32> = a.iter().zip(&b).map(|(&a, &b)| rounded(t, f(a, b))).collect();
            equal(&out.read(t), &expected, &format!("{kernel}_{t} of {n}"));
        };
        two("add", Argument::Int(0), &|a, b| a + b);
        two("add", Argument::Int(1), &|a, b| (a + b).max(0.0));
        let y = Buffer::of(&a, t, start);
        launch!(format!("scale_{t}"), Shape::any(), &y, n as i64, 0.7f32);
        equal(&y.read(t), &a.iter().map(|v| rounded(t, v * 0.7)).collect::<Vec<_>>(), "scale");
        launch!(format!("fill_{t}"), Shape::any(), &y, n as i64, 1.1f32);
        equal(&y.read(t), &vec![rounded(t, 1.1); n], "fill");
    });
}

/// As the reference device has them, forward and backward, in place too.
#[test]
fn activations_are_what_they_are_defined_to_be() {
    each_case(|t, n, start| {
        let (dy, extents) = (random_in(t, n, 2), [n]);
        for &of in Activation::ALL {
            let x: Vec<f32> = random(n, 1).iter().map(|&v| in_domain(of, v)).collect();
            let x = all_rounded(t, &x);
            let (name, max) = (of.kind(), of.number());
            let bound = |v: f32| if max.is_some() { 0.0 } else { step_of(t) * v.abs() + 1e-6 };
            let y = reference(Op::Activation(of), &[(&extents, &x)], &[&extents])[0].clone();
            let place = Buffer::of(&x, t, start);
            match max {
                Some(max) => launch!(format!("{name}_{t}"), Shape::any(), &place, &place, n as i64, max),
                None => launch!(format!("{name}_{t}"), Shape::any(), &place, &place, n as i64),
            }
            close(&place.read(t), &all_rounded(t, &y), bound, &format!("{name}_{t} of {n}"));

            let read = if of.from_output() { all_rounded(t, &y) } else { x.clone() };
            let inputs: [(&[usize], &[f32]); 2] = [(&extents, &dy), (&extents, &read)];
            let dx = reference(Op::Backward(BackwardOp::Activation(of)), &inputs, &[&extents])[0].clone();
            let (place, read) = (Buffer::of(&dy, t, start), Buffer::of(&read, t, start));
            let backward = format!("{name}_backward_{t}");
            match max {
                Some(max) => launch!(backward, Shape::any(), &place, &read, &place, n as i64, max),
                None => launch!(backward, Shape::any(), &place, &read, &place, n as i64),
            }
            close(&place.read(t), &all_rounded(t, &dx), bound, &format!("{backward} of {n}"));
        }
    });
}

/// The distance of neighbours of a type, over their size.
fn step_of(t: &str) -> f32 {
    match t {
        "bf16" => 1.0 / 128.0,
        "f16" => 1.0 / 1024.0,
        _ => 1e-6,
    }
}

#[test]
fn casts_scale_and_round_once() {
    each_case(|from, n, start| {
        for (_, to) in pairs().filter(|(of, _)| *of == from) {
            let x = random_in(from, n, 3);
            let (input, output) = (Buffer::of(&x, from, start), Buffer::empty(n, to, start));
            launch!(format!("cast_{from}_{to}"), Shape::any(), &input, &output, n as i64, 0.3f32);
            let expected: Vec<f32> = x.iter().map(|v| rounded(to, v * 0.3)).collect();
            equal(&output.read(to), &expected, &format!("{from} to {to}"));
        }
    });
}

/// Pieces of any lengths, from and to any places, in one launch: the bits of casts; and nothing beside them is written.
#[test]
fn many_gradients_are_widened_at_once() {
    for t in ["bf16", "f16"] {
        let x = random_in(t, 3000, 6);
        let pieces: [[i64; 3]; 6] = [
            [0, 8, 1030],
            [1030, 1040, 1],
            [1031, 1041, 7],
            [1040, 2000, 64],
            [1105, 1048, 300],
            [2900, 2900, 100],
        ];
        let table: Vec<u8> = pieces.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
        for start in STARTS {
            let (from, table) = (Buffer::of(&x, t, start), Buffer::of_bytes(&table, STARTS[0], 8));
            let to = Buffer::of(&vec![5.0; 3000], "f32", start);
            launch!(format!("widen_{t}"), Shape::any(), &from, &to, &table, pieces.len() as i32);
            let mut expected = vec![5.0; 3000];
            for [from, to, n] in pieces.map(|piece| piece.map(|word| word as usize)) {
                expected[to..to + n].copy_from_slice(&x[from..from + n]);
            }
            equal(&to.read("f32"), &expected, t);
        }
    }
}

/// What `Wire` does on the host (src/config/wire.rs).
#[test]
fn sums_are_rounded_to_what_travels() {
    each_case(|t, n, start| {
        let (sum, came) = (random(n, 4), random_in(t, n, 5));
        let (into, from) = (Buffer::of(&sum, "f32", start), Buffer::of(&came, t, start));
        launch!(format!("accumulate_{t}"), Shape::any(), &from, &into, n as i64);
        let plain: Vec<f32> = sum.iter().zip(&came).map(|(a, b)| a + b).collect();
        equal(&into.read("f32"), &plain, "accumulate");
        if t == "f32" {
            return;
        }
        let into = Buffer::of(&sum, "f32", start);
        launch!(format!("accumulate_rounded_{t}"), Shape::any(), &from, &into, n as i64);
        equal(&into.read("f32"), &all_rounded(t, &plain), "accumulate_rounded");
        let (values, wire) = (Buffer::of(&sum, "f32", start), Buffer::empty(n, t, start));
        launch!(format!("round_{t}"), Shape::any(), &values, &wire, n as i64);
        equal(&wire.read(t), &all_rounded(t, &sum), "round, what travels");
        equal(&values.read("f32"), &all_rounded(t, &sum), "round, what stays");
    });
}

/// Of four, of which not all are there: those that are meant, in their order, in those that are meant.
#[test]
fn parts_are_added_up_in_their_order() {
    for (n, start) in LENGTHS.into_iter().flat_map(|n| STARTS.map(|start| (n, start))) {
        let values: Vec<Vec<f32>> = (0..4).map(|part| random(n, 10 + part)).collect();
        for (of, to) in [(0b1111, 0b1111), (0b1011, 0b0010), (0b0100, 0b1001), (0b0001, 0b0001)] {
            let parts: Vec<Buffer> = values.iter().map(|part| Buffer::of(part, "f32", start)).collect();
            let [a, b, c, d] = &parts[..] else { unreachable!() };
            let none = || Argument::Null;
            launch!("add_parts", Shape::any(), a, b, c, d, none(), none(), none(), none(), of, to, n as i64);
            let mut added = values.iter().enumerate().filter(|(part, _)| of >> part & 1 == 1);
            let first = added.next().unwrap().1.clone();
            let sum = added.fold(first, |sum, (_, part)| sum.iter().zip(part).map(|(a, b)| a + b).collect());
            for (part, found) in parts.iter().enumerate() {
                let expected = if to >> part & 1 == 1 { &sum } else { &values[part] };
                equal(&found.read("f32"), expected, &format!("part {part} of {of:b} to {to:b}, {n}"));
            }
        }
    }
}

#[test]
fn a_bias_is_added_to_every_row() {
    for t in NUMBERS {
        for (rows, channels) in [(1, 1), (5, 3), (3, 64), (33, 20)] {
            for (start, max) in [(STARTS[0], 0.0), (STARTS[1], f32::INFINITY), (STARTS[0], 0.4)] {
                let (x, b) = (random_in(t, rows * channels, 6), random(channels, 7));
                let (y, bias) = (Buffer::of(&x, t, start), Buffer::f32s(&b));
                launch!(format!("bias_{t}"), Shape::any(), &y, &bias, rows as i64, channels as i32, max);
                let sum = x.iter().enumerate().map(|(i, v)| v + b[i % channels]);
                let expected: Vec<f32> =
                    sum.map(|v| rounded(t, if max > 0.0 { v.max(0.0).min(max) } else { v })).collect();
                equal(&y.read(t), &expected, &format!("bias_{t} {rows}x{channels}"));
            }
        }
    }
}

fn tiles(n: usize, channels: usize, plane: usize) -> Shape {
    let grid = |z: usize| [plane.div_ceil(32) as u32, channels.div_ceil(32) as u32, z as u32];
    Shape { grids: vec![grid(n), grid(1)], block: [32, 8, 1] }
}

#[test]
fn layouts_turn_and_turn_back() {
    for (from, to) in pairs() {
        for (n, c, plane, padded) in [(2, 3, 50, 4), (1, 1, 1, 1), (3, 40, 33, 40), (2, 33, 7, 36)] {
            let x = random_in(from, n * c * plane, 9);
            let first = Buffer::of(&x, from, STARTS[0]);
            let last = Buffer::empty(n * plane * padded, to, STARTS[0]);
            let ints = || [n, c, plane, padded].map(|v| Argument::Int(v as i32));
            let [n_, c_, plane_, padded_] = ints();
            let name = format!("to_channels_last_{from}_{to}");
            launch!(name, tiles(n, padded, plane), &first, &last, n_, c_, plane_, padded_);
            let turned = all_rounded(to, &channels_last(&x, [n, c, plane]));
            let row = |p: usize| (0..padded).map(move |k| (p, k));
            let expected: Vec<f32> = (0..n * plane)
                .flat_map(row)
                .map(|(p, k)| if k < c { turned[p * c + k] } else { 0.0 })
                .collect();
            equal(&last.read(to), &expected, &name);
            if c <= 4 {
                for padded in [padded, c, 4, 8] {
                    let [n_, c_, plane_, padded_] = [n, c, plane, padded].map(|v| Argument::Int(v as i32));
                    let colours = Buffer::empty(n * plane * padded, to, STARTS[padded % 2]);
                    let name = format!("colours_to_channels_last_{from}_{to}");
                    launch!(name, Shape::any(), &first, &colours, n_, c_, plane_, padded_);
                    let row = |p: usize| (0..padded).map(move |k| (p, k));
                    let value = |(p, k)| if k < c { turned[p * c + k] } else { 0.0 };
                    let expected: Vec<f32> = (0..n * plane).flat_map(row).map(value).collect();
                    equal(&colours.read(to), &expected, &format!("{name} to {padded} channels"));
                }
            }

            // Back from numbers as they were before they were rounded.
            let wide = channels_last(&x, [n, c, plane]);
            let value = |(p, k)| if k < c { wide[p * c + k] } else { f32::NAN };
            let wide: Vec<f32> = (0..n * plane).flat_map(row).map(value).collect();
            let (last, back) =
                (Buffer::of(&wide, from, STARTS[0]), Buffer::empty(n * c * plane, to, STARTS[0]));
            let [n_, c_, plane_, padded_] = ints();
            let name = format!("to_channels_first_{from}_{to}");
            launch!(name, tiles(n, padded, plane), &last, &back, n_, c_, plane_, padded_);
            equal(&back.read(to), &all_rounded(to, &x), &name);
            assert_eq!(channels_first(&turned, [n, c, plane]), all_rounded(to, &x));

            let tight = Buffer::empty(n * plane * c, to, STARTS[0]);
            let (name, rows) = (format!("repad_{from}_{to}"), (n * plane) as i64);
            launch!(name, Shape::any(), &last, &tight, rows, padded as i32, c as i32);
            equal(&tight.read(to), &turned, &name);
            let tight = Buffer::of(&channels_last(&x, [n, c, plane]), from, STARTS[1]);
            let padded_again = Buffer::empty(n * plane * padded, to, STARTS[0]);
            launch!(name, Shape::any(), &tight, &padded_again, rows, c as i32, padded as i32);
            equal(&padded_again.read(to), &expected, &name);
        }
    }
}

/// Where there are labels, places without an image are 0.
#[test]
fn bytes_become_normalised_images() {
    for t in NUMBERS {
        for (n, c, plane, padded) in [(2, 3, 35, 4), (1, 1, 9, 1), (3, 3, 6, 8)] {
            for labels in [None, Some([7, -1, 0])] {
                let mut stream = stream(10);
                let x: Vec<u8> = (0..n * plane * c).map(|_| stream.below(256) as u8).collect();
                let (scale, shift) = ([0.02f32, 0.03, 0.05], [-2.1f32, -1.9, -1.7]);
                let y = Buffer::empty(n * plane * padded, t, STARTS[0]);
                let there = labels.map(|labels: [i32; 3]| {
                    let bytes: Vec<u8> = labels[..n].iter().flat_map(|label| label.to_ne_bytes()).collect();
                    Buffer::of_bytes(&bytes, STARTS[0], 4)
                });
                launch!(
                    format!("images_{t}"),
                    Shape::any(),
                    &Buffer::of_bytes(&x, STARTS[1], 1),
                    there.as_ref(),
                    &y,
                    n as i32,
                    c as i32,
                    plane as i32,
                    padded as i32,
                    &Buffer::f32s(&scale),
                    &Buffer::f32s(&shift),
                );
                let value = |i: usize| {
                    let (pixel, k) = (i / padded, i % padded);
                    let is_image = labels.is_none_or(|labels| labels[pixel / plane] >= 0);
                    match is_image && k < c {
                        true => rounded(t, f32::from(x[pixel * c + k]) * scale[k] + shift[k]),
                        false => 0.0,
                    }
                };
                let expected: Vec<f32> = (0..n * plane * padded).map(value).collect();
                equal(&y.read(t), &expected, &format!("images_{t} labels {labels:?}"));
            }
        }
    }
}

#[test]
fn codes_become_what_tables_say() {
    for bytes in [1, 2] {
        for (n, runs, length) in [(2, 3, 35), (3, 1, 300), (1, 5, 1)] {
            let (mut stream, codes) = (stream(11), 1usize << (8 * bytes));
            let x: Vec<u16> = (0..n * runs * length).map(|_| stream.below(codes as u32) as u16).collect();
            let which: Vec<f32> = (0..runs).map(|run| (run % 2) as f32).collect();
            let tables: Vec<f32> = (0..2 * codes).map(|at| at as f32 - 77.0).collect();
            let raw: Vec<u8> = x.iter().flat_map(|code| code.to_ne_bytes()[..bytes].to_vec()).collect();
            let samples: Vec<u8> =
                [0i32, -1, 0][..n].iter().flat_map(|sample| sample.to_ne_bytes()).collect();
            for is_target in [0i32, 1] {
                let y = Buffer::empty(x.len(), "f32", STARTS[0]);
                launch!(
                    format!("lookup_u{}", 8 * bytes),
                    Shape::any(),
                    &Buffer::of_bytes(&raw, STARTS[1], bytes),
                    &Buffer::of_bytes(&samples, STARTS[0], 4),
                    &Buffer::f32s(&which),
                    &Buffer::f32s(&tables),
                    &y,
                    n as i32,
                    runs as i32,
                    length as i64,
                    is_target,
                );
                let value = |at: usize| match (at / (runs * length), is_target) {
                    (1, 1) => f32::NAN,
                    (1, _) => 0.0,
                    _ => tables[at / length % runs % 2 * codes + x[at] as usize],
                };
                let expected: Vec<f32> = (0..x.len()).map(value).collect();
                let bits = |of: &[f32]| of.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&y.read("f32")), bits(&expected), "lookup_u{}", 8 * bytes);
            }
        }
    }
}

#[test]
fn channels_are_joined_and_cut() {
    for t in NUMBERS {
        for (rows, widths) in [(5, [3, 4, 2]), (9, [8, 16, 4]), (7, [4, 3, 8]), (11, [8, 40, 16])] {
            let width: usize = widths.iter().sum();
            let y = Buffer::empty(rows * width, t, STARTS[0]);
            let mut from = 0;
            for (part, own) in widths.into_iter().enumerate() {
                let values = random_in(t, rows * own, part as u32);
                let x = Buffer::of(&values, t, STARTS[part % 2]);
                let (r, w, o, f) = (rows as i64, width as i32, own as i32, from as i32);
                let shape = Shape::shared(own.div_ceil(if t == "f32" { 4 } else { 8 }));
                launch!(format!("copy_channels_{t}"), shape, &x, &y, r, o, o, 0i32, w, f);
                let cut = Buffer::empty(rows * own, t, STARTS[0]);
                launch!(format!("copy_channels_{t}"), Shape::any(), &y, &cut, r, o, w, f, o, 0i32);
                equal(&cut.read(t), &values, "there and back");
                from += own;
            }
            let joined = y.read(t);
            assert!(joined.iter().all(|v| !v.is_nan()), "a channel was left out");
        }
    }
}
