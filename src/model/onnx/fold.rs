//! What nodes give of constants: the ops that are computed in advance.

use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, concatenate, indices};

use super::constant::ConstantValues::{self, Integers, Reals};
use super::constant::{
    ConstantTensor, common, count, from_front, places, reshaped, squeezed, taken, unsqueezed,
};
use super::node::{OnnxNode, lengths};
use super::schema::data_type;
use super::tensor::{OnnxTensor, Reason};

/// The ops that are computed in advance. (A shape is too, of what the network computes.)
#[rustfmt::skip]
const FOLDED: &[&str] = &[
    "Abs", "Acos", "Add", "And", "Asin", "Atan", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "Cos",
    "Cosh", "CumSum", "Div", "Equal", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "MatMul",
    "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Pow", "Range", "Reciprocal", "ReduceL1",
    "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape",
    "Round", "ScatterND", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softplus", "Sqrt", "Squeeze", "Sub",
    "Sum", "Tan", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
];

/// Whether an op is computed in advance where all that it reads is known.
pub fn is_folded(op: &str) -> bool {
    FOLDED.contains(&op)
}

/// What a node gives of constants; `None` for an op that is not computed in advance.
pub fn fold(node: &OnnxNode, inputs: &[&ConstantTensor]) -> Option<Result<ConstantTensor, Reason>> {
    let axis = node.int("axis");
    let folded = match (node.op(), inputs) {
        ("Identity", [x]) => Some((*x).clone()),
        ("Cast", [x]) => Some(cast(x, node.int("to").unwrap_or(0))),
        ("CastLike", [x, like]) => Some(cast_like(x, like)),
        ("Clip", [x, limits @ ..]) => clip(node, x, limits),
        ("CumSum", [x, axis]) => cumulated(node, x, axis),
        ("EyeLike", [x]) => diagonal(x, node.int("k").unwrap_or(0), node.int("dtype")),
        ("GatherElements", [x, at]) => gather_elements(x, at, axis.unwrap_or(0)),
        ("GatherND", [x, at]) if node.int("batch_dims").unwrap_or(0) == 0 => gather_blocks(x, at),
        ("MatMul", [a, b]) => product(a, b),
        ("OneHot", [at, depth, values]) => one_hot(at, depth, values, axis.unwrap_or(-1)),
        ("Trilu", [x, rest @ ..]) => triangle(node, x, rest),
        ("Gather", [x, at]) => gather(x, at, axis.unwrap_or(0)),
        ("Unsqueeze", [x, ..]) => of_axes(node, inputs, |axes| shaped(x, unsqueezed(&x.dims, axes)?)),
        ("Squeeze", [x, ..]) => of_axes(node, inputs, |axes| shaped(x, squeezed(&x.dims, axes)?)),
        ("Flatten", [x]) => flatten(x, axis.unwrap_or(1)),
        ("Reshape", [x, shape]) => {
            let keeps_zeros = node.int("allowzero").unwrap_or(0) != 0;
            shape.integers().ok().and_then(|shape| shaped(x, reshaped(&x.dims, shape, keeps_zeros)?))
        }
        ("Concat", parts) => concat(parts, axis.unwrap_or(0)),
        ("Slice", [x, rest @ ..]) => slice(node, x, rest),
        ("Transpose", [x]) => transpose(x, node.ints("perm")),
        ("Expand", [x, shape]) => {
            shape.integers().ok().and_then(|shape| x.stretched(&common(&[&x.dims, &lengths(shape)?])?))
        }
        ("Tile", [x, times]) => tile(x, times),
        ("ScatterND", [x, at, updates]) if node.text("reduction").unwrap_or("none") == "none" => {
            scatter(x, at, updates)
        }
        ("Size", [x]) => Some(single(Integers(vec![x.len() as i64]))),
        ("ConstantOfShape", [shape]) => return Some(filled(node, shape)),
        ("Range", [start, end, step]) => range(start, end, step),
        ("IsInf", [x]) => Some(are_infinite(node, x)),
        (op, [x]) if is_unary(op) => Some(unary(op, x)),
        (
            "Add" | "And" | "Div" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Mod",
            [a, b],
        )
        | ("Mul" | "Or" | "Pow" | "Sub" | "Xor", [a, b]) => binary(node.op(), a, b),
        ("Max" | "Mean" | "Min" | "Sum", [first, rest @ ..]) => {
            let op = if matches!(node.op(), "Max" | "Min") { node.op() } else { "Add" };
            let all = rest.iter().try_fold((*first).clone(), |all, next| binary(op, &all, next));
            let share = 1.0 / inputs.len() as f32;
            if node.op() == "Mean" { all.map(|all| of_each(&all, |x| x * share)) } else { all }
        }
        ("Where", [condition, a, b]) => choose(condition, a, b),
        (op, [x, ..]) if op.starts_with("Reduce") => of_axes(node, inputs, |axes| reduction(node, x, axes)),
        _ => return None,
    };
    Some(folded.ok_or_else(|| "cannot be computed in advance from these constants".into()))
}

fn reduction(node: &OnnxNode, x: &ConstantTensor, axes: &[i64]) -> Option<ConstantTensor> {
    match node.op() {
        "ReduceL1" => reduce(node, &of_each(x, f32::abs), axes),
        "ReduceL2" => Some(of_each(&reduce(node, &of_each(x, |x| x * x), axes)?, f32::sqrt)),
        "ReduceSumSquare" => reduce(node, &of_each(x, |x| x * x), axes),
        "ReduceMean" => {
            let sum = reduce(node, &of_each(x, |x| x), axes)?;
            let share = sum.len() as f32 / x.len().max(1) as f32;
            Some(of_each(&sum, |x| x * share))
        }
        _ => reduce(node, x, axes),
    }
}

/// The axes of an op, an attribute in old files and an input in newer ones.
pub fn axes(node: &OnnxNode, inputs: &[&ConstantTensor]) -> Result<Vec<i64>, Reason> {
    match inputs.get(1) {
        Some(axes) => Ok(axes.integers()?.to_vec()),
        None => Ok(node.ints("axes").unwrap_or_default().to_vec()),
    }
}

fn of_axes(
    node: &OnnxNode,
    inputs: &[&ConstantTensor],
    of: impl FnOnce(&[i64]) -> Option<ConstantTensor>,
) -> Option<ConstantTensor> {
    of(&axes(node, inputs).ok()?)
}

// ---- the same numbers in other places ----

fn shaped(x: &ConstantTensor, dims: Vec<usize>) -> Option<ConstantTensor> {
    let sound = count(&dims) == Some(x.len());
    sound.then(|| ConstantTensor { dims, numbers: x.numbers.clone() })
}

fn flatten(x: &ConstantTensor, axis: i64) -> Option<ConstantTensor> {
    let rank = x.dims.len();
    let cut = if axis == rank as i64 { rank } else { from_front(axis, rank)? };
    shaped(x, vec![count(&x.dims[..cut])?, count(&x.dims[cut..])?])
}

fn gather(x: &ConstantTensor, at: &ConstantTensor, axis: i64) -> Option<ConstantTensor> {
    let axis = from_front(axis, x.dims.len())?;
    let found = at.integers().ok()?.iter().map(|&place| from_front(place, x.dims[axis]));
    let found: Vec<usize> = found.collect::<Option<_>>()?;
    let dims = [&x.dims[..axis], &at.dims, &x.dims[axis + 1..]].concat();
    count(&dims)?;
    x.at(x.places()?.select(Axis(axis), &found), dims)
}

fn gather_elements(x: &ConstantTensor, at: &ConstantTensor, axis: i64) -> Option<ConstantTensor> {
    let axis = from_front(axis, x.dims.len())?;
    let (own, at_axis) = (x.places()?, at.integers().ok()?);
    let found = indices(IxDyn(&at.dims)).into_iter().zip(at_axis).map(|(mut index, &place)| {
        index[axis] = from_front(place, x.dims[axis])?;
        own.get(index).copied()
    });
    let found: Vec<usize> = found.collect::<Option<_>>().filter(|_| at.dims.len() == x.dims.len())?;
    x.at(found, at.dims.clone())
}

fn gather_blocks(x: &ConstantTensor, at: &ConstantTensor) -> Option<ConstantTensor> {
    let (firsts, block) = blocks(&x.dims, at)?;
    let (&depth, outer) = at.dims.split_last()?;
    let dims = [outer, &x.dims[depth..]].concat();
    count(&dims)?;
    x.at(firsts.into_iter().flat_map(|first| first..first + block), dims)
}

/// Along a further axis the second of two numbers at the place that is named, and the first elsewhere.
fn one_hot(
    at: &ConstantTensor,
    depth: &ConstantTensor,
    values: &ConstantTensor,
    axis: i64,
) -> Option<ConstantTensor> {
    let depth = usize::try_from(depth.single()? as i64).ok()?;
    let (axis, named) = (from_front(axis, at.dims.len() + 1)?, at.integers().ok()?);
    let dims = [&at.dims[..axis], &[depth], &at.dims[axis..]].concat();
    let inner: usize = at.dims[axis..].iter().product();
    let is_named = |place: usize| {
        let (outer, along) = (place / inner / depth, place / inner % depth);
        usize::from(from_front(named[outer * inner + place % inner], depth) == Some(along))
    };
    values.at((0..count(&dims)?).map(is_named), dims)
}

/// What lies along an axis.
pub fn part(x: &ConstantTensor, axis: usize, range: std::ops::Range<usize>) -> Option<ConstantTensor> {
    let at: Vec<i64> = range.map(|place| place as i64).collect();
    gather(x, &ConstantTensor::row(at), axis as i64)
}

fn concat(parts: &[&ConstantTensor], axis: i64) -> Option<ConstantTensor> {
    let first = parts.first()?;
    let axis = from_front(axis, first.dims.len())?;
    let alike = |part: &&&ConstantTensor| {
        part.dims.len() == first.dims.len()
            && (0..first.dims.len()).all(|other| other == axis || part.dims[other] == first.dims[other])
    };
    if !parts.iter().all(|part| alike(&part)) {
        return None;
    }
    let mut dims = first.dims.clone();
    dims[axis] = parts.iter().map(|part| part.dims[axis]).sum();
    count(&dims)?;
    let (own, mut before) = (parts.iter().map(|part| part.places()).collect::<Option<Vec<_>>>()?, 0);
    let behind = own.into_iter().map(|places| {
        let first = before;
        before += places.len();
        places + first
    });
    let places: Vec<ArrayD<usize>> = behind.collect();
    let views: Vec<_> = places.iter().map(|places| places.view()).collect();
    ConstantTensor::chained(parts).at(concatenate(Axis(axis), &views).ok()?, dims)
}

/// By the numbers that are attributes in old files and inputs in newer ones.
fn slice(node: &OnnxNode, x: &ConstantTensor, rest: &[&ConstantTensor]) -> Option<ConstantTensor> {
    let said = |index: usize, name: &str| match rest.get(index).filter(|constant| constant.len() > 0) {
        Some(constant) => constant.integers().ok().map(<[i64]>::to_vec),
        None => node.ints(name).map(<[i64]>::to_vec),
    };
    let (starts, ends) = (said(0, "starts")?, said(1, "ends")?);
    let axes = said(2, "axes").unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = said(3, "steps").unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return None;
    }
    let mut part = x.places()?;
    for place in 0..starts.len() {
        let axis = from_front(axes[place], x.dims.len())?;
        let (first, step, count) = taken(part.len_of(Axis(axis)), starts[place], ends[place], steps[place]);
        let at: Vec<usize> = (0..count as i64).map(|index| (first as i64 + index * step) as usize).collect();
        part = part.select(Axis(axis), &at);
    }
    let dims = part.shape().to_vec();
    x.at(part, dims)
}

pub fn transpose(x: &ConstantTensor, perm: Option<&[i64]>) -> Option<ConstantTensor> {
    let rank = x.dims.len();
    let order = perm.map_or_else(|| Some((0..rank).rev().collect()), lengths)?;
    if order.len() != rank || !(0..rank).all(|axis| order.contains(&axis)) {
        return None;
    }
    let turned = x.places()?.permuted_axes(order);
    x.at(turned.iter().copied(), turned.shape().to_vec())
}

fn tile(x: &ConstantTensor, times: &ConstantTensor) -> Option<ConstantTensor> {
    let times = lengths(times.integers().ok()?).filter(|times| times.len() == x.dims.len())?;
    let extents = x.dims.iter().zip(&times).map(|(extent, times)| extent.checked_mul(*times));
    let (dims, own) = (extents.collect::<Option<Vec<usize>>>()?, x.places()?);
    count(&dims)?;
    let place = |mut index: IxDyn| {
        (0..x.dims.len()).for_each(|axis| index[axis] %= x.dims[axis]);
        own[index]
    };
    x.at(indices(IxDyn(&dims)).into_iter().map(place), dims)
}

/// The places that the rows of `at` name, each the first of a block of so many.
pub fn blocks(dims: &[usize], at: &ConstantTensor) -> Option<(Vec<usize>, usize)> {
    let (&depth, _) = at.dims.split_last()?;
    let (outer, inner) = (dims.get(..depth)?, dims.get(depth..)?);
    let block = inner.iter().product();
    let place = |row: &[i64]| {
        let mut index = row.iter().zip(outer);
        let first = index.try_fold(0, |first, (&at, &extent)| Some(first * extent + from_front(at, extent)?));
        Some(first? * block)
    };
    let rows = at.integers().ok()?;
    let firsts = if depth == 0 { None } else { rows.chunks(depth).map(place).collect() };
    Some((firsts?, block))
}

fn scatter(x: &ConstantTensor, at: &ConstantTensor, updates: &ConstantTensor) -> Option<ConstantTensor> {
    let (firsts, block) = blocks(&x.dims, at)?;
    if updates.len() != firsts.len().checked_mul(block)? {
        return None;
    }
    let mut places: Vec<usize> = (0..x.len()).collect();
    for (row, first) in firsts.into_iter().enumerate() {
        let updated = places.get_mut(first..first + block)?.iter_mut().enumerate();
        updated.for_each(|(at, place)| *place = x.len() + row * block + at);
    }
    ConstantTensor::chained(&[x, updates]).at(places, x.dims.clone())
}

// ---- other numbers ----

fn single(numbers: ConstantValues) -> ConstantTensor {
    ConstantTensor { dims: Vec::new(), numbers }
}

fn cast_like(x: &ConstantTensor, like: &ConstantTensor) -> ConstantTensor {
    let to = if matches!(like.numbers, Reals(_)) { data_type::FLOAT } else { data_type::INT64 };
    cast(x, i64::from(to))
}

fn clip(node: &OnnxNode, x: &ConstantTensor, limits: &[&ConstantTensor]) -> Option<ConstantTensor> {
    let mut y = x.clone();
    for (place, (name, op)) in [("min", "Max"), ("max", "Min")].into_iter().enumerate() {
        let limit = match limits.get(place).filter(|limit| limit.len() > 0) {
            Some(limit) => Some((*limit).clone()),
            None => node.real(name).map(|limit| single(Reals(vec![limit]))),
        };
        y = limit.map_or(Some(y.clone()), |limit| binary(op, &y, &limit))?;
    }
    Some(y)
}

/// Along an axis each number with those before it.
fn cumulated(node: &OnnxNode, x: &ConstantTensor, axis: &ConstantTensor) -> Option<ConstantTensor> {
    let is_set = |name: &str| node.int(name).unwrap_or(0) != 0;
    let axis = from_front(*axis.integers().ok()?.first()?, x.dims.len())?;
    fn sums<T: Copy + Default>(
        x: &ConstantTensor,
        all: &[T],
        axis: usize,
        [exclusive, reverse]: [bool; 2],
        add: impl Fn(T, T) -> Option<T>,
    ) -> Option<Vec<T>> {
        let (places, mut sums) = (x.places()?, all.to_vec());
        for mut lane in places.lanes(Axis(axis)) {
            if reverse {
                lane.invert_axis(Axis(0));
            }
            let mut sum = T::default();
            for &place in lane {
                let next = add(sum, all[place])?;
                sums[place] = if exclusive { sum } else { next };
                sum = next;
            }
        }
        Some(sums)
    }
    let how = [is_set("exclusive"), is_set("reverse")];
    let numbers = match &x.numbers {
        Integers(all) => Integers(sums(x, all, axis, how, i64::checked_add)?),
        Reals(all) => Reals(sums(x, all, axis, how, |a, b| Some(a + b))?),
    };
    Some(ConstantTensor { dims: x.dims.clone(), numbers })
}

fn diagonal(x: &ConstantTensor, by: i64, dtype: Option<i64>) -> Option<ConstantTensor> {
    let &[_, columns] = &x.dims[..] else { return None };
    let is_on = |place: usize| (place % columns) as i64 - (place / columns) as i64 == by;
    let ones = Integers((0..x.len()).map(|place| i64::from(is_on(place))).collect());
    let ones = ConstantTensor { dims: x.dims.clone(), numbers: ones };
    Some(dtype.map_or_else(|| cast_like(&ones, x), |to| cast(&ones, to)))
}

/// 0 below a diagonal, or above.
fn triangle(node: &OnnxNode, x: &ConstantTensor, rest: &[&ConstantTensor]) -> Option<ConstantTensor> {
    let by =
        rest.first().filter(|by| by.len() > 0).map_or(Some(0), |by| by.integers().ok()?.first().copied())?;
    let is_upper = node.int("upper").unwrap_or(1) != 0;
    let &[.., rows, columns] = &x.dims[..] else { return None };
    let stays = |place: usize| {
        let distance = (place % columns) as i64 - (place / columns % rows) as i64;
        if is_upper { distance >= by } else { distance <= by }
    };
    let stays = (0..x.len()).map(|place| i64::from(stays(place))).collect();
    let (stays, nothing) = (
        ConstantTensor { dims: x.dims.clone(), numbers: Integers(stays) },
        cast_like(&single(Integers(vec![0])), x),
    );
    choose(&stays, x, &nothing)
}

/// The product of matrices, of which those of a batch are stretched over each other.
fn product(a: &ConstantTensor, b: &ConstantTensor) -> Option<ConstantTensor> {
    let (&[ref outer_a @ .., rows, inner], &[ref outer_b @ .., again, columns]) = (&a.dims[..], &b.dims[..])
    else {
        return None;
    };
    let outer = common(&[outer_a, outer_b])?;
    let dims = [&outer[..], &[rows, columns]].concat();
    let work = count(&dims)?.checked_mul(inner).filter(|&work| inner == again && work <= 1 << 28)?;
    let [a, b] = [
        a.stretched(&[&outer[..], &[rows, inner]].concat())?,
        b.stretched(&[&outer[..], &[inner, columns]].concat())?,
    ];
    let (a, b) = (a.reals(), b.reals());
    let mut all = Vec::with_capacity(work.checked_div(inner).unwrap_or(0));
    for matrix in 0..outer.iter().product() {
        for row in 0..rows {
            for column in 0..columns {
                let pair = |at: usize| {
                    let left = f64::from(a[(matrix * rows + row) * inner + at]);
                    left * f64::from(b[(matrix * inner + at) * columns + column])
                };
                all.push((0..inner).map(pair).sum::<f64>() as f32);
            }
        }
    }
    Some(ConstantTensor { dims, numbers: Reals(all) })
}

/// Whether a type of the format is one of real numbers.
pub fn is_real(to: i64) -> bool {
    data_type::REALS.iter().any(|&real| i64::from(real) == to)
}

fn cast(x: &ConstantTensor, to: i64) -> ConstantTensor {
    let is_bool = to == i64::from(data_type::BOOL);
    let numbers = match (&x.numbers, is_real(to)) {
        (Integers(_), true) => Reals(x.reals()),
        (Integers(all), false) if is_bool => Integers(all.iter().map(|&x| i64::from(x != 0)).collect()),
        (Reals(all), false) if is_bool => Integers(all.iter().map(|&x| i64::from(x != 0.0)).collect()),
        (Reals(all), false) => Integers(all.iter().map(|&number| number as i64).collect()),
        (same, _) => same.clone(),
    };
    ConstantTensor { dims: x.dims.clone(), numbers }
}

fn filled(node: &OnnxNode, shape: &ConstantTensor) -> Result<ConstantTensor, Reason> {
    let dims = lengths(shape.integers()?).ok_or("fills a shape that is none")?;
    let value = node.tensor("value").map(|value| OnnxTensor::new(value.clone(), std::path::Path::new("")));
    let value = value.map_or(Ok(single(Reals(vec![0.0]))), |value| ConstantTensor::of(&value?))?;
    if value.len() != 1 {
        return Err("fills with more than one number".into());
    }
    single(value.numbers).stretched(&dims).ok_or_else(|| format!("fills {dims:?} constants"))
}

fn range(start: &ConstantTensor, end: &ConstantTensor, step: &ConstantTensor) -> Option<ConstantTensor> {
    if let (Integers(start), Integers(end), Integers(step)) = (&start.numbers, &end.numbers, &step.numbers) {
        let ([start], [end], [step]) = (&start[..], &end[..], &step[..]) else { return None };
        let room = if *step > 0 { end.checked_sub(*start)? } else { start.checked_sub(*end)? };
        let steps =
            usize::try_from(room.max(0)).ok()?.div_ceil(usize::try_from(step.unsigned_abs()).ok()?.max(1));
        let numbers = (0..count(&[steps])? as i64).map(|place| start + place * step).collect();
        return (*step != 0).then(|| ConstantTensor::row(numbers));
    }
    let [start, end, step] = [start.single()?, end.single()?, step.single()?];
    let steps = ((end - start) / step).ceil().max(0.0);
    let steps = (steps.is_finite() && steps <= 1e6).then_some(steps as usize)?;
    let numbers = (0..count(&[steps])?).map(|place| start + place as f32 * step).collect();
    Some(ConstantTensor { dims: vec![steps], numbers: Reals(numbers) })
}

fn is_unary(op: &str) -> bool {
    of_real(op).is_some() || matches!(op, "IsNaN" | "Not")
}

/// By its attributes of one sign alone.
fn are_infinite(node: &OnnxNode, x: &ConstantTensor) -> ConstantTensor {
    let [below, above] = ["detect_negative", "detect_positive"].map(|name| node.int(name).unwrap_or(1) != 0);
    let is = |x: f32| x.is_infinite() && if x > 0.0 { above } else { below };
    let numbers = x.reals().into_iter().map(|x| i64::from(is(x))).collect();
    ConstantTensor { dims: x.dims.clone(), numbers: Integers(numbers) }
}

fn unary(op: &str, x: &ConstantTensor) -> ConstantTensor {
    let numbers = match &x.numbers {
        Integers(all) if op == "Neg" => Integers(all.iter().map(|x| x.wrapping_neg()).collect()),
        Integers(all) if op == "Abs" => Integers(all.iter().map(|x| x.wrapping_abs()).collect()),
        Integers(all) if op == "Sign" => Integers(all.iter().map(|x| x.signum()).collect()),
        Integers(all) if op == "Not" => Integers(all.iter().map(|&x| i64::from(x == 0)).collect()),
        Integers(all) if op == "Relu" => Integers(all.iter().map(|&x| x.max(0)).collect()),
        Integers(all) if ["Floor", "Ceil", "Round"].contains(&op) => Integers(all.clone()),
        Reals(all) if op == "IsNaN" => Integers(all.iter().map(|x| i64::from(x.is_nan())).collect()),
        _ => return of_real(op).map_or_else(|| x.clone(), |of| of_each(x, of)),
    };
    ConstantTensor { dims: x.dims.clone(), numbers }
}

fn of_each(x: &ConstantTensor, of: impl Fn(f32) -> f32) -> ConstantTensor {
    ConstantTensor { dims: x.dims.clone(), numbers: Reals(x.reals().into_iter().map(of).collect()) }
}

fn of_real(op: &str) -> Option<fn(f32) -> f32> {
    Some(match op {
        "Abs" => f32::abs,
        "Acos" => f32::acos,
        "Asin" => f32::asin,
        "Atan" => f32::atan,
        "Ceil" => f32::ceil,
        "Cos" => f32::cos,
        "Cosh" => f32::cosh,
        "Exp" => f32::exp,
        "Floor" => f32::floor,
        "Log" => f32::ln,
        "Neg" => |x| -x,
        "Reciprocal" => f32::recip,
        "Relu" => |x| x.max(0.0),
        "Round" => f32::round_ties_even,
        "Sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
        "Sign" => |x| if x == 0.0 || x.is_nan() { x } else { x.signum() },
        "Sin" => f32::sin,
        "Sinh" => f32::sinh,
        "Softplus" => |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        "Sqrt" => f32::sqrt,
        "Tan" => f32::tan,
        "Tanh" => f32::tanh,
        _ => return None,
    })
}

/// An op of two constants that are stretched over each other.
fn binary(op: &str, a: &ConstantTensor, b: &ConstantTensor) -> Option<ConstantTensor> {
    let dims = common(&[&a.dims, &b.dims])?;
    let (a, b) = (a.stretched(&dims)?, b.stretched(&dims)?);
    let numbers = match (&a.numbers, &b.numbers) {
        (Integers(x), Integers(y)) => {
            Integers(x.iter().zip(y).map(|(&x, &y)| of_integers(op, x, y)).collect::<Option<_>>()?)
        }
        _ => {
            let (x, y) = (a.reals(), b.reals());
            let pairs = || x.iter().zip(&y);
            match compares(op) {
                Some(holds) => Integers(pairs().map(|(x, y)| i64::from(holds(x.partial_cmp(y)))).collect()),
                None => Reals(pairs().map(|(&x, &y)| of_reals(op, x, y)).collect::<Option<_>>()?),
            }
        }
    };
    Some(ConstantTensor { dims, numbers })
}

/// Whether two numbers of this order are as the op asks.
fn compares(op: &str) -> Option<fn(Option<std::cmp::Ordering>) -> bool> {
    Some(match op {
        "Equal" => |order| order.is_some_and(|order| order.is_eq()),
        "Greater" => |order| order.is_some_and(|order| order.is_gt()),
        "GreaterOrEqual" => |order| order.is_some_and(|order| order.is_ge()),
        "Less" => |order| order.is_some_and(|order| order.is_lt()),
        "LessOrEqual" => |order| order.is_some_and(|order| order.is_le()),
        _ => return None,
    })
}

/// Division rounds to zero, and a remainder has the sign of the divisor, as the format has them.
fn of_integers(op: &str, x: i64, y: i64) -> Option<i64> {
    match op {
        "Add" => x.checked_add(y),
        "Sub" => x.checked_sub(y),
        "Mul" => x.checked_mul(y),
        "Div" => x.checked_div(y),
        "Mod" => {
            x.checked_rem(y).map(|rest| if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest })
        }
        "Pow" => x.checked_pow(u32::try_from(y).ok()?),
        "Max" => Some(x.max(y)),
        "Min" => Some(x.min(y)),
        "And" => Some(i64::from(x != 0 && y != 0)),
        "Or" => Some(i64::from(x != 0 || y != 0)),
        "Xor" => Some(i64::from((x != 0) != (y != 0))),
        op => compares(op).map(|holds| i64::from(holds(Some(x.cmp(&y))))),
    }
}

fn of_reals(op: &str, x: f32, y: f32) -> Option<f32> {
    Some(match op {
        "Add" => x + y,
        "Sub" => x - y,
        "Mul" => x * y,
        "Div" => x / y,
        "Pow" => x.powf(y),
        "Max" => x.max(y),
        "Min" => x.min(y),
        _ => return None,
    })
}

fn choose(condition: &ConstantTensor, a: &ConstantTensor, b: &ConstantTensor) -> Option<ConstantTensor> {
    let dims = common(&[&condition.dims, &a.dims, &b.dims])?;
    let [condition, a, b] = [condition, a, b].map(|constant| constant.stretched(&dims));
    let (condition, a, b) = (condition?, a?, b?);
    let condition = condition.integers().ok()?.iter().enumerate();
    let places = condition.map(|(place, &is_first)| if is_first != 0 { place } else { a.len() + place });
    ConstantTensor::chained(&[&a, &b]).at(places, dims)
}

/// Over these axes, over all where none is named.
fn reduce(node: &OnnxNode, x: &ConstantTensor, axes: &[i64]) -> Option<ConstantTensor> {
    let rank = x.dims.len();
    let over: Vec<usize> = match axes {
        [] if node.int("noop_with_empty_axes").unwrap_or(0) != 0 => return Some(x.clone()),
        [] => (0..rank).collect(),
        axes => axes.iter().map(|&axis| from_front(axis, rank)).collect::<Option<_>>()?,
    };
    let kept: Vec<usize> =
        (0..rank).map(|axis| if over.contains(&axis) { 1 } else { x.dims[axis] }).collect();
    let own = places(&kept)?;
    let to = own.broadcast(IxDyn(&x.dims))?;
    let op = match node.op() {
        "ReduceMax" => "Max",
        "ReduceMin" => "Min",
        "ReduceProd" => "Mul",
        _ => "Add",
    };
    fn gathered<T: Copy>(
        all: &[T],
        to: ArrayViewD<usize>,
        n: usize,
        of: impl Fn(T, T) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut sums: Vec<Option<T>> = vec![None; n];
        for (&x, &to) in all.iter().zip(&to) {
            sums[to] = Some(match sums[to] {
                None => x,
                Some(sum) => of(sum, x)?,
            });
        }
        sums.into_iter().collect()
    }
    let numbers = match &x.numbers {
        Integers(all) => Integers(gathered(all, to, own.len(), |a, b| of_integers(op, a, b))?),
        Reals(all) => Reals(gathered(all, to, own.len(), |a, b| of_reals(op, a, b))?),
    };
    let dims = match node.int("keepdims").unwrap_or(1) {
        0 => (0..rank).filter(|axis| !over.contains(axis)).map(|axis| x.dims[axis]).collect(),
        _ => kept,
    };
    Some(ConstantTensor { dims, numbers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::onnx::node::tests::node;

    fn folded(op: &str, ints: &[(&str, &[i64])], inputs: &[ConstantTensor]) -> Option<Vec<i64>> {
        let proto = node(op, ints);
        let inputs: Vec<&ConstantTensor> = inputs.iter().collect();
        let constant = fold(&OnnxNode::new(&proto, 0), &inputs)?.ok()?;
        constant.integers().ok().map(<[i64]>::to_vec)
    }

    fn row(numbers: &[i64]) -> ConstantTensor {
        ConstantTensor::row(numbers.to_vec())
    }

    fn single(number: i64) -> ConstantTensor {
        ConstantTensor { dims: Vec::new(), numbers: Integers(vec![number]) }
    }

    /// What an exporter writes for `x.view(x.size(0), -1)`, op by op.
    #[test]
    fn the_arithmetic_of_shapes_is_that_of_the_format() {
        let shape = row(&[4, 512, 7, 7]);
        let first = fold(&OnnxNode::new(&node("Gather", &[]), 0), &[&shape, &single(0)]).unwrap().unwrap();
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
        assert_eq!(folded("Mod", &[], &[row(&[-7, 7]), single(5)]), Some(vec![3, 2]));
        assert_eq!(folded("Where", &[], &[row(&[1, 0]), row(&[2, 3]), single(9)]), Some(vec![2, 9]));
        assert_eq!(folded("ReduceProd", &[], std::slice::from_ref(&shape)), Some(vec![4 * 512 * 49]));
        let real = ConstantTensor { dims: Vec::new(), numbers: Reals(vec![2.7]) };
        assert_eq!(folded("Cast", &[("to", &[7])], std::slice::from_ref(&real)), Some(vec![2]));
        assert_eq!(folded("Less", &[], &[single(2), real]), Some(vec![1]));
        let ends = [f32::NEG_INFINITY, 1.0, f32::INFINITY];
        let ends = [ConstantTensor { dims: vec![3], numbers: Reals(ends.to_vec()) }];
        assert_eq!(folded("IsInf", &[], &ends), Some(vec![1, 0, 1]));
        assert_eq!(folded("IsInf", &[("detect_negative", &[0])], &ends), Some(vec![0, 0, 1]));
        assert_eq!(folded("IsInf", &[("detect_positive", &[0])], &ends), Some(vec![1, 0, 0]));
        let reshaped =
            fold(&OnnxNode::new(&node("Reshape", &[]), 0), &[&shape, &row(&[2, -1])]).unwrap().unwrap();
        assert_eq!(reshaped.dims, [2, 2]);
        assert!(fold(&OnnxNode::new(&node("Reshape", &[]), 0), &[&shape, &row(&[3, -1])]).unwrap().is_err());
        assert!(
            fold(&OnnxNode::new(&node("ConstantOfShape", &[]), 0), &[&row(&[1 << 40])]).unwrap().is_err()
        );
        assert!(fold(&OnnxNode::new(&node("Conv", &[]), 0), &[&shape]).is_none());
    }

    /// What an exporter writes for a mask: parts of a table are filled, and the table is seen in another shape.
    #[test]
    fn tables_are_filled_turned_and_stretched() {
        let table = |dims: &[usize], numbers: &[i64]| ConstantTensor {
            dims: dims.to_vec(),
            numbers: Integers(numbers.to_vec()),
        };
        let x = table(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(folded("Transpose", &[], std::slice::from_ref(&x)), Some(vec![1, 4, 2, 5, 3, 6]));
        let slice = [x.clone(), row(&[2, 0]), row(&[-9, 2]), row(&[1, 0]), row(&[-2, 1])];
        assert_eq!(folded("Slice", &[], &slice), Some(vec![3, 1, 6, 4]), "backwards along an axis");
        assert_eq!(folded("Gather", &[("axis", &[1])], &[x.clone(), row(&[2, 0])]), Some(vec![3, 1, 6, 4]));
        assert_eq!(folded("Expand", &[], &[table(&[2, 1], &[7, 8]), row(&[2, 2])]), Some(vec![7, 7, 8, 8]));
        assert_eq!(folded("Expand", &[], &[row(&[1, 2]), row(&[3])]), None);
        let scattered =
            folded("ScatterND", &[], &[x.clone(), table(&[1, 1], &[-1]), table(&[1, 3], &[7, 8, 9])]);
        assert_eq!(scattered, Some(vec![1, 2, 3, 7, 8, 9]));
        let scattered = folded("ScatterND", &[], &[x.clone(), table(&[2, 2], &[0, 1, 1, 0]), row(&[8, 9])]);
        assert_eq!(scattered, Some(vec![1, 8, 3, 9, 5, 6]));
        assert_eq!(folded("ScatterND", &[], &[x.clone(), table(&[1, 2], &[0, 3]), row(&[8])]), None);
        assert_eq!(folded("Range", &[], &[single(5), single(0), single(-2)]), Some(vec![5, 3, 1]));
        assert_eq!(folded("Range", &[], &[single(0), single(i64::MAX), single(1)]), None);
        let nothing = ConstantTensor { dims: vec![0], numbers: Integers(Vec::new()) };
        assert_eq!(folded("Reshape", &[], &[nothing, row(&[0, 1 << 40, 1 << 40])]), None);
        assert_eq!(
            folded("Concat", &[("axis", &[1])], &[x.clone(), table(&[2, 1], &[7, 8])]),
            Some(vec![1, 2, 3, 7, 4, 5, 6, 8])
        );
        assert_eq!(folded("Tile", &[], &[row(&[1, 2]), row(&[2])]), Some(vec![1, 2, 1, 2]));
        let hot =
            |axis, depth| folded("OneHot", &[("axis", &[axis])], &[row(&[1, -3, 9]), depth, row(&[5, 7])]);
        assert_eq!(hot(1, single(3)), Some(vec![5, 7, 5, 7, 5, 5, 5, 5, 5]));
        assert_eq!(hot(0, row(&[3])), Some(vec![5, 7, 5, 7, 5, 5, 5, 5, 5]));
        assert_eq!(hot(-1, single(0)), Some(Vec::new()));
        assert_eq!([hot(2, single(3)), hot(0, single(-1)), hot(0, single(1 << 40))], [None, None, None]);
        let reduce: [(&str, &[i64]); 1] = [("axes", &[0])];
        assert_eq!(folded("ReduceSum", &reduce, std::slice::from_ref(&x)), Some(vec![5, 7, 9]));
        assert_eq!(folded("Equal", &[], &[x, row(&[1, 5, 6])]), Some(vec![1, 0, 0, 0, 1, 1]));
    }

    fn reals(op: &str, ints: &[(&str, &[i64])], inputs: &[ConstantTensor]) -> Option<Vec<f32>> {
        let proto = node(op, ints);
        let inputs: Vec<&ConstantTensor> = inputs.iter().collect();
        fold(&OnnxNode::new(&proto, 0), &inputs)?.ok().map(|constant| constant.reals())
    }

    /// What an exporter writes for tables of places: waves of them, sums, triangles, products.
    #[test]
    fn tables_of_places_are_computed() {
        let table = |dims: &[usize], numbers: &[f32]| ConstantTensor {
            dims: dims.to_vec(),
            numbers: Reals(numbers.to_vec()),
        };
        let x = table(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let one = std::slice::from_ref(&x);
        assert_eq!(reals("Sin", &[], one).unwrap()[1], 2f32.sin());
        assert_eq!(reals("Cos", &[], one).unwrap()[3], 4f32.cos());
        assert_eq!(reals("Reciprocal", &[], one), Some(vec![1.0, 0.5, 1.0 / 3.0, 0.25]));
        assert_eq!(reals("CumSum", &[], &[x.clone(), single(1)]), Some(vec![1.0, 3.0, 3.0, 7.0]));
        assert_eq!(
            reals("CumSum", &[("reverse", &[1])], &[x.clone(), single(0)]),
            Some(vec![4.0, 6.0, 3.0, 4.0])
        );
        assert_eq!(
            folded("CumSum", &[("exclusive", &[1])], &[row(&[5, 6, 7]), single(0)]),
            Some(vec![0, 5, 11])
        );
        assert_eq!(reals("Trilu", &[("upper", &[0])], one), Some(vec![1.0, 0.0, 3.0, 4.0]));
        assert_eq!(reals("Trilu", &[], &[x.clone(), single(1)]), Some(vec![0.0, 2.0, 0.0, 0.0]));
        assert_eq!(reals("MatMul", &[], &[x.clone(), x.clone()]), Some(vec![7.0, 10.0, 15.0, 22.0]));
        assert_eq!(reals("ReduceMean", &[("axes", &[1])], one), Some(vec![1.5, 3.5]));
        assert_eq!(reals("ReduceL2", &[("axes", &[0])], &[table(&[2, 1], &[3.0, 4.0])]), Some(vec![5.0]));
        assert_eq!(folded("Clip", &[], &[row(&[-1, 2, 9]), single(0), single(4)]), Some(vec![0, 2, 4]));
        assert_eq!(reals("EyeLike", &[("k", &[1])], one), Some(vec![0.0, 1.0, 0.0, 0.0]));
        let at = ConstantTensor { dims: vec![1, 2], numbers: Integers(vec![1, -2]) };
        assert_eq!(reals("GatherND", &[], &[x.clone(), at.clone()]), Some(vec![3.0]));
        assert_eq!(reals("GatherElements", &[], &[x.clone(), at]), Some(vec![3.0, 2.0]));
        assert_eq!(folded("Xor", &[], &[row(&[1, 0, 1]), row(&[1, 1, 0])]), Some(vec![0, 1, 1]));
        assert_eq!(part(&x, 1, 1..2).unwrap().reals(), [2.0, 4.0]);
    }
}
