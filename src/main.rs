//! Parse, start MPI, dispatch, one exit code.
#![deny(unsafe_code)]

mod cli;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dltrain::comm::{World, launcher_rank};
use dltrain::error::{Error, Kind, Result};
use dltrain::record::Volume;
use dltrain::{bench, export, info, models, pack, record, train};

use cli::{Cli, Command, Parsed};

fn main() -> ExitCode {
    let started = Instant::now();
    record::built_from(revision::revision!());
    let parsed = match cli::parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => return not_parsed(&error),
    };
    if let Parsed::Whole(cli) = &parsed
        && let Some(command) = cli.command.as_ref().filter(|command| command.is_local())
    {
        return local(command);
    }
    let world = match World::start() {
        Ok(world) => world,
        Err(error) => return report(&error, speaks_before_mpi()),
    };
    let cli = world.agree(parsed.complete());
    record::start_logging(world.rank(), cli.as_ref().map_or(Volume::Normal, |cli| cli.train.volume()));
    if let Some(hint) = world.hint() {
        log::warn!("{hint}");
    }
    match cli.and_then(|cli| dispatch(&world, cli, started)) {
        Ok(()) => ExitCode::SUCCESS,
        // Every rank has this error: one of them speaks.
        Err(error) if world.is_agreed(&error) => report(&error, world.rank() == 0),
        // Only this rank has it, and others may be waiting for it: end the job.
        Err(error) => {
            report(&error.clone().context(format!("rank {} on {}", world.rank(), world.host())), true);
            world.abort(error.exit_code())
        }
    }
}

fn dispatch(world: &World, cli: Cli, started: Instant) -> Result<()> {
    match cli.command {
        Some(Command::Models) => models::print(world),
        Some(Command::Info { verbose }) => info::print(world, verbose),
        Some(Command::Pack(args)) => pack::run(&args, world),
        Some(Command::Bench(args)) => bench::run(&args, world),
        Some(Command::Export(args)) => export::run(&args, world),
        Some(command) => run_local(&command),
        None => train::run(world, cli.train.validate(), started),
    }
}

/// What needs no MPI; of several processes one does it.
fn local(command: &Command) -> ExitCode {
    match if launcher_rank() == 0 { run_local(command) } else { Ok(()) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, true),
    }
}

fn run_local(command: &Command) -> Result<()> {
    match command {
        Command::Report(args) => dltrain::report::run(args),
        Command::Completions { shell } => cli::completions(*shell),
        Command::Man { directory } => cli::man(directory.as_deref()),
        _ => Err(Error::internal("a command that needs MPI was run without it")),
    }
}

/// Whether this process speaks for the job while MPI is not up. The others go after it: a launcher kills all when one
/// fails, and would take the message with it.
fn speaks_before_mpi() -> bool {
    let first = launcher_rank() == 0;
    if !first {
        std::thread::sleep(Duration::from_secs(1));
    }
    first
}

/// Help and version go to standard output and succeed; a wrong flag is said by one rank.
fn not_parsed(error: &clap::Error) -> ExitCode {
    if speaks_before_mpi() {
        // Nobody can be told that writing to the terminal failed.
        let _ = error.print();
    }
    if error.use_stderr() { ExitCode::from(Kind::Usage as u8) } else { ExitCode::SUCCESS }
}

fn report(error: &Error, speak: bool) -> ExitCode {
    if speak {
        let label = if error.kind == Kind::Stopped { "" } else { "error: " };
        // In one write, which no launcher can cut in two or mix with another rank's. Nobody can be told that it failed.
        let _ = std::io::stderr().write_all(format!("dltrain: {label}{error}\n").as_bytes());
    }
    ExitCode::from(error.exit_code() as u8)
}
