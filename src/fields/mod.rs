//! Arrays as scientists' files hold them (HDF5, and netCDF-4, which is HDF5), and what of an array a sample is.
//!
//! A `View` says which axes of an array number the samples and which are channels and space (docs/fields.md). An
//! `FileArray` is one array of one file: where its bytes lie and how they are coded. The HDF5 library says so once,
//! when the file is opened. From then on an `ArrayReader` reads the file by itself and decodes what it has read: the
//! library has one lock for all threads of a process, and a slow zlib.

mod array;
mod attributes;
mod element;
mod filter;
mod gaps;
mod layout;
#[allow(unsafe_code)]
mod library;
mod mapped;
mod moments;
mod paths;
mod read;
mod universe;
mod view;

pub use array::{ArrayStorage, Arrays, Coordinate, FileArray, lacking_filter};
pub use element::{FileNumber, NumberType, RoundedOff, six_digits};
pub use filter::{ChunkDecoder, Filter};
pub use layout::{better_chunk, halved};
pub use library::fixed_text;
pub use moments::Moments;
pub use paths::files_of;
pub use read::{Amount, ArrayReader};
pub use universe::Universe;
pub use view::{ArrayBox, ArrayPart, View, ViewSamples, extents, place_in};
