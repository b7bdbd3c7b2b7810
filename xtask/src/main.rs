//! Developer commands: `cargo xtask COMMAND`. Each command prints its steps. If possible, a command installs the
//! programs that it needs and that are missing.

mod bench;
mod ci;
mod demo;
mod dist;
mod fuzz;
mod graph;
mod links;
mod lua;
mod prose;
mod setup;
mod side_step;
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
    /// Build the host and run `ordain demo`: events in disorder, hard kills, and a check of the result.
    Demo(demo::DemoArgs),
    /// Build the files of a release: archive, Debian package, container file, bill of materials, checksums.
    Dist(dist::DistArgs),
    /// Run all tests, or the tests with matching names.
    Test(tests::TestArgs),
    /// Run a benchmark; without a name, list the benchmarks.
    Bench(bench::BenchArgs),
    /// Fuzz every decoder, and keep the inputs that reach new code.
    Fuzz(fuzz::FuzzArgs),
    /// Build the example handlers into `target/plugins`, and the examples of the SDKs for other languages into
    /// `target/plugins/languages`.
    Plugins,
    /// Print the crates of the runtime by floor (layer); fail if a crate depends on a crate that is not on a lower
    /// floor, or on a crate that it must not use.
    Graph,
    /// Check the links between Markdown pages: files, images and headings.
    Links,
    /// Check the scripts that run in Redis: luacheck must report no warnings, and no script may have too many locals.
    Lua,
    /// Count phrases that make English hard to read, and fail if a limit is exceeded.
    Prose(prose::ProseArgs),
    /// Run all checks for a change: format, lints, Redis scripts, prose, docs, links, crate graph, dependencies, tests,
    /// fuzzing.
    Ci,
    /// Install the missing programs that `ci` needs: servers, clients, linters, the fuzzer.
    Setup,
    /// Check the dependencies for security advisories.
    Advisories,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Prints the error with its causes, and never a backtrace, which would not help the reader.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Dist(args) => dist::dist(&args),
        Command::Test(args) => tests::test(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Fuzz(args) => fuzz::fuzz(&args),
        Command::Plugins => {
            let folder = setup::plugins()?;
            let examples = setup::languages(&setup::host()?)?;
            let [folder, examples] = [folder.display(), examples.display()];
            setup::announce(&format!("the handlers are in {folder}; all languages: {examples}"));
            Ok(())
        }
        Command::Graph => graph::graph(),
        Command::Links => links::links(),
        Command::Lua => lua::lua(),
        Command::Prose(args) => prose::prose(&args),
        Command::Ci => ci::ci(),
        Command::Setup => ci::setup(),
        Command::Advisories => ci::advisories(),
    }
}
