//! `cargo xtask fuzz`: passes arbitrary bytes to every decoder.

use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::setup::{announce, cargo, cargo_fuzz, root, run, target_dir};

/// The arguments of `cargo xtask` for the short run, which is a step of `cargo xtask ci`.
pub(crate) const SHORT_RUN: [&str; 3] = ["fuzz", "--inputs", "20000"];
/// Time limit for one input, in seconds: far more than any input needs.
const INPUT_TIMEOUT_S: u64 = 10;
/// Size limit of an input, in bytes. With longer inputs, the fuzzer would find the same faults more slowly. Only the
/// targets in `LARGE_INPUT_TARGETS` have a higher limit.
const INPUT_LIMIT_BYTES: u64 = 4 << 10;
/// Names of the targets whose inputs may have up to `LARGE_INPUT_LIMIT_BYTES`.
const LARGE_INPUT_TARGETS: [&str; 3] = ["delivery", "line", "request"];
/// Size limit of an input of the targets in `LARGE_INPUT_TARGETS`, in bytes.
const LARGE_INPUT_LIMIT_BYTES: u64 = 128 << 10;

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Names of the targets, which are the names of the files in `fuzz/fuzz_targets`; all targets by default.
    targets: Vec<String>,
    /// Time for which each target runs, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of inputs for each target, instead of a time. The fuzzer then starts with a fixed random seed.
    #[arg(long)]
    inputs: Option<u64>,
}

pub(crate) fn fuzz(args: &FuzzArgs) -> Result<()> {
    cargo_fuzz()?;
    announce("building the targets with coverage counters");
    // The decoders of this project have no unsafe code, so they need no sanitizer. A sanitizer would need a nightly
    // compiler.
    run(&mut fuzz_command("build"))?;
    let targets = if args.targets.is_empty() { all()? } else { args.targets.clone() };
    for target in targets {
        let limits = if let Some(inputs) = args.inputs {
            announce(&format!("fuzzing {target} with {inputs} inputs"));
            vec![format!("-runs={inputs}"), "-seed=1".to_owned()]
        } else {
            announce(&format!("fuzzing {target} for {} s", args.seconds));
            vec![format!("-max_total_time={}", args.seconds)]
        };
        // In this folder, the fuzzer keeps the inputs that reach new code. The next run starts with these inputs. Git
        // ignores the folder.
        let found = root().join("target/fuzz").join(&target);
        std::fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let is_large = LARGE_INPUT_TARGETS.contains(&target.as_str());
        let limit_bytes = if is_large { LARGE_INPUT_LIMIT_BYTES } else { INPUT_LIMIT_BYTES };
        let options = [
            format!("-timeout={INPUT_TIMEOUT_S}"),
            format!("-max_len={limit_bytes}"),
            "-verbosity=0".to_owned(),
            "-print_final_stats=1".to_owned(),
        ];
        let mut command = fuzz_command("run");
        command.arg(&target).arg(found).arg(root().join("fuzz/corpus").join(&target));
        run(command.arg("--").args(limits).args(options)).with_context(|| {
            format!(
                "{target} has failed: fix the fault, and move the input that causes it from fuzz/artifacts/{target} \
                 to fuzz/corpus/{target}: the unit tests run all inputs there"
            )
        })?;
    }
    Ok(())
}

fn fuzz_command(command: &str) -> Command {
    let mut fuzz = cargo("fuzz");
    fuzz.args([command, "--sanitizer", "none"]);
    // By default, the workspace in the folder `fuzz` has a target folder of its own. With the variable
    // `CARGO_TARGET_DIR`, both workspaces would share a folder, and one build would wait for the other.
    if std::env::var_os("CARGO_TARGET_DIR").is_some() {
        fuzz.env("CARGO_TARGET_DIR", target_dir().join("fuzz-build"));
    }
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
