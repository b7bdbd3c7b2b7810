//! Tests of the loading of handlers, and of the errors for files that the host cannot use as handlers.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use ordain_tests::guests::{self, guest};
use ordain_tests::plugins::plugin;
use ordain_tests::workers::{load, settings};
use ordain_wasm::{HandlerEngine, HandlerFile, HandlerSettings};

/// Loads a file with the content `bytes`, which must fail. Returns the error.
fn refusal(bytes: &[u8], settings: HandlerSettings) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("bad@1.0.0.wasm");
    std::fs::write(&path, bytes)?;
    let engine = HandlerEngine::new(settings)?;
    let error = load(&engine, &path).expect_err("a refused file").to_string();
    assert!(error.contains("bad@1.0.0.wasm"), "the file is not named: {error}");
    Ok(error)
}

#[track_caller]
fn assert_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn handler_has_a_version_and_a_digest() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bytes = std::fs::read(plugin("tally")?)?;
    let engine = HandlerEngine::new(settings())?;
    for name in ["tally@1.2.3.wasm", "tally.wasm"] {
        let path = dir.path().join(name);
        std::fs::write(&path, &bytes)?;
        let handler = load(&engine, &path)?;
        let digest = handler.build().digest.to_string();
        assert_eq!(digest.len(), 64);
        let version = match name {
            "tally.wasm" => format!("tally+{}", &digest[..12]),
            _ => "tally@1.2.3".to_owned(),
        };
        assert_eq!(**handler.version(), *version);
        assert!(!handler.migrates());
    }
    Ok(())
}

#[test]
fn compiled_code_is_cached_and_an_unusable_cache_is_ignored() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let cache = dir.path().join("compiled");
    let path = plugin("tally")?;
    for _ in 0..2 {
        let engine =
            HandlerEngine::new(HandlerSettings { cache: Some(cache.clone()), ..settings() })?;
        load(&engine, &path)?;
        assert!(cache.read_dir()?.next().is_some());
    }
    std::fs::write(dir.path().join("a file"), "")?;
    let no_folder = Some(dir.path().join("a file"));
    load(&*HandlerEngine::new(HandlerSettings { cache: no_folder, ..settings() })?, &path)?;
    Ok(())
}

#[test]
fn file_that_is_not_a_component_is_refused() -> Result<()> {
    let component = std::fs::read(plugin("tally")?)?;
    let cases: [(&[u8], &[&str]); 6] = [
        (b"", &["is empty", "wasm32-wasip2"]),
        (b"(component)", &["is no WebAssembly", "wasm32-wasip2"]),
        (b"\0asm\x01\0\0\0", &["core module", "not a component", "`ordain plugins wrap --output="]),
        (&component[..6], &["truncated"]),
        (&component[..component.len() / 2], &["damaged, truncated"]),
        (b"\0asm\x0d\0\x01\0\xff\xff\xff", &["damaged"]),
    ];
    for (bytes, words) in cases {
        assert_words(&refusal(bytes, settings())?, words);
    }
    let engine = HandlerEngine::new(settings())?;
    let missing = HandlerFile::from_path(Path::new("/nowhere/x.wasm")).expect("a name");
    let error = engine.load(&missing.expect("a usable name")).expect_err("a missing file");
    assert_words(&error.to_string(), &["/nowhere/x.wasm", "cannot be read"]);
    Ok(())
}

#[test]
fn component_without_the_right_export_is_refused() -> Result<()> {
    let cases: [(&[u8], &[&str]); 4] = [
        (guests::EMPTY, &["it exports nothing", "in Rust: `ordain_sdk::handler!(handle);`"]),
        (
            &guest("later-version")?,
            &["`ordain:handler/handler@0.1.0`; it exports `ordain:handler/handler@0.2.0`"],
        ),
        (&guest("wrong-type")?, &["a wrong type of `handle`"]),
        (&guest("wrong-name")?, &["without a function `handle`"]),
    ];
    for (bytes, words) in cases {
        assert_words(&refusal(bytes, settings())?, words);
    }
    Ok(())
}

#[test]
fn unknown_import_is_refused() -> Result<()> {
    let given = "wasi:cli, wasi:clocks, wasi:filesystem, wasi:io, wasi:random, wasi:sockets";
    for import in [
        "wasi:http/types@0.2.0",
        "wasi:cli/environment@0.3.0",
        "wasi:keyvalue/store@0.2.0",
        "ordain:handler/logging@0.2.0",
        "someone:else/entirely",
    ] {
        let refusal = refusal(&guests::importing(import), settings())?;
        assert_words(&refusal, &[&format!("imports `{import}`"), given, "logging@0.1.0"]);
    }
    // The host provides this import, so the error reports the missing export and not the import.
    let refusal = refusal(&guests::importing("wasi:cli/environment@0.2.99"), settings())?;
    assert_words(&refusal, &["does not export"]);
    Ok(())
}

#[test]
fn handler_that_cannot_start_is_refused() -> Result<()> {
    let large = guest("large")?;
    assert_words(&refusal(&large, settings())?, &["does not start", "`plugins.memory`", "64 MiB"]);
    let mut short = settings();
    short.limits.timeout = Duration::from_millis(50);
    let endless = guest("endless-start")?;
    assert_words(&refusal(&endless, short)?, &["does not start", "`plugins.timeout`", "50ms"]);
    let trap = guest("trap-start")?;
    assert_words(&refusal(&trap, settings())?, &["does not start", "unreachable"]);
    Ok(())
}
