//! What several families have: a convolution with its normalisation and activation (torchvision's
//! `Conv2dNormActivation`), and squeeze-and-excitation.

use crate::error::Result;
use crate::graph::{Activation, BatchNorm, Binary, Builder, Conv, TensorId};

/// A convolution without bias, which the normalisation after it would take away again.
pub fn conv_then_norm(
    net: &mut Builder,
    [conv_name, norm_name]: [&str; 2],
    x: TensorId,
    channels: usize,
    conv: Conv,
    norm: BatchNorm,
) -> Result<TensorId> {
    let y = net.conv(conv_name, x, channels, Conv { bias: false, ..conv })?;
    net.batch_norm(norm_name, y, norm)
}

/// The same, and an activation if there is one: `name.0`, `name.1`, `name.2`.
pub fn conv_norm(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    channels: usize,
    conv: Conv,
    norm: BatchNorm,
    activation: Option<Activation>,
) -> Result<TensorId> {
    let y = conv_then_norm(net, [&format!("{name}.0"), &format!("{name}.1")], x, channels, conv, norm)?;
    Ok(match activation {
        Some(of) => net.activation(&format!("{name}.2"), y, of),
        None => y,
    })
}

/// Squeeze-and-excitation (Hu, Shen, Sun 2018): each channel times a number that all channels' means give, by two 1×1
/// convolutions and these activations.
pub fn squeeze_excite(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    squeezed: usize,
    activations: [Activation; 2],
) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let channels = net.shape(x).0[1];
    let mut scale = net.global_avg_pool(&part("avgpool"), x)?;
    scale = net.conv(&part("fc1"), scale, squeezed, Conv::square(1))?;
    scale = net.activation(&part("activation"), scale, activations[0]);
    scale = net.conv(&part("fc2"), scale, channels, Conv::square(1))?;
    scale = net.activation(&part("scale_activation"), scale, activations[1]);
    net.binary(&part("multiply"), Binary::Multiply, scale, x)
}
