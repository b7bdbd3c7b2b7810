//! Tests of the exit codes of `ordain` for shells and service managers, and of its errors for users. An error must
//! state the fault, its place, and the right value.

use anyhow::{Context, Result, ensure};
use ordain_tests::guests::{EMPTY, guest};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::json;

/// The exit code of a successful command.
const SUCCESS_CODE: i32 = 0;
/// The exit code of a command that failed for a reason without a code of its own.
const FAILURE_CODE: i32 = 1;
/// The exit code for invalid arguments.
const USAGE_CODE: i32 = 2;
/// The exit code of a failure that may be temporary. A supervisor starts the process again.
const UNAVAILABLE_CODE: i32 = 75;
/// The exit code of an error in the configuration or in a file that it names.
const CONFIG_CODE: i32 = 78;

/// Runs a command, which must exit with `code` and print each of `words` once to standard error. This output must not
/// contain internals of the program.
fn check(home: &Home, args: &[&str], code: i32, words: &[&str]) -> Result<()> {
    let output = home.output(args)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let context = || format!("{args:?}: {}: {stderr}", output.status);
    ensure!(output.status.code() == Some(code), context());
    for word in words {
        ensure!(stderr.matches(word).count() == 1, "{}\nmust contain this once: {word}", context());
    }
    for inside in ["panicked", "backtrace", ".rs:", "Error("] {
        ensure!(!stderr.contains(inside), context());
    }
    Ok(())
}

fn make_pipe(home: &Home, name: &str) -> Result<()> {
    let status = std::process::Command::new("mkfifo").arg(home.path(name)).status()?;
    ensure!(status.success(), "mkfifo failed: {status}");
    Ok(())
}

const RUN_ONCE: &[&str] = &["--log", "warn", "run", "--once"];

#[test]
fn invalid_arguments_are_usage_errors() -> Result<()> {
    let home = Home::new(&[], tally::CONFIG)?;
    check(&home, &[], USAGE_CODE, &["Usage:"])?;
    check(&home, &["nonsense"], USAGE_CODE, &["unrecognized subcommand 'nonsense'"])?;
    check(&home, &["run", "--strict"], USAGE_CODE, &["required", "  --once"])?;
    check(&home, &["run", "a", "b"], USAGE_CODE, &["unexpected argument 'b'"])?;
    check(&home, &["keys", "why", "cases"], USAGE_CODE, &["  <KEY>"])?;
    check(
        &home,
        &["keys", "list", "cases", "--status", "odd"],
        USAGE_CODE,
        &["invalid value 'odd'", "[possible values: active, waiting, retrying, parked, completed]"],
    )?;
    check(
        &home,
        &["dead", "show", "cases", "odd"],
        USAGE_CODE,
        &["like 3-b05cb4f9ec0b9b83", "`ordain dead list cases`"],
    )?;
    check(
        &home,
        &["dead", "show", "cases", "7-b05cb4f9ec0b9b83"],
        FAILURE_CODE,
        &["stream cases has no dead letter 7-b05cb4f9ec0b9b83 without a key: "],
    )?;
    check(&home, &["generate", "--loss", "3"], USAGE_CODE, &["a probability from 0 to 1"])?;
    check(&home, &["--log", "!", "run"], USAGE_CODE, &["try `--log info`"])
}

/// Another program may write the file of a secret only some time after the start of the machine. So the exit code for a
/// missing file must be 75, with which a supervisor starts the process again.
#[test]
fn missing_file_of_secret_is_temporary() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let password = home.path("redis-password");
    let url = format!("redis://:${{file:{}}}@127.0.0.1:1", password.display());
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let config = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n{config}");
    home.write("ordain.toml", &config)?;
    let words = ["ordain.toml:3: store.url: ", "redis-password: No such file"];
    check(&home, &["run"], UNAVAILABLE_CODE, &words)?;
    check(&home, &["check"], UNAVAILABLE_CODE, &words)?;
    check(&home, &["keys", "list", "cases"], UNAVAILABLE_CODE, &words)?;
    check(&home, RUN_ONCE, UNAVAILABLE_CODE, &words)?;
    home.write(
        "ordain.toml",
        config.replace("kind = \"redis\"\n", "kind = \"redis\"\nshards = 0\n"),
    )?;
    check(
        &home,
        &["run"],
        CONFIG_CODE,
        &["redis-password: No such file", "store.shards: must be between"],
    )?;
    home.write("ordain.toml", config.replace("/redis-password", "/"))?;
    check(&home, &["run"], CONFIG_CODE, &["is not a regular file"])?;
    home.write("ordain.toml", &config)?;
    home.write("redis-password", "secret\n")?;
    check(&home, &["check"], SUCCESS_CODE, &[])
}

/// A program that replaces the file of a secret may first truncate the file, or remove the target of a link for a
/// moment. The exit code must be 75 during the replacement.
#[test]
fn file_of_secret_during_its_replacement_is_temporary() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    std::os::unix::fs::symlink("secret.new", home.path("secret"))?;
    let variable = format!("${{file:{}}}", home.path("secret").display());
    let broker = format!("[broker]\nurl = \"amqp://shop:{variable}@127.0.0.1:1\"\n");
    let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"{variable}\"\n");
    for (setting, table) in [("broker.url", broker), ("admin.token", admin)] {
        home.write("ordain.toml", format!("{table}{}", tally::CONFIG))?;
        check(&home, &["check"], UNAVAILABLE_CODE, &[setting, "secret: No such file"])?;
        for empty in ["", "\n"] {
            home.write("secret.new", empty)?;
            for args in [RUN_ONCE, &["check"]] {
                check(&home, args, UNAVAILABLE_CODE, &[setting, "secret is empty"])?;
            }
        }
        home.write("secret.new", "0123456789abcdef\n")?;
        check(&home, &["check"], SUCCESS_CODE, &[])?;
        std::fs::remove_file(home.path("secret.new"))?;
    }
    Ok(())
}

/// The path of the configuration can lead through a link to a disk that is not mounted yet. The file can be empty
/// because a program that replaces the file first truncates it. In both cases, the exit code must be 75. If the file is
/// missing and its path contains no link, the exit code must be 78.
#[test]
fn configuration_during_its_replacement_is_temporary() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let config = home.read("ordain.toml");
    std::fs::remove_file(home.path("ordain.toml"))?;
    check(&home, RUN_ONCE, CONFIG_CODE, &["ordain.toml: cannot be read: No such file"])?;
    std::os::unix::fs::symlink("volume/ordain.toml", home.path("ordain.toml"))?;
    std::os::unix::fs::symlink("volume", home.path("linked"))?;
    let list = &["keys", "list", "cases", "--config", "linked/ordain.toml"];
    let plugins = &["plugins", "check", "plugins/tally.wasm"];
    for args in [RUN_ONCE, &["check"], list, plugins] {
        check(&home, args, UNAVAILABLE_CODE, &["ordain.toml: leads through a link", "is mounted"])?;
    }
    std::fs::create_dir(home.path("volume"))?;
    std::fs::write(home.path("volume/ordain.toml"), "")?;
    for args in [RUN_ONCE, &["check"], list, plugins] {
        check(
            &home,
            args,
            UNAVAILABLE_CODE,
            &["ordain.toml: is empty: write at least one stream"],
        )?;
    }
    home.write("volume/ordain.toml", config)?;
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])
}

#[test]
fn all_configuration_errors_are_reported_at_once() -> Result<()> {
    let home = Home::new(&[], tally::CONFIG)?;
    check(
        &home,
        &["run", "absent.toml"],
        CONFIG_CODE,
        &["absent.toml: cannot be read: No such file", "name the file with --config FILE"],
    )?;
    check(&home, &["run", "plugins"], CONFIG_CODE, &["plugins: is not a file"])?;
    let bad = r#"
[runtime]
workers = 0
wrong = 1

[streams.cases]
handler = "tally"
ordering = "sorted"
source = { kind = "file", path = "events.ndjson" }
retry = { attempts = 2, backoff = "10ms..1ms" }
"#;
    home.write("bad.toml", bad)?;
    let errors = [
        "bad.toml:3: runtime.workers: must be between 1 and",
        "bad.toml:4: runtime: unknown setting `wrong`; known here: workers",
        "bad.toml:8: streams.cases.ordering: expected \"sequenced\" or \"fifo\", found \"sorted\"",
        "bad.toml:10: streams.cases.retry.backoff: expected a range",
    ];
    check(&home, &["run", "bad.toml"], CONFIG_CODE, &errors)?;
    check(&home, &["check", "bad.toml"], CONFIG_CODE, &errors)?;
    check(&home, &["keys", "list", "cases", "--config", "bad.toml"], CONFIG_CODE, &errors)
}

#[test]
fn file_that_is_no_handler_is_refused() -> Result<()> {
    let home = Home::new(&[], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let handler = "ordain.toml:3: streams.cases.handler:";
    check(
        &home,
        RUN_ONCE,
        CONFIG_CODE,
        &[handler, "there is no tally.wasm or tally@<version>.wasm"],
    )?;
    let none: [(&[u8], &str); 4] = [
        (b"no wasm at all", "is no WebAssembly"),
        (b"", "is empty"),
        (b"\0asm\x01\0\0\0", "is a core module, not a component"),
        (EMPTY, "does not export `ordain:handler/handler@"),
    ];
    for (bytes, words) in none {
        home.write("plugins/tally.wasm", bytes)?;
        for args in [RUN_ONCE, &["check"]] {
            check(&home, args, CONFIG_CODE, &["plugins/tally.wasm: ", words])?;
        }
    }
    std::fs::remove_file(home.path("plugins/tally.wasm"))?;
    make_pipe(&home, "plugins/tally.wasm")?;
    check(&home, RUN_ONCE, CONFIG_CODE, &["plugins/tally.wasm: is not a regular file"])?;
    std::fs::remove_file(home.path("plugins/tally.wasm"))?;
    // None of the refused starts may have created a store or an output file.
    ensure!(
        !home.path("ordain-data").exists() && !home.path("out.ndjson").exists(),
        "a refused start created a file"
    );
    home.write("plugins/tally.wasm", guest("puppet")?)?;
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])?;
    std::fs::remove_dir_all(home.path("plugins"))?;
    check(
        &home,
        RUN_ONCE,
        UNAVAILABLE_CODE,
        &["plugins.dir: the folder plugins cannot be read", "Create it"],
    )
}

#[test]
fn strict_run_fails_on_dead_letters_and_held_events() -> Result<()> {
    let strict = &["--log", "warn", "run", "--once", "--strict"];
    for (events, held) in [
        ("no JSON\n".to_owned(), false),
        (line("k", 2, &json!({})), true),
        (format!("{}\n{}", line("k", 1, &json!(1)), line("k", 1, &json!(2))), false),
    ] {
        let home = Home::new(&["tally"], tally::CONFIG)?;
        home.write("events.ndjson", &events)?;
        check(&home, RUN_ONCE, SUCCESS_CODE, &["dead letters"])?;
        let code = if held { FAILURE_CODE } else { SUCCESS_CODE };
        check(&home, strict, code, &["dead letters"])?;
        std::fs::remove_dir_all(home.path("ordain-data"))?;
        check(&home, strict, FAILURE_CODE, &["dead letters"])?;
    }
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(3, 3).join("\n"))?;
    check(&home, strict, SUCCESS_CODE, &["settled with effect             9"])
}

#[test]
fn store_of_another_process_is_unavailable() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(1, 1).join("\n") + "\n")?;
    let mut service = Service::start(&home, &["run"])?;
    service.until("a message", || home.lines("out.ndjson") == 1)?;
    let holder = format!("process {} has the store in ordain-data open", service.id());
    check(&home, RUN_ONCE, UNAVAILABLE_CODE, &[&holder, "stop it first", "a folder of its own"])?;
    // A link to the folder leads to the same store.
    std::os::unix::fs::symlink("ordain-data", home.path("link"))?;
    let store = "[store]\nkind = \"embedded\"\npath = \"link\"\n";
    home.write("linked.toml", format!("{store}{}", tally::CONFIG))?;
    let holder = format!("process {} has the store in ", service.id());
    let linked = &["--log", "warn", "run", "--once", "linked.toml"];
    check(&home, linked, UNAVAILABLE_CODE, &[&holder])?;
    service.kill()?;
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])
}

#[test]
fn missing_key_or_stream_is_an_error() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(1, 1).join("\n"))?;
    home.run_once()?;
    let stream = "stream \"odd\" does not exist, neither in ordain.toml nor in its store; \
                  existing streams: cases";
    check(&home, &["keys", "list", "odd"], FAILURE_CODE, &[stream])?;
    check(&home, &["keys", "why", "odd", "k0"], FAILURE_CODE, &[stream])?;
    check(&home, &["dead", "list", "odd"], FAILURE_CODE, &[stream])?;
    check(
        &home,
        &["keys", "why", "cases", "odd"],
        FAILURE_CODE,
        &["\"odd\" of stream cases was never"],
    )?;
    check(&home, &["dead", "show", "cases", "1-1"], FAILURE_CODE, &["has no dead letter 1-1"])
}

#[test]
fn unusable_files_are_refused() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let source = "ordain.toml:4: streams.cases.source.path:";
    check(
        &home,
        RUN_ONCE,
        UNAVAILABLE_CODE,
        &[source, "events.ndjson cannot be read: No such file"],
    )?;
    std::fs::create_dir(home.path("events.ndjson"))?;
    check(
        &home,
        RUN_ONCE,
        CONFIG_CODE,
        &[source, "events.ndjson is not a regular file", "path = \"-\""],
    )?;
    home.write("ordain.toml", tally::CONFIG.replace("events.ndjson", "/dev/zero"))?;
    check(&home, RUN_ONCE, CONFIG_CODE, &[source, "/dev/zero is not a regular file"])?;

    std::fs::remove_dir(home.path("events.ndjson"))?;
    home.write("events.ndjson", in_turn(1, 1).join("\n"))?;
    make_pipe(&home, "pipe")?;
    for (sink, code, what) in [
        ("absent/out.ndjson", UNAVAILABLE_CODE, "cannot be written:"),
        ("ordain.toml/out", CONFIG_CODE, "cannot be written:"),
        ("plugins", CONFIG_CODE, "is not a regular file"),
        ("pipe", CONFIG_CODE, "is not a regular file"),
        ("/dev/null", CONFIG_CODE, "is not a regular file"),
    ] {
        home.write("ordain.toml", tally::CONFIG.replace("out.ndjson", sink))?;
        check(&home, RUN_ONCE, code, &["ordain.toml:8: sinks.tally.path:", what, "Use a "])?;
    }
    home.write("ordain.toml", tally::CONFIG)?;
    let report = home.run_once()?;
    assert_eq!(report["settled"], 1, "refused runs must not consume events");
    Ok(())
}

/// If the file of the source or the folder of the sink is missing, the host must end with the exit code 75. A
/// supervisor then starts the host again, because the cause may be a disk that is not mounted yet.
#[test]
fn missing_files_of_a_service_are_unavailable() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let service = &["--log", "warn", "run"];
    check(&home, service, UNAVAILABLE_CODE, &["events.ndjson cannot be read: No such file"])?;
    std::fs::create_dir(home.path("events.ndjson"))?;
    check(&home, service, CONFIG_CODE, &["events.ndjson is not a regular file"])?;
    std::fs::remove_dir(home.path("events.ndjson"))?;
    home.write("events.ndjson", "")?;
    for (sink, code) in [("absent/out.ndjson", UNAVAILABLE_CODE), ("ordain.toml/out", CONFIG_CODE)]
    {
        home.write("ordain.toml", tally::CONFIG.replace("out.ndjson", sink))?;
        check(&home, service, code, &["sinks.tally.path:", "cannot be written:"])?;
    }
    Ok(())
}

/// Starts the host through another program. Returns the exit code and the log of the host.
fn run_by(home: &Home, by: &[&str], args: &[&str]) -> Result<(Option<i32>, String)> {
    let by: Vec<String> = by.iter().map(|part| (*part).to_owned()).collect();
    let mut service = Service::start_by(home, &by, args)?;
    let status = service.wait()?;
    Ok((status.code(), service.stderr()))
}

/// Starts the host with limits of the shell, such as `ulimit -n 16`. Returns the exit code and the log of the host.
fn limited(home: &Home, limits: &str, args: &[&str]) -> Result<(Option<i32>, String)> {
    run_by(home, &["sh", "-c", &format!("{limits}; exec \"$0\" \"$@\"")], args)
}

/// Starts the host in a mount namespace of its own, in which a folder of the home is on a read-only file system.
/// Returns the exit code and the log of the host.
fn with_read_only(home: &Home, folder: &str, args: &[&str]) -> Result<(Option<i32>, String)> {
    let mount = format!(
        "mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec \"$0\" \"$@\""
    );
    run_by(home, &["unshare", "-m", "sh", "-c", &mount], args)
}

/// A file system may be read-only for a while, for example after an error of its disk. So the exit code must be 75.
#[test]
fn read_only_file_system_is_unavailable() -> Result<()> {
    let config = tally::CONFIG.replace("out.ndjson", "out/out.ndjson");
    let store = "[store]\nkind = \"embedded\"\npath = \"volume/store\"\n";
    let home = Home::new(&["tally"], &format!("{store}{config}"))?;
    for folder in ["volume", "out"] {
        std::fs::create_dir(home.path(folder))?;
    }
    let lines = in_turn(2, 4);
    // The first round creates the store and the file of the sink. In the second round, the store and the file exist
    // already.
    for part in lines.chunks(4) {
        home.write("more.ndjson", part.join("\n") + "\n")?;
        let events = home.read("events.ndjson") + &home.read("more.ndjson");
        home.write("events.ndjson", events)?;
        for (folder, words) in [("volume", "volume/store"), ("out", "sinks.tally.path: out/out.")] {
            let (code, log) = with_read_only(&home, folder, RUN_ONCE)?;
            ensure!(code == Some(UNAVAILABLE_CODE), "{folder}: {code:?}: {log}");
            ensure!(log.contains("Read-only file system") && log.contains(words), "{log}");
        }
        check(&home, RUN_ONCE, SUCCESS_CODE, &[])?;
    }
    tally::check(&by_key(&lines)?, &home.read("out/out.ndjson"))
}

/// Starts the host in a mount namespace of its own, in which the folder `volume` is on a disk with only `free` KiB of
/// free space. Returns the exit code and the log of the host.
fn with_full_disk(home: &Home, free: u32, args: &[&str]) -> Result<(Option<i32>, String)> {
    let mount = format!(
        "mount -t tmpfs -o size=64m none volume && {{ cat /dev/zero >volume/filler 2>/dev/null; \
         truncate -s -{free}K volume/filler; }} && exec \"$0\" \"$@\""
    );
    run_by(home, &["unshare", "-m", "sh", "-c", &mount], args)
}

/// The disk is already full when the host starts. The error must name the reason and the next step. The exit code must
/// never report an error of the configuration.
#[test]
fn full_disk_at_a_start_is_unavailable() -> Result<()> {
    const FULL: &str = "No space left on device";
    let store = "[store]\nkind = \"embedded\"\npath = \"volume/store\"\n";
    let home = Home::new(&["tally"], &format!("{store}{}", tally::CONFIG))?;
    std::fs::create_dir(home.path("volume"))?;
    let lines = in_turn(1, 1);
    home.write("events.ndjson", lines.join("\n") + "\n")?;
    // A new store needs more space at each of these starts than the disk has.
    for free in [0, 4, 16] {
        let (code, log) = with_full_disk(&home, free, RUN_ONCE)?;
        ensure!(code == Some(UNAVAILABLE_CODE), "{free} KiB: {code:?}: {log}");
        ensure!(log.contains(FULL) && log.contains("volume/store"), "{free} KiB: {log}");
    }
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// Each run has another limit on open files, so the host reaches the limit at different steps of its start. The host
/// must never report an error of the configuration, because the configuration is right.
#[test]
fn too_many_open_files_are_no_error_of_the_configuration() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(1, 1).join("\n") + "\n")?;
    let mut steps = std::collections::BTreeSet::new();
    for files in 6..=20 {
        let (code, log) = limited(&home, &format!("ulimit -n {files}"), RUN_ONCE)?;
        // With fewer than 12 files, the host reaches the limit before it opens its store.
        let is_allowed = [Some(SUCCESS_CODE), Some(UNAVAILABLE_CODE)].contains(&code)
            || files >= 12 && code == Some(FAILURE_CODE);
        let is_named = code == Some(SUCCESS_CODE) || log.contains("Too many open files");
        ensure!(is_allowed && is_named, "{files}: {code:?}: {log}");
        ensure!(!log.contains("Create it"), "the folder of the handlers exists: {log}");
        steps.extend(log.lines().last().map(|line| line.chars().take(30).collect::<String>()));
    }
    ensure!(steps.len() > 3, "{steps:?}");
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])
}

#[test]
fn folder_of_the_store_on_an_unmounted_disk_is_unavailable() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    std::os::unix::fs::symlink("volume/data", home.path("ordain-data"))?;
    check(&home, RUN_ONCE, UNAVAILABLE_CODE, &["leads through a link", "is mounted"])?;
    let store = "[store]\nkind = \"embedded\"\npath = \"ordain-data/inner/store\"\n";
    home.write("inner.toml", format!("{store}{}", tally::CONFIG))?;
    let inner = &["--log", "warn", "run", "--once", "inner.toml"];
    check(&home, inner, UNAVAILABLE_CODE, &["leads through a link", "is mounted"])?;
    // The root of a new volume contains the folder `lost+found` of the file system, so the host must accept this
    // folder.
    std::fs::create_dir_all(home.path("volume/data/lost+found"))?;
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])?;
    check(&home, RUN_ONCE, SUCCESS_CODE, &[])
}

#[test]
fn run_once_with_an_endless_source_is_refused() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let source = r#"{ kind = "file", path = "events.ndjson" }"#;
    let queue = tally::CONFIG.replace(source, r#"{ kind = "amqp", queue = "cases" }"#);
    home.write("ordain.toml", format!("{queue}[broker]\nurl = \"amqp://127.0.0.1:1\"\n"))?;
    let words = ["ordain.toml:4: streams.cases.source: a queue has no end", "run without --once"];
    check(&home, RUN_ONCE, CONFIG_CODE, &words)
}

#[test]
fn one_file_under_two_names_is_refused() -> Result<()> {
    let second = "[sinks.other]\nkind = \"file\"\npath = \"other.ndjson\"\n";
    let home = Home::new(&["tally"], &format!("{}{second}", tally::CONFIG))?;
    let events = in_turn(1, 1).join("\n") + "\n";
    home.write("events.ndjson", &events)?;
    std::os::unix::fs::symlink("events.ndjson", home.path("out.ndjson"))?;
    let input = "is the same file as streams.cases.source.path: the source would read the sink's messages without end";
    check(&home, RUN_ONCE, CONFIG_CODE, &["ordain.toml:8: sinks.tally.path: out.ndjson", input])?;
    std::fs::remove_file(home.path("out.ndjson"))?;
    std::fs::hard_link(home.path("events.ndjson"), home.path("out.ndjson"))?;
    check(&home, RUN_ONCE, CONFIG_CODE, &[input])?;
    std::fs::remove_file(home.path("out.ndjson"))?;
    assert_eq!(home.read("events.ndjson"), events);

    // The link and its target are one file, which does not exist. Both commands must refuse it, and create no file.
    std::os::unix::fs::symlink("other.ndjson", home.path("out.ndjson"))?;
    let words = ["sinks.tally.path: out.ndjson", "as sinks.other.path: each sink needs its own"];
    check(&home, &["check"], CONFIG_CODE, &words)?;
    check(&home, RUN_ONCE, CONFIG_CODE, &words)?;
    home.write("ordain.toml", tally::CONFIG.to_owned() + &second.replace("other.n", "./new.n"))?;
    home.write("ordain.toml", home.read("ordain.toml").replace("out.n", "plugins/../new.n"))?;
    let words = ["tally.path: plugins/../new.ndjson", "as sinks.other.path: each sink needs its"];
    check(&home, &["check"], CONFIG_CODE, &words)?;
    check(&home, RUN_ONCE, CONFIG_CODE, &words)?;
    ensure!(!home.path("other.ndjson").exists() && !home.path("new.ndjson").exists());
    Ok(())
}

#[test]
fn damaged_store_is_refused() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(2, 5).join("\n"))?;
    home.write("ordain-data", "")?;
    check(
        &home,
        RUN_ONCE,
        CONFIG_CODE,
        &["the store's path ordain-data is a file", "must be a folder"],
    )?;
    std::fs::remove_file(home.path("ordain-data"))?;
    home.run_once()?;
    for (file, words) in [
        ("ordain.store", "was not written by Ordain"),
        ("data/0.jnl", "the store has lost commits"),
        ("data/keyspaces/1/v0", "is damaged"),
    ] {
        let path = home.path("ordain-data").join(file);
        let whole = std::fs::read(&path).with_context(|| file.to_owned())?;
        std::fs::write(&path, &whole[..10])?;
        check(&home, RUN_ONCE, CONFIG_CODE, &[words, "from a backup"])?;
        std::fs::write(&path, whole)?;
    }
    let report = home.run_once()?;
    assert_eq!(report["delivered"], 0, "a refused start must not change the store");
    Ok(())
}
