//! Developer commands: `cargo xtask COMMAND`. Each sets up what it needs and says what it does.

mod bench;
mod ci;
mod demo;
mod fuzz;
mod graph;
mod links;
mod lua;
mod setup;
mod tests;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Developer commands of Ordain")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what Ordain does: orders in disorder, a hard kill, and a check of the result.
    Demo(demo::DemoArgs),
    /// Run all tests, or those of some names.
    Test(tests::TestArgs),
    /// Measure: without a name, lists what can be measured.
    Bench(bench::BenchArgs),
    /// Give every decoder any bytes, and keep those that reach something new.
    Fuzz(fuzz::FuzzArgs),
    /// Build the example handlers into `target/plugins`.
    Plugins,
    /// Print the crates of the runtime by floor, and fail on a dependency that leads upwards.
    Graph,
    /// Check the links between Markdown pages: files, images and headings.
    Links,
    /// Check the scripts that run in Redis: no warnings of luacheck, and room below Lua's limits.
    Lua,
    /// Everything that a change must pass: format, lints, docs, links, crate graph, dependencies, tests.
    Ci,
    /// Ask the database of security advisories about the dependencies.
    Advisories,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The causes, and no backtrace, whatever the environment says: it is for a person.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Test(args) => tests::test(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Fuzz(args) => fuzz::fuzz(&args),
        Command::Plugins => {
            let folder = setup::plugins()?;
            setup::say(&format!("the handlers are in {}", folder.display()));
            Ok(())
        }
        Command::Graph => graph::graph(),
        Command::Links => links::links(),
        Command::Lua => lua::lua(),
        Command::Ci => ci::ci(),
        Command::Advisories => ci::advisories(),
    }
}
