//! Gradient compression: the bytes and the residuals of the host's codecs.

use dltrain::fusion::compress::codec::{Codec, codec, pieces};

use super::{close, equal, random};
use crate::support::kernels::{Argument, Buffer, Shape, Start};

/// Tensors of these lengths lie one behind the other; the longest has three pieces.
const TENSORS: [usize; 5] = [1, 33, 1009, 131_075, 8];

/// Numbers with zeros and equals among them, and a few that are broken.
fn gradients(broken: bool) -> Vec<f32> {
    let mut values = random(TENSORS.iter().sum(), 100);
    for (index, value) in values.iter_mut().enumerate() {
        *value = match index % 7 {
            0 => 0.0,
            1 | 2 => (*value * 8.0).round() / 8.0,
            _ => *value,
        };
    }
    if broken {
        (values[5], values[700], values[900]) = (f32::NAN, f32::INFINITY, -f32::INFINITY);
    }
    values
}

/// What the codec makes of the same pieces: messages, residuals, and sums that begin with what `sum` has.
struct Host {
    messages: Vec<u8>,
    residuals: Vec<f32>,
    sum: Vec<f32>,
    /// `Message` of kernels/README.md.
    table: Vec<u8>,
    count: i32,
}

fn on_host(codec: &mut dyn Codec, values: &[f32], sum: &[f32]) -> Host {
    let mut host = Host {
        messages: Vec::new(),
        residuals: values.to_vec(),
        sum: sum.to_vec(),
        table: Vec::new(),
        count: 0,
    };
    let mut first = 0;
    for tensor in TENSORS {
        for piece in pieces(tensor) {
            let range = first + piece.start..first + piece.end;
            let begin = host.messages.len();
            let bytes = codec.bytes(piece.len());
            host.table.extend((range.start as u64).to_ne_bytes());
            host.table.extend((piece.len() as u32).to_ne_bytes());
            host.table.extend((begin as u32 / 4).to_ne_bytes());
            host.count += 1;
            host.messages.resize(begin + bytes.next_multiple_of(4), 0xff);
            codec.encode(&mut host.residuals[range.clone()], &mut host.messages[begin..begin + bytes]);
            codec.add(&host.messages[begin..begin + bytes], &mut host.sum[range]);
        }
        first += tensor;
    }
    host
}

/// The same by kernels: messages, residuals, sum.
fn by_kernels(
    scheme: &str,
    number: Option<f32>,
    values: &[f32],
    sum: &[f32],
    host: &Host,
) -> (Vec<u8>, [Vec<f32>; 2]) {
    let table = Buffer::of_bytes(&host.table, Start::Aligned, 8);
    let values = Buffer::f32s(values);
    let messages = Buffer::of_bytes(&vec![0xff; host.messages.len()], Start::Aligned, 4);
    let run = |kernel: &str, from: Argument, to: Argument| {
        let mut arguments = vec![from, to, (&table).into(), host.count.into()];
        arguments.extend(number.map(Argument::from));
        crate::support::kernels::launch(&format!("{scheme}_{kernel}"), &Shape::any(), &arguments);
    };
    run("encode", (&values).into(), (&messages).into());
    let sum = Buffer::f32s(sum);
    // What the host says is decoded: so that a difference of the encoders is no difference here.
    let said = Buffer::of_bytes(&host.messages, Start::Aligned, 4);
    run("add", (&said).into(), (&sum).into());
    (messages.bytes(), [values.read("f32"), sum.read("f32")])
}

#[test]
fn the_largest_go_as_on_the_host() {
    for (share, broken) in [(0.01, false), (0.1, true), (1.0, false)] {
        let (values, sum) = (gradients(broken), random(TENSORS.iter().sum(), 101));
        let mut scheme = codec(format!("topk:{share}").parse().unwrap(), 1).unwrap();
        let host = on_host(&mut *scheme, &values, &sum);
        let (messages, [residuals, sums]) = by_kernels("top_k", Some(share), &values, &sum, &host);
        assert!(messages == host.messages, "messages of {share}");
        equal(&residuals, &host.residuals, "what stays");
        equal(&sums, &host.sum, "what is added");
    }
}

#[test]
fn two_bits_go_as_on_the_host() {
    for (threshold, broken) in [(0.5, false), (0.001, true)] {
        let (values, sum) = (gradients(broken), random(TENSORS.iter().sum(), 102));
        let mut scheme = codec(format!("2bit:{threshold}").parse().unwrap(), 1).unwrap();
        let host = on_host(&mut *scheme, &values, &sum);
        let (messages, [residuals, sums]) = by_kernels("two_bit", Some(threshold), &values, &sum, &host);
        assert!(messages == host.messages, "messages of {threshold}");
        equal(&residuals, &host.residuals, "what stays");
        equal(&sums, &host.sum, "what is added");
    }
}

/// The signs are the host's to the bit; the two means of a piece are sums of f64 in another order, rounded to f32.
#[test]
fn signs_and_their_means_go_as_on_the_host() {
    for broken in [false, true] {
        let (values, sum) = (gradients(broken), random(TENSORS.iter().sum(), 103));
        let mut scheme = codec("1bit".parse().unwrap(), 1).unwrap();
        let host = on_host(&mut *scheme, &values, &sum);
        let (messages, [residuals, sums]) = by_kernels("one_bit", None, &values, &sum, &host);
        for entry in host.table.as_chunks::<16>().0 {
            let word = u32::from_ne_bytes([entry[12], entry[13], entry[14], entry[15]]) as usize * 4;
            let count = u32::from_ne_bytes([entry[8], entry[9], entry[10], entry[11]]) as usize;
            let signs = word + 8..word + 8 + count.div_ceil(8);
            assert!(messages[signs.clone()] == host.messages[signs], "signs of a piece of {count}");
            let means = |of: &[u8]| {
                of[word..word + 8]
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|&b| f32::from_ne_bytes(b))
                    .collect::<Vec<f32>>()
            };
            close(&means(&messages), &means(&host.messages), |v| f32::EPSILON * v.abs(), "means");
        }
        close(&residuals, &host.residuals, |_| 1e-7, "what stays");
        equal(&sums, &host.sum, "what is added");
    }
}
