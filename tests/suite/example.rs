//! examples/own_network.rs: what a user of the library relies on.
//!
//! - the program trains on two ranks, learns, and leaves a record and weights;
//! - a configuration that is made in Rust is that of no flags (`src/cli/train.rs` has the test).
//!
//! The example is compiled into this program, which starts itself again to run it.

use crate::support::job;

#[path = "../../examples/own_network.rs"]
mod own_network;

use std::process::ExitCode;

use dltrain::record::WeightsFile;
use job::{finish, start};

#[test]
fn a_network_of_ones_own_is_trained() {
    let place = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let again = ["example::child_program", "--exact", "--ignored", "--nocapture", "--test-threads", "1"];
    let mut command = start(2, &[program.to_str().unwrap()]);
    command.args(again).current_dir(place.path());
    let done = finish(command);
    assert!(done.success, "{}\n{}", done.stdout, done.stderr);
    assert!(done.stdout.contains("own: 10,618 parameters; 2 ranks"), "{}", done.stdout);
    // Guessing gives 10 %.
    let accuracy = done.stdout.split("test accuracy").nth(1).and_then(|rest| rest.split('%').next());
    let accuracy: f64 = accuracy.unwrap().trim().parse().unwrap();
    assert!(accuracy > 50.0, "{}", done.stdout);
    assert!(done.stdout.contains("results/own-"), "{}", done.stdout);
    let weights = WeightsFile::open(&place.path().join("own.h5")).unwrap();
    assert_eq!(weights.shapes()[0], ("conv1.bias".to_string(), vec![16]));
}

#[test]
#[ignore = "a child of the test above"]
fn child_program() {
    assert_eq!(format!("{:?}", own_network::main()), format!("{:?}", ExitCode::SUCCESS));
}
