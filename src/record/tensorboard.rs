//! TensorBoard's event files: a run's numbers as they come, for `tensorboard --logdir DIR`.
//!
//! A file is a row of records (TFRecord: tensorflow/core/lib/io/record_writer.h): the length in 8 bytes, little end
//! first; its checksum; the bytes; theirs. A checksum is the CRC-32C, rotated and shifted so that it may itself be
//! summed. The bytes are an Event of protocol buffers (tensorflow/core/util/event.proto and framework/summary.proto),
//! of whose fields two dozen are written here, by hand: no compiler of such files is needed to build.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{EpochRecord, Layer, StepRecord};
use crate::config::Metric;
use crate::error::{Error, OrError, Result};
use crate::{files, host};

/// How such files begin; TensorBoard knows them by that.
const PREFIX: &str = "events.out.tfevents.";
/// Bars of a histogram.
const BARS: usize = 64;

/// An open event file.
pub(super) struct EventFile {
    out: BufWriter<File>,
    path: PathBuf,
    /// Each histogram is written after so many steps.
    every: Option<u64>,
    /// The last step.
    step: u64,
}

/// Whether events can be written there; makes the directory, and owns it.
///
/// # Errors
/// `Output`: it cannot be made or written, is another run's, or has the events of one.
pub fn check_events(directory: &Path, resumed: bool) -> Result<()> {
    let failed = |error: std::io::Error| Error::output(directory, format!("--tensorboard: {error}"));
    fs::create_dir_all(directory).map_err(failed)?;
    super::path::probe(directory).map_err(failed)?;
    files::own(directory, "choose another --tensorboard")?;
    let names = fs::read_dir(directory)
        .map_err(failed)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    if !resumed && names.into_iter().any(|name| name.starts_with(PREFIX)) {
        return Err(Error::output(
            directory,
            "--tensorboard: has the events of another run; give each a directory of its own",
        ));
    }
    Ok(())
}

impl EventFile {
    /// Begins a file, with a network where there is one to draw. Where a run goes on after `resumed` steps, TensorBoard
    /// forgets what earlier files have from there on.
    ///
    /// # Errors
    /// `Output`: it cannot be written.
    pub fn create(
        directory: &Path,
        every: Option<u64>,
        resumed: Option<u64>,
        layers: &[Layer],
    ) -> Result<EventFile> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let host = host::name().unwrap_or_else(|| "host".into());
        // Files are read in the order of their names.
        let name =
            format!("{PREFIX}{:010}.{host}.{}.{:09}", now.as_secs(), std::process::id(), now.subsec_nanos());
        let path = directory.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.or_output(&path, "cannot be made")?;
        let mut events = EventFile { out: BufWriter::new(file), path, every, step: 0 };
        events.write(0, &[text(3, "brain.Event:2")])?;
        if let Some(step) = resumed {
            // SessionLog, whose status 1 is START.
            events.write(step, &[message(7, &[number(1, 1)])])?;
        }
        if !layers.is_empty() {
            events.write(0, &[message(4, &graph(layers))])?;
        }
        events.flush()?;
        Ok(events)
    }

    pub fn step(&mut self, r: &StepRecord, metric: Metric) -> Result<()> {
        self.step = r.step;
        let mut values = vec![
            scalar("loss/train", r.loss),
            scalar("learning_rate", r.learning_rate),
            scalar("images_per_second", r.images as f64 / r.spent.seconds),
            scalar("share/communication", r.spent.communication / r.spent.seconds),
            scalar("share/input", r.spent.input / r.spent.seconds),
        ];
        values.extend(of_metric(metric, "train", r.metric));
        if let Some(usage) = r.usage {
            values.extend([
                scalar("gpu/busy", usage.busy),
                scalar("gpu/memory", usage.memory),
                scalar("gpu/power", usage.power),
            ]);
        }
        values.retain(|value| !value.is_empty());
        self.write(r.step, &[message(5, &values)])
    }

    pub fn epoch(&mut self, r: &EpochRecord, metric: Metric) -> Result<()> {
        let mut values = vec![
            scalar("loss/test", r.test_loss),
            scalar("epoch/loss", r.train_loss),
            scalar("epoch/images_per_second", r.images_per_second),
        ];
        values.extend(of_metric(metric, "test", r.test_metric));
        values.retain(|value| !value.is_empty());
        self.write(self.step, &[message(5, &values)])
    }

    /// Whether histograms are due after so many steps.
    pub fn wants_histograms(&self, done: u64) -> bool {
        self.every.is_some_and(|every| done.is_multiple_of(every))
    }

    pub fn histogram(&mut self, tag: &str, values: &[f32]) -> Result<()> {
        let value = message(1, &[text(1, tag), message(5, &histogram(values))]);
        self.write(self.step, &[message(5, &[value])])
    }

    /// Hands everything to the operating system, where a reader finds it.
    pub fn flush(&mut self) -> Result<()> {
        let done = self.out.flush();
        done.map_err(|error| self.failed(&error))
    }

    fn write(&mut self, step: u64, fields: &[Vec<u8>]) -> Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let event = [vec![double(1, now.as_secs_f64()), number(2, step)], fields.to_vec()].concat().concat();
        let done = self.out.write_all(&framed(&event));
        done.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::output(&self.path, format!("cannot write the events: {error}"))
    }
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    [&length, &masked(&length)[..], bytes, &masked(bytes)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// The metric, where it is none of the losses.
fn of_metric(metric: Metric, part: &str, value: f64) -> Option<Vec<u8>> {
    (metric != Metric::Loss).then(|| scalar(&format!("{}/{part}", metric.name()), value))
}

/// Summary.Value; nothing for what is not known.
fn scalar(tag: &str, value: f64) -> Vec<u8> {
    if value.is_nan() {
        return Vec::new();
    }
    let simple = [vec![key(2, 5)], (value as f32).to_le_bytes().to_vec()].concat();
    message(1, &[text(1, tag), simple])
}

/// GraphDef (tensorflow/core/framework/graph.proto, node_def.proto, attr_value.proto): a node for each layer, in the
/// groups that its name tells.
fn graph(layers: &[Layer]) -> Vec<Vec<u8>> {
    let mut names: Vec<String> = Vec::with_capacity(layers.len());
    for layer in layers {
        let wanted = layer.name.replace('.', "/");
        let numbered = (2..).map(|number| format!("{wanted}_{number}"));
        let free = std::iter::once(wanted.clone()).chain(numbered).find(|name| !names.contains(name));
        names.push(free.unwrap_or_default());
    }
    let node = |(layer, name): (&Layer, &String)| {
        let shape = |extents: &Vec<usize>| {
            let dims: Vec<_> =
                extents.iter().map(|&extent| message(2, &[number(1, extent as u64)])).collect();
            message(7, &dims)
        };
        let shapes: Vec<_> = layer.shapes.iter().map(shape).collect();
        let mut fields = vec![text(1, name), text(2, &layer.op.replace(' ', "_"))];
        fields.extend(layer.inputs.iter().map(|&input| text(3, &names[input])));
        fields.push(attribute("_output_shapes", message(1, &shapes)));
        if layer.parameters > 0 {
            fields.push(attribute("parameters", number(3, layer.parameters as u64)));
        }
        message(1, &fields)
    };
    let nodes = layers.iter().zip(&names).map(node);
    // The producer of this form since 2016.
    nodes.chain([message(4, &[number(1, 22)])]).collect()
}

/// An entry of a node's attributes.
fn attribute(name: &str, value: Vec<u8>) -> Vec<u8> {
    message(5, &[text(1, name), message(2, &[value])])
}

/// HistogramProto: bars of equal width over all finite values.
fn histogram(values: &[f32]) -> Vec<Vec<u8>> {
    let finite = || values.iter().copied().filter(|value| value.is_finite()).map(f64::from);
    let (least, most) = finite().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
    let (least, most) = if least > most { (0.0, 0.0) } else { (least, most) };
    let bars = if most > least { BARS } else { 1 };
    let width = (most - least) / bars as f64;
    let (mut counts, mut sum, mut squares) = (vec![0.0; bars], 0.0, 0.0);
    for value in finite() {
        let bar = if width > 0.0 { ((value - least) / width) as usize } else { 0 };
        counts[bar.min(bars - 1)] += 1.0;
        sum += value;
        squares += value * value;
    }
    let limits: Vec<f64> =
        (1..=bars).map(|bar| if bar == bars { most } else { least + bar as f64 * width }).collect();
    let numbers = [least, most, counts.iter().sum(), sum, squares];
    let mut fields: Vec<Vec<u8>> = (1..).zip(numbers).map(|(field, value)| double(field, value)).collect();
    fields.extend([packed(6, &limits), packed(7, &counts)]);
    fields
}

/// A field's number and type: 0 a number, 1 eight bytes, 2 bytes with their length, 5 four bytes.
fn key(field: u8, kind: u8) -> u8 {
    field << 3 | kind
}

/// Seven bits a byte, the lowest first; the eighth says that there is more.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn number(field: u8, value: u64) -> Vec<u8> {
    [vec![key(field, 0)], varint(value)].concat()
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [vec![key(field, 1)], value.to_le_bytes().to_vec()].concat()
}

fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
    [vec![key(field, 2)], varint(content.len() as u64), content.to_vec()].concat()
}

fn text(field: u8, content: &str) -> Vec<u8> {
    bytes(field, content.as_bytes())
}

fn message(field: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    bytes(field, &parts.concat())
}

fn packed(field: u8, values: &[f64]) -> Vec<u8> {
    bytes(field, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_framed_as_tensorflow_does() {
        // CRC-32C of nine digits is e3069283 (RFC 3720 and every other source).
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let masked_crc = 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8);
        let record = framed(b"123456789");
        assert_eq!((record.len(), &record[..8]), (8 + 4 + 9 + 4, &9u64.to_le_bytes()[..]));
        assert_eq!(record[21..], masked_crc.to_le_bytes());
    }

    #[test]
    fn a_histogram_counts_every_finite_value_once() {
        let fields = histogram(&[0.0, 1.0, 1.0, f32::NAN, -1.0]);
        let double = |at: usize| f64::from_le_bytes(fields[at][1..9].try_into().unwrap());
        assert_eq!([0, 1, 2, 3, 4].map(double), [-1.0, 1.0, 4.0, 1.0, 3.0]);
        let counts: Vec<f64> =
            fields[6][3..].chunks(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!((counts.len(), counts[0], counts[32], counts[63]), (64, 1.0, 1.0, 2.0));
        // All alike, or none at all.
        assert_eq!(histogram(&[2.0, 2.0]).len(), 7);
        assert_eq!(histogram(&[]).len(), 7);
        assert_eq!(varint(300), [0xac, 0x02]);
    }
}
