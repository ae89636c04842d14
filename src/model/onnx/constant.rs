//! Values that are known before anything runs: what exporters write to compute shapes. They are computed when a
//! network is imported, for its batch and image.

use super::node::Node;
use super::schema::data_type;
use super::tensor::{Tensor, Wrong};

/// Numbers of more than this are weights, and no shape is computed from them. It also limits what a file can make of
/// few bytes.
const MOST: usize = 1 << 16;

/// A small tensor with its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// How many elements each axis has; none for a single number.
    pub dims: Vec<usize>,
    /// Last dimension fastest.
    pub numbers: Numbers,
}

/// Integers or real numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Of any width.
    Integers(Vec<i64>),
    /// Of any width, as f32.
    Reals(Vec<f32>),
}

use Numbers::{Integers, Reals};

impl Constant {
    /// Integers in a row, as shapes are.
    pub fn row(numbers: Vec<i64>) -> Constant {
        Constant { dims: vec![numbers.len()], numbers: Integers(numbers) }
    }

    /// The numbers of a tensor of the file.
    pub fn of(tensor: &Tensor) -> Result<Constant, Wrong> {
        if tensor.elements() > MOST {
            return Err(format!("computes with {} constant numbers", tensor.elements()));
        }
        let numbers = if tensor.is_real() { Reals(tensor.reals()?) } else { Integers(tensor.integers()?) };
        Ok(Constant { dims: tensor.dims.clone(), numbers })
    }

    /// Its integers.
    pub fn integers(&self) -> Result<&[i64], Wrong> {
        match &self.numbers {
            Integers(integers) => Ok(integers),
            Reals(_) => Err("has real numbers where integers belong".into()),
        }
    }

    /// Its numbers, whatever they are.
    pub fn reals(&self) -> Vec<f32> {
        match &self.numbers {
            Integers(integers) => integers.iter().map(|&number| number as f32).collect(),
            Reals(reals) => reals.clone(),
        }
    }

    /// The one number that it has.
    pub fn single(&self) -> Option<f32> {
        match self.reals()[..] {
            [number] => Some(number),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        match &self.numbers {
            Integers(integers) => integers.len(),
            Reals(reals) => reals.len(),
        }
    }

    /// The elements at these places.
    fn at(&self, places: &[usize], dims: Vec<usize>) -> Option<Constant> {
        fn pick<T: Copy>(from: &[T], places: &[usize]) -> Option<Vec<T>> {
            places.iter().map(|&place| from.get(place).copied()).collect()
        }
        let numbers = match &self.numbers {
            Integers(integers) => Integers(pick(integers, places)?),
            Reals(reals) => Reals(pick(reals, places)?),
        };
        Some(Constant { dims, numbers })
    }
}

/// The ops that are computed in advance. (A shape is too, of what the network computes.)
#[rustfmt::skip]
const FOLDED: [&str; 20] = [
    "Add", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Floor", "Gather", "Identity", "Mul", "Neg",
    "ReduceProd", "Reshape", "Slice", "Sqrt", "Squeeze", "Sub", "Unsqueeze", "Where",
];

/// Whether an op is computed in advance where all that it reads is known.
pub fn is_folded(op: &str) -> bool {
    FOLDED.contains(&op)
}

/// What a node gives of constants; `None` for an op that is not computed in advance.
pub fn fold(node: &Node, inputs: &[&Constant]) -> Option<Result<Constant, Wrong>> {
    let row = |dims: Vec<usize>| inputs.first().map(|x| Constant { dims, numbers: x.numbers.clone() });
    let wrong = || "cannot be computed in advance from these constants".to_string();
    let folded = match (node.op(), inputs) {
        ("Identity", [x]) => Some((*x).clone()),
        ("Cast", [x]) => Some(cast(x, node.int("to").unwrap_or(0))),
        ("Gather", [x, places]) => return Some(gather(x, places, node.int("axis").unwrap_or(0))),
        ("Unsqueeze", [x, ..]) => match axes(node, inputs) {
            Ok(axes) => unsqueezed(&x.dims, &axes).and_then(row),
            Err(wrong) => return Some(Err(wrong)),
        },
        ("Squeeze", [x, ..]) => match axes(node, inputs) {
            Ok(axes) => squeezed(&x.dims, &axes).and_then(row),
            Err(wrong) => return Some(Err(wrong)),
        },
        ("Concat", parts) if parts.iter().all(|part| part.dims.len() == 1) => concat(parts),
        ("Reshape", [x, shape]) => shape.integers().ok().and_then(|shape| reshaped(x, shape)),
        ("Slice", [x, rest @ ..]) => slice(node, x, rest),
        ("ConstantOfShape", [shape]) => return Some(filled(node, shape)),
        ("Floor" | "Ceil" | "Sqrt" | "Neg", [x]) => Some(unary(node.op(), x)),
        ("Add" | "Sub" | "Mul" | "Div" | "Equal", [a, b]) => binary(node.op(), a, b),
        ("Where", [condition, a, b]) => choose(condition, a, b),
        ("ReduceProd", [x, ..]) => x.integers().ok().map(|numbers| {
            let product = numbers.iter().fold(1i64, |product, &number| product.wrapping_mul(number));
            let kept = node.int("keepdims").unwrap_or(1) != 0;
            Constant { dims: vec![1; usize::from(kept)], numbers: Integers(vec![product]) }
        }),
        _ => return None,
    };
    Some(folded.ok_or_else(wrong))
}

/// The axes of an op, an attribute in old files and an input in newer ones.
pub fn axes(node: &Node, inputs: &[&Constant]) -> Result<Vec<i64>, Wrong> {
    match inputs.get(1) {
        Some(axes) => Ok(axes.integers()?.to_vec()),
        None => Ok(node.ints("axes").unwrap_or_default().to_vec()),
    }
}

/// An axis counted from the front.
pub fn from_front(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Extents with further ones of 1 at these places.
pub fn unsqueezed(dims: &[usize], axes: &[i64]) -> Option<Vec<usize>> {
    let rank = dims.len() + axes.len();
    let new: Option<Vec<usize>> = axes.iter().map(|&axis| from_front(axis, rank)).collect();
    let new = new?;
    let mut old = dims.iter();
    (0..rank).map(|axis| if new.contains(&axis) { Some(1) } else { old.next().copied() }).collect()
}

/// Extents without those of 1 at these places; without all of them where no place is named.
pub fn squeezed(dims: &[usize], axes: &[i64]) -> Option<Vec<usize>> {
    let gone: Option<Vec<usize>> = axes.iter().map(|&axis| from_front(axis, dims.len())).collect();
    let gone = gone?;
    let goes = |axis: usize| if axes.is_empty() { dims[axis] == 1 } else { gone.contains(&axis) };
    let sound = (0..dims.len()).all(|axis| !goes(axis) || dims[axis] == 1);
    sound.then(|| (0..dims.len()).filter(|&axis| !goes(axis)).map(|axis| dims[axis]).collect())
}

fn cast(x: &Constant, to: i64) -> Constant {
    let reals = [data_type::FLOAT, data_type::FLOAT16, data_type::DOUBLE, data_type::BFLOAT16];
    let numbers = match (&x.numbers, reals.iter().any(|&real| i64::from(real) == to)) {
        (Integers(_), true) => Reals(x.reals()),
        (Reals(reals), false) => Integers(reals.iter().map(|&number| number as i64).collect()),
        (same, _) => same.clone(),
    };
    Constant { dims: x.dims.clone(), numbers }
}

fn gather(x: &Constant, places: &Constant, axis: i64) -> Result<Constant, Wrong> {
    if x.dims.len() != 1 || from_front(axis, 1) != Some(0) {
        return Err(format!("gathers from constants of the shape {:?}", x.dims));
    }
    let found: Option<Vec<usize>> =
        places.integers()?.iter().map(|&place| from_front(place, x.len())).collect();
    let found = found.and_then(|found| x.at(&found, places.dims.clone()));
    found.ok_or_else(|| "gathers from beyond the constants' end".into())
}

fn concat(parts: &[&Constant]) -> Option<Constant> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let all_integers: Option<Vec<&[i64]>> = parts.iter().map(|part| part.integers().ok()).collect();
    (length <= MOST).then(|| match all_integers {
        Some(integers) => Constant::row(integers.concat()),
        None => Constant {
            dims: vec![length],
            numbers: Reals(parts.iter().flat_map(|part| part.reals()).collect()),
        },
    })
}

fn reshaped(x: &Constant, shape: &[i64]) -> Option<Constant> {
    let known: i64 = shape.iter().filter(|&&extent| extent > 0).try_fold(1i64, |a, &b| a.checked_mul(b))?;
    let dims = shape.iter().map(|&extent| match extent {
        -1 => (x.len() as i64).checked_div(known),
        extent => Some(extent),
    });
    let dims: Option<Vec<usize>> = dims.map(|extent| usize::try_from(extent?).ok()).collect();
    let dims = dims?;
    let sound = dims.iter().try_fold(1usize, |a, &b| a.checked_mul(b)) == Some(x.len());
    sound.then(|| Constant { dims, numbers: x.numbers.clone() })
}

/// Of a row, by the numbers that are attributes in old files and inputs in newer ones.
fn slice(node: &Node, x: &Constant, rest: &[&Constant]) -> Option<Constant> {
    let said = |index: usize, name: &str| match rest.get(index) {
        Some(constant) => constant.integers().ok()?.first().copied(),
        None => node.ints(name)?.first().copied(),
    };
    let (axis, step) = (said(2, "axes").unwrap_or(0), said(3, "steps").unwrap_or(1));
    if x.dims.len() != 1 || from_front(axis, 1) != Some(0) || step != 1 {
        return None;
    }
    let length = x.len() as i64;
    let place = |at: i64| if at < 0 { at.saturating_add(length) } else { at }.clamp(0, length) as usize;
    let (first, end) = (place(said(0, "starts")?), place(said(1, "ends")?));
    let places: Vec<usize> = (first..end.max(first)).collect();
    x.at(&places, vec![places.len()])
}

fn filled(node: &Node, shape: &Constant) -> Result<Constant, Wrong> {
    let dims: Option<Vec<usize>> =
        shape.integers()?.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let dims = dims.ok_or("fills a shape that is none")?;
    let count = dims.iter().try_fold(1usize, |a, &b| a.checked_mul(b)).filter(|&count| count <= MOST);
    let count = count.ok_or_else(|| format!("fills {dims:?} constants"))?;
    let numbers = match node.tensor("value").map(|value| Tensor::new(value.clone(), std::path::Path::new("")))
    {
        None => Reals(vec![0.0; count]),
        Some(value) => match Constant::of(&value?)?.numbers {
            Integers(one) if one.len() == 1 => Integers(vec![one[0]; count]),
            Reals(one) if one.len() == 1 => Reals(vec![one[0]; count]),
            _ => return Err("fills with more than one number".into()),
        },
    };
    Ok(Constant { dims, numbers })
}

fn unary(op: &str, x: &Constant) -> Constant {
    let numbers = match &x.numbers {
        Integers(integers) if op == "Neg" => Integers(integers.iter().map(|x| x.wrapping_neg()).collect()),
        Integers(integers) if op != "Sqrt" => Integers(integers.clone()),
        _ => Reals(
            x.reals()
                .into_iter()
                .map(|x| match op {
                    "Floor" => x.floor(),
                    "Ceil" => x.ceil(),
                    "Sqrt" => x.sqrt(),
                    _ => -x,
                })
                .collect(),
        ),
    };
    Constant { dims: x.dims.clone(), numbers }
}

/// Of two of one length, or one of a single number.
fn binary(op: &str, a: &Constant, b: &Constant) -> Option<Constant> {
    let (count, dims) = match (a.len(), b.len()) {
        (x, y) if x == y => (x, if a.dims.len() < b.dims.len() { &b.dims } else { &a.dims }),
        (x, 1) => (x, &a.dims),
        (1, y) => (y, &b.dims),
        _ => return None,
    };
    let at = |of: usize, place: usize| if of == 1 { 0 } else { place };
    let numbers = match (&a.numbers, &b.numbers) {
        (Integers(x), Integers(y)) => {
            let of = |place: usize| {
                let (x, y) = (x[at(x.len(), place)], y[at(y.len(), place)]);
                match op {
                    "Add" => x.checked_add(y),
                    "Sub" => x.checked_sub(y),
                    "Mul" => x.checked_mul(y),
                    "Div" => x.checked_div(y),
                    _ => Some(i64::from(x == y)),
                }
            };
            Integers((0..count).map(of).collect::<Option<_>>()?)
        }
        _ => {
            let (x, y) = (a.reals(), b.reals());
            let of = |place: usize| {
                let (x, y) = (x[at(x.len(), place)], y[at(y.len(), place)]);
                match op {
                    "Add" => Some(x + y),
                    "Sub" => Some(x - y),
                    "Mul" => Some(x * y),
                    "Div" => Some(x / y),
                    _ => None,
                }
            };
            Reals((0..count).map(of).collect::<Option<_>>()?)
        }
    };
    Some(Constant { dims: dims.clone(), numbers })
}

fn choose(condition: &Constant, a: &Constant, b: &Constant) -> Option<Constant> {
    let (condition, a, b) = (condition.integers().ok()?, a.integers().ok()?, b.integers().ok()?);
    let count = condition.len().max(a.len()).max(b.len());
    let at = |of: &[i64], place: usize| of.get(if of.len() == 1 { 0 } else { place }).copied();
    let pick = |place| Some(if at(condition, place)? != 0 { at(a, place)? } else { at(b, place)? });
    Some(Constant::row((0..count).map(pick).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::onnx::node::tests::node;

    fn folded(op: &str, ints: &[(&str, &[i64])], inputs: &[Constant]) -> Option<Vec<i64>> {
        let proto = node(op, ints);
        let inputs: Vec<&Constant> = inputs.iter().collect();
        let constant = fold(&Node::new(&proto, 0), &inputs)?.ok()?;
        constant.integers().ok().map(<[i64]>::to_vec)
    }

    /// What an exporter writes for `x.view(x.size(0), -1)`, op by op.
    #[test]
    fn the_arithmetic_of_shapes_is_that_of_the_format() {
        let row = |numbers: &[i64]| Constant::row(numbers.to_vec());
        let single = |number| Constant { dims: Vec::new(), numbers: Integers(vec![number]) };
        let shape = row(&[4, 512, 7, 7]);
        let first = fold(&Node::new(&node("Gather", &[]), 0), &[&shape, &single(0)]).unwrap().unwrap();
        assert_eq!(first, single(4));
        assert_eq!(folded("Gather", &[], &[shape.clone(), row(&[-1, 1])]), Some(vec![7, 512]));
        assert_eq!(folded("Gather", &[], &[shape.clone(), row(&[4])]), None);
        assert_eq!(folded("Unsqueeze", &[("axes", &[0])], std::slice::from_ref(&first)), Some(vec![4]));
        assert_eq!(folded("Concat", &[], &[row(&[4]), row(&[-1])]), Some(vec![4, -1]));
        let attributes: [(&str, &[i64]); 2] = [("starts", &[1]), ("ends", &[i64::MAX])];
        assert_eq!(folded("Slice", &attributes, std::slice::from_ref(&shape)), Some(vec![512, 7, 7]));
        assert_eq!(folded("Slice", &[], &[shape.clone(), row(&[-2]), row(&[-1])]), Some(vec![7]));
        assert_eq!(folded("Mul", &[], &[row(&[3, 4]), single(5)]), Some(vec![15, 20]));
        assert_eq!(folded("Mul", &[], &[single(i64::MAX), single(2)]), None, "an overflow is no number");
        assert_eq!(folded("Div", &[], &[single(7), single(0)]), None);
        assert_eq!(folded("Where", &[], &[row(&[1, 0]), row(&[2, 3]), single(9)]), Some(vec![2, 9]));
        assert_eq!(folded("ReduceProd", &[], std::slice::from_ref(&shape)), Some(vec![4 * 512 * 49]));
        assert_eq!(
            folded("Cast", &[("to", &[7])], &[Constant { dims: Vec::new(), numbers: Reals(vec![2.7]) }]),
            Some(vec![2])
        );
        let reshaped =
            fold(&Node::new(&node("Reshape", &[]), 0), &[&shape, &row(&[2, -1])]).unwrap().unwrap();
        assert_eq!(reshaped.dims, [2, 2]);
        assert!(fold(&Node::new(&node("Reshape", &[]), 0), &[&shape, &row(&[3, -1])]).unwrap().is_err());
        assert!(fold(&Node::new(&node("ConstantOfShape", &[]), 0), &[&row(&[1 << 40])]).unwrap().is_err());
        assert!(fold(&Node::new(&node("Conv", &[]), 0), &[&shape]).is_none());
    }
}
