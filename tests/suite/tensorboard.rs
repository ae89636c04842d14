//! TensorBoard's event files: what a run leaves is framed and checksummed as TensorFlow does, has every number of the
//! record, goes on when the run does, and is never mixed with another run's. `make test-tensorboard` reads them with
//! TensorBoard's own package.

use crate::support::digits::few_tests;
use crate::support::job;

use std::fs;
use std::path::Path;

use job::{refused, run, series};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// The records of a file, each with its checksums tested.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let crc = |bytes: &[u8]| {
        // Castagnoli's polynomial, bit by bit.
        let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        let crc = !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step));
        crc.rotate_right(15).wrapping_add(0xa282_ead8)
    };
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(at + 8), crc(&bytes[at..at + 8]), "the length's checksum at {at}");
        let data = &bytes[at + 12..at + 12 + length];
        assert_eq!(word(at + 12 + length), crc(data), "the data's checksum at {at}");
        found.push(data.to_vec());
        at += 16 + length;
    }
    found
}

/// The fields of a message: (number, content), numbers as their eight bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    let varint = |bytes: &mut &[u8]| {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    while !bytes.is_empty() {
        let key = varint(&mut bytes) as u8;
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            5 => 4,
            _ => varint(&mut bytes) as usize,
        };
        found.push((key >> 3, bytes[..length].to_vec()));
        bytes = &bytes[length..];
    }
    found
}

fn field(message: &[u8], number: u8) -> Option<Vec<u8>> {
    fields(message).into_iter().find(|(found, _)| *found == number).map(|(_, content)| content)
}

/// (step, value) of a tag in all files of a directory, in their order.
fn scalars(directory: &Path, tag: &str) -> Vec<(u64, f32)> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut found = Vec::new();
    for event in files.iter().flat_map(|file| records(file)) {
        let step = u64::from_le_bytes(field(&event, 2).unwrap().try_into().unwrap());
        for (_, value) in field(&event, 5).iter().flat_map(|summary| fields(summary)) {
            if field(&value, 1).as_deref() == Some(tag.as_bytes()) && field(&value, 2).is_some() {
                found.push((step, f32::from_le_bytes(field(&value, 2).unwrap().try_into().unwrap())));
            }
        }
    }
    found
}

/// What TensorBoard draws: (name, op, inputs, extents of the first output) of each node.
type Drawn = (String, String, Vec<String>, Vec<u64>);

fn nodes(directory: &Path) -> Vec<Drawn> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let events: Vec<Vec<u8>> = files.flat_map(|file| records(&file)).collect();
    let graphs: Vec<Vec<u8>> = events.iter().filter_map(|event| field(event, 4)).collect();
    assert_eq!(graphs.len(), 1, "the network is there once");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let of = |node: &[u8]| {
        let inputs = fields(node).into_iter().filter(|(number, _)| *number == 3).map(|(_, name)| text(name));
        let shape = fields(node).into_iter().filter(|(number, _)| *number == 5).find_map(|(_, entry)| {
            let is_shape = field(&entry, 1).as_deref() == Some(b"_output_shapes");
            // AttrValue.list, ListValue.shape
            is_shape.then(|| field(&field(&field(&entry, 2).unwrap(), 1).unwrap(), 7).unwrap())
        });
        let extents = fields(&shape.unwrap()).into_iter().map(|(_, dim)| field(&dim, 1).unwrap());
        let extents = extents.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        (text(field(node, 1).unwrap()), text(field(node, 2).unwrap()), inputs.collect(), extents)
    };
    fields(&graphs[0]).iter().filter(|(number, _)| *number == 1).map(|(_, node)| of(node)).collect()
}

#[test]
fn the_network_is_drawn_once_with_its_layers_and_shapes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let [events, results, kept] = ["events", "run.h5", "kept"].map(path);
    let run_of =
        ["--model", "resnet18", "--image-size", "32", "--classes", "10", "--data", few_tests(), "--quiet"];
    let places = ["--results", &results, "--checkpoint", &kept, "--resume", "auto", "--tensorboard", &events];
    for steps in ["1", "2"] {
        run(2, &[&run_of[..], &places, &["--batch", "4", "--steps", steps]].concat());
    }
    let nodes = nodes(Path::new(&events));
    let find = |name: &str| nodes.iter().find(|node| node.0 == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(find("images"), &("images".into(), "input".into(), Vec::new(), vec![4, 3, 32, 32]));
    let (_, op, inputs, shape) = find("layer1/0/conv1");
    assert_eq!((&**op, inputs.len(), &shape[..]), ("conv2d", 1, &[4, 64, 8, 8][..]));
    let (_, _, inputs, shape) = find("fc");
    assert_eq!((&inputs[..], &shape[..]), (&["avgpool".to_string()][..], &[4, 10][..]));
    let (_, op, inputs, _) = find("loss");
    assert_eq!((&**op, &inputs[..]), ("softmax_cross-entropy", &["fc".to_string(), "labels".into()][..]));
    // Every input is a node before its reader, and no two have one name.
    for (place, node) in nodes.iter().enumerate() {
        assert!(
            node.2.iter().all(|input| nodes[..place].iter().any(|before| before.0 == *input)),
            "{node:?}"
        );
        assert!(nodes[..place].iter().all(|before| before.0 != node.0), "{node:?}");
    }
}

#[test]
fn events_have_the_numbers_of_the_record_and_go_on_with_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let [events, results, kept] = ["events", "run.h5", "kept"].map(path);
    let events_text = events.to_str().unwrap();
    let flags = ["--data", DIGITS, "--epochs", "2", "--batch", "64", "--quiet"];
    let places = ["--results", results.to_str().unwrap(), "--checkpoint", kept.to_str().unwrap()];
    let every = ["--resume", "auto", "--tensorboard", events_text, "--tensorboard-histograms", "10"];
    run(2, &[&flags[..], &places, &every, &["--steps", "13"]].concat());
    run(2, &[&flags[..], &places, &every].concat());
    let losses = scalars(&events, "loss/train");
    let expected: Vec<(u64, f32)> =
        (0..).zip(series(&results, "steps/loss")).map(|(step, loss)| (step, loss as f32)).collect();
    assert_eq!(losses, expected);
    let test = scalars(&events, "accuracy/test");
    assert_eq!(test.last().map(|last| last.0), expected.last().map(|last| last.0));
    for tag in ["learning_rate", "images_per_second", "share/communication", "share/input", "accuracy/train"]
    {
        assert_eq!(scalars(&events, tag).len(), expected.len(), "{tag}");
    }
    // The second file tells TensorBoard to forget what is not to count.
    let mut files: Vec<_> = fs::read_dir(&events).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let begins = |file: &Path| {
        let records = records(file);
        assert_eq!(field(&records[0], 3).as_deref(), Some(&b"brain.Event:2"[..]));
        let session = field(&records[1], 7);
        session.map(|_| u64::from_le_bytes(field(&records[1], 2).unwrap().try_into().unwrap()))
    };
    assert_eq!((files.len(), begins(&files[0]), begins(&files[1])), (2, None, Some(13)));
    // A histogram of every weight and gradient, after steps 10 and 20.
    let all: Vec<Vec<u8>> = files.iter().flat_map(|file| records(file)).collect();
    let values = all.iter().filter_map(|event| field(event, 5)).flat_map(|summary| fields(&summary));
    let tags: Vec<String> = values
        .filter(|(_, value)| field(value, 5).is_some())
        .map(|(_, value)| String::from_utf8(field(&value, 1).unwrap()).unwrap())
        .collect();
    for tag in ["weights/fc1.weight", "gradients/fc1.weight"] {
        assert_eq!(tags.iter().filter(|found| *found == tag).count(), 2, "{tag} in {tags:?}");
    }
    let message = refused(&[(
        2,
        &["--steps", "2", "--results", path("other.h5").to_str().unwrap(), "--tensorboard", events_text],
    )]);
    assert!(message.contains("has the events of another run"), "{message}");
}
