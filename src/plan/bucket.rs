//! Fusion buckets: slices of the gradient region.

use std::ops::Range;

/// Bytes at the end of the gradient region, in the last bucket, for what ranks add up every step besides
/// gradients: loss, hits, images, flags. The metrics of a step so cost no message of their own.
pub const TAIL: usize = 64;

/// A slice of the gradient region that is averaged in one go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Bytes of the gradient region.
    pub bytes: Range<usize>,
    /// The step after which every gradient in it is ready.
    pub after: usize,
}

/// Cuts gradients, given as (bytes, ready after step) in ready order, into buckets of at least `threshold` bytes
/// (the last may be smaller). What becomes ready together stays together. The tail joins the last bucket, which waits
/// for the last step.
pub fn cut(gradients: &[(Range<usize>, usize)], threshold: usize, steps: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for (bytes, after) in gradients {
        match buckets.last_mut().filter(|last| last.bytes.len() < threshold || last.after == *after) {
            Some(bucket) => {
                bucket.bytes.end = bytes.end;
                bucket.after = *after;
            }
            None => buckets.push(Bucket { bytes: bytes.clone(), after: *after }),
        }
    }
    // Buckets meet without gaps, so that the alignment between two parameters belongs to one of them.
    for next in 1..buckets.len() {
        buckets[next - 1].bytes.end = buckets[next].bytes.start;
    }
    if let Some(last) = buckets.last_mut() {
        last.bytes.end = last.bytes.end.next_multiple_of(TAIL) + TAIL;
        last.after = steps - 1;
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Buckets cover the gradients in order, without gap or overlap, none leaves before its gradients are
        /// ready, and all but the last reach the threshold.
        #[test]
        fn buckets_partition_the_region(sizes in prop::collection::vec(1usize..5000, 1..40), together in 1usize..4, threshold in 1usize..20_000) {
            let mut end = 0;
            let gradients: Vec<_> = sizes.iter().enumerate().map(|(step, size)| {
                let start = end;
                end = (start + size).next_multiple_of(64);
                (start..start + size, step / together)
            }).collect();
            let buckets = cut(&gradients, threshold, sizes.len() + 1);
            prop_assert_eq!(buckets[0].bytes.start, 0);
            prop_assert_eq!(buckets.last().unwrap().bytes.end, end + TAIL);
            for pair in buckets.windows(2) {
                prop_assert_eq!(pair[0].bytes.end, pair[1].bytes.start);
                prop_assert!(pair[0].bytes.len() >= threshold);
                prop_assert!(pair[0].after < pair[1].after);
            }
            for (bytes, ready) in &gradients {
                let bucket = buckets.iter().find(|b| b.bytes.contains(&bytes.start)).unwrap();
                prop_assert!(bucket.bytes.end >= bytes.end && bucket.after >= *ready);
            }
        }
    }
}
