//! The same charts as PNG, for who cannot take SVG.

use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::error::{Error, Result};

/// Ubuntu Light, which may be passed on (Ubuntu font licence): no font need be installed.
pub const FONT: &[u8] = epaint_default_fonts::UBUNTU_LIGHT;
/// Pixels for each of the SVG's, for paper and slides.
const SCALE: f32 = 2.0;

/// # Errors
/// `Internal`: it cannot be drawn.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let failed = |what: &dyn std::fmt::Display| Error::internal(format!("a chart cannot become PNG: {what}"));
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(FONT.to_vec());
    let family = fonts.faces().next().and_then(|face| face.families.first()).map(|family| family.0.clone());
    fonts.set_sans_serif_family(family.unwrap_or_default());
    let options = Options { fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| failed(&error))?;
    let size = tree.size();
    let [width, height] = [size.width(), size.height()].map(|side| (SCALE * side).ceil() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| failed(&"no room for its pixels"))?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(&error))
}
