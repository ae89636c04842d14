//! Images cut by rows, and cubes by planes (both are called rows here), over the ranks of a group: spatial parallelism.
//! A rank's network has what ranks tell each other as nodes of the graph.
//!
//! A tensor that is cut has the rows of this place alone (`Rows::of`), a function of its height, so that tensors of one
//! height are cut alike whatever layers they come from. A layer with windows reads more rows than the place has: before
//! it stands `Op::Halo`, which gives exactly the rows that its outputs here are made of, padding as rows among them.
//! What cannot be cut, and what has fewer rows than there are places, is computed whole by every place, of rows that
//! `Op::Halo` has gathered. Every place then has the same losses, and gradients of what is whole count as many times as
//! there are places: the loss gradient is that much smaller, and sums over all ranks are right.
//!
//! Nikoli Dryden et al.: "Improving strong-scaling of CNN training by exploiting finer-grained parallelism", IPDPS
//! 2019.

mod halo;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::{
    BackwardOp, Binary, DType, FieldLoss, Graph, Node, NodeId, Op, Pool, Role, Shape, Spec, Tensor, TensorId,
};
use crate::config::Objective;
pub use halo::{Halo, RowWindow, Rows, Strip, Trade};

/// The number below all others that bf16 has.
const LOWEST: f32 = f32::from_bits(0xff7f_0000);

impl Graph {
    /// The network of one place. To be called on a forward graph that reads images as numbers, after `simplify` and
    /// before `synchronise_batch_norms`; `trade_rows` comes when it has its backward pass.
    pub fn split_rows(mut self, parts: usize, place: usize) -> Graph {
        if parts == 1 {
            return self;
        }
        let height = self.image().0[1];
        let rows = Rows { height, parts, place };
        let nodes = std::mem::take(&mut self.nodes);
        let heights = self.tensors.iter().map(|_| None).collect();
        let mut split = RowSplit { graph: self, rows, cut: heights, halos: HashMap::new(), number: 0 };
        if height >= parts {
            split.cut(split.graph.images, height);
        }
        nodes.into_iter().for_each(|node| split.add(node));
        let mut graph = split.graph;
        graph.rows = Some(rows);
        graph.forward_nodes = graph.nodes.len();
        graph
    }

    /// How many times places tell each other rows, or statistics of rows, in a forward pass, and the bytes that one
    /// sends at the most. Of a graph whose halos are not lowered yet.
    pub fn told_of_rows(&self) -> [usize; 2] {
        let of = |node: &Node| match node.op {
            Op::Halo(halo) => {
                let spec = &self.tensor(node.inputs[0]).spec;
                let of_row = spec.shape.elements() * spec.dtype.bytes() / halo.rows.own().len().max(1);
                let mut sent = vec![0; halo.rows.parts];
                let messages = Trade { halo, is_backward: false }.messages();
                messages.for_each(|[from, _, rows]| sent[from] += rows);
                [1, of_row * sent.into_iter().max().unwrap_or(0)]
            }
            Op::Exchange { .. } => [1, 0],
            _ => [0; 2],
        };
        self.nodes.iter().map(of).fold([0; 2], |[count, bytes], [more, sent]| [count + more, bytes + sent])
    }

    /// Halos as what a rank does: it cuts strips out of its rows, trades them for those of others, and puts these
    /// beside its own; backward it adds up the gradients of a row. To be called after `differentiate`.
    pub fn trade_rows(mut self) -> Graph {
        let forward_nodes = self.forward_nodes;
        let nodes = std::mem::take(&mut self.nodes);
        // Where each node went, and what halos are that have just what the place has.
        let mut moved = Vec::with_capacity(nodes.len());
        let mut same: HashMap<TensorId, TensorId> = HashMap::new();
        for (index, mut node) in nodes.into_iter().enumerate() {
            if index == forward_nodes {
                self.forward_nodes = self.nodes.len();
            }
            node.forward = node.forward.map(|NodeId(forward)| moved[forward]);
            node.inputs.iter_mut().for_each(|id| *id = same.get(id).copied().unwrap_or(*id));
            let known = match node.op {
                Op::Halo(halo) => self.lower(halo, &node),
                Op::Backward(BackwardOp::Halo(halo)) => self.lower_backward(halo, &node),
                _ => {
                    self.nodes.push(node);
                    None
                }
            };
            same.extend(known);
            moved.push(NodeId(self.nodes.len().saturating_sub(1)));
        }
        if forward_nodes == moved.len() {
            self.forward_nodes = self.nodes.len();
        }
        self
    }

    /// The nodes of a halo, the last of which puts it together; where it is but rows that are there already, that these
    /// are it.
    fn lower(&mut self, halo: Halo, node: &Node) -> Option<(TensorId, TensorId)> {
        let (x, y, own, name) = (node.inputs[0], node.outputs[0], halo.rows.own(), &node.name);
        let strips = halo.sent().into_iter();
        let sent: Vec<TensorId> = strips.map(|strip| self.some_rows(name, x, &own, &strip.rows)).collect();
        let received = halo.received();
        let come: Vec<TensorId> = received.iter().map(|strip| self.like_rows(x, strip.rows.len())).collect();
        self.trade(name, Trade { halo, is_backward: false }, sent, come.clone());
        let kept = halo.kept();
        let mut parts: Vec<(usize, TensorId)> =
            received.iter().map(|strip| strip.rows.start).zip(come).collect();
        if !kept.is_empty() {
            parts.push((kept.start, self.some_rows(name, x, &own, &kept)));
        }
        parts.sort_by_key(|(start, _)| *start);
        let fill = halo.window.map_or(0.0, |window| window.fill);
        let [before, behind] = halo.filled().map(|rows| (rows > 0).then(|| self.filled(name, x, rows, fill)));
        let parts: Vec<TensorId> =
            before.into_iter().chain(parts.into_iter().map(|(_, part)| part)).chain(behind).collect();
        if let [part] = parts[..] {
            return Some((y, part));
        }
        self.put(name, Op::Concat { axis: 2 }, parts, vec![y], None);
        None
    }

    /// The nodes of its way back; where that is but a tensor that is there already, that this is it.
    fn lower_backward(&mut self, halo: Halo, node: &Node) -> Option<(TensorId, TensorId)> {
        let (dy, dx, own, name) = (node.inputs[0], node.outputs[0], halo.rows.own(), &node.name);
        let [sent, come] = Trade { halo, is_backward: true }.strips();
        // A strip that comes lies as it does for the other place, not as the concatenation read it.
        let of_strip = |strip: &Strip| self.of_halo(name, halo, [dy, dx], &strip.rows, None);
        let sent: Vec<TensorId> = sent.iter().map(of_strip).collect();
        let gradients: Vec<TensorId> =
            come.iter().map(|strip| self.like_rows(dx, strip.rows.len())).collect();
        self.trade(name, Trade { halo, is_backward: true }, sent, gradients.clone());
        let kept = halo.kept();
        let mut sum = match kept.is_empty() {
            true => self.filled(name, dx, own.len(), 0.0),
            false => self.of_halo(name, halo, [dy, dx], &kept, node.forward),
        };
        if !kept.is_empty() && kept != own {
            let whole = self.like_rows(dx, own.len());
            self.put(name, Op::Pad { axis: 2, before: kept.start - own.start }, vec![sum], vec![whole], None);
            sum = whole;
        }
        for (strip, gradient) in come.iter().zip(gradients) {
            let more = self.like_rows(dx, own.len());
            let from = strip.rows.start - own.start;
            self.put(
                name,
                Op::Backward(BackwardOp::AddSlice { axis: 2, from }),
                vec![sum, gradient],
                vec![more],
                None,
            );
            sum = more;
        }
        Some((dx, sum))
    }

    /// Rows of the image of a halo's gradient, which are of the type of the tensor's.
    fn of_halo(
        &mut self,
        name: &str,
        halo: Halo,
        [dy, dx]: [TensorId; 2],
        rows: &Range<usize>,
        concat: Option<NodeId>,
    ) -> TensorId {
        let [start, _] = halo.needed(halo.rows.place);
        if rows.len() == halo.height() {
            return dy;
        }
        let from = (rows.start as isize - start) as usize;
        let strip = self.like_rows(dx, rows.len());
        self.put(name, Op::Slice { axis: 2, from }, vec![dy], vec![strip], concat);
        strip
    }

    fn trade(&mut self, name: &str, trade: Trade, sent: Vec<TensorId>, come: Vec<TensorId>) {
        if !(sent.is_empty() && come.is_empty()) {
            self.put(name, Op::Trade(trade), sent, come, None);
        }
    }

    /// Rows of a tensor that has those of `own`.
    fn some_rows(&mut self, name: &str, x: TensorId, own: &Range<usize>, rows: &Range<usize>) -> TensorId {
        // Messages are of what lies among activations.
        if own == rows && self.tensor(x).role == Role::Activation {
            return x;
        }
        let strip = self.like_rows(x, rows.len());
        self.put(name, Op::Slice { axis: 2, from: rows.start - own.start }, vec![x], vec![strip], None);
        strip
    }

    /// Rows that all have one number.
    fn filled(&mut self, name: &str, like: TensorId, rows: usize, number: f32) -> TensorId {
        let spec = Spec { shape: self.per_place(like), dtype: DType::F32 };
        let is_it = |tensor: &Tensor| tensor.spec == spec && tensor.values.as_deref() == Some(&[number]);
        let constant = self.tensors.iter().position(is_it).unwrap_or_else(|| {
            let mut tensor = Tensor::new("fill", spec.clone(), Role::Constant);
            tensor.values = Some(Arc::from([number]));
            self.tensors.push(tensor);
            self.tensors.len() - 1
        });
        let filled = self.like_rows(like, rows);
        self.put(name, Op::Expand { scale: 1.0 }, vec![TensorId(constant)], vec![filled], None);
        filled
    }

    /// As many axes as a tensor has, all of 1.
    fn per_place(&self, like: TensorId) -> Shape {
        Shape(vec![1; self.tensor(like).spec.shape.rank()])
    }

    /// A new tensor that has so many rows.
    fn like_rows(&mut self, like: TensorId, rows: usize) -> TensorId {
        let mut spec = self.tensor(like).spec.clone();
        spec.shape.0[2] = rows;
        let name = format!("rows of {}", self.tensor(like).name);
        self.add_tensor(Tensor::new(name, spec, Role::Activation))
    }

    fn put(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<TensorId>,
        outputs: Vec<TensorId>,
        forward: Option<NodeId>,
    ) {
        self.nodes.push(Node { name: name.into(), op, inputs, outputs, forward });
    }
}

/// A graph that is being cut.
struct RowSplit {
    graph: Graph,
    rows: Rows,
    /// For each tensor how many rows all places have of it, where it is cut.
    cut: Vec<Option<usize>>,
    /// Halos that are there already.
    halos: HashMap<(TensorId, String), TensorId>,
    number: u32,
}

impl RowSplit {
    fn height(&self, id: TensorId) -> Option<usize> {
        self.cut.get(id.0).copied().flatten()
    }

    fn shape(&self, id: TensorId) -> &Shape {
        &self.graph.tensor(id).spec.shape
    }

    /// Where a window's geometry says what it does along the axis that is cut: the depth of cubes, the height of
    /// images.
    fn first_axis(&self, node: &Node) -> usize {
        usize::from(self.shape(node.outputs[0]).rank() < 5)
    }

    /// From now on a tensor has the rows of this place alone.
    fn cut(&mut self, id: TensorId, height: usize) {
        self.graph.tensors[id.0].spec.shape.0[2] = self.rows.with_height(height).own().len();
        self.cut.resize(self.graph.tensors.len(), None);
        self.cut[id.0] = Some(height);
    }

    fn add(&mut self, mut node: Node) {
        self.cut_beside(&mut node);
        if let (Op::FieldLoss(of), Some(height)) = (node.op, self.height(node.inputs[0])) {
            return self.loss_of_rows(node, of.objective, height);
        }
        match self.height(node.inputs[0]) {
            Some(height) if self.is_mean_of_rows(&node, height) => return self.mean_of_rows(node, height),
            Some(height) if self.is_transposed(&node) => return self.transposed(node, height),
            Some(height) if self.add_windows(&mut node, height) => {}
            _ => match self.goes_by_rows(&node) {
                Some(height) => {
                    if let Op::BatchNorm(norm) = &mut node.op {
                        norm.rows = Some(self.rows.with_height(height));
                    }
                    node.outputs.iter().for_each(|&id| {
                        if self.shape(id).spatial().is_some() {
                            self.cut(id, height);
                        }
                    });
                }
                None => {
                    if let Op::BatchNorm(norm) = &mut node.op {
                        norm.copies = self.rows.parts;
                    }
                    for index in 0..node.inputs.len() {
                        node.inputs[index] = self.whole(&node.name, node.inputs[index]);
                    }
                }
            },
        }
        self.graph.nodes.push(node);
    }

    /// A layer with windows reads a halo and pads no rows itself, if each place has outputs of it.
    fn add_windows(&mut self, node: &mut Node, height: usize) -> bool {
        let outputs = self.shape(node.outputs[0]).spatial().map_or(0, |_| self.shape(node.outputs[0]).0[2]);
        if outputs < self.rows.parts {
            return false;
        }
        let mut window = RowWindow { outputs, reach: 0, stride: 0, padding: 0, fill: 0.0, transposed: false };
        let first = self.first_axis(node);
        match &mut node.op {
            Op::Conv(conv) => {
                (window.reach, window.stride) = (conv.reach()[first], conv.stride[first]);
                window.padding = std::mem::take(&mut conv.padding[first]);
            }
            Op::AvgPool(pool) if !pool.count_include_pad && pool.padding[first] > 0 => return false,
            Op::MaxPool(pool) => {
                window.fill = LOWEST;
                (window.reach, window.stride) = (pool.kernel[first], pool.stride[first]);
                window.padding = std::mem::take(&mut pool.padding[first]);
            }
            Op::AvgPool(pool) => {
                (window.reach, window.stride) = (pool.kernel[first], pool.stride[first]);
                window.padding = std::mem::take(&mut pool.padding[first]);
            }
            _ => return false,
        }
        node.inputs[0] = self.halo(&node.name, node.inputs[0], height, Some(window));
        node.outputs.iter().for_each(|&id| self.cut(id, outputs));
        true
    }

    /// Whether it is a transposed convolution of which each place has outputs, with none that no row adds to between
    /// those of two rows.
    fn is_transposed(&self, node: &Node) -> bool {
        let outputs = self.shape(node.outputs[0]).spatial().map_or(0, |_| self.shape(node.outputs[0]).0[2]);
        let Op::ConvBackwardData(conv) = node.op else { return false };
        let first = self.first_axis(node);
        outputs >= self.rows.parts && conv.reach()[first] >= conv.stride[first]
    }

    /// A transposed convolution of the rows that add to those of this place gives these, and some beside them.
    fn transposed(&mut self, mut node: Node, height: usize) {
        let first = self.first_axis(&node);
        let Op::ConvBackwardData(conv) = &mut node.op else { return };
        let (reach, stride) = (conv.reach()[first], conv.stride[first]);
        let padding = std::mem::take(&mut conv.padding[first]);
        let (name, y) = (node.name.clone(), node.outputs[0]);
        let outputs = self.shape(y).0[2];
        let window = RowWindow { outputs, reach, stride, padding, fill: 0.0, transposed: true };
        node.inputs[0] = self.halo(&name, node.inputs[0], height, Some(window));
        let own = self.rows.with_height(outputs).own();
        let halo = Halo { rows: self.rows.with_height(height), window: Some(window), number: 0 };
        let [first, _] = halo.needed(self.rows.place);
        let wide = (halo.height() - 1) * stride + reach;
        let from = own.start + padding - first as usize * stride;
        self.cut(y, outputs);
        if wide > own.len() {
            node.outputs[0] = self.graph.like_rows(y, wide);
            self.graph.tensors[node.outputs[0].0].name = format!("{name}.rows");
        }
        self.graph.nodes.push(node);
        if wide > own.len() {
            let wide = self.graph.nodes.last().expect("just added").outputs[0];
            self.graph.put(&name, Op::Slice { axis: 2, from }, vec![wide], vec![y], None);
        }
    }

    /// What is put beside rows of this place is cut to them too.
    fn cut_beside(&mut self, node: &mut Node) {
        let Op::Concat { axis } = node.op else { return };
        let Some(height) = node.inputs.iter().find_map(|&id| self.height(id)) else { return };
        for index in 0..node.inputs.len() {
            let (id, own) = (node.inputs[index], self.rows.with_height(height).own());
            let is_whole = self.height(id).is_none() && self.shape(id).spatial().is_some();
            if axis != 2 && is_whole && self.shape(id).0[2] == height {
                let part = self.graph.some_rows(&node.name, id, &(0..height), &own);
                self.cut(part, height);
                node.inputs[index] = part;
            }
        }
    }

    /// The height of an op's result whose rows are each made of the same row of its operands.
    fn goes_by_rows(&self, node: &Node) -> Option<usize> {
        let height = node.inputs.iter().find_map(|&id| self.height(id))?;
        let is_cut = |id: &TensorId| self.height(*id) == Some(height);
        let axes = self.shape(node.outputs[0]).rank();
        let keeps_height =
            || self.shape(node.outputs[0]).spatial().is_some() && self.shape(node.outputs[0]).0[2] == height;
        // What is stretched over rows is the same for all of them.
        let has_no_rows = |id: &TensorId| {
            let shape = &self.shape(*id).0;
            self.height(*id).is_none()
                && shape.len().checked_sub(axes - 2).is_none_or(|axis| shape[axis] == 1)
        };
        let fits = match node.op {
            Op::Activation(_) | Op::LocalResponseNorm(_) | Op::Dropout { whole: true, .. } => true,
            Op::Add { .. } => node.inputs.iter().all(is_cut),
            Op::Concat { axis } => axes >= 4 && axis != 2 && node.inputs.iter().all(is_cut),
            Op::Slice { axis, .. } | Op::Pad { axis, .. } => axes >= 4 && axis != 2,
            Op::BatchNorm(_) | Op::BatchNormInference(_) => true,
            Op::Binary(_) => keeps_height() && node.inputs.iter().all(|id| is_cut(id) || has_no_rows(id)),
            Op::Sum { .. } | Op::Expand { .. } => keeps_height(),
            _ => false,
        };
        fits.then_some(height)
    }

    fn is_mean_of_rows(&self, node: &Node, height: usize) -> bool {
        let first = self.first_axis(node);
        let is_one = |pool: Pool| pool.kernel[first] == height && pool.padding[first] == 0;
        matches!(node.op, Op::AvgPool(pool) if is_one(pool))
            && self.shape(node.outputs[0]).0[2] == 1
            && self.graph.tensor(node.outputs[0]).spec.dtype == DType::F32
    }

    /// The mean of all rows is that of the places' means, by their rows: each place tells the others one row.
    fn mean_of_rows(&mut self, mut node: Node, height: usize) {
        let (rows, first) = (self.rows.with_height(height), self.first_axis(&node));
        let Op::AvgPool(pool) = &mut node.op else { return };
        (pool.kernel[first], pool.stride[first]) = (rows.own().len(), 1);
        let (y, name) = (node.outputs[0], node.name.clone());
        let own = self.graph.like_rows(y, 1);
        node.outputs[0] = own;
        self.graph.nodes.push(node);
        let all = self.halo(&name, own, rows.parts, None);
        let share = |place: usize| rows.of(place).len() as f32 / height as f32;
        let shares: Vec<f32> = (0..rows.parts).map(share).collect();
        let mut shape = self.graph.per_place(y);
        shape.0[2] = rows.parts;
        let spec = Spec { shape, dtype: DType::F32 };
        let constant = Tensor::new(format!("{name}.shares"), spec, Role::Constant);
        let constant = self.graph.add_tensor(Tensor { values: Some(Arc::from(shares)), ..constant });
        let weighed = self.graph.like_rows(y, rows.parts);
        self.graph.put(&name, Op::Binary(Binary::Multiply), vec![all, constant], vec![weighed], None);
        self.graph.put(&name, Op::Sum { scale: 1.0 }, vec![weighed], vec![y], None);
    }

    /// Every place compares its own rows with those of the target, and tells the others what they add up to.
    fn loss_of_rows(&mut self, mut node: Node, objective: Objective, height: usize) {
        let rows = self.rows.with_height(height);
        let of = FieldLoss { objective, rows: Some(rows) };
        // Classes have no channels, unless weights are behind them.
        let axis = self.shape(node.inputs[1]).rank() + 2 - self.shape(node.inputs[0]).rank();
        self.graph.tensors[node.inputs[1].0].spec.shape.0[axis] = rows.own().len();
        let name = node.name.clone();
        let output = self.shape(node.inputs[0]);
        let shape = [output.batch(), of.totals(output.channels())];
        let [own, all] = [&shape[..], &[rows.parts, shape[0], shape[1]]]
            .map(|shape| self.graph.per_channel(&format!("{name}.totals"), shape));
        let means = std::mem::replace(&mut node.outputs, vec![own]);
        node.op = Op::FieldLoss(of);
        self.graph.nodes.push(node);
        self.graph.put(&name, Op::Exchange { ranks: rows.parts, rows: None }, vec![own], vec![all], None);
        self.graph.put(&name, Op::FieldMeans(of), vec![all], means, None);
    }

    /// All rows of a tensor.
    fn whole(&mut self, name: &str, id: TensorId) -> TensorId {
        match self.height(id) {
            Some(height) => self.halo(name, id, height, None),
            None => id,
        }
    }

    /// The rows of a tensor that a window wants.
    fn halo(&mut self, name: &str, x: TensorId, height: usize, window: Option<RowWindow>) -> TensorId {
        let halo = Halo { rows: self.rows.with_height(height), window, number: self.number };
        if halo.is_needless() {
            return x;
        }
        let key = (x, format!("{window:?}"));
        if let Some(&known) = self.halos.get(&key) {
            return known;
        }
        let y = self.graph.like_rows(x, halo.height());
        self.graph.tensors[y.0].name = format!("{name}.halo");
        self.graph.put(name, Op::Halo(halo), vec![x], vec![y], None);
        self.halos.insert(key, y);
        self.number += 1;
        y
    }
}

#[cfg(test)]
mod tests {
    use super::halo::overlap;
    use super::*;
    use crate::config::{Loss, Metric};
    use crate::cuts::even_split;
    use crate::graph::{BatchNorm, Builder, Conv};
    use proptest::prelude::*;

    /// A halo of every place of an image of so many rows.
    fn halos(height: usize, parts: usize, window: Option<RowWindow>) -> Vec<Halo> {
        let rows = |place| Rows { height, parts, place };
        (0..parts).map(|place| Halo { rows: rows(place), window, number: 0 }).collect()
    }

    /// The numbers of the rows that a place has when all have told each other theirs; `None`: of no row of the image.
    fn put_together(halos: &[Halo], place: usize) -> Vec<Option<usize>> {
        let halo = &halos[place];
        let mut rows: Vec<usize> = halo.kept().collect();
        for strip in halo.received() {
            // The other one sends the same.
            let sent = halos[strip.peer].sent().into_iter().find(|other| other.peer == place);
            assert_eq!(sent.map(|sent| sent.rows), Some(strip.rows.clone()));
            assert_eq!(overlap(&strip.rows, &halos[strip.peer].rows.own()), strip.rows);
            rows.extend(strip.rows);
        }
        rows.sort_unstable();
        let [before, behind] = halo.filled();
        let image = rows.into_iter().map(Some);
        vec![None; before].into_iter().chain(image).chain(vec![None; behind]).collect()
    }

    proptest! {
        /// Each place has the rows of each of its windows, and nothing is sent that nobody gets.
        #[test]
        fn every_place_has_the_rows_of_its_windows(
            height in 1usize..40, parts in 1usize..6, kernel in 1usize..8, stride in 1usize..4, dilation in 1usize..4,
            padding in 0usize..5, more in 0usize..3,
        ) {
            let reach = dilation * (kernel - 1) + 1;
            prop_assume!(height + 2 * padding >= reach && height >= parts);
            // A last window may reach beyond the padding (ceil mode).
            let outputs = (height + 2 * padding - reach) / stride + 1 + more.min(1);
            prop_assume!(outputs >= parts);
            let window = RowWindow { outputs, reach, stride, padding, fill: 0.0, transposed: false };
            let halos = halos(height, parts, Some(window));
            let mut sent = 0;
            for place in 0..parts {
                let rows = put_together(&halos, place);
                prop_assert_eq!(rows.len(), halos[place].height());
                let own = even_split(outputs, parts, place);
                for (index, output) in own.clone().enumerate() {
                    for row in 0..reach {
                        let at = (output * stride + row) as isize - padding as isize;
                        let expected = (0..height as isize).contains(&at).then_some(at as usize);
                        prop_assert_eq!(rows[index * stride + row], expected);
                    }
                }
                // No window more.
                prop_assert_eq!((rows.len() - reach) / stride + 1, own.len());
                sent += halos[place].sent().len();
                if halos[place].is_needless() {
                    prop_assert!(halos[place].rows.own().len() >= rows.len());
                }
            }
            prop_assert_eq!(sent, halos.iter().map(|halo| halo.received().len()).sum::<usize>());
            // Each place knows what all send.
            for (place, &halo) in halos.iter().enumerate() {
                let of_all: Vec<_> = Trade { halo, is_backward: false }.messages().collect();
                let own = halo.sent().into_iter().map(|strip| [place, strip.peer, strip.rows.len()]);
                prop_assert!(of_all.iter().filter(|message| message[0] == place).copied().eq(own));
                let back = Trade { halo, is_backward: true }.messages();
                let mut back: Vec<_> = back.map(|[a, b, n]| [b, a, n]).collect();
                back.sort_unstable();
                prop_assert_eq!(back, of_all);
            }
        }

        /// Each place has the rows that add to its own of a transposed convolution, and no row that adds to none.
        #[test]
        fn every_place_has_the_rows_that_add_to_its_own(
            height in 1usize..40, parts in 1usize..6, stride in 1usize..4, more in 0usize..4, padding in 0usize..4,
            last in 0usize..4,
        ) {
            let reach = stride + more;
            let all = (height - 1) * stride + reach + last.min(stride - 1);
            prop_assume!(height >= parts && all > 2 * padding && all - 2 * padding >= parts && padding < reach);
            let outputs = all - 2 * padding;
            let window = RowWindow { outputs, reach, stride, padding, fill: 0.0, transposed: true };
            let halos = halos(height, parts, Some(window));
            for (place, halo) in halos.iter().enumerate() {
                let own = even_split(outputs, parts, place);
                let adds = |row: usize| {
                    let [first, last] = [row * stride, row * stride + reach - 1];
                    own.clone().any(|output| (first..=last).contains(&(output + padding)))
                };
                let rows: Vec<usize> = put_together(&halos, place).into_iter().flatten().collect();
                prop_assert_eq!(&rows, &(0..height).filter(|&row| adds(row)).collect::<Vec<_>>());
                let [first, _] = halo.needed(place);
                let from = own.start + padding - first as usize * stride;
                prop_assert!(from + own.len() <= (halo.height() - 1) * stride + reach);
            }
        }

        /// All rows, in their order.
        #[test]
        fn what_is_gathered_is_whole(height in 1usize..40, parts in 1usize..6) {
            prop_assume!(height >= parts);
            let halos = halos(height, parts, None);
            for place in 0..parts {
                prop_assert_eq!(put_together(&halos, place), (0..height).map(Some).collect::<Vec<_>>());
            }
        }
    }

    fn net() -> Graph {
        let (mut net, x) = Builder::new("cut", 2, [1, 9, 9]);
        let a = net.conv("conv1", x, 3, Conv::square(3).padding(1)).unwrap();
        let a = net.batch_norm("bn", a, BatchNorm::default()).unwrap();
        let b = net.conv("conv2", a, 3, Conv::square(1)).unwrap();
        let x = net.add("add", a, b).unwrap();
        let x = net.conv("conv3", x, 3, Conv::square(9)).unwrap();
        let x = net.linear("fc", x, 4);
        net.finish(x).simplify()
    }

    /// A field's loss is of the rows of its place, and so is its target; where a place has none it is of all.
    #[test]
    fn targets_are_cut_as_outputs_are() {
        let objective = Objective { loss: Loss::CrossEntropy, metric: Metric::Iou, smoothing: 0.0 };
        let net = |height| {
            let (mut net, x) = Builder::new("dense", 2, [1, height, 6]);
            let x = net.conv("conv", x, 3, Conv::square(3).padding(1)).unwrap();
            net.finish(x).with_objective(objective, None).unwrap().simplify()
        };
        for (place, rows) in [(0, 3), (1, 2)] {
            let graph = net(5).split_rows(2, place);
            assert_eq!(graph.tensor(graph.labels).spec.shape.0, [2, rows, 6]);
            assert_eq!(graph.target_rows(), Some(Rows { height: 5, parts: 2, place }));
            let names: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
            assert_eq!(names, ["halo", "conv2d", "field loss", "exchange", "field means"]);
            assert_eq!(graph.nodes[4].outputs, [graph.losses, graph.hits]);
            assert_eq!(graph.tensor(graph.hits).spec.shape.0, [2, 10]);
            let backward = graph.differentiate();
            assert_eq!(backward.with_role(Role::Gradient).count(), 2);
        }
        assert_eq!(net(1).split_rows(2, 0).target_rows(), None);
    }

    fn shapes(graph: &Graph, name: &str) -> Vec<usize> {
        let of = |node: &&Node| node.name == name && !matches!(node.op, Op::Halo(_));
        graph.tensor(graph.nodes.iter().find(of).unwrap().outputs[0]).spec.shape.0.clone()
    }

    #[test]
    fn one_place_has_all_of_the_network() {
        assert_eq!(net().split_rows(1, 0), net());
    }

    /// Rows are cut as evenly as may be up to the layer with one row, before which they are gathered; parameters and
    /// what leads to the loss are those of the whole.
    #[test]
    fn layers_have_the_rows_of_their_place() {
        for (place, rows) in [(0, 5), (1, 4)] {
            let graph = net().split_rows(2, place).synchronise_batch_norms(1);
            assert_eq!(graph.image().0, [1, 9, 9]);
            for layer in ["conv1", "add", "conv2"] {
                assert_eq!(shapes(&graph, layer)[2], rows, "{layer}");
            }
            assert_eq!(shapes(&graph, "conv3"), [2, 3, 1, 1]);
            // Before the first layer and the third one, and for the statistics.
            let halos: Vec<&str> =
                graph.nodes.iter().filter(|n| matches!(n.op, Op::Halo(_))).map(|n| n.name.as_str()).collect();
            assert_eq!(halos, ["conv1", "conv3"]);
            assert_eq!(graph.nodes.iter().filter(|n| matches!(n.op, Op::Exchange { .. })).count(), 1);
            let parameters = |graph: &Graph| -> Vec<Tensor> {
                graph.with_role(Role::Parameter).map(|(_, tensor)| tensor.clone()).collect()
            };
            assert_eq!(parameters(&graph), parameters(&net()));
            let graph = graph.differentiate().trade_rows();
            // Images need no gradient; the rows before the third layer do.
            let trades = |nodes: &[Node]| nodes.iter().filter(|n| matches!(n.op, Op::Trade(_))).count();
            let (there, back) = graph.nodes.split_at(graph.forward_nodes);
            assert_eq!((trades(there), trades(back)), (2, 1));
            assert!(
                graph.nodes.iter().all(|n| !matches!(n.op, Op::Halo(_) | Op::Backward(BackwardOp::Halo(_))))
            );
            assert_eq!(graph.with_role(Role::Gradient).count(), parameters(&net()).len());
        }
    }
}
