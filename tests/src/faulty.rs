//! The configuration of the deliberately faulty handler `plugins/faulty`.

/// The configuration of a stream that reads a file, executes the handler `faulty`, and writes its messages to another
/// file.
pub const CONFIG: &str = r#"
[streams.cases]
handler = "faulty"
source = { kind = "file", path = "events.ndjson" }

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#;
