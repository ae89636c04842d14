//! Which rows of a tensor a place has, which it needs of others, and which it tells them.

use std::ops::Range;

use crate::cuts::even_split;

/// A cut of so many rows over places, and one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Rows of all places.
    pub height: usize,
    /// How many places.
    pub parts: usize,
    /// This one.
    pub place: usize,
}

impl Rows {
    /// The rows of a place.
    pub fn of(&self, place: usize) -> Range<usize> {
        even_split(self.height, self.parts, place)
    }

    /// The rows of this place.
    pub fn own(&self) -> Range<usize> {
        self.of(self.place)
    }

    /// Whether all places have as many.
    pub fn are_even(&self) -> bool {
        self.height.is_multiple_of(self.parts)
    }

    pub(super) fn with_height(self, height: usize) -> Rows {
        Rows { height, ..self }
    }
}

/// Windows over the rows of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowWindow {
    /// Rows of the result, which are cut as well.
    pub outputs: usize,
    /// Rows that one of them is made of.
    pub reach: usize,
    /// Rows from one window to the next.
    pub stride: usize,
    /// Rows before the image's first one in which windows begin.
    pub padding: usize,
    /// What stands in rows that are not of the image. It is a number that bf16 has.
    pub fill: f32,
    /// Whether they are windows over the result's rows, to each of which a row of the image adds (a transposed
    /// convolution): `padding` is then of the result.
    pub transposed: bool,
}

/// Rows of a tensor that a place needs of those that it and others have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Halo {
    /// How the tensor is cut.
    pub rows: Rows,
    /// Whose rows are needed; `None`: all rows.
    pub window: Option<RowWindow>,
    /// Which halo of the network it is.
    pub number: u32,
}

/// Rows that go to another place, or come from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// The other place.
    pub peer: usize,
    /// Rows of the whole tensor.
    pub rows: Range<usize>,
}

impl Halo {
    /// The first row that a place needs and the one behind the last, counted from the image's first one: some may lie
    /// outside of the image.
    pub fn needed(&self, place: usize) -> [isize; 2] {
        let Some(RowWindow { outputs, reach, stride, padding, transposed, .. }) = self.window else {
            return [0, self.rows.height as isize];
        };
        let Range { start, end } = even_split(outputs, self.rows.parts, place);
        if transposed {
            // Row i adds to rows i·stride − padding to i·stride − padding + reach − 1 of the result.
            let first = (start + padding + stride).saturating_sub(reach) / stride;
            return [first as isize, ((end - 1 + padding) / stride + 1) as isize];
        }
        let first = |output: usize| (output * stride) as isize - padding as isize;
        [first(start), first(end - 1) + reach as isize]
    }

    /// The rows of the image among them.
    pub fn needed_of_image(&self, place: usize) -> Range<usize> {
        let height = self.rows.height as isize;
        let [start, end] = self.needed(place).map(|row| row.clamp(0, height) as usize);
        start..end.max(start)
    }

    /// Rows outside of the image that this place needs before and behind it.
    pub fn filled(&self) -> [usize; 2] {
        let ([start, end], own) = (self.needed(self.rows.place), self.needed_of_image(self.rows.place));
        // Where all of them lie outside they lie behind.
        let before = (own.start as isize - start).min(end - start).max(0) as usize;
        [before, (end - start) as usize - before - own.len()]
    }

    /// How many rows this place needs.
    pub fn height(&self) -> usize {
        let [start, end] = self.needed(self.rows.place);
        (end - start) as usize
    }

    fn strips(&self, of: impl Fn(usize) -> Range<usize>) -> Vec<Strip> {
        let others = (0..self.rows.parts).filter(|&peer| peer != self.rows.place);
        others.map(|peer| Strip { peer, rows: of(peer) }).filter(|strip| !strip.rows.is_empty()).collect()
    }

    /// What this place has and others need.
    pub fn sent(&self) -> Vec<Strip> {
        self.strips(|peer| overlap(&self.needed_of_image(peer), &self.rows.own()))
    }

    /// What this place needs and others have.
    pub fn received(&self) -> Vec<Strip> {
        self.strips(|peer| overlap(&self.needed_of_image(self.rows.place), &self.rows.of(peer)))
    }

    /// What of its own rows this place needs.
    pub(super) fn kept(&self) -> Range<usize> {
        overlap(&self.needed_of_image(self.rows.place), &self.rows.own())
    }

    /// Whether every place can compute its outputs of the rows that it has, as they lie.
    pub(super) fn is_needless(&self) -> bool {
        let Some(RowWindow { outputs, reach, stride, transposed, .. }) = self.window else { return false };
        !transposed
            && (0..self.rows.parts).all(|place| {
                let (own, outputs) = (self.rows.of(place), even_split(outputs, self.rows.parts, place));
                let [start, end] = self.needed(place);
                start == own.start as isize
                    && end <= own.end as isize
                    && (own.len() - reach) / stride + 1 == outputs.len()
            })
    }
}

pub(super) fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let (start, end) = (a.start.max(b.start), a.end.min(b.end));
    start..end.max(start)
}

/// Strips of a halo that go between places: forward those of the tensor, backward their gradients the other way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trade {
    /// The rows that it needs.
    pub halo: Halo,
    /// Whether they are gradients.
    pub is_backward: bool,
}

impl Trade {
    /// What leaves this place and what comes to it, in the order of the node's inputs and outputs.
    pub fn strips(&self) -> [Vec<Strip>; 2] {
        let [sent, received] = [self.halo.sent(), self.halo.received()];
        if self.is_backward { [received, sent] } else { [sent, received] }
    }

    /// What all places send: from which, to which, how many rows.
    pub fn messages(self) -> impl Iterator<Item = [usize; 3]> {
        let of = move |place: usize| {
            let halo = Halo { rows: Rows { place, ..self.halo.rows }, ..self.halo };
            let [sent, _] = Trade { halo, ..self }.strips();
            sent.into_iter().map(move |strip| [place, strip.peer, strip.rows.len()])
        };
        (0..self.halo.rows.parts).flat_map(of)
    }

    /// What tells its messages from those of others between the same two places.
    pub fn tag(&self) -> usize {
        2 * self.halo.number as usize + usize::from(self.is_backward)
    }
}
