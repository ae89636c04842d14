use clap::Parser;
use dltrain::{bench, comm};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Bench(bench::Args),
}

fn main() {
    env_logger::init();
    let Command::Bench(args) = Cli::parse().command;
    let code = match comm::World::start() {
        Ok(world) => match bench::run(&args, &world) {
            Ok(()) => 0,
            Err(error) => {
                let agreed = world.is_agreed(&error);
                if world.rank() == 0 || !agreed {
                    eprintln!("dltrain: {error}");
                }
                if !agreed {
                    world.abort(error.exit_code());
                }
                error.exit_code()
            }
        },
        Err(error) => {
            if comm::launcher_rank() == 0 {
                eprintln!("dltrain: {error}");
            }
            error.exit_code()
        }
    };
    std::process::exit(code);
}
