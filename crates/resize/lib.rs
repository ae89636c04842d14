//! Scaling of pictures, by fast_image_resize. Its kernels are generic over the type of a picture, so the crate that
//! calls them compiles them. This crate calls them, so that they are compiled once: not with each change of dltrain,
//! not again for its unit tests, and not for each MPI. In the library they took a fourteenth of its time to compile.
#![deny(unsafe_code)]

use fast_image_resize::images::TypedImage;
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

/// What is kept between two calls: memory for intermediate pictures, and coefficients.
pub use fast_image_resize::Resizer;

/// A picture, row by row: one or three channels of a byte for each pixel.
pub struct Picture<'a> {
    /// Bytes: `height × width × channels`.
    pub pixels: &'a mut [u8],
    /// Rows.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
}

/// Scales the rectangle `[left, top, width, height]` of a picture with `channels` 1 or 3 to the size of `target`:
/// bilinear, and where it becomes smaller the mean over what a pixel covers, as PIL does.
///
/// # Errors
/// A message where the sizes are not those of the pixels, or the rectangle is not within the picture.
pub fn resize(
    resizer: &mut Resizer,
    channels: usize,
    source: Picture,
    part: [f64; 4],
    target: Picture,
) -> Result<(), String> {
    match channels {
        1 => resize_pixels::<U8>(resizer, source, part, target),
        _ => resize_pixels::<U8x3>(resizer, source, part, target),
    }
}

/// By type: `Resizer::resize` would bring 4 MB of code for pixels of other types into the program. The source could be
/// a `TypedImageRef`, which needs no `&mut`, but the library's intermediate picture is a `TypedImage`: its kernels
/// would be compiled for both types, which takes another megabyte.
fn resize_pixels<P: PixelTrait>(
    resizer: &mut Resizer,
    source: Picture,
    [left, top, width, height]: [f64; 4],
    target: Picture,
) -> Result<(), String> {
    let from = typed::<P>(source)?;
    let mut to = typed::<P>(target)?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop(left, top, width, height)
        .use_alpha(false);
    resizer.resize_typed(&from, &mut to, &options).map_err(|error| error.to_string())
}

fn typed<P: PixelTrait>(picture: Picture<'_>) -> Result<TypedImage<'_, P>, String> {
    TypedImage::from_buffer(picture.width as u32, picture.height as u32, picture.pixels)
        .map_err(|error| error.to_string())
}
