//! Tests of `GET /metrics`: the metrics of a run, in the formats that Prometheus reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ordain_tests::alerts;
use ordain_tests::host::Home;
use ordain_tests::http::{get, get_with, ready};
use ordain_tests::log::line;
use ordain_tests::plugins::root;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::{Value, json};
use yaml_rust2::YamlLoader;

use super::support::{EVENTS, GOOD_KEYS, at_rest, home};

/// The names of all metrics without the prefix `ordain_`, each with the type of the metric.
const ALL: [(&str, &str); 37] = [
    ("build_info", "gauge"),
    ("log_lines_dropped_total", "counter"),
    ("dropped_messages", "gauge"),
    ("store_writable", "gauge"),
    ("broker_connected", "gauge"),
    ("stream_consuming", "gauge"),
    ("sink_accepted", "gauge"),
    ("keys_moved_total", "counter"),
    ("topology_changes_total", "counter"),
    ("events_lost_total", "counter"),
    ("messages_lost_total", "counter"),
    ("commits_repeated_total", "counter"),
    ("rollbacks_total", "counter"),
    ("events_total", "counter"),
    ("unverified_duplicates_total", "counter"),
    ("partition_lag_events", "gauge"),
    ("ingress_requests_total", "counter"),
    ("inbox_events", "gauge"),
    ("lanes", "gauge"),
    ("gap_rounds_total", "counter"),
    ("recovery_seconds", "histogram"),
    ("handler_seconds", "histogram"),
    ("handler_files_refused", "gauge"),
    ("version_generation", "gauge"),
    ("commit_seconds", "histogram"),
    ("commit_batch_events", "histogram"),
    ("publish_to_commit_seconds", "histogram"),
    ("dead_letters_total", "counter"),
    ("parked_keys", "gauge"),
    ("wanted_instances", "gauge"),
    ("full_keys", "gauge"),
    ("outbox_pending", "gauge"),
    ("published_messages_total", "counter"),
    ("unroutable_messages_total", "counter"),
    ("handler_failures_total", "counter"),
    ("ready_keys", "gauge"),
    ("blocked_keys", "gauge"),
];

const RECOVERIES: &str = "recovery_seconds_count{stream=\"cases\"}";

/// The standard metrics of a process, each with its type.
const PROCESS: [(&str, &str); 5] = [
    ("process_cpu_seconds_total", "counter"),
    ("process_start_time_seconds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_max_fds", "gauge"),
];

#[test]
fn alerting_rules_name_existing_metrics() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/alerts.yaml"))?;
    let documents = YamlLoader::load_from_str(&text)?;
    let rules = documents[0]["groups"][0]["rules"].as_vec().context("rules")?;
    let mut named = BTreeSet::new();
    for rule in rules {
        let expression = rule["expr"].as_str().with_context(|| format!("no `expr` in {rule:?}"))?;
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        named.extend(words.filter_map(|word| word.strip_prefix("ordain_")));
        let summary = rule["annotations"]["summary"].as_str();
        ensure!(summary.is_some_and(|summary| summary.ends_with('.')), "{rule:?}");
    }
    let known: BTreeSet<&str> = ALL.into_iter().map(|(name, _)| name).collect();
    let unknown: Vec<_> = named.difference(&known).collect();
    ensure!(unknown.is_empty(), "no metrics of Ordain: {unknown:?}");
    for name in ["store_writable", "broker_connected", "stream_consuming", "sink_accepted"] {
        ensure!(named.contains(name), "no rule for {name}");
    }
    Ok(())
}

/// Prometheus must accept the example of alerting rules. Without `promtool`, a program of Prometheus, the test checks
/// nothing.
#[test]
fn alerting_rules_are_accepted_by_prometheus() -> Result<()> {
    let rules = root().join("docs/alerts.yaml");
    match Command::new("promtool").args(["check", "rules"]).arg(&rules).output() {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}: {printed}", output.status);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => println!("promtool is not installed"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The stream has parked keys, so one alerting rule must fire. After one more dead letter, a second rule must fire. The
/// tests of the failures themselves check most other rules.
#[test]
fn alerting_rules_fire() -> Result<()> {
    let home = home()?;
    let (mut service, address) = at_rest(&home)?;
    let metrics = || get(address, "/metrics").map(|page| page.body).unwrap_or_default();
    let parked = BTreeSet::from(["OrdainKeysParked".to_owned()]);
    let mut earlier = String::new();
    service.until("an alert about parked keys", || {
        earlier = metrics();
        alerts::firing(&earlier, &earlier).is_ok_and(|firing| firing == parked)
    })?;
    home.append("events.ndjson", line("other", 1, &json!({ "do": "reject" })) + "\n")?;
    service.until("an alert about dead letters", || {
        alerts::firing(&earlier, &metrics())
            .is_ok_and(|firing| firing.contains("OrdainDeadLetters"))
    })?;
    service.end()
}

/// Returns the samples in the text of the metrics. Each key of the result is the name of a metric with its labels.
/// Checks that every line of the text is a sample, a `HELP` line, or the `TYPE` line after a `HELP` line, and that the
/// metrics are those in [`ALL`] and [`PROCESS`].
fn samples(text: &str) -> Result<BTreeMap<String, f64>> {
    let mut samples = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# HELP ") {
            help = head.split_once(' ').context("a help text")?.0;
        } else if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').context("a kind")?;
            ensure!(name == help, "{line}: the previous HELP line is for {help}");
            ensure!(kinds.insert(name, kind).is_none(), "{line}: twice");
        } else {
            let (sample, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
            let name = sample.split('{').next().unwrap_or_default();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = kinds.contains_key(name)
                || base.is_some_and(|base| kinds.get(base) == Some(&"histogram"));
            ensure!(known, "{line}: no TYPE line for this metric");
            let value = value.parse().with_context(|| line.to_owned())?;
            ensure!(samples.insert(sample.to_owned(), value).is_none(), "{line}: twice");
        }
    }
    let all = ALL.map(|(name, kind)| (format!("ordain_{name}"), kind));
    let process = PROCESS.map(|(name, kind)| (name.to_owned(), kind));
    for (name, kind) in all.iter().chain(&process) {
        let found = kinds.get(&**name);
        ensure!(found == Some(kind), "{name} must be a {kind}, but is {found:?}");
    }
    assert_eq!(kinds.len(), all.len() + process.len());
    Ok(samples)
}

/// Returns the upper bound and the value of each bucket of a histogram, in the order of the bounds. `labels` are the
/// labels of the histogram; empty if it has none. Checks that the values never decrease, and that the last value is the
/// count of the histogram.
fn buckets(samples: &BTreeMap<String, f64>, name: &str, labels: &str) -> Result<Vec<(f64, f64)>> {
    let prefix = format!("ordain_{name}_bucket{{le=\"");
    let comma = if labels.is_empty() { "" } else { "," };
    let end = format!("\"{comma}{labels}}}");
    let of = samples.iter().filter_map(|(sample, count)| {
        let bound = sample.strip_prefix(&prefix)?.strip_suffix(&end)?;
        Some((bound.parse::<f64>().ok()?, *count))
    });
    let mut buckets: Vec<(f64, f64)> = of.collect();
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    ensure!(buckets.is_sorted_by(|one, next| one.1 <= next.1), "{name}: {buckets:?}");
    let last = buckets.last().context("buckets")?;
    let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let count = samples.get(&format!("ordain_{name}_count{braces}"));
    assert_eq!(Some(*last), count.map(|count| (f64::INFINITY, *count)), "{name}");
    Ok(buckets)
}

#[test]
fn metrics_count_the_events_of_a_run() -> Result<()> {
    let home = home()?;
    let (mut service, address) = at_rest(&home)?;
    let mut now = BTreeMap::new();
    // The driver of a partition updates its metrics only once in each pass of its loop.
    service.until("the metrics of all events", || {
        let text = get(address, "/metrics").map(|response| response.body).unwrap_or_default();
        now = samples(&text).unwrap_or_default();
        let is = |name: &str, of: f64| now.get(&format!("ordain_{name}")) == Some(&of);
        is(r#"lanes{state="parked",stream="cases",partition="0"}"#, 2.0)
            && is(r#"outbox_pending{stream="cases",partition="0"}"#, 0.0)
    })?;
    let good = (GOOD_KEYS as u64 * EVENTS) as f64;
    let sample = |name: &str| now.get(&format!("ordain_{name}")).copied();
    for (name, right) in [
        (concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
        (r#"events_total{stream="cases",outcome="effect"}"#, good + 1.0),
        (r#"events_total{stream="cases",outcome="duplicate"}"#, 0.0),
        (r#"events_total{stream="cases",outcome="dead"}"#, 2.0),
        (r#"unverified_duplicates_total{stream="cases"}"#, 0.0),
        (r#"dead_letters_total{stream="cases",cause="rejected"}"#, 1.0),
        (r#"dead_letters_total{stream="cases",cause="unreadable"}"#, 1.0),
        (r#"dead_letters_total{stream="cases",cause="conflict"}"#, 0.0),
        (r#"handler_failures_total{stream="cases",kind="trap"}"#, 2.0),
        (r#"handler_failures_total{stream="cases",kind="timeout"}"#, 0.0),
        (r#"gap_rounds_total{stream="cases",source="store",result="missing"}"#, 1.0),
        (r#"gap_rounds_total{stream="cases",source="store",result="found"}"#, 0.0),
        (r#"blocked_keys{cause="parked",stream="cases",partition="0"}"#, 2.0),
        (r#"blocked_keys{cause="gap",stream="cases",partition="0"}"#, 0.0),
        (r#"full_keys{stream="cases",partition="0"}"#, 0.0),
        (r#"ready_keys{stream="cases",partition="0"}"#, 0.0),
        (r#"published_messages_total{sink="faulty"}"#, good),
        (r#"parked_keys{stream="cases"}"#, 2.0),
        (r#"commits_repeated_total{stream="cases"}"#, 0.0),
        // Besides the good events, the commits settle the event of the key `ODD_KEY` and the rejected event.
        ("commit_batch_events_sum", good + 2.0),
        // These events have no time, so the histogram does not count them.
        ("publish_to_commit_seconds_count", 0.0),
    ] {
        ensure!(sample(name) == Some(right), "{name} is {:?}, not {right}", sample(name));
    }
    ensure!(
        !now.keys().any(|name| name.starts_with("ordain_partition_lag_events")),
        "a stream that reads a file must have no metric of its lag"
    );
    for name in ["commit_batch_events", "publish_to_commit_seconds"] {
        buckets(&now, name, "")?;
    }
    for name in ["commit_seconds", "recovery_seconds"] {
        buckets(&now, name, "stream=\"cases\"")?;
    }
    let took = now.iter().find(|(name, _)| name.starts_with("ordain_handler_seconds_count{"));
    let (name, events) = took.context("the handler's time")?;
    ensure!(name.contains(r#"handler="faulty",version="faulty+"#), "{name}");
    // Besides the good events, the handler made four executions: the event of the key `ODD_KEY`, the rejected event,
    // and two tries of the event at which it traps.
    assert_eq!(*events as u64, good as u64 + 4);
    Ok(())
}

/// The standard metrics of the process must have the values that the system shows for the host.
#[test]
fn process_metrics_show_the_host() -> Result<()> {
    let home = home()?;
    let (service, address) = at_rest(&home)?;
    let all = samples(&get(address, "/metrics")?.body)?;
    let value = |name: &str| all.get(name).copied().with_context(|| name.to_owned());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.id()))?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let limit: f64 =
        limit.context("a limit")?.split_whitespace().next().context("a number")?.parse()?;
    let shown = value("process_max_fds")?;
    ensure!((shown - limit).abs() < 0.5, "{shown} is not {limit}");
    let open = value("process_open_fds")?;
    ensure!(open > 3.0 && open < limit, "{open} open files");
    let memory = value("process_resident_memory_bytes")?;
    ensure!(memory > f64::from(1 << 20), "{memory} bytes");
    ensure!(value("process_start_time_seconds")? > 0.0, "no time of the start");
    ensure!(value("process_cpu_seconds_total")? > 0.0, "the host used no time of the CPU");
    Ok(())
}

/// A source that waits for new events can deliver them. The metric `ordain_stream_consuming` must therefore be 1 while
/// the source waits. The host must also print the description of the metric.
#[test]
fn idle_source_counts_as_consuming() -> Result<()> {
    let home = home()?;
    let (_service, address) = at_rest(&home)?;
    let text = get(address, "/metrics")?.body;
    let help =
        "# HELP ordain_stream_consuming For each partition that this process owns: 1 while the";
    ensure!(text.contains(help), "{text}");
    let consuming = r#"ordain_stream_consuming{stream="cases",partition="0"}"#;
    ensure!(samples(&text)?.get(consuming) == Some(&1.0), "{text}");
    Ok(())
}

#[test]
fn commit_delay_and_gap_recovery_are_measured() -> Result<()> {
    let config = tally::CONFIG.replace("[sinks", "gap = { timeout = \"10m\" }\n[sinks");
    let home = Home::new(&["tally"], &config)?;
    home.write("events.ndjson", timed(2)? + &timed(3)?)?;
    let mut service = Service::start(&home, &["run"])?;
    let address = ready(&mut service)?;
    let now = |name: &str| -> Option<f64> {
        samples(&get(address, "/metrics").ok()?.body).ok()?.get(&format!("ordain_{name}")).copied()
    };
    let missing = r#"blocked_keys{cause="gap",stream="cases",partition="0"}"#;
    service.until("the gap", || now(missing) == Some(1.0))?;
    assert_eq!(now(RECOVERIES), Some(0.0));
    // The histogram does not count events whose time is far in the past or in the future, because they would make the
    // sum meaningless.
    for (sequence, time) in [(4, "1970-01-01T00:00:00Z"), (5, "2999-01-01T00:00:00Z")] {
        home.append("events.ndjson", timed_at(sequence, time)?)?;
    }
    home.append("events.ndjson", timed(1)?)?;
    service.until("all events", || {
        now(r#"events_total{stream="cases",outcome="effect"}"#) == Some(5.0)
    })?;
    service.until("the commits", || now("publish_to_commit_seconds_count") == Some(3.0))?;
    service.until("the end of the gap", || now(RECOVERIES) == Some(1.0))?;
    assert_eq!(now(missing), Some(0.0));
    let seconds = now("publish_to_commit_seconds_sum").context("a sum")?;
    ensure!((0.0..600.0).contains(&seconds), "{seconds}");

    let all = samples(&get(address, "/metrics")?.body)?;
    let buckets = buckets(&all, "publish_to_commit_seconds", "")?;
    let bounds: Vec<f64> = buckets[..buckets.len() - 1].iter().map(|(bound, _)| *bound).collect();
    ensure!(bounds[0] <= 0.000_5 && bounds[bounds.len() - 1] >= 60.0, "{bounds:?}");
    ensure!(bounds.windows(2).all(|two| two[1] / two[0] < 1.31), "{bounds:?}");
    Ok(())
}

fn timed(sequence: u64) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    timed_at(sequence, &jiff::Timestamp::from_millisecond(now)?.to_string())
}

fn timed_at(sequence: u64, time: &str) -> Result<String> {
    let mut event: Value = serde_json::from_str(&line("k", sequence, &json!({})))?;
    event["time"] = time.into();
    Ok(format!("{event}\n"))
}

#[test]
fn classic_and_open_metrics_formats_are_served() -> Result<()> {
    let home = home()?;
    let (_service, address) = at_rest(&home)?;
    let classic = get(address, "/metrics")?;
    ensure!(classic.head.contains("content-type: text/plain; version=0.0.4"), "{}", classic.head);
    let open = get_with(address, "/metrics", &["Accept: application/openmetrics-text"])?;
    let form = "content-type: application/openmetrics-text; version=1.0.0";
    ensure!(open.head.contains(form) && open.body.ends_with("# EOF\n"), "{open:?}");
    ensure!(open.body.contains("# TYPE ordain_events counter\n"), "{open:?}");
    ensure!(!classic.body.contains("# EOF"), "{classic:?}");
    Ok(())
}
