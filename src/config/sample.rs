//! The shape of what a network reads.

use std::fmt;
use std::ops::Deref;

/// What a network reads of a sample: (C, H, W) of images, (C, D, H, W) of cubes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleShape {
    extents: [usize; 4],
    axes: usize,
}

impl SampleShape {
    /// Images of so many channels, rows and columns.
    pub const fn image([c, h, w]: [usize; 3]) -> SampleShape {
        SampleShape { extents: [c, h, w, 0], axes: 3 }
    }

    /// Cubes of so many channels, planes, rows and columns.
    pub const fn cube(extents: [usize; 4]) -> SampleShape {
        SampleShape { extents, axes: 4 }
    }

    /// That of these extents, channels first; `None` where they are neither those of images nor of cubes.
    pub fn of(extents: &[usize]) -> Option<SampleShape> {
        let image = <[usize; 3]>::try_from(extents).map(SampleShape::image);
        image.or_else(|_| extents.try_into().map(SampleShape::cube)).ok()
    }

    /// As many axes, of which those of space have one size.
    pub fn of_size(&self, size: usize) -> SampleShape {
        let deep = if self.axes == 4 { size } else { 0 };
        SampleShape { extents: [self.extents[0], size, size, deep], ..*self }
    }

    /// As many axes, of which each of space is lengthened to a multiple of this.
    pub fn in_multiples_of(&self, size: usize) -> SampleShape {
        let mut extents = self.extents;
        extents[1..].iter_mut().for_each(|extent| *extent = extent.next_multiple_of(size));
        SampleShape { extents, ..*self }
    }

    /// Channels, the extent of the first axis of space, and elements of all behind that: as loaders see a sample.
    pub fn rows(&self) -> [usize; 3] {
        [self[0], self[1], self[2..].iter().product()]
    }
}

impl Deref for SampleShape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.extents[..self.axes]
    }
}

impl From<[usize; 3]> for SampleShape {
    fn from(image: [usize; 3]) -> SampleShape {
        SampleShape::image(image)
    }
}

impl From<[usize; 4]> for SampleShape {
    fn from(cube: [usize; 4]) -> SampleShape {
        SampleShape::cube(cube)
    }
}

impl fmt::Display for SampleShape {
    /// "3×224×224"
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.iter().map(usize::to_string).collect();
        f.pad(&extents.join("×"))
    }
}
