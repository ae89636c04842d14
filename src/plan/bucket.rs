//! Fusion buckets: slices of the gradient region.

use std::ops::Range;

use crate::cuts::segment;

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

/// A gradient: its bytes in the region, and the step after which it is ready.
pub type Ready = (Range<usize>, usize);

/// Cuts gradients, in ready order, into buckets of at least `threshold` bytes (the last may be smaller). What becomes
/// ready together stays together. Those that begin before `split` are in buckets of their own.
pub fn cut(gradients: &[Ready], split: usize, threshold: usize, steps: usize) -> Vec<Bucket> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (index, (own, after)) in gradients.iter().enumerate() {
        let stays = |group: &&mut Range<usize>| {
            let last = group.end - 1;
            if (gradients[last].0.start < split) != (own.start < split) {
                return false;
            }
            let bytes = gradients[last].0.end - gradients[group.start].0.start;
            bytes < threshold || gradients[last].1 == *after
        };
        match groups.last_mut().filter(stays) {
            Some(group) => group.end = index + 1,
            None => groups.push(index..index + 1),
        }
    }
    of_groups(gradients, &groups, steps)
}

/// The same buckets of gradients that become ready at other times.
pub fn cut_alike(gradients: &[Ready], buckets: &[Bucket], steps: usize) -> Vec<Bucket> {
    let group = |bucket: &Bucket| {
        let of = |at: usize| gradients.partition_point(|(bytes, _)| bytes.start < at);
        of(bucket.bytes.start)..of(bucket.bytes.end)
    };
    of_groups(gradients, &buckets.iter().map(group).collect::<Vec<_>>(), steps)
}

/// The same buckets in slices of at most so many bytes, wherever that is in a gradient.
pub fn slice(buckets: &[Bucket], most: usize) -> Vec<Bucket> {
    let of = |bucket: &Bucket| {
        let (after, slices) = (bucket.after, bucket.bytes.len().div_ceil(most).max(1));
        // Buckets begin and end at whole lines of so many bytes.
        let lines = bucket.bytes.start / TAIL..bucket.bytes.end / TAIL;
        (0..slices).map(move |index| {
            let lines = segment(&lines, slices, index);
            Bucket { bytes: TAIL * lines.start..TAIL * lines.end, after }
        })
    };
    buckets.iter().flat_map(of).collect()
}

/// A bucket for each run of gradients. The runs follow each other and are all gradients. The tail joins the last
/// bucket, which waits for the last step.
fn of_groups(gradients: &[Ready], groups: &[Range<usize>], steps: usize) -> Vec<Bucket> {
    let bucket = |group: &Range<usize>| {
        let gradients = &gradients[group.clone()];
        let after = gradients.iter().map(|(_, after)| *after).max().unwrap_or(0);
        let start = gradients.first().map_or(0, |(bytes, _)| bytes.start);
        Bucket { bytes: start..gradients.last().map_or(start, |(bytes, _)| bytes.end), after }
    };
    let mut buckets: Vec<Bucket> = groups.iter().map(bucket).collect();
    // Buckets meet without gaps, so that the alignment between two parameters belongs to one of them.
    for next in 1..buckets.len() {
        buckets[next - 1].bytes.end = buckets[next].bytes.start;
        // They leave in their order.
        buckets[next].after = buckets[next].after.max(buckets[next - 1].after);
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
            let buckets = cut(&gradients, 0, threshold, sizes.len() + 1);
            let split = gradients[gradients.len() / 2].0.start;
            let apart = cut(&gradients, split, threshold, sizes.len() + 1);
            prop_assert!(apart.iter().all(|b| b.bytes.start >= split || b.bytes.end <= split));
            prop_assert_eq!(buckets[0].bytes.start, 0);
            prop_assert_eq!(buckets.last().unwrap().bytes.end, end + TAIL);
            for pair in buckets.windows(2) {
                prop_assert_eq!(pair[0].bytes.end, pair[1].bytes.start);
                prop_assert!(pair[0].bytes.len() >= threshold);
                prop_assert!(pair[0].after < pair[1].after);
            }
            // Slices are of even lengths, cover every bucket and leave with it.
            let most = threshold.next_multiple_of(TAIL) + TAIL;
            let slices = slice(&buckets, most);
            prop_assert!(slices.iter().all(|s| s.bytes.len() <= most && (s.bytes.start % TAIL) == 0));
            prop_assert_eq!(slices.first().unwrap().bytes.start, 0);
            prop_assert!(slices.windows(2).all(|pair| pair[0].bytes.end == pair[1].bytes.start));
            for bucket in &buckets {
                let of = slices.iter().filter(|s| bucket.bytes.contains(&s.bytes.start));
                prop_assert!(of.clone().all(|s| s.after == bucket.after && s.bytes.end <= bucket.bytes.end));
                prop_assert_eq!(of.map(|s| s.bytes.len()).sum::<usize>(), bucket.bytes.len());
            }
            for (bytes, ready) in &gradients {
                let bucket = buckets.iter().find(|b| b.bytes.contains(&bytes.start)).unwrap();
                prop_assert!(bucket.bytes.end >= bytes.end && bucket.after >= *ready);
            }
        }
    }
}
