//! Parse, start MPI, dispatch, one exit code.
#![deny(unsafe_code)]

mod cli;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dltrain::comm::{self, NotStarted, World};
use dltrain::error::{Error, Result};
use dltrain::record::Verbosity;
use dltrain::{bench, elastic, export, files, info, inspect, models, pack, record, train};

use cli::{Command, Invocation, Parsed};

fn main() -> ExitCode {
    let started = Instant::now();
    comm::prepare_process();
    record::built_from(revision::revision!());
    let args: Vec<OsString> = std::env::args_os().collect();
    let is_data = |arg: &&OsString| *arg == "--data" || arg.as_encoded_bytes().starts_with(b"--data=");
    let has_data_twice = args.iter().filter(is_data).count() > 1;
    let parsed = cli::parse(args);
    // Alone, what needs no MPI does without: a login node may have none. As one of several, this process may be the
    // only one that was started so, and the others wait for it in MPI_Init.
    if comm::launched() == 1 {
        if let Ok(Parsed::Whole(cli)) = &parsed
            && let Some(Command::Elastic(args)) = &cli.command
        {
            let code = elastic::run(args).map_or_else(|error| report(&error, true), ExitCode::from);
            files::disown();
            return code;
        }
        match &parsed {
            Err(shown) => return print_shown(shown),
            Ok(Parsed::Whole(cli)) if cli.is_local() => return exit(run_local(cli.command.as_ref())),
            Ok(_) => {}
        }
    }
    let asked = cli::complete(parsed);
    let world = match World::start(record::git_revision()) {
        Ok(world) => world,
        Err(not_started) => return leave(asked.err(), not_started),
    };
    let outcome = world.agree(asked).and_then(|asked| {
        world.check_same(&[("what they run".into(), asked.name())])?;
        Ok(asked)
    });
    let verbosity = outcome.as_ref().map_or(Verbosity::Normal, Invocation::verbosity);
    record::start_logging(world.rank(), verbosity);
    if let Some(hint) = world.hint() {
        log::warn!("{hint}");
    }
    if has_data_twice && world.rank() == 0 {
        log::warn!(
            "--data is given twice: the last counts. Of several files it takes a directory or a pattern"
        );
    }
    match outcome.and_then(|asked| dispatch(&world, asked, started)) {
        Ok(()) => ExitCode::SUCCESS,
        // Every rank has this error: one of them speaks.
        Err(error) if world.is_agreed(&error) => report(&error, world.rank() == 0),
        // Only this rank has it, and others may be waiting for it: end the job.
        Err(error) => {
            let text = error.clone().context(format!("rank {} on {}", world.rank(), world.host()));
            report(&text, world.is_to_say_why());
            world.abort(error.exit_code())
        }
    }
}

fn dispatch(world: &World, asked: Invocation, started: Instant) -> Result<()> {
    let cli = match asked {
        Invocation::Shown(text) => {
            record::say(world, text.trim_end());
            return world.agree(record::printed());
        }
        Invocation::Run(cli) => *cli,
    };
    match cli.command {
        Some(Command::Models) => models::print(world),
        Some(Command::Info(args)) => info::print(world, args),
        Some(Command::Pack(args)) => pack::run(&args, world),
        Some(Command::Bench(args)) => bench::run(&args, world),
        Some(Command::Export(args)) => export::run(&args, world),
        None => return train::run(world, cli.train.validate(), started),
        local => world.agree(if world.rank() == 0 { run_local(local.as_ref()) } else { Ok(()) }),
    }?;
    world.agree(record::printed())
}

/// What needs no MPI.
fn run_local(command: Option<&Command>) -> Result<()> {
    match command {
        Some(Command::Report(args)) => dltrain::report::run(args),
        Some(Command::Inspect(args)) => inspect::run(args),
        Some(Command::Completions { shell }) => {
            cli::completions(*shell);
            Ok(())
        }
        Some(Command::Man { directory }) => cli::man(directory.as_deref()),
        Some(Command::Elastic(_)) => {
            let how = "type it without one before it: dltrain elastic --min-ranks A -- mpirun -n N dltrain …";
            return Err(Error::usage(format!("dltrain elastic starts the launcher by itself; {how}")));
        }
        _ => Err(Error::internal("a command that needs MPI was run without it")),
    }?;
    record::printed()
}

/// Help and version go to standard output and succeed; a wrong flag does not.
fn print_shown(shown: &clap::Error) -> ExitCode {
    match shown.use_stderr() {
        true => report(&cli::refused(shown), true),
        false => exit(record::outcome_of(shown.print())),
    }
}

/// Ends a process that could not join its job, or all of them where they found out together that they do not match.
/// `wrong` is what is wrong with its own flags.
fn leave(wrong: Option<Error>, not_started: NotStarted) -> ExitCode {
    let NotStarted { error, speaks } = not_started;
    let error = wrong.unwrap_or(error);
    match speaks {
        Some(speaks) => {
            if !speaks {
                // A launcher ends all when one has failed, and would take the message with it.
                std::thread::sleep(Duration::from_secs(1));
            }
            report(&error, speaks)
        }
        None => {
            comm::leave(error.exit_code(), || {
                report(&error, true);
            });
            report(&error, false)
        }
    }
}

fn exit(outcome: Result<()>) -> ExitCode {
    outcome.map_or_else(|error| report(&error, true), |()| ExitCode::SUCCESS)
}

fn report(error: &Error, speak: bool) -> ExitCode {
    if speak {
        let label = if error.kind.is_stop() { "" } else { "error: " };
        // In one write, which no launcher can cut in two or mix with another rank's. Nobody can be told that it failed.
        let _ = std::io::stderr().write_all(format!("dltrain: {label}{error}\n").as_bytes());
    }
    ExitCode::from(error.exit_code() as u8)
}
