//! Small parts that several crates of the runtime share. This crate must not depend on the crates of the stores, the
//! broker or the engine.
#![deny(
    clippy::print_stderr,
    reason = "a closed standard error must not end the process: use `text::print_lossy`"
)]

pub mod backoff;
pub mod canonical_path;
pub mod command;
pub mod expand;
pub mod failure_timer;
pub mod file_pattern;
pub mod finding;
pub mod gauge;
pub mod histogram;
pub mod io_error;
pub mod locked_file;
pub mod log_throttle;
pub mod refreshed_url;
pub mod shutdown;
pub mod sink_health;
pub mod source_health;
pub mod standard_error;
pub mod standard_output;
pub mod tail_fingerprint;
pub mod text;
pub mod wait;
