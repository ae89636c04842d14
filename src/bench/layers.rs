//! `dltrain bench layers`: a model's training step, layer by layer, against what the cores can do, or a GPU.
//!
//! Each rank runs the steps of its plan as training does, without communication, and times every one; the yardstick is
//! the device's own product of large matrices, measured just before on the same threads, and for a GPU a copy besides.
//! Rank 0 prints its own table.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::steps;
use crate::comm::World;
use crate::config::{DeviceKind, Precision, rates};
use crate::device::cuda::{self, Cuda};
use crate::device::onednn::Cpu;
use crate::device::{Device, Rule};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{BackwardOp, DType, Graph, Node, NodeId, Op};
use crate::plan::{self, Options, Plan};
use crate::simulate::{Measured, Times};
use crate::{files, model, record};

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The network: a name that --model of a training run takes
    #[arg(long, default_value = "resnet50", value_parser = PossibleValuesParser::new(model::names()))]
    model: String,
    /// Images a rank
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Height and width of the images [default: those the model was made for]
    #[arg(long)]
    image_size: Option<usize>,
    /// Classes the model tells apart [default: those it was made for]
    #[arg(long)]
    classes: Option<usize>,
    /// What computes: cpu, cuda[:N]
    #[arg(long, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    /// What the layers compute with
    #[arg(long, value_enum, default_value_t = Precision::Auto)]
    precision: Precision,
    /// A GPU's rates, if they are not to be measured: of products in TFLOP/s, of its memory in GB/s
    #[arg(long, value_name = "TFLOPS,GBS", value_parser = rates)]
    roofline: Option<(f64, f64)>,
    /// Threads a rank [default: cores of the node divided by its ranks]
    #[arg(long)]
    threads: Option<usize>,
    /// Timed steps, of which the medians count
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Write the table to this file too, as comma-separated values
    #[arg(long)]
    csv: Option<PathBuf>,
}

pub fn run(args: &Args, world: &World) -> Result<()> {
    let csv = args.csv.as_ref();
    world.agree(record::once(world, || csv.map_or(Ok(()), |path| record::check_output(path, "--csv"))))?;
    let (text, csv) = match args.device {
        DeviceKind::Cuda(number) => on_gpu(args, world, number)?,
        DeviceKind::Cpu => on_cpu(args, world)?,
        other => {
            let text = format!("--device {other}: this measures cpu, or cuda[:N]");
            return world.agree(Err(Error::usage(text)));
        }
    };
    record::say(world, &text);
    let path = args.csv.as_ref().filter(|_| world.rank() == 0);
    world.agree(path.map_or(Ok(()), |path| {
        files::write_new(path, "the table", |new| {
            std::fs::write(new, csv)
                .map_err(|error| Error::new(ErrorKind::Output, format!("--csv {}: {error}", path.display())))
        })
    }))
}

/// The table, and as comma-separated values.
fn on_cpu(args: &Args, world: &World) -> Result<(String, String)> {
    if args.roofline.is_some() {
        return world.agree(Err(Error::usage("--roofline is for --device cuda")));
    }
    let threads = world.threads(args.threads)?;
    let device = world.agree(Cpu::new(threads))?;
    let graph = world.agree(graph(args).and_then(|graph| match args.precision {
        Precision::Auto | Precision::F32 => Ok(graph),
        Precision::Bf16 => device.has_bf16().map(|()| graph.in_bf16()),
        precision => Err(Error::usage(format!("--precision {precision} is for GPUs; this measures the CPU"))),
    }))?;
    let subject = world.agree(LayerSubject::new(&device, graph))?;
    world.barrier()?;
    let peak = world.agree(device.sgemm_rate(5))?;
    world.barrier()?;
    let times = world.agree(subject.time(args.steps))?;
    let table = LayerTable::new(&subject.plan, &times);
    let peak_line = format!("sgemm peak of a rank: {:.1} GFLOP/s", peak / 1e9);
    let heading = subject.heading(args, Precision::F32, world, &peak_line);
    Ok((table.text(&heading, subject.plan.graph.batch(), peak), table.csv()))
}

fn on_gpu(args: &Args, world: &World, number: Option<usize>) -> Result<(String, String)> {
    let driver =
        world.agree(cuda::probe().map_err(|why| Error::environment(format!("--device cuda: {why}"))))?;
    let gpu = world.agree(driver.gpu(number, world.local_rank()))?;
    let precision = args.precision.or(gpu.default_precision());
    let device = world.agree(Cuda::new(gpu.index, precision == Precision::Tf32, world.local_size()))?;
    let (graph, dtype) = match (world.agree(graph(args))?, precision) {
        (graph, Precision::Bf16) => (graph.in_bf16(), DType::BF16),
        (graph, Precision::F16) => (graph.narrowed_to(DType::F16), DType::F16),
        (graph, _) => (graph, DType::F32),
    };
    let subject = world.agree(LayerSubject::new(&device, graph))?;
    world.barrier()?;
    let given = args.roofline.map(|(tera, giga)| (tera * 1e12, giga * 1e9));
    let (rates, whence) = match given {
        Some(rates) => (rates, "as given"),
        None => (world.agree(device.rates(dtype))?, "measured"),
    };
    world.barrier()?;
    let times = world.agree(subject.time(args.steps))?;
    let roofline =
        format!("roofline of {:.1} TFLOP/s and {:.0} GB/s, {whence}", rates.0 / 1e12, rates.1 / 1e9);
    let heading = subject.heading(args, precision, world, &roofline);
    let moved = RULE.bytes_moved(subject.plan.sizes.parameters);
    let table = steps::Table::new(&subject.plan, &times.steps, times.updates, moved, rates);
    Ok((table.text(&heading, subject.plan.graph.batch(), times.whole), table.csv()))
}

/// The forward pass in f32.
fn graph(args: &Args) -> Result<Graph> {
    for (flag, value) in
        [("batch", args.batch), ("steps", args.steps), ("classes", args.classes.unwrap_or(1))]
    {
        if value == 0 {
            return Err(Error::usage(format!("--{flag} 0: must be at least 1")));
        }
    }
    let model = model::find(&args.model)?;
    let image = args.image_size.map_or(model.image, |size| model.image.of_size(size));
    let graph = model.build(args.batch, image, args.classes.unwrap_or(model.classes))?;
    graph.with_usual_loss()?.simplify().within_limits()
}

/// What is measured.
struct LayerSubject<'a> {
    device: &'a dyn Device,
    plan: Plan,
}

impl LayerSubject<'_> {
    fn new(device: &dyn Device, forward: Graph) -> Result<LayerSubject<'_>> {
        let options = Options::whole(1 << 20);
        Ok(LayerSubject { device, plan: plan::plan(forward.differentiate(), device, &options)? })
    }

    fn time(&self, steps: usize) -> Result<Times> {
        Measured::new(self.device, &self.plan, &RULE, usize::MAX)?.time(steps)
    }

    fn heading(&self, args: &Args, precision: Precision, world: &World, yardstick: &str) -> String {
        let graph = &self.plan.graph;
        format!(
            "{} {}, images {}, {} rank{} at once, {}\n{yardstick}; times in ms, medians of {} steps",
            args.model,
            args.precision.or(precision),
            graph.tensor(graph.images).spec.shape,
            world.size(),
            if world.size() == 1 { "" } else { "s" },
            self.device.describe(),
            args.steps
        )
    }
}

/// As a run would have it.
const RULE: Rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

/// Time and arithmetic of some steps.
#[derive(Clone, Copy, Default)]
struct LayerWork {
    seconds: f64,
    /// Operations of convolutions and linear layers; the others are bound by memory.
    flops: u64,
    steps: usize,
}

impl LayerWork {
    fn add(&mut self, seconds: f64, flops: u64) {
        *self =
            LayerWork { seconds: self.seconds + seconds, flops: self.flops + flops, steps: self.steps + 1 };
    }

    /// GFLOP/s and the share of the peak in percent, or nothing.
    fn rate(&self, peak: f64) -> [String; 2] {
        if self.flops == 0 || self.seconds == 0.0 {
            return [String::new(), String::new()];
        }
        let rate = self.flops as f64 / self.seconds;
        [format!("{:.1}", rate / 1e9), format!("{:.0}%", 100.0 * rate / peak)]
    }

    fn milliseconds(&self) -> String {
        if self.steps == 0 { String::new() } else { format!("{:.3}", 1e3 * self.seconds) }
    }
}

/// What a layer does in a step.
#[derive(Clone, Copy)]
enum LayerPart {
    Forward,
    Data,
    Weights,
    Reorder,
}

struct LayerRow {
    layer: String,
    op: &'static str,
    output: String,
    /// By `LayerPart`.
    work: [LayerWork; 4],
}

struct LayerTable {
    rows: Vec<LayerRow>,
    /// By name of op, in the order of their first appearance.
    kinds: Vec<(&'static str, LayerWork)>,
    /// All of the graph's arithmetic in the time of a whole step.
    whole: LayerWork,
}

impl LayerTable {
    fn new(plan: &Plan, times: &Times) -> LayerTable {
        let mut table = LayerTable { rows: Vec::new(), kinds: Vec::new(), whole: LayerWork::default() };
        let mut of_layer: HashMap<String, usize> = HashMap::new();
        for (index, &seconds) in times.steps.iter().enumerate() {
            // A reorder belongs to the layer that wants it: the next step's.
            let id = plan.steps[index..].iter().find_map(|step| step.node).unwrap_or(NodeId(0));
            let node = plan.graph.node(id);
            let row = *of_layer.entry(node.name.clone()).or_insert_with(|| {
                table.rows.push(LayerRow::new(plan, node));
                table.rows.len() - 1
            });
            let (kind, part, flops) = match plan.steps[index].node {
                None => ("reorder", LayerPart::Reorder, 0),
                Some(_) => (node.op.name(), part(plan, id), plan.graph.products(id)),
            };
            table.rows[row].work[part as usize].add(seconds, flops);
            table.of_kind(kind).add(seconds, flops);
        }
        table.of_kind("update (SGD, momentum)").add(times.updates, 0);
        table
            .whole
            .add(times.whole, (0..plan.graph.nodes.len()).map(|i| plan.graph.products(NodeId(i))).sum());
        table
    }

    fn of_kind(&mut self, kind: &'static str) -> &mut LayerWork {
        let known = self.kinds.iter().position(|(name, _)| *name == kind);
        let index = known.unwrap_or_else(|| {
            self.kinds.push((kind, LayerWork::default()));
            self.kinds.len() - 1
        });
        &mut self.kinds[index].1
    }

    fn text(&self, heading: &str, batch: usize, peak: f64) -> String {
        let mut text = format!("{heading}\n\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<30} {:<18} {:<16}|{:^22}|{:^22}|{:^22}| reorder",
            "layer", "op", "output", "forward", "backward data", "backward weights"
        );
        let _ = write!(text, "{:<66}", "");
        text += &format!("|{:>8} {:>7} {:>5}", "ms", "GFLOP/s", "peak").repeat(3);
        text += "|      ms\n";
        for row in &self.rows {
            let _ = write!(text, "{:<30} {:<18} {:<16}", row.layer, row.op, row.output);
            for part in [LayerPart::Forward, LayerPart::Data, LayerPart::Weights] {
                let work = row.work[part as usize];
                let [rate, share] = work.rate(peak);
                let _ = write!(text, "|{:>8} {rate:>7} {share:>5}", work.milliseconds());
            }
            let _ = writeln!(text, "|{:>8}", row.work[LayerPart::Reorder as usize].milliseconds());
        }
        let _ = writeln!(
            text,
            "\n{:<30} {:>6} {:>10} {:>6} {:>9} {:>6}",
            "op", "steps", "ms", "share", "GFLOP/s", "peak"
        );
        for (kind, work) in &self.kinds {
            let [rate, share_of_peak] = work.rate(peak);
            let share = 100.0 * work.seconds / self.whole.seconds;
            let _ = writeln!(
                text,
                "{kind:<30} {:>6} {:>10} {share:>5.1}% {rate:>9} {share_of_peak:>6}",
                work.steps,
                work.milliseconds()
            );
        }
        let [rate, share] = self.whole.rate(peak);
        let _ = write!(
            text,
            "{:<30} {:>6} {:>10} {:>5.1}% {rate:>9} {share:>6}\n\nimages/s of a rank: {:.2}",
            "step, without communication",
            "",
            self.whole.milliseconds(),
            100.0,
            batch as f64 / self.whole.seconds
        );
        text
    }

    fn csv(&self) -> String {
        let mut text = String::from("layer,op,output");
        for part in ["forward", "backward_data", "backward_weights"] {
            let _ = write!(text, ",{part}_ms,{part}_gflop");
        }
        text += ",reorder_ms\n";
        for row in &self.rows {
            let _ = write!(text, "{},{},{}", row.layer, row.op, row.output);
            for part in [LayerPart::Forward, LayerPart::Data, LayerPart::Weights] {
                let work = row.work[part as usize];
                let _ = write!(text, ",{:.6},{:.6}", 1e3 * work.seconds, work.flops as f64 / 1e9);
            }
            let _ = writeln!(text, ",{:.6}", 1e3 * row.work[LayerPart::Reorder as usize].seconds);
        }
        text
    }
}

impl LayerRow {
    fn new(plan: &Plan, node: &Node) -> LayerRow {
        let output = plan.graph.tensor(node.outputs[0]).spec.shape.to_string();
        LayerRow { layer: node.name.clone(), op: node.op.name(), output, work: [LayerWork::default(); 4] }
    }
}

fn part(plan: &Plan, id: NodeId) -> LayerPart {
    match plan.graph.node(id).op {
        _ if id.0 < plan.graph.forward_nodes => LayerPart::Forward,
        Op::Backward(BackwardOp::ConvWeights(_) | BackwardOp::LinearWeights { .. }) => LayerPart::Weights,
        _ => LayerPart::Data,
    }
}
