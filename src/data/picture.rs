//! Decoded images, and the decoders.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::about;
use super::turbojpeg::{self, Turbo};
use crate::config;
use crate::error::{Error, Result};

/// An image as bytes: rows from the top, channels innermost. One channel is grey, three are red, green, blue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picture {
    /// (height, width, channels), 0 to 255.
    pub pixels: Vec<u8>,
    /// In pixels.
    pub height: usize,
    /// In pixels.
    pub width: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
}

/// What decodes JPEG files. Their pixels differ by a unit here and there.
#[derive(Clone, Copy)]
pub enum Jpeg {
    /// zune-jpeg.
    Rust,
    /// libjpeg-turbo.
    Turbo(&'static Turbo),
}

impl Jpeg {
    /// # Errors
    /// `Environment` where libjpeg-turbo is asked for and cannot be loaded.
    pub fn find(wanted: config::JpegDecoder) -> Result<Jpeg> {
        match (wanted, turbojpeg::library()) {
            (config::JpegDecoder::Rust, _) | (config::JpegDecoder::Auto, Err(_)) => Ok(Jpeg::Rust),
            (_, Ok(turbo)) => Ok(Jpeg::Turbo(turbo)),
            (config::JpegDecoder::Turbo, Err(why)) => Err(Error::environment(format!(
                "--jpeg-decoder turbo: {why}; install it (Debian and Ubuntu: libturbojpeg0 or libturbojpeg), or leave \
                 the flag out to decode in Rust"
            ))),
        }
    }

    /// As the flag has it.
    pub fn name(self) -> config::JpegDecoder {
        match self {
            Jpeg::Rust => config::JpegDecoder::Rust,
            Jpeg::Turbo(_) => config::JpegDecoder::Turbo,
        }
    }
}

/// No image has more pixels than this on a side, or in all: 256 MiB as RGB, where Pillow warns of a decompression bomb.
/// A file of one colour can be a thousandth of that.
const LARGEST_SIDE: usize = 1 << 15;
const MOST_PIXELS: usize = (1 << 28) / 3;

/// Pixels a byte of a file can stand for at most, so that a header that lies costs no memory. A JPEG spends at least
/// one bit on each block of 64 pixels; deflate, in a PNG, writes no more than 1032 bytes for one.
pub(super) const BEST_JPEG: usize = 512;
const BEST_PNG: usize = 1032;

impl Picture {
    /// Takes a new size; what the pixels were is lost.
    pub fn reshape(&mut self, height: usize, width: usize, channels: usize) {
        (self.height, self.width, self.channels) = (height, width, channels);
        self.pixels.resize(height * width * channels, 0);
    }
}

/// Whether a file that starts so is an image of a known kind.
pub fn is_known(start: &[u8]) -> bool {
    start.starts_with(&[0xff, 0xd8]) || start.starts_with(b"\x89PNG")
}

/// Decodes a JPEG or PNG file, whatever its name was, reusing the picture's memory.
///
/// # Errors
/// What is wrong with it, in words that follow the file's name.
pub fn decode(bytes: &[u8], picture: &mut Picture, jpeg: Jpeg) -> std::result::Result<(), String> {
    // A defect of a decoder costs one image, not the run.
    let decoded = catch_unwind(AssertUnwindSafe(|| match bytes {
        [] => Err("empty".into()),
        [0xff, 0xd8, ..] => decode_jpeg(bytes, picture, jpeg),
        [0x89, b'P', b'N', b'G', ..] => decode_png(bytes, picture),
        _ => Err(format!("neither JPEG nor PNG{}", about::kind_of(bytes))),
    }));
    decoded.unwrap_or_else(|_| Err("the decoder failed".into()))
}

fn decode_jpeg(bytes: &[u8], picture: &mut Picture, jpeg: Jpeg) -> std::result::Result<(), String> {
    let wrong = |error: zune_jpeg::errors::DecodeErrors| format!("corrupt JPEG file ({error:?})");
    // Decoders fill with grey what a truncated file lacks; such an image shall not be learned.
    if !ends(bytes) {
        return Err("truncated JPEG file".into());
    }
    if let Jpeg::Turbo(turbo) = jpeg
        && turbo.decode(bytes, picture)?
    {
        return Ok(());
    }
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .set_strict_mode(false);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(wrong)?;
    let info = decoder.info().ok_or("corrupt JPEG file (no header)")?;
    let (height, width) = (usize::from(info.height), usize::from(info.width));
    plausible(height, width, bytes.len(), BEST_JPEG)?;
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (space, channels) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    decoder.set_options(options.jpeg_set_out_colorspace(space));
    picture.reshape(height, width, channels);
    match decoder.output_buffer_size() {
        Some(size) if size == picture.pixels.len() => decoder.decode_into(&mut picture.pixels).map_err(wrong),
        _ => Err("JPEG file with colours of an unknown kind".into()),
    }
}

/// Whether a JPEG file has its end marker behind the start of its scan. (A thumbnail in its header has one of its own.)
fn ends(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[0xff, marker, high, low]) = bytes.get(at..at + 4) {
        match marker {
            // Padding.
            0xff => at += 1,
            0xda => break,
            _ => at += 2 + usize::from(u16::from_be_bytes([high, low])),
        }
    }
    let scan = bytes.get(at..).unwrap_or_default();
    scan.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

fn decode_png(bytes: &[u8], picture: &mut Picture) -> std::result::Result<(), String> {
    let wrong = |error: png::DecodingError| format!("corrupt or truncated PNG file ({error})");
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_limits(png::Limits { bytes: bytes.len().saturating_mul(4).max(1 << 20) });
    let info = decoder.read_header_info().map_err(wrong)?;
    let (height, width) = (info.height as usize, info.width as usize);
    plausible(height, width, bytes.len(), BEST_PNG)?;
    // What reading it needs besides the image is a few rows.
    decoder.set_limits(png::Limits { bytes: bytes.len().saturating_mul(4).max(32 * width).max(1 << 20) });
    let mut reader = decoder.read_info().map_err(wrong)?;
    let channels = reader.output_color_type().0.samples();
    picture.reshape(height, width, channels);
    if reader.output_buffer_size() != Some(picture.pixels.len()) {
        return Err("PNG file of an unknown kind".into());
    }
    reader.next_frame(&mut picture.pixels).map_err(wrong)?;
    drop_alpha(picture);
    Ok(())
}

pub(super) fn plausible(
    height: usize,
    width: usize,
    bytes: usize,
    best: usize,
) -> std::result::Result<(), String> {
    if height == 0 || width == 0 {
        return Err(format!("its header says {width}×{height} pixels"));
    }
    if height > LARGEST_SIDE || width > LARGEST_SIDE {
        return Err(format!(
            "{width}×{height} pixels; images of more than {LARGEST_SIDE} on a side are not decoded"
        ));
    }
    if height.saturating_mul(width) > bytes.saturating_mul(best) {
        return Err(format!("its header says {width}×{height} pixels, more than {bytes} bytes can hold"));
    }
    if height * width > MOST_PIXELS {
        return Err(format!("{width}×{height} pixels; images of more than {MOST_PIXELS} are not decoded"));
    }
    Ok(())
}

/// Transparency is left away, as PIL's `convert("RGB")` does.
fn drop_alpha(picture: &mut Picture) {
    let (from, to) = (picture.channels, picture.channels - 1);
    if matches!(from, 2 | 4) {
        for pixel in 0..picture.height * picture.width {
            picture.pixels.copy_within(pixel * from..pixel * from + to, pixel * to);
        }
        picture.reshape(picture.height, picture.width, to);
    }
}
