//! Runs the example `conformance` of each language, and compares the result with one expectation.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::json;

use super::expectation::{Effect, Step, steps};
use super::language::{C, GO, JAVASCRIPT, Language, PYTHON, RUST, SPIDERMONKEY};
use super::output::{Output, SeenData, SeenLetter, SeenLine, SeenMessage, run};

/// Text that only the toolchain of a language writes: no reason contains it.
const TOOLCHAIN_NOISE: [&str; 6] = [
    "RUST_BACKTRACE",
    "mozalloc",
    "initializer.js",
    "runtime/src/lib.rs",
    "Failed to call",
    "invalid variant tag",
];

/// The largest size of the reason of a dead letter, in bytes.
const REASON_LIMIT_BYTES: usize = 4 << 10;

#[test]
fn rust_conforms() -> Result<()> {
    conforms(RUST)
}

#[test]
fn javascript_on_quickjs_conforms() -> Result<()> {
    conforms(JAVASCRIPT)
}

#[test]
fn javascript_on_spidermonkey_conforms() -> Result<()> {
    conforms(SPIDERMONKEY)
}

#[test]
fn python_conforms() -> Result<()> {
    conforms(PYTHON)
}

#[test]
fn go_conforms() -> Result<()> {
    conforms(GO)
}

#[test]
fn c_conforms() -> Result<()> {
    conforms(C)
}

fn conforms(language: Language) -> Result<()> {
    let steps = steps(language);
    let lines: Vec<&str> = steps.iter().map(|step| &*step.line).collect();
    let mut seen = run(language, "conformance", "out", lines.join("\n") + "\n")?;
    let lines = std::mem::take(&mut seen.lines);
    let mut faults = log_faults(language, &lines);
    for step in &steps {
        if let Err(fault) = take_effect(step, &mut seen) {
            faults.push(format!("key {:?}, sequence {}: {fault}", step.key, step.sequence));
        }
    }
    let rest = seen.messages.iter().filter(|(_, messages)| !messages.is_empty());
    faults.extend(rest.map(|(key, messages)| format!("key {key:?}: unexpected {messages:?}")));
    let rest = seen.letters.iter().filter(|(_, letters)| !letters.is_empty());
    faults.extend(rest.map(|(key, letters)| format!("key {key:?}: unexpected {letters:?}")));
    ensure!(faults.is_empty(), "{}:\n{}", language.name, faults.join("\n"));
    Ok(())
}

/// Removes the effect of an event from the output. Returns an error if the effect is not the expected effect.
fn take_effect(step: &Step, seen: &mut Output) -> Result<()> {
    let letters = seen.letters.entry(step.key.clone()).or_default();
    let letter = letters.iter().position(|letter| letter.sequence == step.sequence);
    let letter = letter.map(|at| letters.remove(at));
    if let (
        Some(letter),
        Effect::Silent | Effect::Emits(_) | Effect::EmitsSuch(..) | Effect::EmitsMany(_),
    ) = (&letter, &step.effect)
    {
        anyhow::bail!("is a dead letter: {letter:?}");
    }
    match &step.effect {
        Effect::Silent => Ok(()),
        Effect::Emits(expected) => {
            let message = next_message(seen, &step.key)?;
            ensure!(message == *expected, "emits {}, not {}", shown(&message), shown(expected));
            Ok(())
        }
        Effect::EmitsSuch(kind, is_right) => {
            let message = next_message(seen, &step.key)?;
            let SeenData::Json(data) = &message.data else {
                anyhow::bail!("emits {}", shown(&message))
            };
            ensure!(message.kind == *kind && is_right(data), "emits {}", shown(&message));
            Ok(())
        }
        Effect::EmitsMany(count) => {
            for index in 0..*count {
                let message = next_message(seen, &format!("{}/{index}", step.key))?;
                let expected = SeenData::Json(json!({ "index": index }));
                ensure!(message.kind == "many" && message.data == expected, "{}", shown(&message));
            }
            Ok(())
        }
        Effect::Dead(cause, reason) => {
            let letter = checked_letter(letter, cause)?;
            ensure!(letter.reason == *reason, "has the reason {:?}, not {reason:?}", letter.reason);
            Ok(())
        }
        Effect::Faults(prefix) => {
            let letter = checked_letter(letter, "error")?;
            let is_right =
                letter.reason.starts_with(prefix) && letter.reason.contains("failed on request ☃");
            ensure!(is_right, "the reason {:?} does not begin with {prefix:?}", letter.reason);
            Ok(())
        }
        Effect::DeadSuch(cause, words) => {
            let letter = checked_letter(letter, cause)?;
            let missing: Vec<_> =
                words.iter().filter(|words| !letter.reason.contains(*words)).collect();
            ensure!(missing.is_empty(), "the reason {:?} lacks {missing:?}", letter.reason);
            Ok(())
        }
    }
}

/// Checks the cause of a dead letter, and the rules for all reasons.
fn checked_letter(letter: Option<SeenLetter>, cause: &str) -> Result<SeenLetter> {
    let Some(letter) = letter else { anyhow::bail!("is no dead letter {cause:?}") };
    ensure!(letter.cause == cause, "is {letter:?}, not {cause:?}");
    let noise = TOOLCHAIN_NOISE.iter().find(|noise| letter.reason.contains(**noise));
    ensure!(noise.is_none(), "the reason contains {noise:?}: {:?}", letter.reason);
    ensure!(letter.reason.len() <= REASON_LIMIT_BYTES, "the reason is too long: {letter:?}");
    Ok(letter)
}

fn next_message(seen: &mut Output, key: &str) -> Result<SeenMessage> {
    match seen.messages.get_mut(key) {
        Some(messages) if !messages.is_empty() => Ok(messages.remove(0)),
        _ => anyhow::bail!("emits no message"),
    }
}

/// Returns a message as text, without most of a long data.
fn shown(message: &SeenMessage) -> String {
    let mut text = format!("{message:?}");
    text.truncate(text.floor_char_boundary(500));
    text
}

/// Compares the log lines with the expected lines.
fn log_faults(language: Language, lines: &BTreeMap<String, Vec<SeenLine>>) -> Vec<String> {
    let line = |level: &str, text: &str| (level.to_owned(), text.to_owned());
    let logged = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"];
    let logged = logged.map(|level| line(level, &format!("{} ☃", level.to_lowercase())));
    let mut printed =
        vec![line("INFO", "printed ☃"), line(language.error_text_level, "complained ☃")];
    printed.sort();
    let mut faults = Vec::new();
    for (key, expected) in [("log", logged.to_vec()), ("print", printed)] {
        let mut found = lines.get(key).cloned().unwrap_or_default();
        // A language may flush standard error before standard output.
        if key == "print" {
            found.sort();
        }
        if found != expected {
            faults.push(format!("key {key:?} logs {found:?}, not {expected:?}"));
        }
    }
    faults
}
