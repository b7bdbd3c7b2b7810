//! Tests of streams that receive events only over HTTP.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ordain_servers::{Options, Proxy, Redis};
use ordain_tests::host::{Home, copy_folder};
use ordain_tests::http;
use ordain_tests::incident::records;
use ordain_tests::log::{by_key, in_turn, line, text};
use ordain_tests::service::{Service, wait_until};
use ordain_tests::tally;
use serde_json::{Value, json};

use super::support::{
    BATCH_TYPE, EVENT_TYPE, LINES_TYPE, ingress, metric, post, post_with, printed,
};

fn config(sections: &str, stream: &str) -> String {
    format!(
        "{sections}\n[ingress]\nlisten = \"127.0.0.1:0\"\n[streams.cases]\nhandler = \"tally\"\n{stream}\n\
         [sinks.tally]\nkind = \"file\"\npath = \"out.ndjson\"\n"
    )
}

const SOURCE: &str = "source = { kind = \"http\" }";

/// Posts an event of the key `k` as a single event. Returns the status and the details of the answer.
fn post_number(address: SocketAddr, key: &str, sequence: u64) -> Result<(u16, String)> {
    let answer = post(address, EVENT_TYPE, &line(key, sequence, &json!({ "n": sequence })))?;
    let details = if answer.status == 202 { String::new() } else { answer.json()?.to_string() };
    Ok((answer.status, details))
}

/// A producer numbers its events by time. If a key could never reach the sequence of its first event, Ordain must
/// refuse this event, and must name the sequence, the limit, and the right form. Ordain stores nothing of such a
/// request. `store` contains the section `[store]` of the configuration.
fn expect_refusal_of_unreachable_sequences(store: &str) -> Result<()> {
    let home = Home::new(&["tally"], &config(store, SOURCE).replace("out.ndjson", "-"))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let (status, details) = post_number(address, "time", 1_764_072_000_000_000)?;
    ensure!(status == 400, "{details}");
    for words in [
        "1 of 1 events are invalid",
        "sequence 1764072000000000 cannot be right",
        "begin at 1 (`first`)",
        "`gap.max_width` allows at most 10001",
    ] {
        ensure!(details.contains(words), "{words}: {details}");
    }
    // The host refuses the whole request because of one invalid event, so it does not store the valid event of the
    // other key. A later event with the sequence of the valid event, but other content, is therefore no conflict.
    let event = |key, sequence, data| line(key, sequence, &json!({ "n": data }));
    let mixed = text(&[event("right", 1, 1), event("wrong", 10_002, 1)]);
    let answer = post(address, LINES_TYPE, &mixed)?;
    let errors = answer.json()?["errors"].clone();
    ensure!(answer.status == 400 && errors.as_array().map(Vec::len) == Some(1), "{answer:?}");
    ensure!(errors[0]["line"] == 2 && errors[0]["key"] == "wrong", "{errors}");
    ensure!(errors[0]["sequence"] == 10_002, "{errors}");
    ensure!(post(address, EVENT_TYPE, &event("right", 1, 2))?.status == 202);
    // A sequence that equals the limit is valid. For a key that has events, every sequence is valid.
    ensure!(post_number(address, "limit", 10_001)?.0 == 202);
    ensure!(post_number(address, "limit", 30_000)?.0 == 202);
    let both = text(&[event("both", 40_000, 1), event("both", 1, 1)]);
    ensure!(post(address, LINES_TYPE, &both)?.status == 202);
    service.until("both effects", || home.lines("stdout") == 2)?;
    service.end()?;
    // Another process knows the keys from the store.
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    ensure!(post_number(address, "right", 20_000)?.0 == 202);
    ensure!(post_number(address, "limit", 30_001)?.0 == 202);
    ensure!(post_number(address, "time", 1_764_072_000_000_001)?.0 == 400);
    ensure!(post_number(address, "time", 1)?.0 == 202);
    ensure!(post_number(address, "time", 1_764_072_000_000_002)?.0 == 202);
    service.until("the effect", || home.lines("stdout") == 1)?;
    service.end()
}

#[test]
fn unreachable_sequence_of_a_new_key_is_refused() -> Result<()> {
    expect_refusal_of_unreachable_sequences("")
}

#[test]
fn unreachable_sequence_of_a_new_key_is_refused_over_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    expect_refusal_of_unreachable_sequences(&format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    ))
}

/// If a key skips missing events, its first sequence may be up to 100 times `gap.max_width`. In two other cases, every
/// sequence can be valid: a replay server may have the earlier events, or the store has a key record although no event
/// of the key arrived over HTTP.
#[test]
fn reachable_sequence_of_a_new_key_is_accepted() -> Result<()> {
    for (gap, sequence, status) in [
        ("max_width = 100, on_exhausted = \"skip\"", 10_001, 202),
        ("max_width = 100, on_exhausted = \"skip\"", 10_002, 400),
        ("max_width = 100, on_exhausted = \"wait\"", 102, 400),
        ("max_width = 100, replay = [\"http://127.0.0.1:1/{key}/{sequence}\"]", 10_000_000, 202),
    ] {
        let home = Home::new(&["tally"], &config("", &format!("{SOURCE}\ngap = {{ {gap} }}")))?;
        let mut service = Service::start(&home, &["run"])?;
        let address = ingress(&mut service)?;
        let (found, details) = post_number(address, "k", sequence)?;
        ensure!(found == status, "{gap} {sequence}: {found} {details}");
        service.end()?;
    }
    Ok(())
}

/// A stream first reads a file, and then receives events over HTTP. Its keys have key records, so high sequences can be
/// valid.
#[test]
fn high_sequence_of_a_key_from_a_file_is_accepted() -> Result<()> {
    let file = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let home = Home::new(&["tally"], &config("", file))?;
    home.write("events.ndjson", text(&[line("k", 1, &json!({ "n": 1 }))]))?;
    home.run_once()?;
    home.write("ordain.toml", config("", SOURCE))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    ensure!(post_number(address, "k", 1_000_000)?.0 == 202);
    ensure!(post_number(address, "other", 1_000_000)?.0 == 400);
    service.end()
}

#[test]
fn events_in_all_forms_take_effect_once() -> Result<()> {
    let home = Home::new(&["tally"], &config("", SOURCE))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(40, 10);
    let (first, rest) = lines.split_at(100);
    let (second, rest) = rest.split_at(100);
    let (third, fourth) = rest.split_at(10);
    // The test posts the second hundred events before the first hundred events.
    let answer = post(address, LINES_TYPE, &text(second))?;
    ensure!(answer.status == 202, "{answer:?}");
    let answer = post(address, BATCH_TYPE, &format!("[{}]", first.join(",")))?;
    ensure!(answer.status == 202, "{answer:?}");
    let events = answer.json()?["events"].as_array().context("events")?.clone();
    ensure!(
        events.len() == 100 && events[41] == json!({ "id": "k1-2", "sequence": 2 }),
        "{events:?}"
    );
    for line in third {
        ensure!(post(address, EVENT_TYPE, line)?.status == 202);
        ensure!(post(address, EVENT_TYPE, line)?.status == 202, "a repeated event was rejected");
    }
    for line in fourth {
        let event: Value = serde_json::from_str(line)?;
        let header = |name: &str| {
            let value = &event[name];
            let name = if name == "datacontenttype" {
                "content-type".into()
            } else {
                format!("ce-{name}")
            };
            format!("{name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        let names = ["specversion", "id", "source", "type", "subject", "sequence"];
        let headers: Vec<String> = names.map(header).into();
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let body = event["data"].to_string();
        let answer = post_with(address, "/v1/streams/cases/events", &headers, &body)?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    wait_until("the effects of all events", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn wrong_request_is_rejected_whole_with_reasons() -> Result<()> {
    let sections = "[runtime]\nevent_size = \"1KiB\"";
    let config_text =
        config(sections, SOURCE).replacen("[ingress]", "[ingress]\nrequest_size = \"4KiB\"", 1);
    let home = Home::new(&["tally"], &config_text)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(2, 2);
    let no_sequence = lines[1].replace("\"sequence\":1,", "");
    let body = format!("{}\n{no_sequence}\nnonsense\n", lines[0]);
    let answer = post(address, LINES_TYPE, &body)?;
    ensure!(
        answer.status == 400 && answer.problem()?.contains("2 of 3 events are invalid"),
        "{answer:?}"
    );
    let errors = answer.json()?["errors"].clone();
    ensure!(errors[0]["line"] == 2 && errors[0]["key"] == "k1", "{errors}");
    ensure!(
        errors[0]["detail"].as_str().is_some_and(|detail| detail.contains("no `sequence`")),
        "{errors}"
    );
    ensure!(errors[1]["line"] == 3, "{errors}");
    let large = lines[0].replace("\"n\":1", &format!("\"n\":\"{}\"", "x".repeat(2_000)));
    for (kind, body, status, words) in [
        ("text/plain", lines[0].as_str(), 415, "no CloudEvents"),
        (
            "application/x-www-form-urlencoded",
            &lines[0],
            415,
            "`curl -d` sends by default: add -H 'content-type: application/cloudevents+json'",
        ),
        (EVENT_TYPE, "{}", 400, "`specversion` is missing"),
        (EVENT_TYPE, "", 400, "the body is empty"),
        (EVENT_TYPE, "[]", 400, "use application/cloudevents-batch+json for an array"),
        (BATCH_TYPE, "{}", 400, "not a JSON array"),
        (EVENT_TYPE, &large, 400, "runtime.event_size allows 1024"),
        (LINES_TYPE, &(lines[0].clone() + &lines[1]), 400, "use `curl --data-binary`"),
        (LINES_TYPE, &"\n".repeat(5_000), 413, "ingress.request_size"),
    ] {
        let answer = post(address, kind, body)?;
        let details = format!("{} {}", answer.problem()?, answer.json()?["errors"]);
        ensure!(answer.status == status && details.contains(words), "{status} {words}: {answer:?}");
    }
    let headers = [&*format!("content-type: {EVENT_TYPE}"), "content-encoding: gzip"];
    let packed = post_with(address, "/v1/streams/cases/events", &headers, &lines[0])?;
    ensure!(packed.status == 415 && packed.problem()?.contains("compressed"), "{packed:?}");
    let packed = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: {EVENT_TYPE}\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    );
    ensure!(http::send(address, packed.as_bytes())?.status == 415, "gzip, chunked");
    let headers = ["content-type: application/json", "ce-id: 1", "ce-type: t"];
    let unversioned = post_with(address, "/v1/streams/cases/events", &headers, &lines[0])?;
    ensure!(
        unversioned.status == 400 && unversioned.problem()?.contains("ce-specversion"),
        "{unversioned:?}"
    );
    // With chunked encoding, the request does not announce the size of its body.
    let chunked = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: {LINES_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n1388\r\n{}\r\n0\r\n\r\n",
        "\n".repeat(5_000)
    );
    let answer = http::send(address, chunked.as_bytes())?;
    ensure!(answer.status == 413 && answer.problem()?.contains("request_size"), "{answer:?}");
    let other = post_with(
        address,
        "/v1/streams/others/events",
        &[&format!("content-type: {EVENT_TYPE}")],
        "",
    )?;
    ensure!(
        other.status == 404 && other.problem()?.contains("streams that accept them: cases"),
        "{other:?}"
    );
    ensure!(http::get(address, "/v1/streams/cases/events")?.status == 405);
    ensure!(http::get(address, "/")?.status == 404);
    // Posts an event, then another event with the same sequence, and then the two following events in reverse order.
    ensure!(post(address, EVENT_TYPE, &lines[0])?.status == 202);
    let other = lines[0].replace("\"n\":1", "\"n\":7");
    let answer = post(address, LINES_TYPE, &format!("{other}\n{}\n{}\n", lines[2], lines[1]))?;
    ensure!(answer.status == 409, "{answer:?}");
    let errors = answer.json()?["errors"].as_array().context("errors")?.clone();
    ensure!(errors.len() == 2 && errors[0]["line"] == 1 && errors[1]["line"] == 2, "{errors:?}");
    wait_until("two effects", || Ok(home.lines("out.ndjson") >= 2))?;
    service.end()?;
    ensure!(home.lines("out.ndjson") == 2, "{}", home.read("out.ndjson"));
    Ok(())
}

/// The test kills the host several times, and repeats each request until the host accepts the request. Each event must
/// take effect once.
#[test]
fn accepted_events_survive_crash() -> Result<()> {
    let home = Home::new(&["tally"], &config("", SOURCE))?;
    let lines = in_turn(20, 100);
    let mut service = Service::start(&home, &["run"])?;
    let mut address = ingress(&mut service)?;
    for (number, chunk) in lines.chunks(50).enumerate() {
        loop {
            if number % 7 == 3 {
                service.kill()?;
                service = Service::start(&home, &["run"])?;
                address = ingress(&mut service)?;
            }
            if post(address, LINES_TYPE, &text(chunk)).is_ok_and(|answer| answer.status == 202) {
                break;
            }
        }
        if number % 7 == 5 {
            service.kill()?;
            service = Service::start(&home, &["run"])?;
            address = ingress(&mut service)?;
        }
    }
    wait_until("the effects of all events", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

#[test]
fn full_queue_rejects_requests() -> Result<()> {
    // The host reads only a few events from the queue in advance, and spills none.
    let source = "spill_after = \"10m\"\nsource = { kind = \"http\", queue = 100, prefetch = 20 }";
    let home = Home::new(&["tally"], &config("", source))?;
    let plugin = home.path("plugins/tally.wasm");
    let aside = home.path("tally.wasm");
    let mut service = Service::start(&home, &["run"])?;
    let mut address = ingress(&mut service)?;
    let lines = in_turn(10, 50);
    // The running handler continues without its file. The queue becomes full because the test posts events faster than
    // the host executes them.
    std::fs::rename(&plugin, &aside)?;
    service.until_says("last file of a handler removed")?;
    let mut rejected = 0;
    for chunk in lines.chunks(40) {
        loop {
            let answer = post(address, LINES_TYPE, &text(chunk))?;
            if answer.status == 202 {
                break;
            }
            ensure!(answer.status == 429, "{answer:?}");
            ensure!(answer.head.contains("retry-after: 1"), "{answer:?}");
            ensure!(answer.problem()?.contains("source.queue"), "{answer:?}");
            rejected += 1;
            if aside.exists() {
                std::fs::rename(&aside, &plugin)?;
                service.kill()?;
                service = Service::start(&home, &["run"])?;
                address = ingress(&mut service)?;
            }
        }
    }
    ensure!(rejected > 0);
    wait_until("the effects of all events", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// The total size of the bodies of all requests in progress has a limit, and each request has a limit on the number of
/// its events.
#[test]
fn bodies_are_bounded() -> Result<()> {
    let bounds = "[ingress]\nrequest_size = \"1MiB\"\nin_flight = \"1MiB\"";
    let config_text = config("", SOURCE).replacen("[ingress]", bounds, 1);
    let home = Home::new(&["tally"], &config_text)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let begin = |length: &str| {
        format!(
            "POST /v1/streams/cases/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {LINES_TYPE}\r\n\
             {length}\r\n\r\n"
        )
    };
    let lines = in_turn(1, 1);
    // Bytes that the host has not received yet occupy no memory, even if a header announces them. Received bytes occupy
    // memory.
    let fill = |mut slow: TcpStream| -> Result<TcpStream> {
        slow.write_all(" ".repeat((1 << 20) - 10).as_bytes())?;
        Ok(slow)
    };
    let promise = || -> Result<TcpStream> {
        let mut slow = TcpStream::connect(address)?;
        slow.write_all(begin("content-length: 1048576").as_bytes())?;
        Ok(slow)
    };
    let mut slow = promise()?;
    ensure!(post(address, LINES_TYPE, &text(&lines))?.status == 202);
    wait_until("a full memory limit", || {
        // The ingress rejects the body that would exceed the limit: either the filled body or the posted body.
        let _filled = fill(std::mem::replace(&mut slow, promise()?))?;
        for _ in 0..20 {
            let answer = post(address, LINES_TYPE, &text(&lines))?;
            if answer.status != 202 {
                ensure!(answer.problem()?.contains("ingress.in_flight"), "{answer:?}");
                ensure!(answer.head.contains("retry-after: 1"), "{answer:?}");
                return Ok(answer.status == 429);
            }
        }
        Ok(false)
    })?;
    wait_until("free memory below the limit", || {
        Ok(post(address, LINES_TYPE, &text(&lines))?.status == 202)
    })?;
    let many = format!("[{}0]", "0,".repeat(10_000));
    // The last line has no line end, but must count towards the limit on the number of events too.
    let lines = format!("{}0", "0\n".repeat(10_000));
    for (kind, many) in [(BATCH_TYPE, many), (LINES_TYPE, lines)] {
        let answer = post(address, kind, &many)?;
        ensure!(answer.status == 413 && answer.problem()?.contains("10000 events"), "{answer:?}");
    }
    service.end()
}

/// Blank lines must not count towards the limit on the number of events in a request. A byte order mark must be blank
/// in every form of a request.
#[test]
fn blanks_of_a_body_are_skipped() -> Result<()> {
    let home = Home::new(&["tally"], &config("", SOURCE))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(50, 121);
    let blanks = ["\n", "\n \t \r\n\n", "\n\u{a0}\0\n\u{feff}"];
    let with_blanks = |lines: &[String]| {
        let line = |(line, blank): (&String, &&str)| format!("{line}{blank}");
        lines.iter().zip(blanks.iter().cycle()).map(line).collect::<String>()
    };
    let answer = post(address, LINES_TYPE, &with_blanks(&lines[..6_000]))?;
    ensure!(answer.status == 202, "{answer:?}");
    let answer =
        post(address, BATCH_TYPE, &format!("\u{feff}[{}]\n", lines[6_000..6_025].join(",")))?;
    ensure!(answer.status == 202, "{answer:?}");
    for line in &lines[6_025..] {
        let answer =
            post(address, "application/cloudevents+json", &format!("\u{feff} {line}\0\n"))?;
        ensure!(answer.status == 202, "{answer:?}");
    }
    let broken = format!("{}no event", with_blanks(&lines[..2]));
    let answer = post(address, LINES_TYPE, &broken)?;
    ensure!(answer.status == 400 && answer.problem()?.contains("1 of 3"), "{answer:?}");
    wait_until("the effects of all events", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    service.end()?;
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}

/// Two processes share one Redis. Each process must accept events of all keys, even if the other process owns the
/// partition of the key. One of the processes dies, and no event may be lost.
#[test]
fn processes_share_streams_of_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    let sections = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let source = "source = { kind = \"http\", partitions = 4 }";
    let config_text = config(&sections, source).replace("out.ndjson", "-");
    let homes = [Home::new(&["tally"], &config_text)?, Home::new(&["tally"], &config_text)?];
    let mut services = [Service::start(&homes[0], &["run"])?, Service::start(&homes[1], &["run"])?];
    let [one, other] = &mut services;
    let addresses = [ingress(one)?, ingress(other)?];
    let lines = in_turn(40, 30);
    for (at, chunk) in lines.chunks(50).enumerate() {
        let to = if at < 12 { addresses[at % 2] } else { addresses[1] };
        let answer = post(to, LINES_TYPE, &text(chunk))?;
        ensure!(answer.status == 202, "{answer:?}");
        if at == 11 {
            services[0].kill()?;
        }
    }
    wait_until("the effects of all events", || {
        Ok(printed(&services).lines().count() >= lines.len())
    })?;
    services[1].end()?;
    tally::check(&by_key(&lines)?, &printed(&services))
}

fn one_partition(redis: &Redis) -> String {
    let sections = format!(
        "[runtime]\nlease = \"2s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    );
    let source = "source = { kind = \"http\", partitions = 1 }";
    config(&sections, source).replace("out.ndjson", "-")
}

/// Posts 20 events, and waits until the services have printed the effects of these events.
fn execute_events(address: SocketAddr, services: &[Service]) -> Result<()> {
    let lines = in_turn(5, 4);
    ensure!(post(address, LINES_TYPE, &text(&lines))?.status == 202);
    wait_until("the effects of all events", || {
        let printed = services.iter().map(|service| service.stdout().lines().count());
        Ok(printed.sum::<usize>() >= lines.len())
    })
}

/// One of two hosts owns the partition when Redis loses everything. The other host must not create a new store in the
/// empty Redis: both hosts must end. A host that starts later must create a new store.
#[test]
fn emptied_redis_is_not_taken_over() -> Result<()> {
    let redis = Redis::start(&[])?;
    let config_text = one_partition(&redis);
    let homes = [Home::new(&["tally"], &config_text)?, Home::new(&["tally"], &config_text)?];
    let mut services = [Service::start(&homes[0], &["run"])?, Service::start(&homes[1], &["run"])?];
    for service in &mut services {
        http::ready(service)?;
    }
    execute_events(ingress(&mut services[0])?, &services)?;
    redis.command(&["FLUSHALL"])?;
    std::thread::scope(|scope| {
        let ends = services.each_mut().map(|service| {
            scope.spawn(move || {
                let address = ingress(service)?;
                post_until_end(service, address)
            })
        });
        ends.into_iter().try_for_each(|end| end.join().expect("no panic").map(drop))
    })?;
    let logs = services.each_ref().map(Service::stderr);
    ensure!(logs.iter().any(|log| log.contains("the store lost everything")), "{logs:?}");
    let mut service = Service::start(&homes[0], &["run"])?;
    service.until_says("created a new store at ")?;
    http::ready(&mut service)?;
    service.end()
}

/// One shard in Redis loses its data while no host runs. The next start must name this shard.
#[test]
fn lost_shard_is_named_at_the_start() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(&["tally"], &one_partition(&redis))?;
    let mut service = Service::start(&home, &["run"])?;
    http::ready(&mut service)?;
    execute_events(ingress(&mut service)?, std::slice::from_ref(&service))?;
    service.end()?;
    let mut service = Service::start(&home, &["run"])?;
    http::ready(&mut service)?;
    service.end()?;
    ensure!(!service.stderr().contains("WENT BACK"), "{}", service.stderr());
    redis.command(&["DEL", "ordain:{3}:data:cases"])?;
    let mut service = Service::start(&home, &["run"])?;
    service.until_says("THE STORE WENT BACK IN TIME: these shards have lost")?;
    ensure!(service.stderr().contains("shards=[3]"), "{}", service.stderr());
    http::ready(&mut service)?;
    service.end()
}

/// The time within which a host must stop accepting events after its store has lost everything, or after the store's
/// folder was removed. The documented limit is one second. A host that has lost its connection may stop up to a second
/// later, because it must reconnect first. The test allows another second for a busy machine.
const ACCEPT_LIMIT: Duration = Duration::from_secs(3);

/// Posts events, one after the other, until the host has ended. Returns the keys of the accepted events. The store of
/// the host has just lost everything, or the store's folder was removed. The host must therefore stop accepting events
/// within [`ACCEPT_LIMIT`], and must end with an error.
fn post_until_end(service: &mut Service, address: SocketAddr) -> Result<BTreeSet<String>> {
    let lost_at = Instant::now();
    let mut last_accepted = Duration::ZERO;
    let mut accepted = BTreeSet::new();
    for number in 0.. {
        if !service.is_running()? {
            break;
        }
        let key = format!("late{number}");
        let event = line(&key, 1, &json!({ "n": number }));
        let posted_at = lost_at.elapsed();
        if post(address, EVENT_TYPE, &event).is_ok_and(|answer| answer.status == 202) {
            last_accepted = posted_at;
            accepted.insert(key);
        }
        // Imitates the pace of a producer.
        sleep(Duration::from_millis(5));
    }
    ensure!(
        last_accepted < ACCEPT_LIMIT,
        "the host accepted an event {last_accepted:?} after the loss: {}",
        service.stderr()
    );
    ensure!(!service.wait()?.success(), "{}", service.stderr());
    Ok(accepted)
}

/// Waits until the events of these keys have taken effect. `out` returns the messages of the host.
fn until_effects(keys: &BTreeSet<String>, mut out: impl FnMut() -> String) -> Result<()> {
    wait_until("the effects of all accepted events", || {
        let printed = out();
        let messages = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let subjects =
            messages.map(|line| Ok(serde_json::from_str::<Value>(line)?["subject"].take()));
        let subjects: Vec<Value> = subjects.collect::<Result<_>>()?;
        let subjects: BTreeSet<&str> = subjects.iter().filter_map(Value::as_str).collect();
        Ok(keys.iter().all(|key| subjects.contains(&**key)))
    })
}

/// `empty` makes Redis lose all its data. Then a producer posts events. The host must stop accepting events within
/// [`ACCEPT_LIMIT`], and must then end with exit code 1 and state the reason. The events that the host accepted after
/// the loss are in the emptied Redis, and must take effect after the next start.
fn empty_redis(options: &Options, empty: impl FnOnce(&Redis) -> Result<()>) -> Result<()> {
    let redis = Redis::with(options)?;
    let home = Home::new(&["tally"], &one_partition(&redis))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    execute_events(address, std::slice::from_ref(&service))?;
    empty(&redis)?;
    let accepted = post_until_end(&mut service, address)?;
    let status = service.wait()?;
    let log = service.stderr();
    // The host detects the loss by a commit, or when it acquires its partition again.
    let is_explained = log.contains("the store went back in time in shard ")
        || log.contains("the store lost everything");
    ensure!(status.code() == Some(1) && is_explained, "{status}: {log}");
    let mut service = Service::start(&home, &["run"])?;
    service.until_says("created a new store at ")?;
    until_effects(&accepted, || service.stdout())?;
    service.end()
}

#[test]
fn host_that_finds_redis_empty_accepts_no_more_events() -> Result<()> {
    empty_redis(&Options::new(), |redis| redis.command(&["FLUSHALL"]).map(drop))
}

/// The server writes no data to its disk, so the server is empty after a crash and a start.
#[test]
fn host_whose_redis_restarts_without_data_accepts_no_more_events() -> Result<()> {
    empty_redis(&Options::new().without_persistence(), Redis::restart)
}

#[test]
fn host_whose_redis_evicts_all_keys_accepts_no_more_events() -> Result<()> {
    empty_redis(&Options::new(), |redis| {
        redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
        redis.command(&["CONFIG", "SET", "maxmemory", "1"])?;
        wait_until("an empty server", || Ok(redis.command(&["DBSIZE"])?.int() == Some(0)))?;
        let stats = redis.info("stats")?;
        let evicted = stats.get("evicted_keys").context("the number of evicted keys")?;
        ensure!(evicted != "0", "the server has evicted no key");
        redis.command(&["CONFIG", "SET", "maxmemory", "0"])?;
        // The next start refuses a server that may evict keys.
        redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).map(drop)
    })
}

/// An empty folder replaces the store's folder while the host runs. The host must stop accepting events within
/// [`ACCEPT_LIMIT`], and must then end. The events that the host accepted are in the old folder, and must take effect
/// after a start with that folder.
#[test]
fn host_whose_store_folder_is_replaced_accepts_no_more_events() -> Result<()> {
    let home = Home::new(&["tally"], &config("", SOURCE))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(5, 4);
    ensure!(post(address, LINES_TYPE, &text(&lines))?.status == 202);
    wait_until("the effects of all events", || Ok(home.lines("out.ndjson") >= lines.len()))?;
    let [store, aside] = ["ordain-data", "aside"].map(|name| home.path(name));
    std::fs::rename(&store, &aside)?;
    std::fs::create_dir(&store)?;
    let accepted = post_until_end(&mut service, address)?;
    ensure!(std::fs::read_dir(&store)?.next().is_none(), "the host wrote to the empty folder");
    std::fs::remove_dir(&store)?;
    std::fs::rename(&aside, &store)?;
    let mut service = Service::start(&home, &["run"])?;
    until_effects(&accepted, || home.read("out.ndjson"))?;
    service.end()
}

/// A request is in progress when the host detects that its Redis lost everything. The host must answer this request
/// with 503.
#[test]
fn request_in_progress_is_rejected_after_failure() -> Result<()> {
    let redis = Redis::start(&[])?;
    let home = Home::new(&["tally"], &one_partition(&redis))?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    execute_events(address, std::slice::from_ref(&service))?;
    let line = &in_turn(1, 1)[0];
    let mut slow = TcpStream::connect(address)?;
    let head = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: {EVENT_TYPE}\r\ncontent-length: {}\r\n\r\n",
        line.len()
    );
    slow.write_all(head.as_bytes())?;
    redis.command(&["FLUSHALL"])?;
    wait_until("the end of the listener", || Ok(TcpStream::connect(address).is_err()))?;
    slow.write_all(line.as_bytes())?;
    let mut answer = String::new();
    slow.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    ensure!(!service.wait()?.success(), "{}", service.stderr());
    Ok(())
}

/// A part of a heartbeat that no other request to Redis contains.
const HEARTBEAT: &str = "\"seen_from\"";

/// Sends the headers of a request with one event, and waits until the host reads the body.
fn begin_post(address: SocketAddr, event: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    let head = format!(
        "POST /v1/streams/cases/events HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: {EVENT_TYPE}\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        event.len()
    );
    stream.write_all(head.as_bytes())?;
    let mut interim = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut interim)?;
    ensure!(interim.starts_with(b"HTTP/1.1 100 "), "{}", interim.escape_ascii());
    Ok(stream)
}

fn finish_post(mut stream: TcpStream, event: &str) -> Result<String> {
    stream.write_all(event.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A request is in progress when a host is shut down. The host has not received the answer to its first heartbeat yet.
/// The host must finish the request before it ends.
#[test]
fn request_in_progress_is_answered_after_shutdown_during_start() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let config = one_partition(&redis).replace(&redis.url(), &redis.url_at(proxy.port()));
    let home = Home::new(&["tally"], &config)?;
    // The first run loads the scripts into Redis.
    let mut service = Service::start(&home, &["run"])?;
    http::ready(&mut service)?;
    service.end()?;
    // Redis executes each heartbeat of the second run, so Redis lists the host as a member. The replies to the
    // heartbeats are lost.
    proxy.lose_replies(u64::MAX, HEARTBEAT);
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let members =
        || -> Result<Option<i64>> { Ok(redis.command(&["ZCARD", "ordain:{0}:instances"])?.int()) };
    wait_until("a heartbeat", || Ok(members()? == Some(1)))?;
    let event = &in_turn(1, 1)[0];
    let slow = begin_post(address, event)?;
    service.signal("TERM")?;
    // The host removes itself from the members when the shutdown ends its start.
    wait_until("the removal of the member", || Ok(members()? == Some(0)))?;
    let answer = finish_post(slow, event)?;
    ensure!(answer.starts_with("HTTP/1.1 202 "), "{answer}: {}", service.stderr());
    ensure!(service.wait()?.success(), "{}", service.stderr());
    Ok(())
}

/// A request is in progress when the start of a host fails, because Redis refuses the first heartbeat. The host must
/// answer this request with 503.
#[test]
fn request_in_progress_is_rejected_after_failed_start() -> Result<()> {
    let redis = Redis::start(&[])?;
    let proxy = Proxy::start(redis.port())?;
    let config = one_partition(&redis).replace(&redis.url(), &redis.url_at(proxy.port()));
    let home = Home::new(&["tally"], &config)?;
    proxy.hold_request(HEARTBEAT);
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    wait_until("a heartbeat", || Ok(proxy.counts().requests_held > 0))?;
    let event = &in_turn(1, 1)[0];
    let slow = begin_post(address, event)?;
    redis.command(&["SET", "ordain:{0}:instances", "no sorted set"])?;
    proxy.cut();
    wait_until("the end of the listener", || Ok(TcpStream::connect(address).is_err()))?;
    let answer = finish_post(slow, event)?;
    ensure!(answer.starts_with("HTTP/1.1 503 "), "{answer}: {}", service.stderr());
    ensure!(!service.wait()?.success(), "{}", service.stderr());
    Ok(())
}

/// A Redis that went back in time assigns some numbers of its queue a second time. The host must execute the new events
/// with these numbers, although it has already read other events with the same numbers.
#[test]
fn events_after_redis_rollback_take_effect() -> Result<()> {
    let redis = Redis::start(&[])?;
    let sections = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\nshards = 1\n", redis.url());
    let config_text = config(&sections, SOURCE).replace("out.ndjson", "-");
    let home = Home::new(&["tally"], &config_text)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let lines = in_turn(3, 60);
    let until = |service: &Service, count: usize| {
        wait_until(&format!("{count} effects"), || Ok(service.stdout().lines().count() >= count))
    };
    let (first, rest) = lines.split_at(60);
    let (second, third) = rest.split_at(90);
    ensure!(post(address, LINES_TYPE, &text(first))?.status == 202);
    until(&service, first.len())?;
    let before = redis.snapshot()?;
    ensure!(post(address, LINES_TYPE, &text(second))?.status == 202);
    until(&service, first.len() + second.len())?;
    redis.go_back(&before)?;
    // Posts fewer events than were lost, so that each posted event gets a number under which the host has already read
    // another event.
    wait_until("an accepted request", || {
        Ok(post(address, LINES_TYPE, &text(third))?.status == 202)
    })?;
    wait_until("all effects", || {
        let printed = service.stdout();
        Ok(printed.lines().collect::<BTreeSet<_>>().len() >= lines.len())
    })?;
    service.end()?;
    let mut seen = BTreeSet::new();
    let printed = service.stdout();
    let once: String = printed.split_inclusive('\n').filter(|line| seen.insert(*line)).collect();
    tally::check(&by_key(&lines)?, &once)
}

/// The test restores an older copy of the store's folder. The file of the sink must keep its lines, because consumers
/// may have read them. New messages must have new ids. The log, the incident record in the log, and a metric must
/// report the number of messages that the copy lacks.
#[test]
fn restored_store_copy_is_reported_and_file_kept() -> Result<()> {
    let source = format!("ordering = \"fifo\"\n{SOURCE}");
    let home = Home::new(&["tally"], &config("", &source))?;
    let lines = in_turn(5, 9);
    let groups: Vec<&[String]> = lines.chunks(15).collect();
    let mut shown = 0;
    let mut run = |group: &[String]| -> Result<(String, u64)> {
        let mut service = Service::start(&home, &["run"])?;
        let address = ingress(&mut service)?;
        ensure!(post(address, LINES_TYPE, &text(group))?.status == 202);
        shown += group.len();
        wait_until("all effects", || Ok(home.lines("out.ndjson") >= shown))?;
        let lost = metric(&mut service, "ordain_messages_lost_total")?;
        service.end()?;
        Ok((service.stderr(), lost))
    };
    let copy = |from: &str, to: &str| -> Result<()> {
        let _ = std::fs::remove_dir_all(home.path(to));
        copy_folder(&home.path(from), &home.path(to))
    };
    run(groups[0])?;
    copy("ordain-data", "copy")?;
    let (log, lost) = run(groups[1])?;
    ensure!(lost == 0 && records(&log)?.is_empty(), "{log}");
    copy("copy", "ordain-data")?;
    let (log, lost) = run(groups[2])?;
    let all = records(&log)?;
    let [record] = &all[..] else { bail!("the log must contain exactly one record: {log}") };
    ensure!(lost == 15 && record["type"] == "ordain.messages.lost", "{lost}: {record}");
    ensure!(record["source"] == "/ordain/cases" && record["subject"] == "sink/tally", "{record}");
    let to = record["data"]["to"].as_str().context("a destination")?;
    ensure!(to.starts_with("file/") && to.ends_with("out.ndjson"), "{record}");
    ensure!(record["data"] == json!({ "to": to, "messages": 15 }), "{record}");
    ensure!(log.contains("lines=15") && log.contains("THE STORE WENT BACK IN TIME"), "{log}");
    let out = home.read("out.ndjson");
    let ids = out.lines().map(|line| Ok(serde_json::from_str::<Value>(line)?["id"].to_string()));
    let ids = ids.collect::<Result<BTreeSet<_>>>()?;
    ensure!((out.lines().count(), ids.len()) == (45, 45), "{out}");
    Ok(())
}

#[test]
fn configured_token_is_required() -> Result<()> {
    let token = "0123456789abcdef";
    let config_text =
        config("", SOURCE).replacen("[ingress]", &format!("[ingress]\ntoken = \"{token}\""), 1);
    let home = Home::new(&["tally"], &config_text)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ingress(&mut service)?;
    let line = &in_turn(1, 1)[0];
    let answer = post(address, EVENT_TYPE, line)?;
    ensure!(answer.status == 401 && answer.problem()?.contains("[ingress]"), "{answer:?}");
    let headers =
        [&*format!("content-type: {EVENT_TYPE}"), &*format!("authorization: Bearer {token}")];
    ensure!(post_with(address, "/v1/streams/cases/events", &headers, line)?.status == 202);
    service.end()
}
