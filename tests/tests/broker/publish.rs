//! Tests of `ordain publish` and of the library `ordain_publisher`. The store assigns numbers to the events. If the
//! command runs again, it must not publish an event a second time.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use ordain_publisher::{Error as PublishError, Event, Publisher, Receipt};
use ordain_servers::{Mode, Proxy, Redis, send_signal, wait_until};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, line, text, unnumbered};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};

/// Starts Redis, and creates a rig whose stream has four partitions and keeps its data in this Redis. Does not start
/// the host.
fn rig(stream: &str) -> Result<(Redis, Rig)> {
    let redis = Redis::start(&[])?;
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"", redis.url());
    let rig = Rig::with(&store, stream, "partitions = 4")?;
    Ok((redis, rig))
}

/// Runs `ordain publish cases`, which must succeed. Returns its report in JSON.
fn publish(rig: &Rig, args: &[&str]) -> Result<Value> {
    let args = [&["publish", "cases"], args, &["--json"]].concat();
    let mut rows = rig.home.rows(&args)?;
    ensure!(rows.len() == 1, "{rows:?}");
    Ok(rows.remove(0))
}

/// Runs `ordain publish`, which must fail. Returns its exit code and its log.
fn publish_refused(rig: &Rig, args: &[&str]) -> Result<(i32, String)> {
    let output = rig.home.output(&[&["publish"], args].concat())?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "{args:?}: {log}");
    Ok((output.status.code().context("a code")?, log))
}

#[test]
fn file_without_numbers_is_published_once() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let lines = in_turn(40, 60);
    rig.home.write("events.ndjson", text(&unnumbered(&lines)?))?;
    // No host of the stream has run yet, so the command declares the queues.
    let done = publish(&rig, &["events.ndjson"])?;
    ensure!(done == json!({"published": 2_400, "known": 0, "lines_before": 0}), "{done}");
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.check(&lines)?;
    // A second run must publish nothing. After lines were appended, the next run must continue after the last published
    // line.
    let done = publish(&rig, &["events.ndjson"])?;
    ensure!(done == json!({"published": 0, "known": 0, "lines_before": 2_400}), "{done}");
    let more = in_turn(40, 70);
    rig.home.write("events.ndjson", text(&unnumbered(&more)?))?;
    let done = publish(&rig, &["events.ndjson"])?;
    ensure!(done == json!({"published": 400, "known": 0, "lines_before": 2_400}), "{done}");
    // The command must recognise the events in a file with another name by their ids.
    rig.home.write("copy.ndjson", text(&unnumbered(&more)?))?;
    let done = publish(&rig, &["copy.ndjson"])?;
    ensure!(done == json!({"published": 0, "known": 2_800, "lines_before": 0}), "{done}");
    let mut out = Vec::new();
    rig.take(&mut out, 400)?;
    rig.until_empty()?;
    service.end()?;
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(rows.len() == 40 && rows.iter().all(|row| row["next"] == 71), "{rows:?}");
    ensure!(rig.home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    Ok(())
}

/// The test kills the command several times and runs it again. Each event must get one number and take effect once.
#[test]
fn killed_command_resumes_without_duplicates() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let lines = in_turn(50, 400);
    rig.home.write("events.ndjson", text(&unnumbered(&lines)?))?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let mut kills = 0;
    for wait in [20, 40, 60, 90, 130, 180] {
        let mut publishing = rig.home.ordain(&["publish", "cases", "events.ndjson"])?.spawn()?;
        std::thread::sleep(std::time::Duration::from_millis(wait));
        kills += usize::from(publishing.try_wait()?.is_none());
        publishing.kill()?;
        publishing.wait()?;
    }
    ensure!(kills >= 2, "only {kills} runs were killed");
    publish(&rig, &["events.ndjson"])?;
    let mut out = Vec::new();
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    service.end()?;
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(rows.len() == 50 && rows.iter().all(|row| row["next"] == 401), "{rows:?}");
    Ok(())
}

/// Command-line options describe one event. The command must publish a repeated event only once, must refuse another
/// event with the same id or sequence, and must accept the next sequence from the producer.
#[test]
fn single_event_is_published_once() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let one = |args: &[&str]| publish(&rig, args);
    let first = one(&["--key", "a", "--type", "test", "--data", "{\"n\":1}", "--id", "one"])?;
    ensure!(first == json!({"key": "a", "id": "one", "sequence": 1, "new": true}), "{first}");
    let again = one(&["--key", "a", "--type", "test", "--data", "{\"n\": 1}", "--id", "one"])?;
    ensure!(again == json!({"key": "a", "id": "one", "sequence": 1, "new": false}), "{again}");
    let second = one(&["--key", "a", "--type", "test"])?;
    ensure!(second["sequence"] == 2 && second["id"].as_str().is_some_and(|id| id.len() == 32));
    let own = one(&["--key", "a", "--type", "test", "--sequence", "3", "--end"])?;
    ensure!(own["sequence"] == 3 && own["new"] == true, "{own}");

    let other = ["cases", "--key", "a", "--type", "test", "--data", "{\"n\":2}", "--id", "one"];
    let (code, words) = publish_refused(&rig, &other)?;
    ensure!(
        code == 1 && words.contains("the id \"one\" of key \"a\"") && words.contains("sequence 1")
    );
    let taken = ["cases", "--key", "a", "--type", "other", "--sequence", "2"];
    let (code, words) = publish_refused(&rig, &taken)?;
    ensure!(code == 1 && words.contains("sequence 2 of key \"a\""), "{words}");
    let (code, words) =
        publish_refused(&rig, &["cases", "--key", "a", "--type", "x", "--data", "{"])?;
    ensure!(code == 1 && words.contains("is not JSON"), "{words}");
    let (code, words) = publish_refused(&rig, &["case", "--key", "a", "--type", "x"])?;
    ensure!(code == 78 && words.contains("its streams are: cases"), "{words}");
    ensure!(publish_refused(&rig, &["cases", "--key", "a"])?.0 == 2);
    ensure!(publish_refused(&rig, &["cases"])?.0 == 2);

    let mut service = Service::start(&rig.home, &["run"])?;
    let mut out = Vec::new();
    rig.take(&mut out, 3)?;
    rig.until_empty()?;
    service.end()?;
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(
        rows.len() == 1 && rows[0]["next"] == 4 && rows[0]["status"] == "completed",
        "{rows:?}"
    );
    Ok(())
}

/// A producer that numbers its events publishes them to the exchange, without the store. If the store numbered later
/// events of the same keys, it would assign the producer's numbers a second time. The command and the library must
/// therefore refuse events without numbers for these keys, and must name the next number of the key.
#[test]
fn unnumbered_event_of_a_key_with_numbers_of_a_producer_is_refused() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(2, 3);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    // The new event has the same data as the producer's first event, or other data.
    for data in ["{\"n\":1}", "{\"n\":9}"] {
        let (code, words) =
            publish_refused(&rig, &["cases", "--key", "k0", "--type", "test", "--data", data])?;
        let is_named = words.contains("sequence 4") && words.contains("\"k0\"");
        ensure!(code == 1 && is_named, "{words}");
    }
    // If a file contains an event without a number for such a key, the command must refuse this event, but publish the
    // events of other keys.
    let file = [line("k1", 4, &json!({ "n": 4 })), line("k2", 1, &json!({ "n": 1 }))];
    rig.home.write("events.ndjson", text(&unnumbered(&file)?))?;
    let (code, words) = publish_refused(&rig, &["cases", "events.ndjson"])?;
    ensure!(code == 1 && words.contains("line 1") && words.contains("sequence 4"), "{words}");
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let config = rig.home.path("ordain.toml");
        let mut publisher = Publisher::open(&config, "cases").await?;
        let event = Event::json("k0", "test", &json!({ "n": 5 }))?;
        match publisher.publish(&[event]).await {
            Err(PublishError::Event { at: 0, words }) => {
                ensure!(words.contains("sequence 4"), "{words}");
            }
            other => bail!("{other:?}"),
        }
        anyhow::Ok(publisher.close().await?)
    })?;

    // The command must publish the event if the user gives the event the next number of its key. The store must then
    // number the following event.
    let data = "{\"n\":4}";
    let own = publish(
        &rig,
        &["--key", "k0", "--type", "test", "--data", data, "--id", "k0-4", "--sequence", "4"],
    )?;
    ensure!(own["sequence"] == 4 && own["new"] == true, "{own}");
    let next = publish(&rig, &["--key", "k0", "--type", "test", "--data", "{\"n\":5}"])?;
    ensure!(next["sequence"] == 5, "{next}");
    rig.until_empty()?;
    service.end()?;
    ensure!(rig.home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    let next = |key: &str| rows.iter().find(|row| row["key"] == key).map(|row| row["next"].clone());
    ensure!(next("k0") == Some(6.into()) && next("k1") == Some(4.into()), "{rows:?}");
    ensure!(next("k2") == Some(2.into()), "{rows:?}");
    Ok(())
}

/// A stream executes events that a producer has numbered in a file. Then the source of the stream becomes its queue in
/// the store. The command must refuse an event without a number, because the store would give it the number of an
/// executed event. If the user numbers the first event, the command must publish this event and number the later
/// events.
#[test]
fn unnumbered_event_after_a_change_of_the_source_is_refused() -> Result<()> {
    let home = Home::new(&["tally"], tally::CONFIG)?;
    let lines = in_turn(1, 5);
    home.write("events.ndjson", text(&lines[..3]))?;
    home.run_once()?;
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let config = tally::CONFIG.replace(source, "source = { kind = \"stream\" }");
    home.write("ordain.toml", config)?;

    let rest = unnumbered(&lines[3..])?;
    home.write("rest.ndjson", text(&rest))?;
    let output = home.output(&["publish", "cases", "rest.ndjson"])?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
    for words in ["line 1", "\"k0\"", "with the sequence 4", "`ordain keys why cases k0"] {
        ensure!(log.contains(words), "{words}: {log}");
    }
    // The first event has its number, and the next event has no number.
    home.write("numbered.ndjson", text(&[lines[3].clone(), rest[1].clone()]))?;
    let rows = home.rows(&["publish", "cases", "numbered.ndjson", "--json"])?;
    ensure!(rows[0]["published"] == 2, "{rows:?}");
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))?;
    ensure!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty(), "there are dead letters");
    Ok(())
}

/// For a while, a proxy closes each connection instead of passing a reply of the broker. A publisher that starts
/// meanwhile must wait, and must publish when the proxy passes replies again.
#[test]
fn publisher_waits_for_its_broker() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let proxy = Proxy::start(rig.rabbit.port())?;
    let settings = rig.home.read("ordain.toml");
    let url = rig.rabbit.url();
    ensure!(settings.contains(&url), "{settings}");
    rig.home.write("ordain.toml", settings.replace(&url, &rig.rabbit.url_at(proxy.port())))?;
    proxy.set(Mode::CutReplies)?;
    let config = rig.home.path("ordain.toml");
    std::thread::scope(|scope| -> Result<()> {
        let opening = scope.spawn(|| -> Result<Vec<Receipt>> {
            tokio::runtime::Runtime::new()?.block_on(async {
                let mut publisher = Publisher::open(&config, "cases").await?;
                let event = Event::json("a", "test", &json!({ "n": 1 }))?.id("a-1");
                let receipts = publisher.publish(&[event]).await?;
                publisher.close().await?;
                Ok(receipts)
            })
        });
        wait_until("several attempts", || Ok(proxy.counts().replies_lost >= 3))?;
        ensure!(!opening.is_finished(), "the publisher did not wait");
        proxy.set(Mode::Pass)?;
        let receipts = opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(receipts == [Receipt { sequence: Some(1), is_new: true }], "{receipts:?}");
        Ok(())
    })
}

/// The command must stop at an invalid line, after it has published all earlier lines. After a correction of the line,
/// the next run must continue at this line.
#[test]
fn invalid_line_stops_command_until_corrected() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let mut lines = unnumbered(&in_turn(10, 30))?;
    let right = std::mem::replace(&mut lines[200], "{\"specversion\":\"1.0\"}".into());
    rig.home.write("events.ndjson", text(&lines))?;
    let output = rig.home.output(&["publish", "cases", "events.ndjson", "--json"])?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && words.contains("line 201"), "{words}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(report == json!({"published": 200, "known": 0, "lines_before": 0}), "{report}");
    let no_key: Value = serde_json::from_str(&right)?;
    lines[200] = right.replace(&format!("\"subject\":{}", no_key["subject"]), "\"subject2\":\"x\"");
    rig.home.write("events.ndjson", text(&lines))?;
    let (code, words) = publish_refused(&rig, &["cases", "events.ndjson"])?;
    ensure!(code == 1 && words.contains("line 201") && words.contains("subject"), "{words}");
    // The command must publish the events that precede a conflicting event in the file, and must report them as
    // published.
    let known: Value = serde_json::from_str(&lines[0])?;
    let conflict = json!({"specversion": "1.0", "id": known["id"], "source": known["source"],
        "type": "other", "subject": known["subject"]});
    let more = [right.clone(), conflict.to_string()];
    rig.home.write("more.ndjson", text(&more))?;
    let output = rig.home.output(&["publish", "cases", "more.ndjson", "--json"])?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(report == json!({"published": 1, "known": 0, "lines_before": 0}), "{report}");
    lines[200] = right;
    rig.home.write("events.ndjson", text(&lines))?;
    let done = publish(&rig, &["events.ndjson"])?;
    ensure!(done == json!({"published": 99, "known": 1, "lines_before": 200}), "{done}");
    let (code, words) = publish_refused(&rig, &["cases", "nothing.ndjson"])?;
    ensure!(code == 1 && words.contains("nothing.ndjson"), "{words}");
    Ok(())
}

/// A stream with `key_ttl` can forget a key whose numbers the store would continue. The command must refuse an event
/// without a number, and must accept the event if it has a number, or if the stream has no `key_ttl`.
#[test]
fn unnumbered_event_of_a_stream_that_forgets_keys_is_refused() -> Result<()> {
    let config = |key_ttl: &str| {
        format!(
            "[streams.cases]\nhandler = \"tally\"\n{key_ttl}\nsource = {{ kind = \"stream\" }}\n\
             [sinks.tally]\nkind = \"file\"\npath = \"out.ndjson\"\n"
        )
    };
    let home = Home::new(&["tally"], &config("key_ttl = \"1h\""))?;
    let event = ["publish", "cases", "--key", "a", "--type", "t"];
    let output = home.output(&event)?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {log}", output.status);
    for words in ["streams.cases.key_ttl can remove a key", "Set key_ttl to \"off\""] {
        ensure!(log.contains(words), "{words}: {log}");
    }
    let printed = home.printed(&[&event[..], &["--sequence", "1"]].concat())?;
    ensure!(printed.contains("published: key a, sequence 1"), "{printed}");
    home.write("ordain.toml", config(""))?;
    let printed = home.printed(&event)?;
    ensure!(printed.contains("published: key a, sequence 2"), "{printed}");
    Ok(())
}

/// A `fifo` stream numbers its events itself, so the producer's events need only ids. The events of each key must stay
/// in order.
#[test]
fn fifo_events_need_ids_but_no_sequences() -> Result<()> {
    let (_redis, rig) = rig("ordering = \"fifo\"")?;
    let lines = in_turn(20, 50);
    rig.home.write("events.ndjson", text(&unnumbered(&lines)?))?;
    let done = publish(&rig, &["events.ndjson"])?;
    ensure!(done["published"] == 1_000, "{done}");
    rig.home.write("copy.ndjson", text(&unnumbered(&lines)?))?;
    publish(&rig, &["copy.ndjson"])?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let rows = rig.home.rows(&["keys", "list", "cases", "--json"])?;
    ensure!(rows.len() == 20 && rows.iter().all(|row| row["next"] == 51), "{rows:?}");
    Ok(())
}

/// The events of the stream wait in a queue in the store. The command must publish events until the queue is full, and
/// must publish the other events after the stream has executed events of the queue.
#[test]
fn full_queue_accepts_rest_after_run() -> Result<()> {
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    ensure!(tally::CONFIG.contains(source));
    let config = tally::CONFIG.replace(source, "source = { kind = \"stream\", queue = 300 }");
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(20, 100);
    home.write("events.ndjson", text(&unnumbered(&lines)?))?;
    let mut runs = 0;
    loop {
        let output = home.output(&["publish", "cases", "events.ndjson"])?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            break;
        }
        ensure!(
            output.status.code() == Some(75)
                && words.contains("has reached the limit `source.queue`"),
            "{words}"
        );
        home.run_once()?;
        runs += 1;
        ensure!(runs < 20, "{words}");
    }
    ensure!(runs > 1, "the queue was full {runs} times");
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// The queue of a stream is full and rejects new messages (`reject-publish`). An operator then removes the limit of the
/// queue, and no process reads the queue. RabbitMQ continues to reject the messages of the present channel. The command
/// must nevertheless publish all events.
#[test]
fn events_for_a_queue_whose_limit_is_removed_are_published() -> Result<()> {
    let rig = Rig::new()?;
    // The broker informs the channel of the full queue only after it has accepted more than two events.
    let lines = in_turn(10, 500);
    rig.home.write("events.ndjson", text(&lines[..1]))?;
    // The command declares the queue.
    publish(&rig, &["events.ndjson"])?;
    rig.rabbit.set_policy("^cases$", r#"{"max-length": 2, "overflow": "reject-publish"}"#)?;
    rig.home.write("events.ndjson", text(&lines))?;
    let mut publishing = Service::start(&rig.home, &["publish", "cases", "events.ndjson"])?;
    publishing.until_says("events not accepted by the broker")?;
    rig.rabbit.clear_policy()?;
    let status = publishing.wait()?;
    ensure!(status.success(), "{status}: {}", publishing.stderr());
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.check(&lines)?;
    service.end()
}

/// The command must read lines as a file source does: it skips blanks before, after and between events, and counts
/// blank lines as published together with the event before them.
#[test]
fn blank_lines_are_skipped() -> Result<()> {
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let config = tally::CONFIG.replace(source, "source = { kind = \"stream\" }");
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(3, 4);
    let blanks = ["\u{feff}", " \t \n", "\0\0\0", "\n\u{a0}\n", "\u{feff}\r\n"];
    let numbered = unnumbered(&lines)?;
    let line = |(line, blank): (&String, &&str)| format!("{blank}{line}\n");
    let mut text: String = numbered.iter().zip(blanks.iter().cycle()).map(line).collect();
    text.push_str(" \n\0");
    home.write("events.ndjson", &text)?;
    let rows = home.rows(&["publish", "cases", "events.ndjson", "--json"])?;
    ensure!(rows[0]["published"] == 12 && rows[0]["known"] == 0, "{rows:?}");
    let before = text.matches('\n').count();
    let rows = home.rows(&["publish", "cases", "events.ndjson", "--json"])?;
    ensure!(rows[0]["published"] == 0 && rows[0]["lines_before"] == before, "{rows:?}");
    home.append("events.ndjson", "\nno event\n")?;
    let output = home.output(&["publish", "cases", "events.ndjson"])?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(words.contains(&format!("line {} of", before + 2)), "{words}");
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// A signal must end the command between two batches, even if the signal does not request the end of the process. The
/// next run must publish the rest, and each event must take effect once.
#[test]
fn signal_ends_command_between_batches() -> Result<()> {
    check_signal("TERM", 15)?;
    check_signal("HUP", 1)
}

/// Sends a signal to the command while it publishes. `number` is the number of the signal.
fn check_signal(name: &str, number: u32) -> Result<()> {
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let config = tally::CONFIG.replace(source, "source = { kind = \"stream\" }");
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(3, 40);
    let numbered = unnumbered(&lines)?;
    let mut command = home.ordain(&["publish", "cases", "-", "--json"])?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut publishing = command.spawn()?;
    let mut input = publishing.stdin.take().context("standard input is no pipe")?;
    input.write_all(text(&numbered[..60]).as_bytes())?;
    // The input stays open, so the command waits for more lines. Bit 0 of the mask stands for signal 1. The command
    // handles the signal as soon as its bit is set.
    let status = format!("/proc/{}/status", publishing.id());
    wait_until("a handler of the signal", || {
        let status = fs::read_to_string(&status)?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = u64::from_str_radix(mask.context("a mask")?.trim(), 16)?;
        Ok(mask & (1 << (number - 1)) != 0)
    })?;
    send_signal(publishing.id(), name)?;
    let output = publishing.wait_with_output()?;
    drop(input);
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(75), "{}: {words}", output.status);
    ensure!(
        words.contains(&format!("-: stopped by SIG{name} before the end; run the command again")),
        "{words}"
    );
    let published = |report: &Value| report["published"].as_u64().context("a number");
    // The signal may arrive before the command has published the lines.
    let report = if output.stdout.is_empty() {
        json!({ "published": 0 })
    } else {
        serde_json::from_slice(&output.stdout)?
    };
    let first = published(&report)?;
    home.write("events.ndjson", text(&numbered))?;
    let rows = home.rows(&["publish", "cases", "events.ndjson", "--json"])?;
    ensure!(rows[0]["known"] == first, "{report}, {rows:?}");
    ensure!(published(&rows[0])? + first == lines.len() as u64, "{report}, {rows:?}");
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// Log rotation renames the file between two runs of the command. The next run must first publish the rest of each
/// older file, in order. A blank rest must not stop the command. An incomplete last line must stop the command until
/// the line is complete.
#[test]
fn rests_of_rotated_files_are_published_first() -> Result<()> {
    const LIVE_FILE: &str = "events.ndjson";
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let config = tally::CONFIG.replace(source, "source = { kind = \"stream\" }");
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(2, 10);
    let numbered = unnumbered(&lines)?;
    let publish = || home.rows(&["publish", "cases", LIVE_FILE, "--json"]);
    home.write(LIVE_FILE, text(&numbered[..3]))?;
    ensure!(publish()?[0]["published"] == 3);
    // The file is rotated twice between two runs.
    home.append(LIVE_FILE, text(&numbered[3..5]))?;
    fs::rename(home.path(LIVE_FILE), home.path("events.ndjson.2"))?;
    home.write("events.ndjson.1", text(&numbered[5..9]))?;
    home.write(LIVE_FILE, text(&numbered[9..12]))?;
    let rows = publish()?;
    ensure!(rows[0]["published"] == 9 && rows[0]["known"] == 0, "{rows:?}");
    // The rest of the older file is one empty line.
    home.append(LIVE_FILE, "\n")?;
    fs::rename(home.path(LIVE_FILE), home.path("events.ndjson-20260101"))?;
    home.write(LIVE_FILE, text(&numbered[12..14]))?;
    let rows = publish()?;
    ensure!(rows[0]["published"] == 2 && rows[0]["known"] == 0, "{rows:?}");
    // The file is renamed, and its rest is empty. The new file is empty too.
    fs::rename(home.path(LIVE_FILE), home.path("events.ndjson-20260102"))?;
    home.write(LIVE_FILE, "")?;
    ensure!(publish()?[0]["published"] == 0);
    home.append(LIVE_FILE, text(&numbered[14..15]))?;
    // The last line of the older file is incomplete.
    let (half, rest) = numbered[15].split_at(20);
    home.append(LIVE_FILE, half)?;
    fs::rename(home.path(LIVE_FILE), home.path("events.ndjson-20260103"))?;
    home.write(LIVE_FILE, text(&numbered[16..]))?;
    let output = home.output(&["publish", "cases", LIVE_FILE])?;
    let words = String::from_utf8_lossy(&output.stderr);
    let is_named = words.contains("line 2 of") && words.contains("events.ndjson-20260103");
    ensure!(output.status.code() == Some(1) && is_named, "{words}");
    let counts = String::from_utf8_lossy(&output.stdout);
    ensure!(counts == "published 1 event into cases\n", "{counts}");
    home.append("events.ndjson-20260103", rest)?;
    let rows = publish()?;
    ensure!(rows[0]["published"] == 5 && rows[0]["known"] == 0, "{rows:?}");
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// A file is moved out of its folder before the command has published its last lines. The next run must publish a new
/// file at the path. If the old file returns under the name of a rotated file, the following run must publish the rest
/// of the old file.
#[test]
fn rest_of_returned_file_is_published() -> Result<()> {
    const LIVE_FILE: &str = "events.ndjson";
    let source = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let config = tally::CONFIG.replace(source, "source = { kind = \"stream\" }");
    let home = Home::new(&["tally"], &config)?;
    let of_key =
        |key: &str| -> Vec<String> { (1..=5).map(|n| line(key, n, &json!({ "n": n }))).collect() };
    let lines = [of_key("k0"), of_key("k1")].concat();
    let [old, new] = [unnumbered(&lines[..5])?, unnumbered(&lines[5..])?];
    let publish = || -> Result<Value> {
        let mut rows = home.rows(&["publish", "cases", LIVE_FILE, "--json"])?;
        ensure!(rows.len() == 1, "{rows:?}");
        Ok(rows.remove(0))
    };
    home.write(LIVE_FILE, text(&old[..3]))?;
    ensure!(publish()?["published"] == 3);
    home.append(LIVE_FILE, text(&old[3..]))?;
    fs::create_dir(home.path("away"))?;
    fs::rename(home.path(LIVE_FILE), home.path("away/old"))?;
    home.write(LIVE_FILE, text(&new[..2]))?;
    let done = publish()?;
    ensure!(done == json!({"published": 2, "known": 0, "lines_before": 0}), "{done}");

    fs::rename(home.path("away/old"), home.path("events.ndjson.1"))?;
    home.append(LIVE_FILE, text(&new[2..4]))?;
    let done = publish()?;
    ensure!(done == json!({"published": 4, "known": 0, "lines_before": 5}), "{done}");
    // The previous run has published the old file to its end, so the next run does not read the old file.
    home.append(LIVE_FILE, text(&new[4..]))?;
    let done = publish()?;
    ensure!(done == json!({"published": 1, "known": 0, "lines_before": 4}), "{done}");
    home.run_once()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// If another process has the store open, the error of the command must name the store. If the broker does not run, the
/// error must name the broker.
#[test]
fn busy_store_and_missing_broker_are_named() -> Result<()> {
    let rig = Rig::with_private_broker("", "", "")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let (code, words) = publish_refused(&rig, &["cases", "--key", "a", "--type", "x"])?;
    ensure!(code == 75 && words.contains("has the store") && words.contains("redis"), "{words}");
    service.end()?;
    let done = publish(&rig, &["--key", "a", "--type", "x"])?;
    ensure!(done["sequence"] == 1, "{done}");
    rig.rabbit.stop()?;
    let (code, words) = publish_refused(&rig, &["cases", "--key", "a", "--type", "x"])?;
    ensure!(code == 75 && words.contains("amqp://"), "{words}");
    Ok(())
}

/// A program that uses the library `ordain_publisher` must get the same guarantees as a user of the command.
#[test]
fn library_publishes_like_command() -> Result<()> {
    let (_redis, rig) = rig("")?;
    let config = rig.home.path("ordain.toml");
    let event = |key: &str, n: u64| -> Result<Event> {
        Ok(Event::json(key, "test", &json!({ "n": n }))?.id(format!("{key}-{n}")))
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let numbers = |receipts: &[Receipt]| -> Vec<(Option<u64>, bool)> {
        receipts.iter().map(|receipt| (receipt.sequence, receipt.is_new)).collect()
    };
    runtime.block_on(async {
        let mut publisher = Publisher::open(&config, "cases").await?;
        let events = [event("a", 1)?, event("b", 1)?, event("a", 2)?];
        let receipts = publisher.publish(&events).await?;
        let right = [(Some(1), true), (Some(1), true), (Some(2), true)];
        ensure!(numbers(&receipts) == right, "{receipts:?}");
        publisher.close().await?;

        // A new publisher does not know the events of the first publisher, so the store must recognise them.
        let mut publisher = Publisher::open(&config, "cases").await?;
        let receipts = publisher.publish(&[event("a", 2)?, event("a", 3)?]).await?;
        ensure!(numbers(&receipts) == [(Some(2), false), (Some(3), true)], "{receipts:?}");
        let other = Event::json("a", "test", &json!({ "n": 0 }))?.id("a-3");
        match publisher.publish(&[event("b", 2)?, other]).await {
            Err(PublishError::Event { at: 1, words }) => {
                ensure!(words.contains("sequence 3"), "{words}");
            }
            other => bail!("{other:?}"),
        }
        match publisher.publish(&[event("b", 3)?, event("", 1)?]).await {
            Err(PublishError::Event { at: 1, words }) => {
                ensure!(words.contains("no key"), "{words}");
            }
            other => bail!("{other:?}"),
        }
        publisher.close().await?;
        let none = Publisher::open(&config, "case").await.err();
        ensure!(matches!(none, Some(PublishError::Configuration(_))), "{none:?}");
        anyhow::Ok(())
    })?;
    // In each call with a wrong event, the publisher has published the event that precedes the wrong event.
    let lines: Vec<String> = [("a", 3), ("b", 3)]
        .into_iter()
        .flat_map(|(key, last)| (1..=last).map(move |n| (key, n)))
        .map(|(key, n)| line(key, n, &json!({ "n": n })))
        .collect();
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()
}
