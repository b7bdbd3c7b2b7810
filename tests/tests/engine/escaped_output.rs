//! Tests of text from events, handlers, configurations and file names. Such text must not control the user's terminal
//! or become invisible.

use anyhow::{Result, ensure};
use ordain_tests::faulty;
use ordain_tests::host::Home;
use ordain_tests::log::line;
use serde_json::json;

/// Characters that the output must escape: three control characters (one of them outside of ASCII), a character without
/// width, and two characters that change the direction of text.
const UNSEEN_CHARACTERS: &str = "\x1b\u{7f}\u{9b}\u{200b}\u{202e}\u{2066}";
const ESCAPED_CHARACTERS: &str = r"\u001b\u007f\u009b\u200b\u202e\u2066";

fn is_clean(text: &[u8]) -> Result<bool> {
    Ok(!std::str::from_utf8(text)?.contains(|c| UNSEEN_CHARACTERS.contains(c) || c == '\r'))
}

#[test]
fn text_of_events_and_handlers_is_escaped() -> Result<()> {
    let home = Home::new(&["faulty"], faulty::CONFIG)?;
    let key = format!("key{UNSEEN_CHARACTERS}");
    let lines = [
        line(&key, 1, &json!({ "do": "reject", "reason": UNSEEN_CHARACTERS })),
        line(
            &key,
            2,
            &json!({ "do": "print", "out": format!("over\r{UNSEEN_CHARACTERS}"), "err": "" }),
        ),
        line(&key, 3, &json!({ "do": "panic", "text": UNSEEN_CHARACTERS })),
    ];
    home.write("events.ndjson", lines.join("\n"))?;
    let run = home.output(&["run", "--once"])?;
    let log = String::from_utf8_lossy(&run.stderr);
    ensure!(is_clean(&run.stderr)?, "{log:?}");
    ensure!(log.contains(&format!(r"over\r{ESCAPED_CHARACTERS}")), "{log}");
    std::fs::remove_dir_all(home.path("ordain-data"))?;
    let run = home.output(&["run", "--once", "--log-format", "json"])?;
    ensure!(is_clean(&run.stderr)?, "{:?}", String::from_utf8_lossy(&run.stderr));
    let dead = home.rows(&["dead", "list", "cases", "--json"])?;
    let id = dead[0]["id"].as_str().unwrap_or_default();
    assert_eq!(dead[0]["key"], *key, "a JSON escape represents the character");
    for args in [
        &["dead", "list", "cases"][..],
        &["dead", "list", "cases", "--json"],
        &["dead", "show", "cases", id, "--key", &key],
        &["keys", "list", "cases"],
        &["keys", "list", "cases", "--json"],
        &["keys", "show", "cases", &key],
        &["keys", "why", "cases", &key],
    ] {
        let output = home.output(args)?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && is_clean(&output.stdout)?, "{args:?}: {text:?}");
        ensure!(text.contains(ESCAPED_CHARACTERS), "{args:?}: {text}");
    }
    Ok(())
}

#[test]
fn text_of_configurations_and_file_names_is_escaped() -> Result<()> {
    let home = Home::new(&[], &faulty::CONFIG.replace("\"faulty\"", "\"\\u001b[2J\\u202e\""))?;
    let output = home.output(&["check"])?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(78) && is_clean(&output.stderr)?, "{error:?}");

    home.write("ordain.toml", faulty::CONFIG)?;
    home.write("events.ndjson", "")?;
    home.write("plugins/faulty.wasm", "")?;
    home.write(&format!("plugins/{UNSEEN_CHARACTERS}.wasm"), "")?;
    for args in [&["plugins", "list"][..], &["plugins", "list", "--json"], &["check"]] {
        let output = home.output(args)?;
        let text = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8_lossy(&text);
        ensure!(is_clean(&text)? && shown.contains(ESCAPED_CHARACTERS), "{args:?}: {shown:?}");
    }
    Ok(())
}
