//! Trains a network of one's own on handwritten digits, on any number of ranks. In a clone, with the variables of
//! `.ci/env` for this shell (CONTRIBUTING.md):
//!
//!     cargo build --release --example own_network && mpirun -n 2 target/release/examples/own_network

use std::process::ExitCode;
use std::time::Instant;

use dltrain::comm::World;
use dltrain::config::Config;
use dltrain::error::Result;
use dltrain::graph::{BatchNorm, Builder, Conv, Pool, TensorId};
use dltrain::model::Model;
use dltrain::train;

/// For grey images of 28×28 pixels; `--dry-run` would show its layers under these names.
fn layers(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    let x = net.conv("conv1", images, 16, Conv::square(5).padding(2))?;
    let x = net.batch_norm("norm1", x, BatchNorm::default())?;
    let x = net.relu("relu1", x);
    let x = net.max_pool("pool1", x, Pool::square(2))?;
    let y = net.conv("conv2", x, 16, Conv::square(3).padding(1))?;
    let x = net.add("residual", x, y)?;
    let x = net.relu("relu2", x);
    let x = net.max_pool("pool2", x, Pool::square(2))?;
    let x = net.flatten("flatten", x);
    Ok(net.linear("fc", x, classes))
}

/// The same on every rank.
pub fn main() -> ExitCode {
    let started = Instant::now();
    let world = match World::start("own_network") {
        Ok(world) => world,
        Err(why) => return fail(&why.error),
    };
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");
    let mut config = Config { batch: 16, ..Config::on(digits) };
    config.length.epochs = Some(3);
    config.outputs.save_weights = Some("own.h5".into());
    let outcome = train::run_own(&world, config, Model::new("own", [1, 28, 28], 10, layers), started);
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    // What all ranks know, one says; others may wait for a rank that failed alone.
    match world.is_agreed(&error) {
        true if world.rank() > 0 => ExitCode::FAILURE,
        true => fail(&error),
        false => {
            fail(&error);
            world.abort(error.exit_code())
        }
    }
}

fn fail(error: &dltrain::error::Error) -> ExitCode {
    eprintln!("own_network: {error}");
    ExitCode::FAILURE
}
