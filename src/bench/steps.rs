//! The table of `dltrain bench layers --device cuda`: every step of the plan, with its rates and its share of the
//! roofline.

use std::fmt::Write;

use crate::plan::Plan;

/// Time, arithmetic and bytes of one step, or of several.
#[derive(Clone, Default)]
struct Work {
    seconds: f64,
    /// Operations of convolutions and linear layers.
    flops: u64,
    /// Bytes of its operands, each read or written once.
    bytes: usize,
    /// The least it can take.
    least: f64,
    steps: usize,
}

/// A line of the table.
struct StepRow {
    label: String,
    op: &'static str,
    implementation: String,
    work: Work,
}

/// All steps, and the same by op.
pub struct Table {
    rows: Vec<StepRow>,
    kinds: Vec<(&'static str, Work)>,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.seconds += other.seconds;
        self.flops += other.flops;
        self.bytes += other.bytes;
        self.least += other.least;
        self.steps += other.steps;
    }

    /// ms, GB/s, TFLOP/s, share of the roofline.
    fn figures(&self) -> String {
        let per_second = |count: f64, unit: f64| count / self.seconds.max(1e-12) / unit;
        let tera = match self.flops {
            0 => String::new(),
            flops => format!("{:.1}", per_second(flops as f64, 1e12)),
        };
        let (ms, giga) = (1e3 * self.seconds, per_second(self.bytes as f64, 1e9));
        format!("{ms:>9.4} {giga:>8.0} {tera:>9} {:>9.0}%", 100.0 * per_second(self.least, 1.0))
    }
}

impl Table {
    /// `seconds` of each step of the plan and of all updates, which move `update_bytes`; rates in FLOP/s and bytes/s.
    pub fn new(plan: &Plan, seconds: &[f64], updates: f64, update_bytes: usize, rates: (f64, f64)) -> Table {
        let mut table = Table { rows: Vec::new(), kinds: Vec::new() };
        for (step, &seconds) in plan.steps.iter().zip(seconds) {
            let (flops, bytes) = plan.work(step);
            let least = (flops as f64 / rates.0).max(bytes as f64 / rates.1);
            table.add(StepRow {
                label: step.label.clone(),
                op: step.node.map_or("reorder", |id| plan.graph.node(id).op.name()),
                implementation: step.kernel.implementation.clone(),
                work: Work { seconds, flops, bytes, least, steps: 1 },
            });
        }
        let least = update_bytes as f64 / rates.1;
        table.add(StepRow {
            label: "update".into(),
            op: "update (SGD, momentum)",
            implementation: String::new(),
            work: Work { seconds: updates, flops: 0, bytes: update_bytes, least, steps: 1 },
        });
        table
    }

    fn add(&mut self, row: StepRow) {
        match self.kinds.iter_mut().find(|(op, _)| *op == row.op) {
            Some((_, work)) => work.add(&row.work),
            None => self.kinds.push((row.op, row.work.clone())),
        }
        self.rows.push(row);
    }

    /// `whole`: seconds of a step run as training runs it.
    pub fn text(&self, heading: &str, batch: usize, whole: f64) -> String {
        let columns = format!("{:>9} {:>8} {:>9} {:>10}", "ms", "GB/s", "TFLOP/s", "roofline");
        let mut text = format!("{heading}\n\n{:<44} {columns}  implementation\n", "step");
        // Writing to a String cannot fail.
        for StepRow { label, work, implementation, .. } in &self.rows {
            let _ = writeln!(text, "{label:<44} {}  {implementation}", work.figures());
        }
        let _ = writeln!(text, "\n{:<34} {:>9} {columns} {:>7}", "op", "steps", "share");
        let mut kinds: Vec<&(&str, Work)> = self.kinds.iter().collect();
        kinds.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        let mut all = Work::default();
        kinds.iter().for_each(|(_, work)| all.add(work));
        for (op, work) in kinds {
            let share = 100.0 * work.seconds / all.seconds;
            let _ = writeln!(text, "{op:<34} {:>9} {} {share:>6.1}%", work.steps, work.figures());
        }
        let _ = writeln!(text, "{:<34} {:>9} {}", "all, one after the other", all.steps, all.figures());
        let whole = Work { seconds: whole, ..all };
        let _ = write!(
            text,
            "{:<34} {:>9} {}\n\nimages/s of a rank: {:.2}",
            "step, without communication",
            "",
            whole.figures(),
            batch as f64 / whole.seconds
        );
        text
    }

    pub fn csv(&self) -> String {
        let mut text = String::from("step,op,implementation,ms,bytes,flop,least_ms\n");
        for StepRow { label, op, implementation, work } in &self.rows {
            let (ms, least) = (1e3 * work.seconds, 1e3 * work.least);
            let (bytes, flops) = (work.bytes, work.flops);
            let _ = writeln!(
                text,
                "\"{label}\",\"{op}\",\"{implementation}\",{ms:.6},{bytes},{flops},{least:.6}"
            );
        }
        text
    }
}
