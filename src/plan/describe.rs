//! The plan in words: what `--dry-run` prints.

use std::fmt::Write;

use clap::ValueEnum;

use super::{Kind, Ledger, MemoryKind, Plan, PlannedStep};
use crate::graph::{Node, NodeId, TensorId};

/// Bytes of each kind of memory that a rank needs for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// The arena: activations, their gradients, reordered weights.
    pub activations: usize,
    /// What these would take if none shared memory with another.
    pub unshared: usize,
    /// Scratch memory of the kernels, shared by all.
    pub workspace: usize,
    /// What any of them touches of it.
    pub touched: usize,
    /// Images and labels of a batch.
    pub inputs: usize,
    /// Losses and hits of a batch.
    pub metrics: usize,
    /// Parameters.
    pub parameters: usize,
    /// Running statistics.
    pub statistics: usize,
    /// What nothing changes.
    pub constants: usize,
    /// Zero for an evaluation plan.
    pub gradients: usize,
}

impl Sizes {
    /// What two plans need that take turns in the same memory.
    pub fn shared_with(self, other: Sizes) -> Sizes {
        Sizes {
            activations: self.activations.max(other.activations),
            unshared: self.unshared.max(other.unshared),
            workspace: self.workspace.max(other.workspace),
            touched: self.touched.max(other.touched),
            inputs: self.inputs.max(other.inputs),
            metrics: self.metrics.max(other.metrics),
            parameters: self.parameters.max(other.parameters),
            statistics: self.statistics.max(other.statistics),
            constants: self.constants.max(other.constants),
            gradients: self.gradients.max(other.gradients),
        }
    }
}

/// A byte count for people: "1.6 MB" (powers of ten, as links and disks are sold).
pub fn bytes(count: usize) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

/// A time for people, of steps: milliseconds unless it is long.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{:.3} ms", 1e3 * seconds),
        10.0..7200.0 => format!("{seconds:.2} s"),
        7200.0..3.6e9 => format!("{:.2} h", seconds / 3600.0),
        _ => format!("{:.2e} h", seconds / 3600.0),
    }
}

/// A count of operations for people, to be followed by "FLOP".
pub fn flops(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} k", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} G", count as f64 / 1e9),
    }
}

impl Plan {
    /// The layers, memory and buckets as text; `device` says in words what the plan is for. `kept` is what the
    /// activations would take if none were computed again, in a plan that does so; `sums` says for each bucket by what
    /// it is summed and in how many seconds.
    pub fn describe(
        &self,
        device: &str,
        ledger: &Ledger,
        kept: Option<usize>,
        sums: &[(&str, f64)],
    ) -> String {
        let mut text = String::new();
        self.describe_layers(&mut text);
        let _ = writeln!(text, "memory a rank at its peak, on {device}");
        self.describe_memory(&mut text, ledger);
        if let Some(kept) = kept {
            self.describe_recomputation(&mut text, kept);
        }
        text.push('\n');
        self.describe_exchanges(&mut text);
        self.describe_buckets(&mut text, sums);
        text
    }

    /// The least seconds of a step and its updates, one kernel after the other as planned: each takes as long as its
    /// products at so many FLOP/s or its operands at so many bytes/s, whichever is longer (Williams, Waterman,
    /// Patterson: "Roofline", CACM 52, 2009), the updates as long as their bytes. And the part of it that products
    /// decide.
    pub fn roofline(&self, update_bytes: usize, (flops, bytes): (f64, f64)) -> (f64, f64) {
        let mut seconds = (update_bytes as f64 / bytes, 0.0);
        for step in &self.steps {
            let (products, moved) = self.work(step);
            let products = products as f64 / flops;
            seconds.0 += products.max(moved as f64 / bytes);
            seconds.1 += if products >= moved as f64 / bytes { products } else { 0.0 };
        }
        seconds
    }

    /// The seconds of each step at these rates.
    pub fn step_rooflines(&self, (flops, bytes): (f64, f64)) -> Vec<f64> {
        let of = |step| {
            let (products, moved) = self.work(step);
            (products as f64 / flops).max(moved as f64 / bytes)
        };
        self.steps.iter().map(of).collect()
    }

    /// FLOP of a step's products, and bytes of its operands.
    pub fn work(&self, step: &PlannedStep) -> (u64, usize) {
        let moved = step.bytes_read().chain(step.outputs.iter().map(|place| place.bytes)).sum();
        (step.node.map_or(0, |id| self.graph.products(id)), moved)
    }

    /// The steps as programs read them, a JSON object a line: layer (or the tensor that a reorder copies), op with its
    /// settings, pass, FLOP of its products, names and bytes of what is read and written, output 0's shape,
    /// implementation.
    pub fn steps_as_json(&self) -> String {
        let mut text = String::new();
        for (index, step) in self.steps.iter().enumerate() {
            let node = step.node.map(|id| self.graph.node(id));
            let names = |of: fn(&Node) -> &Vec<TensorId>| {
                let tensors = node.map(|node| of(node).iter().map(|id| self.graph.tensor(*id).name.as_str()));
                tensors.map(Iterator::collect::<Vec<_>>).unwrap_or_default()
            };
            let output = node.and_then(|node| node.outputs.first());
            let line = serde_json::json!({
                "layer": node.map_or(step.label.trim_end_matches(" reorder"), |node| &node.name),
                "op": node.map_or("reorder", |node| node.op.name()),
                "settings": node.map_or(String::new(), |node| format!("{:?}", node.op)),
                "pass": if index < self.forward_steps { "forward" } else { "backward" },
                "flop": step.node.map_or(0, |id| self.graph.products(id)),
                "read": step.bytes_read().collect::<Vec<_>>(),
                "written": step.outputs.iter().map(|place| place.bytes).collect::<Vec<_>>(),
                "inputs": names(|node| &node.inputs),
                "outputs": names(|node| &node.outputs),
                "output": output.map_or(&[][..], |id| &self.graph.tensor(*id).spec.shape.0),
                "implementation": step.kernel.implementation,
            });
            let _ = writeln!(text, "{line}");
        }
        text
    }

    fn describe_recomputation(&self, out: &mut String, kept: usize) {
        let share = |part: f64, whole: f64| 100.0 * part / whole.max(1.0);
        let saved = kept.saturating_sub(self.sizes.activations);
        // Of a network in stages those of this one.
        let is_own = |again: bool| {
            let own = self.steps.iter().filter_map(|step| step.node);
            own.filter(move |id| self.graph.recomputed.contains(id) == again)
        };
        let work = |again| is_own(again).map(|id| self.graph.cost(id).flops).sum::<u64>();
        let (again, once) = (work(true), work(false));
        let _ = writeln!(
            out,
            "  recomputing {} ops saves {} of activations ({:.0}%) for {}FLOP more ({:.0}%)",
            is_own(true).count(),
            bytes(saved),
            share(saved as f64, kept as f64),
            flops(again),
            share(again as f64, once as f64),
        );
    }

    fn describe_layers(&self, out: &mut String) {
        let graph = &self.graph;
        let _ = writeln!(
            out,
            "{:<21} {:<24} {:<18} {:>11} {:>10}  implementation",
            "layer", "op", "output", "parameters", "FLOP"
        );
        for step in &self.steps[..self.forward_steps] {
            self.describe_step(out, step);
        }
        let forward = graph.total_cost(true).flops;
        let _ = writeln!(
            out,
            "{} parameters{}; {}FLOP forward and {}FLOP in all for a batch of {} ({}FLOP a sample); \
             {} steps, {} of them backward, {} reorders\n",
            group(graph.parameter_count()),
            match graph.frozen_count() {
                0 => String::new(),
                frozen => format!(", {} of them frozen", group(frozen)),
            },
            flops(forward),
            flops(graph.total_cost(false).flops),
            graph.batch(),
            flops(graph.total_cost(false).flops / graph.batch().max(1) as u64),
            self.steps.len(),
            self.steps.len() - self.forward_steps,
            self.steps.iter().filter(|step| step.node.is_none()).count(),
        );
    }

    fn describe_step(&self, out: &mut String, step: &PlannedStep) {
        let Some(id) = step.node else { return };
        let node = self.graph.node(id);
        let parameters: usize = node
            .inputs
            .iter()
            .map(|&id| self.graph.tensor(id))
            .filter(|tensor| tensor.role == crate::graph::Role::Parameter)
            .map(|tensor| tensor.spec.shape.elements())
            .sum();
        // Where rows only leave there is no output.
        let result = node.outputs.first().or(node.inputs.first());
        let shape = result.map_or(String::new(), |id| self.graph.tensor(*id).spec.shape.to_string());
        let _ = writeln!(
            out,
            "{:<21} {:<24} {shape:<18} {:>11} {:>10}  {}",
            node.name,
            node.op.name_of(node.inputs.first().map(|id| &self.graph.tensor(*id).spec)),
            group(parameters),
            flops(self.graph.cost(NodeId(id.0)).flops),
            step.kernel.implementation,
        );
    }

    fn describe_memory(&self, out: &mut String, ledger: &Ledger) {
        let mut line = |kind: &str, size: usize| {
            let _ = writeln!(out, "  {kind:<12} {:>10}  ({} bytes)", bytes(size), group(size));
        };
        let kinds = MemoryKind::value_variants().iter().map(|&kind| (kind, ledger.bytes(kind)));
        // Without ZeRO's later stages there are no windows.
        for (kind, size) in kinds.filter(|(kind, size)| *kind != MemoryKind::Windows || *size > 0) {
            line(&kind.name(), size);
        }
        line("in all", ledger.of_host() + ledger.of_device());
        if ledger.own_memory {
            line("on the GPU", ledger.of_device());
        }
        if ledger.its_own() < ledger.of_host() {
            line("its own", ledger.its_own() + ledger.of_device());
            out.push_str(
                "  the rest is memory of the node's other ranks, which this rank maps too; the node has it once\n",
            );
        }
        if ledger.sharers > 1 {
            let _ = writeln!(
                out,
                "  parameters are there once for {} ranks of a node, of which each updates its share",
                ledger.sharers
            );
        }
        let _ = writeln!(
            out,
            "  sharing by lifetime saves {} of activations",
            bytes(self.sizes.unshared.saturating_sub(self.sizes.activations))
        );
    }

    fn describe_exchanges(&self, out: &mut String) {
        let exchanges = self.steps.iter().filter_map(|step| Some((self.exchanging(step)?, &step.inputs[0])));
        let (count, sent) = exchanges.clone().fold((0, 0), |(count, sent), ((kind, ranks), own)| {
            // What goes to all others, or a part of which goes to each.
            let bytes = if kind == Kind::AllToAll { own.bytes / ranks } else { own.bytes };
            (count + 1, sent + (ranks - 1) * bytes)
        });
        if let Some(((kind, ranks), _)) = exchanges.clone().next() {
            let what = if kind == Kind::AllToAll { "split layers" } else { "sync batch norm" };
            let _ = writeln!(
                out,
                "{what}: {count} exchanges a step among {ranks} ranks, in which a rank sends {} ({} bytes)\n",
                bytes(sent),
                group(sent)
            );
        }
    }

    fn describe_buckets(&self, out: &mut String, sums: &[(&str, f64)]) {
        let _ = writeln!(
            out,
            "bucket      bytes           allreduce  predicted  starts after step (of {}); {} predicted in all",
            self.steps.len(),
            // A sum of nothing is -0 by itself.
            milliseconds(0.0 + sums.iter().map(|(_, seconds)| seconds).sum::<f64>()),
        );
        for (index, (bucket, (name, seconds))) in self.buckets.iter().zip(sums).enumerate() {
            let step = &self.steps[bucket.after];
            let _ = writeln!(
                out,
                "{index:>6} {:>10}  {name:>18} {:>10}  {} {}",
                bytes(bucket.bytes.len()),
                milliseconds(*seconds),
                bucket.after + 1,
                step.label
            );
        }
        let _ = writeln!(out, "plan hash {:016x}", self.hash());
    }
}

/// "0.012 ms"; what is not known has no number.
fn milliseconds(seconds: f64) -> String {
    if seconds.is_nan() { "unknown".into() } else { format!("{:.3} ms", seconds * 1e3) }
}

/// "402,442".
pub fn group(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(group(402_442), "402,442");
        assert_eq!(group(7), "7");
        assert_eq!(bytes(1_609_768), "1.6 MB");
        assert_eq!(
            [2e-6, 1.5, 12.0, 7300.0, 4e9].map(seconds),
            ["0.002 ms", "1500.000 ms", "12.00 s", "2.03 h", "1.11e6 h"]
        );
    }
}
