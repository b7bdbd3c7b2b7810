//! The log, on standard error, around the status line if there is one.

use std::io::{self, Write};
use std::sync::OnceLock;

use indicatif::ProgressBar;
use tracing_subscriber::EnvFilter;

use ordain_util::text::{clean, clean_lines, say};

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A line for people.
    Text,
    /// One JSON object a line.
    Json,
}

static STATUS_LINE: OnceLock<ProgressBar> = OnceLock::new();

/// From now on the log steps round this line.
pub(crate) fn step_round(line: ProgressBar) {
    // A process has one status line.
    let _ = STATUS_LINE.set(line);
}

/// The engines of the store and the handlers tell their own stories, megabytes for each start,
/// which are of use only to their developers. All errors of the clients of Redis and RabbitMQ are
/// told by those who use them, with what they mean. What the client of HTTP tells has tokens in it.
const QUIET: &str = "fjall=warn,lsm_tree=warn,wasmtime=warn,cranelift=warn,regalloc2=warn,redis=off,\
                     lapin=off,ureq=off,ureq_proto=off";

/// Starts logging.
pub(crate) fn start(format: Format, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .map_err(|error| format!("--log {filter:?} is no filter: {error}; try `--log info`"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || Stderr { json: format == Format::Json })
        // It would tell of its errors on standard error, and panic where that cannot be written.
        .log_internal_errors(false);
    match format {
        Format::Text => builder.with_target(false).with_ansi(is_terminal()).init(),
        Format::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Why the process ends. Whatever is filtered out of the log, this is not.
pub(crate) fn last_words(format: Format, error: &str) {
    match format {
        Format::Text => say(&format!("error: {}", clean_lines(error))),
        Format::Json => {
            let timestamp = jiff::Timestamp::now().to_string();
            let line = serde_json::json!({
                "timestamp": timestamp, "level": "ERROR", "message": error, "target": "ordain",
            });
            say(&clean(&line.to_string()));
        }
    }
}

fn is_terminal() -> bool {
    use std::io::IsTerminal;
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Standard error for a log that nothing depends on: what cannot be written is lost, and whoever
/// logs goes on.
struct Stderr {
    /// JSON escapes less of what is not seen than the other form does.
    json: bool,
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let shown = if self.json { clean_lines(&text) } else { text };
        let write = || io::stderr().write_all(shown.as_bytes());
        let _ = STATUS_LINE.get().map_or_else(write, |status| status.suspend(write));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
