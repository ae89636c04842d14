//! Attributes, tensors and types, as the format has them.

use super::super::schema::{
    AttributeProto, Dimension, TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
    data_type, kind,
};

/// A setting that is an integer.
pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i, kind: kind::INT, ..AttributeProto::default() }
}

/// A setting that is a real number.
pub fn real(name: &str, f: f32) -> AttributeProto {
    AttributeProto { name: name.into(), f, kind: kind::FLOAT, ..AttributeProto::default() }
}

/// A setting that is a list of lengths.
pub fn ints(name: &str, lengths: &[usize]) -> AttributeProto {
    let ints = lengths.iter().map(|&length| length as i64).collect();
    AttributeProto { name: name.into(), ints, kind: kind::INTS, ..AttributeProto::default() }
}

/// A setting that is a tensor.
pub fn tensor(name: &str, t: TensorProto) -> AttributeProto {
    AttributeProto { name: name.into(), t: Some(t), kind: kind::TENSOR, ..AttributeProto::default() }
}

/// Real numbers, last dimension fastest.
pub fn reals(name: &str, dims: &[usize], numbers: &[f32]) -> TensorProto {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    stored(name, dims, data_type::FLOAT, bytes)
}

/// Integers in a row.
pub fn integers(name: &str, integers: &[i64]) -> TensorProto {
    let bytes: Vec<u8> = integers.iter().flat_map(|integer| integer.to_le_bytes()).collect();
    stored(name, &[integers.len()], data_type::INT64, bytes)
}

fn stored(name: &str, dims: &[usize], data_type: i32, bytes: Vec<u8>) -> TensorProto {
    let dims = dims.iter().map(|&extent| extent as i64).collect();
    TensorProto { name: name.into(), dims, data_type, raw_data: bytes.into(), ..TensorProto::default() }
}

/// What a network is given or gives, as f32; an extent of −1 is the batch.
pub fn value(name: &str, extents: &[i64]) -> ValueInfoProto {
    let of = |&extent: &i64| match extent {
        -1 => Dimension { dim_value: 0, dim_param: super::BATCH.into() },
        _ => Dimension { dim_value: extent, dim_param: String::new() },
    };
    let shape = Some(TensorShapeProto { dim: extents.iter().map(of).collect() });
    let tensor_type = Some(TensorType { elem_type: data_type::FLOAT, shape });
    ValueInfoProto { name: name.into(), value_type: Some(TypeProto { tensor_type }) }
}
