//! A residual network for whole runs.

use std::path::Path;
use std::sync::OnceLock;

use dltrain::error::Result;
use dltrain::graph::{BatchNorm, Builder, Conv, Graph, TensorId};
use dltrain::model::onnx;

/// Flags that name a network like resnet18, of six blocks in three stages, with few channels and so in a fraction of
/// the time: what resnet18 takes of that is for its eleven million parameters. Images have 32 by 32 pixels; there are
/// ten classes.
pub fn residual() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(make)
}

fn make() -> String {
    let build = |batch: usize| -> Result<Graph> {
        let (mut net, images) = Builder::new("residual", batch, [3, 32, 32]);
        net.only_to_test();
        let mut x = normalised(&mut net, "stem", images, 16, 2)?;
        x = net.relu("relu", x);
        for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
            for block in 0..2 {
                let (name, stride) =
                    (format!("{stage}.{block}"), if stage > 0 && block == 0 { 2 } else { 1 });
                let y = normalised(&mut net, &format!("{name}.first"), x, channels, stride)?;
                let y = net.relu(&format!("{name}.relu"), y);
                let y = normalised(&mut net, &format!("{name}.second"), y, channels, 1)?;
                if stride > 1 {
                    x = normalised(&mut net, &format!("{name}.around"), x, channels, stride)?;
                }
                x = net.add(&format!("{name}.add"), y, x)?;
                x = net.relu(&format!("{name}.out"), x);
            }
        }
        x = net.adaptive_avg_pool("pool", x, [1; 3])?;
        x = net.linear("fc", x, 10);
        Ok(net.finish(x))
    };
    let graph = build(1).unwrap();
    let count = |name: &str| graph.tensors.iter().find(|t| t.name == name).map(|t| t.spec.shape.elements());
    // They are drawn anew.
    let values = |name: &str| Ok(vec![1.0; count(name).unwrap()]);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("residual.onnx");
    // Other processes may read it.
    let new = path.with_extension(std::process::id().to_string());
    std::fs::write(&new, onnx::export::network(build, 4, false, &values).unwrap().bytes()).unwrap();
    std::fs::rename(new, &path).unwrap();
    format!("--model {} --fresh-weights", path.display())
}

fn normalised(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    channels: usize,
    stride: usize,
) -> Result<TensorId> {
    let conv = Conv { bias: false, ..Conv::square(3).stride(stride).padding(1) };
    let y = net.conv(name, x, channels, conv)?;
    net.batch_norm(&format!("{name}.bn"), y, BatchNorm::default())
}
