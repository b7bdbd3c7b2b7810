//! Formats the log and passes its lines to standard error.

use std::io::{self, Write};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, registry};

use ordain_store_embedded::engine_log;
use ordain_util::standard_error::{self, DropNote, WriterGuard};
use ordain_util::text::{escape_invisible, escape_invisible_lines};

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// A line of text for each entry of the log.
    Text,
    /// A line with a JSON object for each entry of the log.
    Json,
}

/// Filters for the log lines of dependencies. Without the filters, the storage engine and the WebAssembly engine would,
/// at each start, log megabytes that help only the developers of these engines. The logs of the Redis and RabbitMQ
/// clients are off, because Ordain logs all errors of these clients itself, with their meaning. The log of the HTTP
/// client is off, because it contains tokens.
const DEPENDENCY_FILTERS: &str = "fjall=warn,lsm_tree=warn,wasmtime=warn,cranelift=warn,regalloc2=warn,redis=off,\
                     lapin=off,ureq=off,ureq_proto=off";

/// Installs the log's subscriber for the whole process. Returns an error if `filter` is invalid.
pub(crate) fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(format!("{DEPENDENCY_FILTERS},{filter}")).map_err(|error| {
        format!("--log {filter:?} is not a valid filter: {error}; try `--log info`")
    })?;
    let lines = fmt::layer()
        .with_writer(move || LogWriter { json: format == LogFormat::Json })
        // Without this setting, the layer would write an additional line about each log entry that it cannot format.
        .log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.with_target(false).with_ansi(is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let engine_errors = Targets::new().with_target(engine_log::LOG_TARGET, LevelFilter::ERROR);
    let engine_errors = EngineErrors.with_filter(engine_errors);
    registry().with(lines.with_filter(filter)).with(engine_errors).init();
    Ok(())
}

/// Passes the errors of the storage engine to the embedded store, even if the log's filter suppresses errors.
struct EngineErrors;

impl<S: Subscriber> Layer<S> for EngineErrors {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut EngineErrorVisitor);
    }
}

struct EngineErrorVisitor;

impl Visit for EngineErrorVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            engine_log::record_error(format!("{value:?}"));
        }
    }
}

/// The message of the line that reports dropped lines.
const LINES_DROPPED_MESSAGE: &str = "log lines dropped: standard error accepted no data in time";

/// Starts the thread that writes standard error. The process then continues even if the reader of standard error stops
/// reading.
pub(crate) fn start_writer(format: LogFormat) -> WriterGuard {
    let note: DropNote = match format {
        LogFormat::Text => text_note,
        LogFormat::Json => json_note,
    };
    standard_error::start(note)
}

fn text_note(lines: u64) -> String {
    format!("{}  WARN {LINES_DROPPED_MESSAGE} lines={lines}\n", jiff::Timestamp::now())
}

fn json_note(lines: u64) -> String {
    let mut line = json_line("WARN", LINES_DROPPED_MESSAGE);
    line["lines"] = lines.into();
    format!("{line}\n")
}

/// Writes the final line of the log: the reason why the process ends. Writes this line even if the log's filter
/// suppresses errors.
pub(crate) fn log_final_error(format: LogFormat, error: &str) {
    let line = match format {
        LogFormat::Text => format!("error: {}", escape_invisible_lines(error)),
        LogFormat::Json => escape_invisible(&json_line("ERROR", error).to_string()).into_owned(),
    };
    standard_error::print_last(&format!("{line}\n"));
}

/// Returns a line of the JSON log that does not come from the log's subscriber.
fn json_line(level: &str, message: &str) -> Value {
    let timestamp = jiff::Timestamp::now().to_string();
    json!({ "timestamp": timestamp, "level": level, "message": message, "target": "ordain" })
}

fn is_terminal() -> bool {
    use std::io::IsTerminal;
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// A writer of log lines to standard error. It drops a line that cannot be written, and reports no error.
struct LogWriter {
    /// True if the lines are JSON. The writer then escapes invisible characters, because the JSON format leaves them
    /// unescaped. In the text format, the lines already have these escapes.
    json: bool,
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let shown = if self.json { escape_invisible_lines(&text) } else { text };
        standard_error::log(&shown);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
