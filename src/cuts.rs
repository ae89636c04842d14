//! Who owns which part of a range: one table, for sums and for updates.
//!
//! A collective sends and adds by such a table, and the plan says by one who updates which parameters. Where both use
//! the same, an element is added in the same order whether its sum goes to all ranks or to its owner alone. Nothing
//! here knows what lies in a range or how its elements are counted. May use: nothing. Used by: `strategy`, `config`,
//! `data`, `collective`, `plan`, `fusion`.

use std::ops::Range;

/// The part of a range that each rank owns. Parts do not overlap, and may be empty; they lie in any order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cuts {
    range: Range<usize>,
    parts: Vec<Range<usize>>,
}

impl Cuts {
    /// A range of which rank r owns `parts[r]`.
    ///
    /// # Panics
    /// Unless the parts cover the range once.
    pub fn new(range: Range<usize>, parts: Vec<Range<usize>>) -> Cuts {
        let mut ordered: Vec<&Range<usize>> = parts.iter().filter(|part| !part.is_empty()).collect();
        ordered.sort_unstable_by_key(|part| part.start);
        let end = ordered.iter().try_fold(range.start, |end, part| (part.start == end).then_some(part.end));
        assert!(end == Some(range.end), "parts {parts:?} of {range:?}");
        Cuts { range, parts }
    }

    /// As much for each rank, in the order of ranks.
    pub fn even(range: &Range<usize>, ranks: usize) -> Cuts {
        Cuts { range: range.clone(), parts: (0..ranks).map(|rank| segment(range, ranks, rank)).collect() }
    }

    /// The whole range is one rank's.
    pub fn whole(range: &Range<usize>, ranks: usize, owner: usize) -> Cuts {
        let part = |rank| if rank == owner { range.clone() } else { range.start..range.start };
        Cuts { range: range.clone(), parts: (0..ranks).map(part).collect() }
    }

    /// The range that is cut.
    pub fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.parts.len()
    }

    /// What a rank owns.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn part(&self, rank: usize) -> &Range<usize> {
        &self.parts[rank]
    }

    /// The table of a range that begins elsewhere.
    pub fn moved(&self, start: usize) -> Cuts {
        let place = |at: usize| start + at.saturating_sub(self.range.start);
        let part = |part: &Range<usize>| place(part.start)..place(part.start) + part.len();
        Cuts { range: part(&self.range), parts: self.parts.iter().map(part).collect() }
    }

    /// What some of the ranks own, in that order; with `pieces` of it the one of this number from each part. It need
    /// not cover the range.
    pub fn among(&self, ranks: &[usize], [piece, pieces]: [usize; 2]) -> Cuts {
        let parts = ranks.iter().map(|&rank| segment(&self.parts[rank], pieces, piece)).collect();
        Cuts { range: self.range.clone(), parts }
    }
}

/// Part `index` of `0..length` divided into `parts` that differ by at most one element, the longer ones first.
pub fn even_split(length: usize, parts: usize, index: usize) -> Range<usize> {
    let (base, longer) = (length / parts, length % parts);
    let start = index * base + index.min(longer);
    start..start + base + usize::from(index < longer)
}

/// Part `index` of a range cut into `parts`.
pub fn segment(range: &Range<usize>, parts: usize, index: usize) -> Range<usize> {
    let part = even_split(range.len(), parts, index);
    range.start + part.start..range.start + part.end
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
            let range = 7..7 + length;
            let even = Cuts::even(&range, parts);
            prop_assert_eq!(&Cuts::new(range, even.parts.clone()), &even);
        }
    }

    #[test]
    fn parts_may_be_empty_and_lie_in_any_order() {
        let cuts = Cuts::new(10..20, vec![15..20, 3..3, 10..15]);
        assert_eq!((cuts.ranks(), cuts.part(2), cuts.range()), (3, &(10..15), &(10..20)));
        assert_eq!(cuts.among(&[2, 0], [1, 2]).parts, [13..15, 18..20]);
        assert_eq!(Cuts::whole(&(4..9), 3, 1), Cuts::new(4..9, vec![4..4, 4..9, 4..4]));
        assert_eq!(cuts.moved(2), Cuts::new(2..12, vec![7..12, 2..2, 2..7]));
    }

    #[test]
    #[should_panic(expected = "of 0..9")]
    fn parts_that_overlap_are_refused() {
        Cuts::new(0..9, vec![0..5, 4..9]);
    }
}
