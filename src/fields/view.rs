//! Views: which axes of an array number the samples, which are channels and space, and what of them is taken.
//!
//! ```text
//! VIEW    NAME | NAME[AXIS, …]               the axes in the file's order; without brackets the first numbers them
//! AXIS    n | t                              numbers the samples
//!         n+K | t-K                          the same, K places further on: what follows, or came before
//!         n*S+K..L                           samples of L places, one every S, the first at K: L is a sample's axis s
//!         c | d | h | w                      channels, depth, height, width of a sample
//!         h/K                                tiles of K, each of which is a sample
//!         c=K..L                             L places from K on
//!         K                                  this place alone, and no axis
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// An array by its name in the file, and what each of its axes is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// "group/array".
    pub array: String,
    /// One for each axis of the array; `None` where the view has no brackets.
    pub axes: Option<Vec<ViewAxis>>,
}

/// What one axis of an array is, and what of it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewAxis {
    /// One of `n t c d h w`; `None` for a single place.
    name: Option<char>,
    take: AxisPart,
}

/// What of an axis belongs to a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AxisPart {
    All,
    Place(usize),
    Range {
        first: usize,
        len: usize,
    },
    /// One part for each number: places of an axis that numbers samples, or tiles of one of space.
    Numbered {
        stride: usize,
        shift: i64,
        len: Option<usize>,
    },
}

/// The axes of a sample as a network reads them: channels, depth, height, width, places in a sequence.
const ORDER: &str = "cdhws";

/// Those that number samples, in the order in which they count: the last is the fastest.
const COUNTED: &str = "ntdhw";

/// The largest number in a view: any that a file can have, and sums of a few do not overflow.
const LARGEST: usize = 1 << 48;

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<View, String> {
        let wrong = |what: String| format!("the view {text:?}: {what}");
        let text = text.trim();
        let (array, axes) = match text.rsplit_once('[') {
            None => (text, None),
            Some((array, rest)) => {
                let inner = rest.strip_suffix(']').ok_or_else(|| wrong("it has no ] at its end".into()))?;
                let axes: Result<Vec<ViewAxis>, String> = inner.split(',').map(ViewAxis::parse).collect();
                (array, Some(axes.map_err(wrong)?))
            }
        };
        let array = array.trim_matches(|letter: char| letter == '/' || letter.is_whitespace());
        if array.is_empty() || axes.is_none() && array.contains(']') {
            return Err(wrong("it names no array, as temperature[n,h,w] does".into()));
        }
        let axes_of = axes.iter().flatten().filter_map(|axis| axis.name).collect::<Vec<char>>();
        if let Some(twice) = (1..axes_of.len()).find(|&at| axes_of[..at].contains(&axes_of[at])) {
            return Err(wrong(format!("two axes are called {}", axes_of[twice])));
        }
        Ok(View { array: array.into(), axes })
    }
}

impl View {
    /// Whether its array has this name in the group that it is in.
    pub fn is_called(&self, name: &str) -> bool {
        self.array.rsplit('/').next() == Some(name)
    }

    /// Whether it names channels behind places, as `[n,w,c]` does; `None` where it does not name both.
    pub fn channels_last(&self) -> Option<bool> {
        let place =
            |is: &dyn Fn(char) -> bool| self.axes.iter().flatten().position(|axis| axis.name.is_some_and(is));
        Some(place(&|name| name == 'c')? > place(&|name| "dhw".contains(name))?)
    }

    /// What its axes are called, in the file's order; single places and axes without brackets have no name.
    pub fn names(&self) -> Vec<Option<char>> {
        self.axes.iter().flatten().map(|axis| axis.name).collect()
    }

    /// Whether samples of the other view have numbers of the same part of the same array, perhaps of other samples.
    pub fn has_numbers_of(&self, other: &View) -> bool {
        let parts = |view: &View| -> Option<Vec<ViewAxis>> {
            view.axes.as_ref().map(|axes| axes.iter().filter(|axis| !axis.is_sample()).copied().collect())
        };
        self.array == other.array && parts(self) == parts(other)
    }
}

impl ViewAxis {
    /// The axis that numbers samples where a view does not say it.
    const FIRST: ViewAxis =
        ViewAxis { name: Some('n'), take: AxisPart::Numbered { stride: 1, shift: 0, len: None } };

    /// Whether it numbers samples, and is no tiles.
    fn is_sample(&self) -> bool {
        matches!(self.name, Some('n' | 't'))
    }

    /// What it is called in a sample.
    fn letter(&self) -> Option<char> {
        if self.is_sample() { Some('s') } else { self.name }
    }

    fn parse(text: &str) -> Result<ViewAxis, String> {
        let text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        let Some(name) = text.chars().next().filter(|letter| !letter.is_ascii_digit()) else {
            return Ok(ViewAxis { name: None, take: AxisPart::Place(number(&text)?) });
        };
        let rest = &text[name.len_utf8()..];
        let take = match name {
            'n' | 't' => counted(rest),
            'c' | 'd' | 'h' | 'w' => within(name, rest),
            _ => Err("axes are called n and t (samples), c (channels), d, h and w (space)".into()),
        };
        let take = take.map_err(|what| format!("{text:?}: {what}"))?;
        Ok(ViewAxis { name: Some(name), take })
    }
}

fn number(digits: &str) -> Result<usize, String> {
    let number = digits.parse().ok().filter(|&number| number <= LARGEST);
    number.ok_or_else(|| format!("{digits:?} is no number of places"))
}

fn length(digits: &str) -> Result<usize, String> {
    let length = number(digits)?;
    if length == 0 { Err("that takes nothing".into()) } else { Ok(length) }
}

/// What stands behind the name of an axis that numbers samples.
fn counted(rest: &str) -> Result<AxisPart, String> {
    let (rest, len) = match rest.split_once("..") {
        Some((rest, len)) => (rest, Some(length(len)?)),
        None => (rest, None),
    };
    let (stride, shift) = match rest.find(['+', '-']) {
        Some(at) => {
            let shift = number(&rest[at + 1..])? as i64;
            (&rest[..at], if rest[at..].starts_with('-') { -shift } else { shift })
        }
        None => (rest, 0),
    };
    let stride = match stride.strip_prefix('*') {
        Some(stride) => length(stride)?,
        None if stride.is_empty() => 1,
        None => return Err("that is no axis of samples, as n, n+1 and n*8..8 are".into()),
    };
    Ok(AxisPart::Numbered { stride, shift, len })
}

/// What stands behind the name of an axis that a sample has.
fn within(name: char, rest: &str) -> Result<AxisPart, String> {
    match (rest.strip_prefix('/'), rest.strip_prefix('=')) {
        _ if rest.is_empty() => Ok(AxisPart::All),
        (Some(tile), _) if name != 'c' => {
            let tile = length(tile)?;
            Ok(AxisPart::Numbered { stride: tile, shift: 0, len: Some(tile) })
        }
        (_, Some(range)) => match range.split_once("..") {
            Some((first, len)) => Ok(AxisPart::Range { first: number(first)?, len: length(len)? }),
            None => Err("a place alone is written without a name, a range as c=0..3".into()),
        },
        _ => Err("that is no axis, as h, h/128 and c=0..3 are".into()),
    }
}

impl fmt::Display for ViewAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name {
            write!(f, "{name}")?;
        }
        match self.take {
            AxisPart::All => Ok(()),
            AxisPart::Place(place) => write!(f, "{place}"),
            AxisPart::Range { first, len } => write!(f, "={first}..{len}"),
            AxisPart::Numbered { stride, .. } if !self.is_sample() => write!(f, "/{stride}"),
            AxisPart::Numbered { stride, shift, len } => {
                if stride != 1 {
                    write!(f, "*{stride}")?;
                }
                if shift != 0 {
                    write!(f, "{shift:+}")?;
                }
                len.map_or(Ok(()), |len| write!(f, "..{len}"))
            }
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(axes) = &self.axes else { return write!(f, "{}", self.array) };
        let axes: Vec<String> = axes.iter().map(ViewAxis::to_string).collect();
        write!(f, "{}[{}]", self.array, axes.join(","))
    }
}

/// A box of an array: for each axis the first place and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayBox {
    /// The first place of each axis.
    pub first: Vec<usize>,
    /// How many places of each axis; 1 where the axis is none of the sample's.
    pub len: Vec<usize>,
}

/// A part of an array, and how far apart its numbers are along each axis where they go.
#[derive(Debug, Clone)]
pub struct ArrayPart {
    /// What of the array it is.
    pub window: ArrayBox,
    /// How far apart.
    pub(super) strides: Vec<usize>,
}

/// How far apart numbers are along each axis, the last axis fastest.
pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// "2×3×4".
pub fn extents(shape: &[usize]) -> String {
    match shape {
        [] => "one number".into(),
        shape => shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×"),
    }
}

/// The place that a number stands for in a grid, the last axis fastest.
pub fn place_in(grid: &[usize], mut number: usize) -> Vec<usize> {
    let mut place = vec![0; grid.len()];
    for (axis, along) in grid.iter().enumerate().rev() {
        place[axis] = number % along;
        number /= along;
    }
    place
}

/// How a view divides an array of one shape into samples.
#[derive(Debug, Clone)]
pub struct ViewSamples {
    axes: Vec<ViewAxis>,
    /// Places of each axis that all samples have, the first of each.
    window: ArrayBox,
    /// Which axes number samples, the slowest first: the axis, the first number that it can have, and how many.
    counted: Vec<(usize, i64, usize)>,
    /// The axes of a sample, in a network's order.
    order: Vec<usize>,
    /// Places that no sample takes, for each axis: what is left behind the last whole tile or window.
    rest: Vec<usize>,
}

impl View {
    /// The samples of an array of this shape.
    ///
    /// # Errors
    /// What of the view the array does not have.
    pub fn samples(&self, shape: &[usize]) -> Result<ViewSamples, String> {
        let axes = match &self.axes {
            Some(axes) if axes.len() == shape.len() => axes.clone(),
            Some(axes) => {
                return Err(format!("{self} names {} axes, and the array has {}", axes.len(), shape.len()));
            }
            None => {
                let all = ViewAxis { name: None, take: AxisPart::All };
                [ViewAxis::FIRST].into_iter().chain(std::iter::repeat(all)).take(shape.len()).collect()
            }
        };
        let mut samples = ViewSamples {
            window: ArrayBox { first: vec![0; shape.len()], len: vec![1; shape.len()] },
            counted: Vec::new(),
            order: Vec::new(),
            rest: vec![0; shape.len()],
            axes,
        };
        for (at, &extent) in shape.iter().enumerate() {
            samples.add(at, extent).map_err(|what| format!("{self}: {what}"))?;
        }
        // Axes without names stay as they are in the file.
        let axes = &samples.axes;
        samples.order.sort_by_key(|&at| ORDER.find(axes[at].letter().unwrap_or('s')));
        samples.counted.sort_by_key(|&(at, ..)| axes[at].name.and_then(|name| COUNTED.find(name)));
        Ok(samples)
    }
}

impl ViewSamples {
    fn add(&mut self, at: usize, extent: usize) -> Result<(), String> {
        let lacks = |what: String| Err(format!("axis {at} has {extent} places, {what}"));
        if extent == 0 {
            return Err(format!("axis {at} has no places"));
        }
        match self.axes[at].take {
            AxisPart::All => {
                self.window.len[at] = extent;
                self.order.push(at);
            }
            AxisPart::Place(place) => {
                if place >= extent {
                    return lacks(format!("none is {place}"));
                }
                self.window.first[at] = place;
            }
            AxisPart::Range { first, len } => {
                if first + len > extent {
                    return lacks(format!("not {len} from {first} on"));
                }
                (self.window.first[at], self.window.len[at]) = (first, len);
                self.order.push(at);
            }
            AxisPart::Numbered { stride: tile, .. } if !self.axes[at].is_sample() && tile > extent => {
                return lacks(format!("fewer than a tile of {tile}"));
            }
            AxisPart::Numbered { stride, shift, len } => {
                let (step, long) = (stride as i64, len.unwrap_or(1) as i64);
                // The numbers i with 0 ≤ i·stride + shift and i·stride + shift + len ≤ extent.
                let first = (-shift).max(0).div_euclid(step) + i64::from((-shift).max(0) % step != 0);
                let last = (extent as i64 - long - shift).div_euclid(step);
                if last < first {
                    return lacks(format!("too few for one sample of {}", self.axes[at]));
                }
                let count = (last - first + 1) as usize;
                self.counted.push((at, first, count));
                self.window.len[at] = long as usize;
                if len.is_some() {
                    self.order.push(at);
                }
                let taken = (count as i64 - 1) * step.min(long) + long;
                self.rest[at] =
                    (extent as i64 - if step > long { count as i64 * long } else { taken }) as usize;
            }
        }
        Ok(())
    }

    /// How far apart the parts of an axis are that numbers them, and where number 0 would begin.
    fn steps(&self, at: usize) -> (usize, i64) {
        match self.axes[at].take {
            AxisPart::Numbered { stride, shift, .. } => (stride, shift),
            _ => (1, 0),
        }
    }

    /// How many there are; 1 where no axis numbers samples.
    pub fn len(&self) -> usize {
        self.counted.iter().map(|&(_, _, count)| count).product()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether each sample begins a multiple of its length from the first place on, on each axis.
    pub fn are_aligned(&self) -> bool {
        self.axes.iter().all(|axis| match axis.take {
            AxisPart::Numbered { stride, shift, len } => {
                stride == len.unwrap_or(1) && shift % stride as i64 == 0
            }
            AxisPart::Range { first, len } => first % len == 0,
            AxisPart::All | AxisPart::Place(_) => true,
        })
    }

    /// The shape of one sample, in a network's order.
    pub fn shape(&self) -> Vec<usize> {
        self.order.iter().map(|&at| self.window.len[at]).collect()
    }

    /// What the view calls the axes of a sample, in a network's order; `None` for one without a name, `s` for places of
    /// an axis that numbers samples.
    pub fn letters(&self) -> Vec<Option<char>> {
        self.order.iter().map(|&at| self.axes[at].letter()).collect()
    }

    /// The axes that number samples, the slowest first: what the view calls each, the first number, and how many.
    pub fn numbered(&self) -> Vec<(char, i64, usize)> {
        let of =
            |&(at, first, count): &(usize, i64, usize)| (self.axes[at].name.unwrap_or('n'), first, count);
        self.counted.iter().map(of).collect()
    }

    /// The axes of the array that number samples, tiles aside, the slowest first.
    pub fn numbering(&self) -> Vec<usize> {
        self.counted.iter().map(|&(at, ..)| at).filter(|&at| self.axes[at].is_sample()).collect()
    }

    /// Which sample has these numbers: one for each axis of `numbered`, all of them there.
    pub fn index(&self, numbers: impl Fn(char) -> i64) -> usize {
        let place = |index: usize, &(at, first, count): &(usize, i64, usize)| {
            index * count + (numbers(self.axes[at].name.unwrap_or('n')) - first) as usize
        };
        self.counted.iter().fold(0, place)
    }

    /// How many neighbouring samples along the slowest axis that numbers them begin in one chunk of this shape.
    pub fn in_a_chunk(&self, chunk: &[usize]) -> usize {
        self.counted.first().map_or(1, |&(at, ..)| chunk[at] / self.steps(at).0)
    }

    /// The axes of the array that a sample has, in a network's order.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Places of each axis that are in no sample, behind the last whole tile or window.
    pub fn rest(&self) -> &[usize] {
        &self.rest
    }

    /// One sample in a network's order, or some of its rows: of the first of so many axes that are its last.
    pub fn part(&self, index: usize, rows: Option<(usize, &Range<usize>)>) -> ArrayPart {
        let mut window = self.window(index);
        if let Some((axes, rows)) = rows
            && let Some(&axis) = self.order.iter().rev().nth(axes - 1)
        {
            window.first[axis] += rows.start;
            window.len[axis] = rows.len();
        }
        let shape: Vec<usize> = self.order.iter().map(|&axis| window.len[axis]).collect();
        let mut strides = vec![0; window.len.len()];
        self.order.iter().zip(row_major(&shape)).for_each(|(&axis, stride)| strides[axis] = stride);
        ArrayPart { window, strides }
    }

    /// What of the array one sample is. `index` is below `len`.
    pub fn window(&self, index: usize) -> ArrayBox {
        let mut window = self.window.clone();
        let counts: Vec<usize> = self.counted.iter().map(|&(_, _, count)| count).collect();
        for (&(at, first, _), place) in self.counted.iter().zip(place_in(&counts, index)) {
            let (stride, shift) = self.steps(at);
            window.first[at] = ((first + place as i64) * stride as i64 + shift) as usize;
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(view: &str, shape: &[usize]) -> ViewSamples {
        view.parse::<View>().unwrap().samples(shape).unwrap()
    }

    #[test]
    fn a_view_is_written_as_it_is_read() {
        for text in [
            "a",
            "g/a[n,c,h,w]",
            "a[n+1,t-2,h/128,w/64]",
            "a[n*1024+1..1024]",
            "a[3,c=0..3,h]",
            "a[t*2]",
            "p[q]:r[n]",
        ] {
            assert_eq!(text.parse::<View>().unwrap().to_string(), text);
        }
        for (text, view) in [(" /a[ n , h / 4 ]", "a[n,h/4]"), ("a /", "a"), ("/ /a", "a")] {
            assert_eq!(text.parse::<View>().unwrap().to_string(), view);
        }
    }

    #[test]
    fn axes_are_put_in_order_by_name() {
        let of = samples("climate/data[h,w,c]", &[768, 1152, 16]);
        assert_eq!((of.len(), of.shape(), of.order()), (1, vec![16, 768, 1152], &[2, 0, 1][..]));
        let of = samples("mesh", &[10, 3, 4]);
        assert_eq!((of.len(), of.shape()), (10, vec![3, 4]));
        assert!(samples("flux", &[10]).shape().is_empty());
    }

    #[test]
    fn tiles_are_samples_and_the_rest_is_counted() {
        let of = samples("full[d/4,h/4,w/5,c]", &[8, 9, 10, 4]);
        assert_eq!((of.len(), of.shape(), of.rest()), (8, vec![4, 4, 4, 5], &[0, 1, 0, 0][..]));
        assert_eq!(of.window(7), ArrayBox { first: vec![4, 4, 5, 0], len: vec![4, 4, 5, 4] });
        assert_eq!(of.window(1).first, [0, 0, 5, 0]);
    }

    #[test]
    fn shifts_and_windows_stay_within_the_array() {
        let of = samples("x[n+1,c]", &[5, 2]);
        assert_eq!((of.len(), of.window(0).first[0], of.window(3).first[0]), (4, 1, 4));
        let before = samples("x[t-2,c]", &[5, 2]);
        assert_eq!((before.len(), before.window(0).first[0]), (5, 0));
        let tokens = samples("tokens[n*4+1..4]", &[14]);
        assert_eq!((tokens.len(), tokens.shape(), tokens.window(2).first[0]), (3, vec![4], 9));
        let overlapping = samples("x[n*2..6]", &[11]);
        assert_eq!((overlapping.len(), overlapping.rest()), (3, &[1][..]));
        let two = samples("x[n,t,h]", &[3, 4, 2]);
        assert_eq!((two.len(), two.window(5).first), (12, vec![1, 1, 0]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what) in [
            ("[n]", "names no array"),
            ("a[n", "no ] at its end"),
            ("a[x]", "axes are called n and t"),
            ("a[n,n]", "two axes are called n"),
            ("a[h/0]", "\"h/0\": that takes nothing"),
            ("a[c/2]", "that is no axis"),
            ("a[h=3]", "written without a name"),
            ("a[n*x]", "\"x\" is no number"),
            ("a[n/3]", "that is no axis of samples"),
            ("a[99999999999999999]", "is no number of places"),
            ("a[]", "\"\" is no number"),
        ] {
            let said = text.parse::<View>().unwrap_err();
            assert!(said.contains(what), "{text}: {said}");
        }
        for (text, what) in [
            ("a[n,c,h]", "names 3 axes, and the array has 2"),
            ("a[9,c]", "none is 9"),
            ("a[c=1..9,h]", "not 9 from 1 on"),
            ("a[h/9,c]", "fewer than a tile of 9"),
            ("a[n+8,c]", "too few for one sample of n+8"),
        ] {
            let said = text.parse::<View>().unwrap().samples(&[4, 2]).unwrap_err();
            assert!(said.contains(what), "{text}: {said}");
        }
        let empty = "a[n,c]".parse::<View>().unwrap().samples(&[4, 0]).unwrap_err();
        assert!(empty.contains("axis 1 has no places"), "{empty}");
    }
}
