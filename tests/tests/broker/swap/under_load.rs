//! Tests of handler versions that are added and removed while events arrive. Each event must be executed once, by one
//! version, and in the order of its key. The module also tests a removed file, a copied file, and an idle host.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_tests::log::{by_key, disturb, in_turn};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;
use ordain_tests::tally;
use serde_json::Value;

use super::support::{copy, handlers, metric, remove, stream, until_runs};

/// Returns for each key the version that executed the key's last event.
fn versions(rig: &Rig, service: &mut Service) -> Result<Vec<Value>> {
    let url = format!("http://{}", ordain_tests::http::admin(service)?);
    let rows = rig.home.rows(&["keys", "list", "cases", "--json", "--admin", &url])?;
    Ok(rows.into_iter().map(|mut row| row["version"].take()).collect())
}

/// A new version must become active while events arrive. The removal of its file must make the previous version active
/// again.
#[test]
fn new_version_is_activated_and_rolled_back() -> Result<()> {
    let rig = Rig::with("", "", "partitions = 4")?;
    std::fs::rename(
        rig.home.path("plugins/tally.wasm"),
        rig.home.path("plugins/tally@1.0.0.wasm"),
    )?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    until_runs(&mut service, "tally@1.0.0")?;
    let lines = in_turn(40, 40);
    let mut parts = lines.chunks(400);
    let mut out = Vec::new();
    let mut part = |rig: &Rig, out: &mut Vec<String>| -> Result<()> {
        let part = parts.next().context("a part")?;
        rig.publish(&disturb(part, 50, 20, 3))?;
        rig.take(out, out.len() + part.len())
    };
    part(&rig, &mut out)?;
    ensure!(versions(&rig, &mut service)?.iter().all(|version| version == "tally@1.0.0"));
    let first = stream(&mut service)?;
    ensure!(first["generation"] == 1, "{first}");

    // A newer version becomes active while events arrive.
    copy(&rig.home, "2.0.0")?;
    part(&rig, &mut out)?;
    until_runs(&mut service, "tally@2.0.0")?;
    part(&rig, &mut out)?;
    ensure!(versions(&rig, &mut service)?.iter().all(|version| version == "tally@2.0.0"));
    ensure!(stream(&mut service)?["generation"] == 2);
    ensure!(metric(&mut service, "ordain_version_generation")? == Some(2));

    // The removal of the newer version's file must cause a rollback.
    remove(&rig.home, "2.0.0")?;
    until_runs(&mut service, "tally@1.0.0")?;
    part(&rig, &mut out)?;
    ensure!(versions(&rig, &mut service)?.iter().all(|version| version == "tally@1.0.0"));
    ensure!(stream(&mut service)?["generation"] == 3);
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    let names: Vec<_> = handlers(&mut service)?.iter().map(|row| row["handler"].clone()).collect();
    ensure!(names.iter().filter(|name| *name == "tally@1.0.0").count() == 1, "{names:?}");
    service.end()
}

/// If the last file of a handler is removed, the host must continue to execute events with the loaded version. A new
/// version must then become active.
#[test]
fn last_version_stays_after_file_removal() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.until_says("handler version active")?;
    remove(&rig.home, "")?;
    service.until_says("last file of a handler removed")?;
    let lines = in_turn(5, 5);
    rig.publish(&lines)?;
    rig.check(&lines)?;
    let rows = handlers(&mut service)?;
    let gone = rows.iter().find(|row| row["state"] == "gone").context("a row")?;
    ensure!(gone["running"][0] == "cases", "{gone}");
    copy(&rig.home, "1.0.0")?;
    until_runs(&mut service, "tally@1.0.0")?;
    service.end()
}

/// Without events and without changes of files, the host must use less than a quarter of the time of one processor.
#[test]
fn idle_host_uses_little_processor_time() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.until_says("handler version active")?;
    let used = |service: &Service| -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", service.id()))?;
        let fields = stat.rsplit_once(") ").context("a line")?.1.split(' ');
        // Adds the user time and the system time, in hundredths of a second.
        Ok(fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum())
    };
    let before = used(&service)?;
    let pause = Duration::from_secs(4);
    std::thread::sleep(pause);
    let used = (used(&service)? - before) / 100.0;
    // A loop without a pause would use the whole time of one processor.
    ensure!(used < pause.as_secs_f64() / 4.0, "{used} s in {pause:?}");
    service.end()
}

/// Two files with the same content and different names must be two versions.
#[test]
fn copy_under_another_name_is_another_version() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    service.until_says("handler version active")?;
    let first = "plugins/tally.wasm";
    let second = "plugins/tally@1.0.0.wasm";
    std::fs::copy(rig.home.path(first), rig.home.path(second))?;
    until_runs(&mut service, "tally@1.0.0")?;
    for row in handlers(&mut service)? {
        let runs = row["handler"] == "tally@1.0.0";
        ensure!(
            row["running"].as_array().is_some_and(|streams| streams.is_empty() != runs),
            "{row}"
        );
    }
    service.end()
}

/// The version changes eight times under load. Meanwhile, some events arrive twice or out of order. Each event must
/// take effect once.
#[test]
fn many_swaps_lose_and_repeat_nothing() -> Result<()> {
    let rig = Rig::with("", "", "partitions = 4")?;
    copy(&rig.home, "1.0.0")?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(200, 50);
    let mut out = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let rig = &rig;
        let publishing = scope.spawn(move || -> Result<()> {
            for part in disturb(&in_turn(200, 50), 300, 20, 11).chunks(250) {
                rig.publish(part)?;
                std::thread::sleep(Duration::from_millis(150));
            }
            Ok(())
        });
        for _ in 0..4 {
            copy(&rig.home, "2.0.0")?;
            until_runs(&mut service, "tally@2.0.0")?;
            remove(&rig.home, "2.0.0")?;
            until_runs(&mut service, "tally@1.0.0")?;
        }
        publishing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    rig.take(&mut out, lines.len())?;
    tally::check(&by_key(&lines)?, &out.join("\n"))?;
    rig.until_empty()?;
    ensure!(stream(&mut service)?["generation"].as_u64() >= Some(9));
    service.end()
}
