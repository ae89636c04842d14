//! How a photograph was held: the orientation in a JPEG file's EXIF data (a number from 1 to 8), and turning by it.
//!
//! Data sets are read as they are stored, as PIL and torchvision do; single photographs that are to be told apart are
//! turned, since networks learned from upright ones.

use super::picture::Picture;

/// The tag of the orientation, a 16-bit number in the first directory of TIFF's format.
const TAG: u16 = 0x0112;

/// The orientation that a file's EXIF data say; 1, upright, where they say none.
pub fn of(bytes: &[u8]) -> u8 {
    let mut at = 2;
    while let Some(&[0xff, marker, high, low]) = bytes.get(at..at + 4) {
        let length = usize::from(u16::from_be_bytes([high, low]));
        match marker {
            0xff => at += 1,
            // The image itself begins.
            0xda => break,
            0xe1 => {
                match bytes.get(at + 4..at + 2 + length).and_then(|data| data.strip_prefix(b"Exif\0\0")) {
                    Some(tiff) => {
                        return orientation(tiff).filter(|value| (1..=8).contains(value)).unwrap_or(1);
                    }
                    None => at += 2 + length,
                }
            }
            _ => at += 2 + length,
        }
    }
    1
}

fn orientation(tiff: &[u8]) -> Option<u8> {
    let is_little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = [*tiff.get(at)?, *tiff.get(at.checked_add(1)?)?];
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let halves = [short(at)?, short(at.checked_add(2)?)?].map(usize::from);
        Some(if is_little { halves[1] << 16 | halves[0] } else { halves[0] << 16 | halves[1] })
    };
    let directory = long(4)?;
    let entry = |number: usize| directory.checked_add(2 + 12 * number);
    let entries = usize::from(short(directory)?);
    let found = (0..entries).filter_map(entry).find(|&at| short(at) == Some(TAG))?;
    u8::try_from(short(found + 8)?).ok()
}

/// Turns a picture upright.
pub fn turn(picture: &mut Picture, orientation: u8) {
    if orientation <= 1 {
        return;
    }
    let (height, width, channels) = (picture.height, picture.width, picture.channels);
    let turned = orientation >= 5;
    let (to_height, to_width) = if turned { (width, height) } else { (height, width) };
    let mut pixels = Vec::with_capacity(picture.pixels.len());
    for row in 0..to_height {
        for column in 0..to_width {
            let (r, c) = match orientation {
                2 => (row, width - 1 - column),
                3 => (height - 1 - row, width - 1 - column),
                4 => (height - 1 - row, column),
                5 => (column, row),
                6 => (height - 1 - column, row),
                7 => (height - 1 - column, width - 1 - row),
                _ => (column, width - 1 - row),
            };
            let at = (r * width + c) * channels;
            pixels.extend_from_slice(&picture.pixels[at..at + channels]);
        }
    }
    *picture = Picture { pixels, height: to_height, width: to_width, channels };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A JPEG's start with nothing but EXIF data of one entry.
    fn exif(is_little: bool, value: u16) -> Vec<u8> {
        let two = |number: u16| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let four = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let mut tiff = if is_little { b"II\x2a\0".to_vec() } else { b"MM\0\x2a".to_vec() };
        tiff.extend(four(8));
        tiff.extend([two(1), two(TAG), two(3)].concat());
        tiff.extend(four(1));
        tiff.extend([two(value), two(0)].concat());
        let length = (2 + 6 + tiff.len() as u16).to_be_bytes();
        [&b"\xff\xd8\xff\xe0\0\x04ab\xff\xe1"[..], &length, b"Exif\0\0", &tiff].concat()
    }

    #[test]
    fn the_orientation_is_read_in_both_orders_of_bytes_and_nowhere_else() {
        for value in 1..=8 {
            assert_eq!([of(&exif(true, value)), of(&exif(false, value))], [value as u8; 2]);
        }
        assert_eq!([of(&exif(true, 9)), of(&exif(true, 0)), of(b"\x89PNG"), of(b"")], [1; 4]);
        let whole = exif(false, 6);
        (0..whole.len()).for_each(|end| assert_eq!(of(&whole[..end]), 1));
    }

    /// What each orientation says is stored where, by the words of EXIF: "6: the 0th row is the visual right-hand side,
    /// the 0th column the visual top".
    #[test]
    fn pictures_are_turned_upright() {
        let upright = [[1, 2, 3], [4, 5, 6]];
        let stored: [(u8, &[&[u8]]); 8] = [
            (1, &[&[1, 2, 3], &[4, 5, 6]]),
            (2, &[&[3, 2, 1], &[6, 5, 4]]),
            (3, &[&[6, 5, 4], &[3, 2, 1]]),
            (4, &[&[4, 5, 6], &[1, 2, 3]]),
            (5, &[&[1, 4], &[2, 5], &[3, 6]]),
            (6, &[&[3, 6], &[2, 5], &[1, 4]]),
            (7, &[&[6, 3], &[5, 2], &[4, 1]]),
            (8, &[&[4, 1], &[5, 2], &[6, 3]]),
        ];
        for (orientation, rows) in stored {
            let pixels = rows.concat().iter().flat_map(|&value| [value, value + 100, 7]).collect();
            let mut picture = Picture { pixels, height: rows.len(), width: rows[0].len(), channels: 3 };
            turn(&mut picture, orientation);
            let expected = upright.concat().iter().flat_map(|&value| [value, value + 100, 7]).collect();
            let expected = Picture { pixels: expected, height: 2, width: 3, channels: 3 };
            assert_eq!(picture, expected, "{orientation}");
        }
    }
}
