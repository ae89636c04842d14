//! Images and files of them.

use std::fs;
use std::path::Path;

use dltrain::data::Picture;

/// An image that tells which it is: a colour for the class, a gradient for the index.
pub fn picture(class: usize, index: usize, [height, width]: [usize; 2]) -> Picture {
    let mut pixels = Vec::new();
    for row in 0..height {
        for column in 0..width {
            pixels.push((class * 60 + 20) as u8);
            pixels.push((row * 255 / height) as u8);
            pixels.push(((column + index * 16) * 255 / width) as u8);
        }
    }
    Picture { pixels, height, width, channels: 3 }
}

pub fn jpeg(picture: &Picture) -> Vec<u8> {
    let mut bytes = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 95);
    let kind =
        if picture.channels == 1 { jpeg_encoder::ColorType::Luma } else { jpeg_encoder::ColorType::Rgb };
    encoder.encode(&picture.pixels, picture.width as u16, picture.height as u16, kind).unwrap();
    bytes
}

pub fn png(picture: &Picture) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, picture.width as u32, picture.height as u32);
    encoder.set_color(match picture.channels {
        1 => png::ColorType::Grayscale,
        2 => png::ColorType::GrayscaleAlpha,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    encoder.write_header().unwrap().write_image_data(&picture.pixels).unwrap();
    bytes
}

pub fn put(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// WebDataset's form: a key, an image, its class.
pub fn tar_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}
