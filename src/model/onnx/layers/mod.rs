//! What each op of the format becomes: a layer of the network, several, or nothing. Here is the table; the files beside
//! have the ops with weights (`weights`), products and normalisations of what the network computes (`products`,
//! `norms`), windows over images (`windows`), images in another size (`resize`), arithmetic (`elements`), what moves
//! numbers (`shapes`), and what drops some (`random`).

mod elements;
pub mod loss;
mod norms;
mod products;
mod random;
mod resize;
mod shapes;
mod weights;
mod windows;

use super::import::{Import, Lowered, Value};
use super::node::OnnxNode;
use super::tensor::Reason;
use crate::graph::{Activation, Binary};

pub use elements::finished;
pub use shapes::permuted;

/// Makes a layer of the node that the import is at, and of what that reads.
pub type Handler = fn(&mut Import, &[Value]) -> Lowered;

/// The ops that become layers, with the attributes that are read, or that say nothing about the numbers.
#[rustfmt::skip]
const OPS: &[(&str, &[&str], Handler)] = &[
    ("Abs", &[], elements::absolute),
    ("Add", &[], elements::add),
    ("AveragePool",
        &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"],
        windows::average_pool),
    ("BatchNormalization", &["epsilon", "momentum", "spatial", "training_mode"], norms::batch_norm),
    ("Bernoulli", &["dtype", "seed"], random::bernoulli),
    ("Cast", &["saturate", "to"], shapes::cast),
    ("CastLike", &["round_mode", "saturate"], shapes::cast_like),
    ("Celu", &["alpha"], elements::celu),
    ("Clip", &["max", "min"], elements::clip),
    ("Concat", &["axis"], shapes::concat),
    ("Constant", &["value", "value_float", "value_floats", "value_int", "value_ints"], shapes::constant),
    ("Conv", &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"], weights::conv),
    ("ConvTranspose",
        &["auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"],
        weights::conv_transpose),
    ("DepthToSpace", &["blocksize", "mode"], shapes::depth_to_space),
    ("Div", &[], elements::divide),
    ("Dropout", &["ratio", "seed"], random::dropout),
    ("Einsum", &["equation"], products::einsum),
    ("Elu", &["alpha"], elements::elu),
    ("Erf", &[], elements::erf),
    ("Exp", &[], |import, inputs| elements::activation(import, inputs, Activation::Exp)),
    ("Expand", &[], shapes::expand),
    ("Flatten", &["axis"], shapes::flatten),
    ("Gather", &["axis"], shapes::gather),
    ("GatherND", &["batch_dims"], shapes::gather_blocks),
    ("Gelu", &["approximate"], elements::gelu),
    ("Gemm", &["alpha", "beta", "transA", "transB"], weights::gemm),
    ("GlobalAveragePool", &[], windows::global_average_pool),
    ("GlobalMaxPool", &[], windows::global_max_pool),
    ("Greater", &[], elements::greater),
    ("GroupNormalization", &["epsilon", "num_groups", "stash_type"], norms::group_norm),
    ("HardSigmoid", &["alpha", "beta"], elements::hard_sigmoid),
    ("HardSwish", &[], |import, inputs| elements::activation(import, inputs, Activation::HardSwish)),
    ("Identity", &[], shapes::identity),
    ("InstanceNormalization", &["epsilon"], norms::instance_norm),
    ("LRN", &["alpha", "beta", "bias", "size"], norms::local_response_norm),
    ("LayerNormalization", &["axis", "epsilon", "stash_type"], norms::layer_norm),
    ("LeakyRelu", &["alpha"], elements::leaky_relu),
    ("Less", &[], random::less),
    ("LogSoftmax", &["axis"], products::log_softmax),
    ("MatMul", &[], weights::matmul),
    ("Max", &[], elements::maximum),
    ("MaxPool",
        &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"],
        windows::max_pool),
    ("Mean", &[], elements::mean),
    ("Min", &[], elements::minimum),
    ("Mish", &[], elements::mish),
    ("Mul", &[], elements::multiply),
    ("Neg", &[], |import, inputs| elements::scaled(import, elements::first(inputs)?, -1.0)),
    ("PRelu", &[], elements::parametric_relu),
    ("Pad", &["mode", "pads", "value"], shapes::pad),
    ("Pow", &[], elements::power),
    ("RandomUniformLike", &["dtype", "high", "low", "seed"], random::uniform),
    ("Reciprocal", &[], elements::reciprocal),
    ("ReduceL2", &["axes", "keepdims", "noop_with_empty_axes"], elements::norm_over),
    ("ReduceMax", &["axes", "keepdims", "noop_with_empty_axes"], elements::largest_over),
    ("ReduceMean", &["axes", "keepdims", "noop_with_empty_axes"], elements::mean_over),
    ("ReduceMin", &["axes", "keepdims", "noop_with_empty_axes"], elements::smallest_over),
    ("ReduceSum", &["axes", "keepdims", "noop_with_empty_axes"], elements::sum_over),
    ("ReduceSumSquare", &["axes", "keepdims", "noop_with_empty_axes"], elements::squares_over),
    ("Relu", &[], |import, inputs| elements::activation(import, inputs, Activation::RELU)),
    ("Reshape", &["allowzero"], shapes::reshape),
    ("Resize",
        &["antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
          "extrapolation_value", "keep_aspect_ratio_policy", "mode", "nearest_mode"],
        resize::resize),
    ("ScatterND", &["reduction"], shapes::scatter),
    ("Selu", &["alpha", "gamma"], elements::selu),
    ("SequenceAt", &[], shapes::sequence_at),
    ("Shape", &["end", "start"], shapes::shape),
    ("Sigmoid", &[], elements::sigmoid),
    ("Slice", &["axes", "ends", "starts"], shapes::slice),
    ("Softmax", &["axis"], products::softmax),
    ("Softplus", &[], elements::softplus),
    ("Softsign", &[], elements::softsign),
    ("SpaceToDepth", &["blocksize"], shapes::space_to_depth),
    ("Split", &["axis", "num_outputs", "split"], shapes::split),
    ("SplitToSequence", &["axis", "keepdims"], shapes::split_to_sequence),
    ("Sqrt", &[], |import, inputs| elements::activation(import, inputs, Activation::Sqrt)),
    ("Squeeze", &["axes"], shapes::squeeze),
    ("Sub", &[], |import, inputs| elements::stretched(import, inputs, Binary::Subtract)),
    ("Sum", &[], elements::add),
    ("Swish", &["alpha"], elements::swish),
    ("Tanh", &[], |import, inputs| elements::activation(import, inputs, Activation::Tanh)),
    ("Tile", &[], shapes::tile),
    ("Transpose", &["perm"], shapes::transpose),
    ("Unsqueeze", &["axes"], shapes::unsqueeze),
    ("Upsample", &["mode", "scales"], resize::resize),
    ("Where", &[], elements::choose),
];

/// What makes a layer of this node; `None` where its op is only computed in advance.
///
/// # Errors
/// The op or one of its attributes is not known.
pub fn handler(node: OnnxNode) -> std::result::Result<Option<Handler>, Reason> {
    match (node.domain(), OPS.iter().find(|(name, ..)| *name == node.op())) {
        ("", Some((_, attributes, handler))) => node.only(attributes).map(|()| Some(*handler)),
        ("", None) if super::fold::is_folded(node.op()) => Ok(None),
        ("", None) => Err("the op is not supported".into()),
        (domain, _) => Err(format!("the op is of the set {domain}, and not one of ONNX's own")),
    }
}

/// The numbers that one of a node's inputs states; `None` where it is left out.
fn stated(import: &Import, inputs: &[Value], place: usize) -> std::result::Result<Option<Vec<i64>>, Reason> {
    let Some(value) = inputs.get(place) else { return Ok(None) };
    let constant = import.constant(value)?;
    match constant.len() {
        0 => Ok(None),
        _ => Ok(Some(constant.integers()?.to_vec())),
    }
}
