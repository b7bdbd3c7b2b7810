//! Tests of signals. The first signal must end a run cleanly, and the second signal must end the run immediately. In
//! both cases, no event may be lost or take effect twice.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

const QUEUE: &str = "kind = \"amqp\", exchange = \"cases\", queue = \"cases\"";

/// Returns a configuration with the handler `faulty`, which does not return from an event with the command `loop`.
/// `timeout` is the timeout of the handler, and `grace` is the time for which a shutdown waits for the handler.
fn stuck(timeout: &str, grace: &str) -> String {
    format!(
        r#"
[runtime]
shutdown_grace = "{grace}"

[plugins]
timeout = "{timeout}"

[streams.cases]
handler = "faulty"
source = {{ kind = "file", path = "events.ndjson" }}
retry = {{ attempts = 1 }}

[sinks.faulty]
kind = "file"
path = "out.ndjson"
"#
    )
}

#[test]
fn interrupted_run_ends_in_order_and_resumes() -> Result<()> {
    let lines = in_turn(100, 600);
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", lines.join("\n") + "\n")?;
    // The test counts the events that take effect, not the deliveries. A run may settle an event before an earlier
    // event of the file has started. The next run then receives the settled event again, and recognises it as a repeat.
    let mut rounds = 0;
    let mut settled = 0;
    for signal in ["TERM", "INT"].into_iter().cycle() {
        let before = home.lines("out.ndjson");
        if before == lines.len() {
            break;
        }
        let mut service = Service::start(&home, &["--log", "warn", "run", "--json"])?;
        service.until("a message", || home.lines("out.ndjson") > before)?;
        service.signal(signal)?;
        let status = service.wait()?;
        ensure!(status.code() == Some(0), "{status} after SIG{signal}: {}", service.stderr());
        let report: Value = serde_json::from_str(&service.stdout())?;
        settled += report["settled"].as_u64().unwrap_or_default();
        rounds += 1;
    }
    println!("{rounds} rounds");
    ensure!(rounds > 1, "the first run was not interrupted");
    ensure!(settled == lines.len() as u64, "{settled} events were settled, not {}", lines.len());
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    let report = home.run_once()?;
    assert_eq!(report["delivered"], 0);
    Ok(())
}

/// Signals other than SIGTERM and SIGINT that end a process by default must also cause a clean shutdown. If a signal
/// does not request the end of the service, the exit code must be 75, with which a supervisor starts the process again.
#[test]
fn other_signals_cause_a_clean_shutdown() -> Result<()> {
    let lines = in_turn(50, 200);
    for (signal, code) in [
        ("QUIT", 0),
        ("HUP", 75),
        ("USR1", 75),
        ("USR2", 75),
        ("ALRM", 75),
        ("VTALRM", 75),
        ("PROF", 75),
        ("XCPU", 75),
        ("PWR", 75),
        ("RTMIN", 75),
    ] {
        let home = Home::new(&["tally"], tally::CONFIG)?;
        home.write("events.ndjson", text(&lines))?;
        let mut service = Service::start(&home, &["run", "--json"])?;
        service.until("a message", || home.lines("out.ndjson") > 0)?;
        service.signal(signal)?;
        let status = service.wait()?;
        ensure!(status.code() == Some(code), "{status} after SIG{signal}: {}", service.stderr());
        let report: Value = serde_json::from_str(&service.stdout())?;
        ensure!(report["settled"] == home.lines("out.ndjson"), "SIG{signal}: {report}");
        home.run_once()?;
        tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    }
    Ok(())
}

/// `nohup` and shells can start a process in such a way that it ignores some signals. The process must not handle these
/// signals.
#[test]
fn signals_that_were_ignored_at_the_start_stay_ignored() -> Result<()> {
    let trap = |signals: &str| {
        ["sh", "-c", &format!("trap '' {signals}; exec \"$0\" \"$@\"")].map(str::to_owned).to_vec()
    };
    for (by, signals) in [
        (vec!["nohup".to_owned()], vec!["HUP"]),
        (trap("HUP USR1 ALRM"), vec!["HUP", "USR1", "ALRM"]),
        (trap("QUIT PWR"), vec!["QUIT", "PWR"]),
    ] {
        let home = Home::new(&["tally"], tally::CONFIG)?;
        let lines = in_turn(2, 2);
        home.write("events.ndjson", text(&lines[..2]))?;
        let mut service = Service::start_by(&home, &by, &["run"])?;
        service.until("the first messages", || home.lines("out.ndjson") == 2)?;
        for signal in signals {
            service.signal(signal)?;
        }
        home.append("events.ndjson", text(&lines[2..]))?;
        service.until("all messages", || home.lines("out.ndjson") == 4)?;
        ensure!(!service.stderr().contains("shutting down"), "{}", service.stderr());
        service.end()?;
    }
    Ok(())
}

/// The operating system sends the signal SIGXFSZ to a process whose write exceeds the limit on the size of files. By
/// default, this signal ends the process. The host must instead report the error of the write.
#[test]
fn file_size_limit_is_reported_as_an_error() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", text(&in_turn(1, 1)))?;
    // A first run compiles the handler, before the size of files is limited.
    home.run_once()?;
    std::fs::remove_dir_all(home.path("ordain-data"))?;
    let by = ["sh", "-c", "ulimit -f 1; exec \"$0\" \"$@\""].map(str::to_owned);
    let mut service = Service::start_by(&home, &by, &["run"])?;
    let status = service.wait()?;
    let log = service.stderr();
    ensure!(status.code() == Some(75) && log.contains("File too large"), "{status}: {log}");
    Ok(())
}

/// Starts a service with two keys. The handler does not return from the first event of one key, and executes the two
/// events of the other key. Waits until the messages of these two events are in the output.
fn start_with_stuck_key(home: &Home) -> Result<Service> {
    let lines = [
        line("stuck", 1, &json!({ "do": "loop" })),
        line("stuck", 2, &json!({ "do": "emit" })),
        line("fine", 1, &json!({ "do": "emit" })),
        line("fine", 2, &json!({ "do": "emit" })),
    ];
    home.write("events.ndjson", lines.join("\n") + "\n")?;
    let mut service = Service::start(home, &["run"])?;
    service.until("the messages of the other key", || home.lines("out.ndjson") == 2)?;
    Ok(service)
}

/// Checks that the next run still has every event. In this run, a short timeout stops the handler call that does not
/// return.
fn expect_next_run_completes(home: &Home) -> Result<()> {
    home.write("ordain.toml", stuck("100ms", "30s"))?;
    home.run_once()?;
    ensure!(home.lines("out.ndjson") == 2, "{}", home.read("out.ndjson"));
    let parked = home.rows(&["keys", "list", "cases", "--status", "parked", "--json"])?;
    ensure!(parked.len() == 1 && parked[0]["key"] == "stuck", "{parked:?}");
    ensure!(parked[0]["held"]["count"] == 2, "{parked:?}");
    Ok(())
}

#[test]
fn second_signal_ends_immediately() -> Result<()> {
    for (first, second) in
        [("TERM", "TERM"), ("INT", "TERM"), ("TERM", "INT"), ("HUP", "TERM"), ("TERM", "QUIT")]
    {
        let home = Home::new(&["faulty"], &stuck("1h", "1h"))?;
        let mut service = start_with_stuck_key(&home)?;
        service.signal(first)?;
        let words = "a second signal ends the process now";
        service.until(words, || home.read("stderr").contains(words))?;
        // Terminals and some supervisors send SIGHUP in addition to another signal.
        service.signal("HUP")?;
        service.signal(second)?;
        let status = service.wait()?;
        ensure!(status.code() == Some(1), "{status}, by signal {:?}", status.signal());
        expect_next_run_completes(&home)?;
    }
    Ok(())
}

#[test]
fn elapsed_shutdown_grace_ends_the_process() -> Result<()> {
    let home = Home::new(&["faulty"], &stuck("1h", "100ms"))?;
    let mut service = start_with_stuck_key(&home)?;
    service.signal("TERM")?;
    let status = service.wait()?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(service.stderr().contains("`runtime.shutdown_grace` elapsed"), "{}", service.stderr());
    expect_next_run_completes(&home)
}

#[test]
fn signal_ends_run_once() -> Result<()> {
    let home = Home::new(&["faulty"], &stuck("300ms", "30s"))?;
    let lines = [line("k", 1, &json!({ "do": "loop" })), line("k", 2, &json!({ "do": "emit" }))];
    home.write("events.ndjson", lines.join("\n"))?;
    let mut service = Service::start(&home, &["run", "--once", "--json"])?;
    service.until("the opened store", || service_is_up(&home))?;
    service.signal("INT")?;
    let status = service.wait()?;
    ensure!(status.code() == Some(0), "{status}: {}", service.stderr());
    let report: Value = serde_json::from_str(&service.stdout())?;
    ensure!(report["settled"] == 0, "{report}");
    Ok(())
}

#[test]
fn shutdown_does_not_wait_for_a_broker() -> Result<()> {
    let config = tally::CONFIG.replace("kind = \"file\", path = \"events.ndjson\"", QUEUE);
    let home = Home::new(&["tally"], &format!("[broker]\nurl = \"amqp://127.0.0.1:1\"\n{config}"))?;
    let mut service = Service::start(&home, &["run"])?;
    service.until_says("broker unavailable")?;
    // The signal must end the starting process cleanly. Without the signal, the start would fail after its time limit
    // for the broker.
    service.end()
}

#[test]
fn shutdown_does_not_wait_for_the_compiler() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", in_turn(1, 1).join("\n"))?;
    let mut service = Service::start(&home, &["run", "--json"])?;
    let words = "loading handler";
    service.until(words, || home.read("stderr").contains(words))?;
    service.end()?;
    ensure!(!home.path("ordain-data").exists(), "the process opened the store");
    Ok(())
}

/// Returns whether the process has opened the store. A process that has opened the store has compiled the handlers, and
/// handles signals.
fn service_is_up(home: &Home) -> bool {
    home.read("stderr").contains("embedded store:")
}
