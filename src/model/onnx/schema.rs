//! The messages of the ONNX format that networks are made of: onnx.proto of github.com/onnx/onnx, with its field
//! numbers. What is not listed (strings, training information) is skipped when a file is read.

use prost::bytes::Bytes;

/// A file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    /// Version of the format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The program that wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// The network.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Versions of the sets of ops.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetId>,
    /// What its writer keeps beside.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A set of ops and its version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OperatorSetId {
    /// Empty for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Its number.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A network: nodes in an order in which they can run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GraphProto {
    /// What is computed.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Weights and other constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// What it is given; in old files also the weights.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// What it gives.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// What its writer says of it.
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// An op applied to values, which have names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeProto {
    /// Names of what it reads; an empty one is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of what it gives.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its own.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The op.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Settings of the op.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The set that the op is of.
    #[prost(string, tag = "7")]
    pub domain: String,
    /// What its writer says of it.
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A setting of an op.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// One real number.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// One integer.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// One text.
    #[prost(bytes = "bytes", tag = "4")]
    pub s: Bytes,
    /// One tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// One graph, which is boxed since it has attributes itself.
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    /// Real numbers.
    #[prost(float, repeated, tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Which of these it is (`kind`).
    #[prost(int32, tag = "20")]
    pub kind: i32,
}

/// Which kind of value an attribute has, by the numbers of the format.
pub mod kind {
    /// `f`
    pub const FLOAT: i32 = 1;
    /// `i`
    pub const INT: i32 = 2;
    /// `s`
    pub const STRING: i32 = 3;
    /// `t`
    pub const TENSOR: i32 = 4;
    /// `ints`
    pub const INTS: i32 = 7;
}

/// A tensor with its numbers, or with the place where they are.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorProto {
    /// How many elements each axis has.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// The type of an element (`data_type`).
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Real numbers, where they are not in `raw_data`.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Integers of at most 32 bits, and the bits of bf16 and f16, where they are not in `raw_data`.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Longer ones.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Its name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// The elements in little-endian order, last dimension fastest.
    #[prost(bytes = "bytes", tag = "9")]
    pub raw_data: Bytes,
    /// Real numbers of 64 bits, where they are not in `raw_data`.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Where the numbers are in another file: location, offset, length.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 where they are in another file.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// Types of elements, by the numbers of the format.
pub mod data_type {
    /// f32
    pub const FLOAT: i32 = 1;
    /// u8
    pub const UINT8: i32 = 2;
    /// i8
    pub const INT8: i32 = 3;
    /// i32
    pub const INT32: i32 = 6;
    /// i64
    pub const INT64: i32 = 7;
    /// A byte that is 0 or 1.
    pub const BOOL: i32 = 9;
    /// f16
    pub const FLOAT16: i32 = 10;
    /// f64
    pub const DOUBLE: i32 = 11;
    /// bf16
    pub const BFLOAT16: i32 = 16;
    /// Those of real numbers.
    pub const REALS: [i32; 4] = [FLOAT, FLOAT16, DOUBLE, BFLOAT16];
}

/// A word and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StringStringEntryProto {
    /// The word.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What a network is given or gives.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueInfoProto {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub value_type: Option<TypeProto>,
}

/// A type. Of those that are no tensors nothing is read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeProto {
    /// A tensor's.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorType {
    /// The type of an element (`data_type`).
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Its axes.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// The axes of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorShapeProto {
    /// One after the other.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// An axis: of fixed length, or named.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Dimension {
    /// Its length; 0 where it is not fixed.
    #[prost(int64, tag = "1")]
    pub dim_value: i64,
    /// What it is called where it is not fixed.
    #[prost(string, tag = "2")]
    pub dim_param: String,
}
