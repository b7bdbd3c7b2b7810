//! Tests of hostile handlers. The host must stop each hostile handler, report the cause, and process the events of
//! other keys as usual. The test generates a table of the results. The guide (docs/guide/handlers.md) must contain this
//! table.

use std::fs;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ordain_tests::guests::{Pairs, guest};
use ordain_tests::host::Home;
use ordain_tests::http;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::plugins::{plugin, root};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;
use serde_json::{Value, json};
use wasm_encoder::{
    CodeSection, ComponentSection as _, Function, FunctionSection, Module, ModuleSection,
    TypeSection,
};

const CONFIG: &str = r#"
[plugins]
timeout = "150ms"
memory = "16MiB"
state_size = "64KiB"
messages = 10
messages_size = "256KiB"
compile_memory = "512MiB"

[streams.hostile]
handler = "faulty"
source = { kind = "file", path = "hostile.ndjson" }
retry = { attempts = 2, backoff = "1ms..5ms" }

[streams.memories]
handler = "memories"
source = { kind = "file", path = "memories.ndjson" }

[streams.cases]
handler = "tally"
source = { kind = "file", path = "events.ndjson" }

[sinks.faulty]
kind = "file"
path = "hostile-out.ndjson"

[sinks.tally]
kind = "file"
path = "out.ndjson"
"#;

type Row = (String, String);

/// Returns the behaviours for which the host parks the key of an event, each with the event data that makes the handler
/// `faulty` behave in this way.
fn commands() -> Vec<(&'static str, Value)> {
    vec![
        ("loops for ever", json!({ "do": "loop" })),
        ("sleeps for an hour", json!({ "do": "sleep", "ms": 3_600_000 })),
        ("calls itself for ever", json!({ "do": "recurse" })),
        ("allocates 100 MiB of memory", json!({ "do": "allocate", "mib": 100 })),
        ("emits 11 messages", json!({ "do": "emit", "messages": 11 })),
        ("emits 300 KB", json!({ "do": "emit", "messages": 3, "bytes": 100_000 })),
        ("returns a state of 10 MB", json!({ "do": "put", "bytes": 10_000_000 })),
        ("exits", json!({ "do": "exit" })),
        ("executes `unreachable`", json!({ "do": "trap" })),
    ]
}

/// A behaviour with which the event takes effect, but the log lacks a part of the handler's output.
const LOG_BEHAVIOUR: &str = "logs 10,000 lines";

/// Behaviours of the handler `memories`, which grows its memories and its table. Each row has the behaviour and three
/// pairs. The first number of a pair names a memory (0 to 2) or the table (3). The second number is the number of pages
/// or entries to add.
const GROWTHS: [(&str, [(u32, u32); 3]); 2] = [
    ("grows three memories by 10, 5 and 5 MiB", [(0, 160), (1, 80), (2, 80)]),
    ("grows a table by 60,000 entries, and two memories", [(3, 60_000), (0, 160), (1, 90)]),
];

fn home() -> Result<Home> {
    let home = Home::new(&["tally", "faulty"], CONFIG)?;
    home.write("plugins/memories@1.0.0.wasm", guest("memories")?)?;
    let others = in_turn(40, 25);
    home.write("events.ndjson", text(&others))?;
    let mut lines: Vec<String> =
        commands().iter().map(|(key, command)| line(key, 1, command)).collect();
    lines.push(line(LOG_BEHAVIOUR, 1, &json!({ "do": "log", "lines": 10_000, "bytes": 10 })));
    lines.push(line("files", 1, &json!({ "do": "probe", "path": "/etc/passwd" })));
    lines.push(line("sockets", 1, &json!({ "do": "probe", "address": "127.0.0.1:22" })));
    for key in ["clock one", "clock two"] {
        lines.push(line(key, 1, &json!({ "do": "senses" })));
    }
    for sequence in 1..=20 {
        let fine = |key| line(&format!("fine{key}"), sequence, &json!({ "do": "emit" }));
        lines.extend((0..20).map(fine));
    }
    home.write("hostile.ndjson", text(&lines))?;
    let mut lines = Vec::new();
    for (key, growths) in GROWTHS {
        let pairs = growths.iter().fold(Pairs::new(), |pairs, (what, by)| pairs.pair(*what, *by));
        let mut event: Value = serde_json::from_str(&line(key, 1, &Value::Null))?;
        let event = event.as_object_mut().context("an object")?;
        event.remove("data");
        event.insert("data_base64".into(), STANDARD.encode(pairs.bytes()).into());
        lines.push(serde_json::to_string(event)?);
    }
    home.write("memories.ndjson", text(&lines))?;
    Ok(home)
}

/// Returns the table row for a key, which must be parked. The result column contains the cause, and the first line of
/// the error without the names of the calling functions.
fn parked(home: &Home, stream: &str, key: &str) -> Result<Row> {
    let rows = home.rows(&["keys", "show", stream, key, "--json"])?;
    let status = &rows[0]["status"];
    let trouble = &rows[0]["trouble"];
    ensure!(status == "parked", "{key}: {}", rows[0]);
    let error = trouble["error"].as_str().context("an error")?;
    let first = error.lines().next().unwrap_or_default();
    let first = rounded(first.split(", called by").next().unwrap_or_default());
    let cause = trouble["cause"].as_str().context("a cause")?;
    Ok((key.to_owned(), format!("the host parks the key (`{cause}`): {first}")))
}

/// Replaces numbers of more than six digits by `…`, because these numbers differ between compiler versions.
fn rounded(text: &str) -> String {
    let is_large = |word: &str| word.len() > 6 && word.bytes().all(|byte| byte.is_ascii_digit());
    let round = |word| if is_large(word) { "…" } else { word };
    text.split(' ').map(round).collect::<Vec<_>>().join(" ")
}

fn message(home: &Home, key: &str) -> Result<Value> {
    let id = format!("\"id\":\"hostile/{}/", key.replace(' ', "%20"));
    let text = home.read("hostile-out.ndjson");
    let line = text.lines().find(|line| line.contains(&id)).context("a message")?;
    Ok(serde_json::from_str::<Value>(line)?["data"].take())
}

fn executed(home: &Home) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (key, _) in commands() {
        rows.push(parked(home, "hostile", key)?);
    }
    for (key, _) in GROWTHS {
        rows.push(parked(home, "memories", key)?);
    }
    let logging = home.rows(&["keys", "show", "hostile", LOG_BEHAVIOUR, "--json"])?;
    ensure!(logging[0]["status"] == "active" && logging[0]["next"] == 2, "{logging:?}");
    let effect = "the event takes effect; the log has the first 16 KiB (`plugins.log`) and the number of missing bytes";
    rows.push((LOG_BEHAVIOUR.to_owned(), effect.to_owned()));
    let files = message(home, "files")?;
    ensure!(files["arguments"] == json!([]) && files["environment"] == json!([]), "{files}");
    for (what, field) in [("reads a file", "read"), ("writes a file", "write")] {
        rows.push((
            what.to_owned(),
            format!("the handler gets an error: {}", files[field].as_str().context("a result")?),
        ));
    }
    rows.push((
        "reads its arguments and environment variables".to_owned(),
        "the handler finds neither arguments nor environment variables".to_owned(),
    ));
    let sockets = message(home, "sockets")?;
    let error = sockets["connect"].as_str().context("a result")?;
    rows.push(("opens a socket".to_owned(), format!("the handler gets an error: {error}")));
    let senses = [message(home, "clock one")?, message(home, "clock two")?];
    // These two events have no `time` attribute, so the handler's wall clock shows the machine's time. The monotonic
    // clock does not measure real time: it always stays below one millisecond.
    ensure!(
        senses.iter().all(|sense| sense["monotonic_ns"].as_u64().is_some_and(|ns| ns < 1_000_000))
    );
    ensure!(senses[0]["random"] != senses[1]["random"], "{senses:?}");
    Ok(rows)
}

#[test]
fn hostile_handlers_are_contained() -> Result<()> {
    let home = home()?;
    let report = home.run_once()?;
    let others = in_turn(40, 25);
    tally::check(&by_key(&others)?, &home.read("out.ndjson"))?;
    let fine = home.read("hostile-out.ndjson").matches("\"id\":\"hostile/fine").count();
    ensure!(fine == 400, "{fine} of 400 events of other keys took effect: {report}");
    let mut rows = executed(&home)?;

    // A second run gets the same random numbers, because they depend only on the event.
    let again = self::home()?;
    again.run_once()?;
    let random =
        |home: &Home| -> Result<Value> { Ok(message(home, "clock one")?["random"].take()) };
    ensure!(random(&home)? == random(&again)?);
    rows.push((
        "reads the time and random numbers".to_owned(),
        "the handler gets the time of the event (if the event has no time, the present time of the \
         machine), and random numbers that depend only on the event"
            .to_owned(),
    ));
    rows.extend(loaded()?);
    rows.push(fresh()?);

    let mut table = "| behaviour of the handler | result |\n|---|---|\n".to_owned();
    for (behaviour, result) in rows {
        table += &format!("| {behaviour} | {} |\n", result.trim_end().replace('|', "\\|"));
    }
    println!("{table}");
    let page = fs::read_to_string(root().join("docs/guide/handlers.md"))?;
    ensure!(page.contains(&table), "docs/guide/handlers.md lacks this table:\n{table}");
    Ok(())
}

/// Returns the table row for a handler that leaves data in its memory. With a fresh WebAssembly instance for each
/// event, the next event does not find the data.
fn fresh() -> Result<Row> {
    let config = CONFIG.replace("[plugins]", "[plugins]\ninstance = \"fresh\"");
    let home = Home::new(&["tally", "faulty"], &config)?;
    home.write("plugins/memories@1.0.0.wasm", guest("memories")?)?;
    home.write("events.ndjson", "")?;
    home.write("memories.ndjson", "")?;
    let lines: Vec<String> =
        (0..50).map(|key| line(&format!("k{key}"), 1, &json!({ "do": "calls" }))).collect();
    home.write("hostile.ndjson", text(&lines))?;
    home.run_once()?;
    for key in 0..50 {
        let calls = message(&home, &format!("k{key}"))?;
        ensure!(calls["calls"] == 1, "{calls}");
    }
    Ok((
        "leaves data in its memory for the next key".to_owned(),
        "with `plugins.instance = \"fresh\"`, the next event does not find the data; without this \
         setting, the handler itself must leave no data"
            .to_owned(),
    ))
}

/// Returns the table rows for handler files that the test adds while the host runs.
fn loaded() -> Result<Vec<Row>> {
    let home = home()?;
    let mut service = Service::start(&home, &["run"])?;
    let address = http::ready(&mut service)?;
    let mut rows = Vec::new();
    let tiny = |functions| module(functions, &[]);
    // 100 functions of 1 MB each. The code only repeats two steps: it pushes a constant, and drops it.
    let large = module(100, &[0x41, 0, 0x1a].repeat(1_000_000 / 3));
    for (number, (what, bytes)) in [
        ("never finishes its start", guest("endless-start")?),
        ("starts with more memory than `plugins.memory` allows", guest("large")?),
        ("has 10,000 tiny functions", with_module(&tiny(10_000))?),
        ("has 900,000 tiny functions", with_module(&tiny(900_000))?),
        ("has 100 MB of code", with_module(&large)?),
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("unused@{number}.0.0.wasm");
        home.write(&format!("plugins/{file}"), bytes)?;
        let mut row = Value::Null;
        wait_until(&format!("the state of a handler that {what}"), || {
            let plugins = http::get(address, "/v1/plugins")?.json()?;
            let found = plugins["handlers"].as_array().into_iter().flatten();
            let mut found = found.filter(|handler| {
                handler["path"].as_str().is_some_and(|path| path.ends_with(&file))
            });
            row = found.next().cloned().unwrap_or_default();
            Ok(!row.is_null() && row["state"] != "loading")
        })?;
        let result = match row["reason"].as_str() {
            Some(reason) => format!(
                "the host refuses the file because it {}",
                reason.lines().next().unwrap_or_default()
            ),
            None => "the host accepts the file".to_owned(),
        };
        rows.push((what.to_owned(), result));
        // The handlers that already run still execute new events.
        let more = in_turn(40, 26 + number as u64);
        home.append("events.ndjson", text(&more[more.len() - 40..]))?;
        let expected = more.len();
        service
            .until("the effects of the other events", || home.lines("out.ndjson") == expected)?;
    }
    service.end()?;
    Ok(rows)
}

/// Returns the handler `tally` with an additional module. No code uses this module, but the host must compile it.
fn with_module(module: &Module) -> Result<Vec<u8>> {
    let mut component = fs::read(plugin("tally")?)?;
    ModuleSection(module).append_to_component(&mut component);
    Ok(component)
}

/// Returns a module with `functions` functions, each with the given body.
fn module(functions: u32, body: &[u8]) -> Module {
    let mut types = TypeSection::new();
    let mut all = FunctionSection::new();
    let mut code = CodeSection::new();
    types.ty().function([], []);
    for _ in 0..functions {
        all.function(0);
        let mut function = Function::new([]);
        function.raw(body.iter().copied()).instructions().end();
        code.function(&function);
    }
    let mut module = Module::new();
    module.section(&types).section(&all).section(&code);
    module
}
