//! How a length is divided among ranks, and a rank's segment among messages.

use std::ops::Range;

/// Part `index` of `0..length` divided into `parts` that differ by at most one element, the longer ones first.
pub fn even_split(length: usize, parts: usize, index: usize) -> Range<usize> {
    let (base, longer) = (length / parts, length % parts);
    let start = index * base + index.min(longer);
    start..start + base + usize::from(index < longer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_the_length_once_in_order_and_evenly(length in 0usize..10_000, parts in 1usize..200) {
            let all: Vec<_> = (0..parts).map(|index| even_split(length, parts, index)).collect();
            prop_assert_eq!(all[0].start, 0);
            prop_assert_eq!(all[parts - 1].end, length);
            prop_assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = all.iter().map(ExactSizeIterator::len);
            prop_assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }
    }
}
