//! `cargo xtask test`: runs the tests.

mod programs;
mod release;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::setup::{announce, cargo, clients, host, languages, plugins, run, servers, show};
use crate::side_step::SideStep;
use programs::{TestProgram, WORKSPACE};
use release::ServerRelease;
pub(crate) use release::{bootstrap, install_basics, is_linux_root, test_basics};

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Only tests whose paths (modules and function) contain this text. The text `chaos` runs all tests of the test
    /// program `chaos` instead.
    filter: Option<String>,
    /// With `chaos`: repeat rounds for this time, in minutes, instead of one round.
    #[arg(long, requires = "filter")]
    minutes: Option<u64>,
    /// Run the tests of the broker and of the Redis store against the servers of another release of Debian.
    #[arg(long, value_name = "RELEASE", conflicts_with_all = ["quick", "minutes"])]
    servers: Option<ServerRelease>,
    /// Only tests without servers: unit tests, simulator, the models of owners, of shares and of queues, and
    /// conformance of the embedded store.
    #[arg(long, conflicts_with = "minutes")]
    quick: bool,
    /// Only the simulator and the models.
    #[arg(long, conflicts_with_all = ["minutes", "servers", "quick"])]
    models: bool,
}

impl TestArgs {
    /// Returns the arguments for all tests.
    pub(crate) fn all() -> Self {
        Self { filter: None, minutes: None, servers: None, quick: false, models: false }
    }

    fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }
}

pub(crate) fn test(args: &TestArgs) -> Result<()> {
    if args.quick {
        return quick(args);
    }
    if args.models {
        return models(args.filter());
    }
    servers()?;
    plugins()?;
    let host = host()?;
    if let Some(release) = args.servers {
        return release::test(release, args.filter());
    }
    if args.filter() == Some("chaos") {
        return chaos(args.minutes.unwrap_or(0));
    }
    clients()?;
    languages(&host)?;
    ensure!(args.minutes.is_none(), "--minutes applies to `cargo xtask test chaos` only");
    let programs = programs::build()?;
    // Most of the other tests wait for servers most of the time, so the simulator and the models run beside them. This
    // step begins after the builds, because cargo runs only one build at a time in a target folder.
    let mut side_args = vec!["test", "--models"];
    side_args.extend(args.filter());
    let side_step = SideStep::start_with_low_priority("models", &side_args)?;
    announce("running the other tests");
    let mut outcome = Outcome::default();
    for program in programs.iter().filter(|program| !program.explores_models()) {
        outcome.add(run_program(program, args.filter(), threads())?);
    }
    let mut examples = cargo("test");
    examples.args(WORKSPACE).args(["--doc", "--no-fail-fast"]).args(args.filter());
    outcome.add(run_tests(&mut examples)?);
    let output = side_step.finish();
    let passed = outcome.into_passed()?;
    let of_models: u64 = output?.lines().filter_map(passed_in).sum();
    finish(args.filter(), "", passed + of_models)
}

/// Runs the tests of the simulator and of the models. These tests need much processor time, and no server. A filter
/// that selects none of these tests is no error, because it may select other tests.
fn models(filter: Option<&str>) -> Result<()> {
    let mut passed = simulation(filter)?;
    let mut outcome = Outcome::default();
    for program in programs::build()?.iter().filter(|program| program.explores_models()) {
        outcome.add(run_program(program, filter, processors())?);
    }
    passed += outcome.into_passed()?;
    announce(&format!("all {passed} tests of the simulator and of the models passed"));
    Ok(())
}

/// Runs a test program with a number of threads. Each thread runs one test at a time.
fn run_program(program: &TestProgram, filter: Option<&str>, threads: usize) -> Result<Outcome> {
    announce(&format!("running {}", program.executable.display()));
    let mut tests = program.command();
    run_tests(tests.env("RUST_TEST_THREADS", threads.to_string()).args(filter))
}

/// Builds and runs the tests of the simulator. Only this build of the sequencer contains the deliberate faults, which
/// the simulator must find. Returns the number of passed tests.
fn simulation(filter: Option<&str>) -> Result<u64> {
    let simulator = ["--release", "--package", "ordain-sim", "--features", "faults"];
    announce("building the simulator");
    run(cargo("test").args(simulator).arg("--no-run"))?;
    announce("the sequencer under simulation, with and without deliberate faults");
    counted(cargo("test").args(simulator).args(filter))
}

/// Runs the tests that need neither a server nor a built host.
fn quick(args: &TestArgs) -> Result<()> {
    let filter = args.filter();
    let mut passed = simulation(filter)?;
    announce("unit tests, and the models of owners, of shares and of queues");
    let mut units = cargo("test");
    units.args(WORKSPACE).arg("--no-fail-fast");
    units.args(["--lib", "--bins", "--test", "protocol", "--test", "sharing", "--test", "queue"]);
    passed += counted(units.args(filter))?;
    announce("conformance on the embedded store");
    let mut store = cargo("test");
    store.args(["--release", "--workspace", "--test", "store", "--"]);
    passed += counted(store.arg(filter.unwrap_or("embedded")))?;
    finish(filter, "", passed)
}

/// Announces the number of passed tests. Fails if no test ran, because the path of no test contains the filter. `place`
/// describes the tests among which the command has searched. If the command has searched among all tests, `place` is
/// empty.
fn finish(filter: Option<&str>, place: &str, passed: u64) -> Result<()> {
    match filter {
        Some(filter) => {
            ensure!(passed > 0, "no test ran: the path of no test contains {filter:?}{place}");
        }
        None => ensure!(passed > 0, "no test ran{place}"),
    }
    announce(&format!("all {passed} tests passed"));
    Ok(())
}

/// Returns the number of tests that run concurrently: three times the number of processors, because most tests wait for
/// servers or leases most of the time.
fn threads() -> usize {
    3 * processors()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the tests of the program `chaos`, whose rounds let hosts, servers and networks fail while events arrive. Each
/// test plays rounds until the given number of minutes has passed, and at least one round.
fn chaos(minutes: u64) -> Result<()> {
    announce("chaos: each round prints its faults and the seed that repeats it");
    let mut chaos = cargo("test");
    chaos.args(["--release", "--workspace", "--test", "chaos", "--", "--nocapture"]);
    chaos.env("ORDAIN_CHAOS_SECONDS", (60 * minutes).to_string());
    let passed = counted(&mut chaos)?;
    announce(&format!("all {passed} tests passed"));
    Ok(())
}

/// Number of lines that the command prints once more for each failed test.
const REPEATED_LINES: usize = 60;

/// Runs a command with tests, and returns the number of passed tests. Fails if a test failed.
fn counted(command: &mut Command) -> Result<u64> {
    run_tests(command)?.into_passed()
}

/// Runs a command with tests, and prints its output.
fn run_tests(command: &mut Command) -> Result<Outcome> {
    let shown = show(command);
    // The error of a test already shows its causes. A backtrace would only make the causes harder to find.
    command.env("RUST_LIB_BACKTRACE", "0");
    let started = command.stdout(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("cannot start: {shown}"))?;
    let output = child.stdout.take().context("a piped output")?;
    let mut outcome = read_output(output)?;
    let status = child.wait()?;
    if !status.success() {
        outcome.failed_commands.push(format!("failed ({status}): {shown}"));
    }
    Ok(outcome)
}

/// Results of commands with tests.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    passed: u64,
    /// The lines of the output of each failed test. The first line contains the name of the test.
    failures: Vec<Vec<String>>,
    /// A description of each command that failed.
    failed_commands: Vec<String>,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.failed_commands.extend(other.failed_commands);
    }

    /// Returns the number of passed tests. If a command failed, prints once more the end of the output of each failed
    /// test, and returns an error. The first print of a failure is thousands of lines above the end of the whole
    /// output.
    fn into_passed(self) -> Result<u64> {
        if self.failed_commands.is_empty() {
            return Ok(self.passed);
        }
        if !self.failures.is_empty() {
            let count = self.failures.len();
            announce(&format!("failed tests: {count}, with the end of their output"));
        }
        for failure in self.failures {
            let cut = failure.len().saturating_sub(REPEATED_LINES);
            let omitted = (cut > 0).then(|| format!("[{cut} lines omitted]"));
            for line in failure[..1].iter().chain(&omitted).chain(&failure[cut.max(1)..]) {
                println!("{line}");
            }
        }
        bail!("{}", self.failed_commands.join("; "));
    }
}

/// Prints the lines of an output. Adds up the counts of passed tests in lines of the form `test result: ok. 3 passed;
/// …`. Collects the output of each failed test, which begins with a line of the form `---- NAME stdout ----`.
fn read_output(output: impl Read) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut is_in_failure = false;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        outcome.passed += passed_in(&line).unwrap_or(0);
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            is_in_failure = true;
            outcome.failures.push(Vec::new());
        } else if line == "failures:" || line.starts_with("test result: ") {
            is_in_failure = false;
        }
        if let Some(failure) = outcome.failures.last_mut().filter(|_| is_in_failure) {
            failure.push(line);
        }
    }
    Ok(outcome)
}

fn passed_in(line: &str) -> Option<u64> {
    let (_, result) = line.strip_prefix("test result: ")?.split_once(". ")?;
    result.split_once(" passed")?.0.parse().ok()
}

#[test]
fn filter_without_a_test_fails() {
    let place = " in the programs that use the servers (broker)";
    assert!(finish(Some("amqp"), place, 1).is_ok());
    let error = finish(Some("ampq"), place, 0).expect_err("an error").to_string();
    assert_eq!(error, format!("no test ran: the path of no test contains \"ampq\"{place}"));
    assert!(finish(None, place, 0).is_err());
}

#[test]
fn passed_tests_are_counted_and_failures_collected() -> Result<()> {
    let output = "running 2 tests\ntest a ... ok\n\n\
                  test result: ok. 2 passed; 0 failed; 0 ignored; finished in 0.00s\n\
                  failures:\n\n---- b stdout ----\nError: wrong\n---- c stdout ----\nfailures:\n    b\n    c\n\n\
                  test result: FAILED. 3 passed; 2 failed; 0 ignored; finished in 0.00s\n";
    let failures = vec![
        vec!["---- b stdout ----".to_owned(), "Error: wrong".to_owned()],
        vec!["---- c stdout ----".to_owned()],
    ];
    let mut outcome = read_output(output.as_bytes())?;
    assert_eq!(outcome, Outcome { passed: 5, failures, ..Outcome::default() });
    let nothing = read_output(&b"running 0 tests\n"[..])?;
    assert_eq!(nothing, Outcome::default());

    outcome.failed_commands.push("failed (exit status: 101): b".to_owned());
    let mut whole = Outcome { passed: 1, ..Outcome::default() };
    whole.add(nothing);
    assert_eq!(Outcome { passed: 1, ..Outcome::default() }.into_passed()?, 1);
    whole.add(outcome);
    assert_eq!(whole.passed, 6);
    let error = whole.into_passed().expect_err("an error").to_string();
    assert_eq!(error, "failed (exit status: 101): b");
    Ok(())
}
