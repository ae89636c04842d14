//! How large a tensor may be: what the numbers of libraries and kernels hold, so that none of them is asked for more.

use super::{Graph, Shape, Tensor};
use crate::error::{Error, Result};

/// Numbers in a tensor: 4 TB in f32. Sums of bytes and operations over all tensors and layers then fit 64 bits.
pub const MOST_NUMBERS: usize = 1 << 40;
/// Numbers in one sample of a tensor, and of one channel over all samples: oneDNN counts both in 32 bits with a sign
/// where it cuts a layer up among threads, and divides by what came out.
const INDEX: usize = i32::MAX as usize;

impl Graph {
    /// The graph, if no tensor is larger than kernels can count. Asked before any operation or byte is counted.
    ///
    /// # Errors
    /// `Usage`, with the first such tensor.
    pub fn within_limits(self) -> Result<Graph> {
        let check = |tensor: &Tensor| countable(&self.name, &self.image(), &tensor.name, &tensor.spec.shape);
        self.tensors.iter().try_for_each(check)?;
        Ok(self)
    }
}

/// Refuses a tensor of a model for images of (C,H,W) that is larger than kernels can count.
///
/// # Errors
/// `Usage`, with its size.
pub fn countable(model: &str, image: &Shape, tensor: &str, shape: &Shape) -> Result<()> {
    let extents = shape.0.iter().enumerate();
    let channel = extents.filter(|(axis, _)| *axis != 1).fold(1usize, |all, (_, n)| all.saturating_mul(*n));
    let [sample, all] = [shape.per_sample(), shape.elements()];
    let what = match () {
        () if sample > INDEX => format!("{sample} of them in one sample, where {INDEX} can be counted"),
        () if channel > INDEX => format!("{channel} of them in one channel, where {INDEX} can be counted"),
        () if all > MOST_NUMBERS => format!("{all} in all, where {MOST_NUMBERS} can be counted"),
        () => return Ok(()),
    };
    Err(Error::usage(format!(
        "model {model} for images of {image}: {tensor} would have {shape} numbers, {what}; take a smaller --batch or \
         --image-size, or cut the images with --spatial"
    )))
}

#[cfg(test)]
mod tests {
    use crate::error::ErrorKind;
    use crate::graph::{Builder, Conv, Graph};

    fn net(batch: usize, size: usize, channels: usize) -> Graph {
        let (mut net, x) = Builder::new("wide", batch, [3, size, size]);
        let x = net.conv("conv", x, channels, Conv::square(1)).unwrap();
        let x = net.global_avg_pool("pool", x).unwrap();
        let x = net.flatten("flatten", x);
        let logits = net.linear("fc", x, 10);
        net.finish(logits)
    }

    /// One more of anything is refused, also where the product is beyond 64 bits.
    #[test]
    fn tensors_that_no_kernel_can_count_are_refused_with_their_size() {
        for (batch, size, channels) in [(1, 4096, 127), (2047, 1024, 4), (1 << 10, 1 << 10, 1 << 10)] {
            assert!(net(batch, size, channels).within_limits().is_ok(), "{batch} {size} {channels}");
        }
        for (batch, size, channels, said) in [
            (1, 4096, 128, "conv would have 1×128×4096×4096 numbers, 2147483648 of them in one sample"),
            (2048, 1024, 4, "images would have 2048×3×1024×1024 numbers, 2147483648 of them in one channel"),
            (2047, 1024, 1024, "conv would have 2047×1024×1024×1024 numbers, 2197949513728 in all"),
            (
                1 << 40,
                1 << 20,
                9,
                "images would have 1099511627776×3×1048576×1048576 numbers, 3298534883328 of them in",
            ),
        ] {
            let error = net(batch, size, channels).within_limits().unwrap_err();
            assert!(error.kind == ErrorKind::Usage && error.message.contains(said), "{}", error.message);
        }
    }
}
