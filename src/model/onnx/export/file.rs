//! The files that a network is written to: one, or where that would be too large a second one with its weights, as
//! ONNX's external data and PyTorch's exporter have them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use prost::Message;
use prost::bytes::Bytes;

use super::super::schema::{ModelProto, NodeProto, StringStringEntryProto};
use super::proto;
use crate::error::{Error, OrError, Result};
use crate::files::write_new;

/// What an ONNX file is of, protocol buffers, has no longer messages.
pub const LARGEST: usize = i32::MAX as usize;
/// Tensors of fewer bytes, shapes among them, stay with the network.
const SMALL: usize = 1024;
/// Where a tensor begins in the second file is a multiple of a page, so that a reader may map it.
const PAGE: usize = 4096;

/// A network with its weights that is not written yet.
pub struct OnnxExport(pub(super) ModelProto);

/// The second file of one that is too large for one.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

impl OnnxExport {
    /// Adds texts, each with its name, to what the file says besides.
    pub fn say(&mut self, texts: &[(&str, String)]) {
        let text = |(key, value): &(&str, String)| StringStringEntryProto {
            key: key.to_string(),
            value: value.clone(),
        };
        self.0.metadata_props.extend(texts.iter().map(text));
    }

    /// Gives the network several inputs, each by its name with the axes of a sample: what it was given is put together
    /// of them, one behind the other.
    pub fn with_inputs(&mut self, inputs: &[(&str, Vec<usize>)]) {
        const TOGETHER: [&str; 3] = ["inputs.together", "inputs.samples", "inputs.samples.shape"];
        let Some(graph) = &mut self.0.graph else { return };
        for node in &mut graph.node {
            for name in node.input.iter_mut().chain(&mut node.output).chain([&mut node.name]) {
                if *name == graph.input[0].name {
                    *name = TOGETHER[1].into();
                } else if inputs.iter().any(|(input, _)| input == name) {
                    name.push_str(".part");
                }
            }
        }
        let node = |op: &str, input: Vec<String>, output: &str| NodeProto {
            input,
            output: vec![output.into()],
            name: output.into(),
            op_type: op.into(),
            ..NodeProto::default()
        };
        let flat = |name: &str| format!("{name}.flat");
        let mut nodes: Vec<NodeProto> =
            inputs.iter().map(|(name, _)| node("Flatten", vec![name.to_string()], &flat(name))).collect();
        let all = node("Concat", inputs.iter().map(|(name, _)| flat(name)).collect(), TOGETHER[0]);
        nodes.push(NodeProto { attribute: vec![proto::int("axis", 1)], ..all });
        nodes.push(node("Reshape", [0, 2].map(|at| TOGETHER[at].to_string()).into(), TOGETHER[1]));
        graph.node.splice(..0, nodes);
        let numbers: usize = inputs.iter().map(|(_, axes)| axes.iter().product::<usize>()).sum();
        graph.initializer.push(proto::integers(TOGETHER[2], &[-1, numbers as i64, 1, 1]));
        let axes = |axes: &[usize]| axes.iter().map(|&along| along as i64).collect::<Vec<_>>();
        let input = |(name, of): &(&str, Vec<usize>)| proto::value(name, &[&[-1], &axes(of)[..]].concat());
        graph.input = inputs.iter().map(input).collect();
    }

    /// The bytes of the whole in one file.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.encode_to_vec()
    }

    /// Writes it; with its weights in the file `beside` it where it would have more bytes than `most`. Returns the
    /// bytes of that file.
    ///
    /// # Errors
    /// `Output`: a file is there already or cannot be written.
    pub fn write(mut self, path: &Path, most: usize) -> Result<Option<usize>> {
        let wrong = |error| Error::output(path, format!("cannot write the network: {error}"));
        let mut bytes = None;
        if self.0.encoded_len() > most {
            let (weights, chunks) = (beside(path), self.take_weights(path));
            let put = |new: &Path| {
                let mut file = BufWriter::new(File::create(new)?);
                chunks.iter().try_for_each(|chunk| file.write_all(chunk))?;
                file.flush()
            };
            let put = |new: &Path| put(new).or_output(&weights, "cannot write the weights");
            write_new(&weights, "the weights", put)?;
            bytes = Some(chunks.iter().map(Bytes::len).sum());
        }
        let network = self.bytes();
        let written = write_new(path, "the network", |new| std::fs::write(new, &network).map_err(wrong));
        if written.is_err() && bytes.is_some() {
            // By themselves they are of no use; what is wrong is said already.
            let _ = std::fs::remove_file(beside(path));
        }
        written.map(|()| bytes)
    }

    /// Takes the weights out, and says in their place where they will be. Gives what is to be written there.
    fn take_weights(&mut self, path: &Path) -> Vec<Bytes> {
        let location = beside(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (mut chunks, mut end) = (Vec::new(), 0);
        let tensors = self.0.graph.iter_mut().flat_map(|graph| &mut graph.initializer);
        for tensor in tensors.filter(|tensor| tensor.raw_data.len() >= SMALL) {
            let weights = std::mem::take(&mut tensor.raw_data);
            let said = [("location", location.clone()), ("offset", end.to_string())];
            let length = ("length", weights.len().to_string());
            let entry = |(key, value): (&str, String)| StringStringEntryProto { key: key.into(), value };
            tensor.external_data = said.into_iter().chain([length]).map(entry).collect();
            tensor.data_location = 1;
            let behind = weights.len().next_multiple_of(PAGE) - weights.len();
            end += weights.len() + behind;
            chunks.extend([weights, Bytes::from(vec![0; behind])]);
        }
        chunks
    }
}
