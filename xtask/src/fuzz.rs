//! `cargo xtask fuzz`: any bytes into every decoder.

use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::setup::{cargo, root, run, say};

/// The version that is installed where there is none.
const CARGO_FUZZ: &str = "0.13.2";
/// For one input, in seconds: far more than any needs.
const TIMEOUT: u64 = 10;
/// Bytes of an input. Longer ones find the same more slowly; only some targets have limits beyond that.
const LENGTH: u64 = 4 << 10;
const LONG: (&[&str], u64) = (&["delivery", "line", "request"], 128 << 10);

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Targets, by their files in `fuzz/fuzz_targets`; without one all.
    targets: Vec<String>,
    /// Seconds for each.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// So many inputs for each instead, the same ones each time.
    #[arg(long)]
    inputs: Option<u64>,
}

impl FuzzArgs {
    /// What is run with every change.
    pub(crate) fn short() -> Self {
        Self { targets: Vec::new(), seconds: 0, inputs: Some(20_000) }
    }
}

pub(crate) fn fuzz(args: &FuzzArgs) -> Result<()> {
    let there = Command::new("cargo-fuzz").arg("--version").output();
    if !there.is_ok_and(|it| it.status.success()) {
        say("installing cargo-fuzz");
        let package = ["cargo-fuzz", "--version", CARGO_FUZZ];
        run(cargo("install").args(package))?;
    }
    say("building what is fuzzed, with counters");
    // Nothing here is unsafe, so that the stable compiler is enough: sanitizers need another.
    run(&mut cargo_fuzz("build"))?;
    let targets = if args.targets.is_empty() { all()? } else { args.targets.clone() };
    for target in targets {
        let limits = if let Some(inputs) = args.inputs {
            say(&format!("fuzzing {target} with {inputs} inputs"));
            vec![format!("-runs={inputs}"), "-seed=1".to_owned()]
        } else {
            say(&format!("fuzzing {target} for {} s", args.seconds));
            vec![format!("-max_total_time={}", args.seconds)]
        };
        // What is found goes on from run to run there, and is not part of the project.
        let found = root().join("target/fuzz").join(&target);
        std::fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let length = if LONG.0.contains(&target.as_str()) { LONG.1 } else { LENGTH };
        let options = [
            format!("-timeout={TIMEOUT}"),
            format!("-max_len={length}"),
            "-verbosity=0".to_owned(),
            "-print_final_stats=1".to_owned(),
        ];
        let mut command = cargo_fuzz("run");
        command.arg(&target).arg(found).arg(root().join("fuzz/corpus").join(&target));
        run(command.arg("--").args(limits).args(options)).with_context(|| {
            format!(
                "{target} has failed. Mend it, and put what it failed with, in fuzz/artifacts/{target}, \
                 into fuzz/corpus/{target}: the unit tests run all that is there"
            )
        })?;
    }
    Ok(())
}

fn cargo_fuzz(command: &str) -> Command {
    let mut fuzz = cargo("fuzz");
    fuzz.args([command, "--sanitizer", "none"]);
    fuzz
}

fn all() -> Result<Vec<String>> {
    let folder = root().join("fuzz/fuzz_targets");
    let files = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let stem = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file?.path();
        Ok(path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
    };
    let mut targets: Vec<String> = files.map(stem).collect::<Result<_>>()?;
    targets.sort();
    Ok(targets)
}
