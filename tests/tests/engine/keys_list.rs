//! Tests of the limit of `ordain keys list`, with an embedded store and with a store in Redis.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use ordain_servers::Redis;
use ordain_tests::host::Home;
use ordain_tests::log::{in_turn, text};
use ordain_tests::tally;

use super::check_connect;

/// The number of keys, more than the command requests in one page.
const KEYS: usize = 700;

/// Lists at most `limit` keys. Returns the listed keys, and whether the command states that more keys may exist.
fn list(home: &Home, limit: usize) -> Result<(Vec<String>, bool)> {
    let output = home.output(&["keys", "list", "cases", "--limit", &limit.to_string()])?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let hint = format!("only {limit} keys are listed, and more may exist");
    let is_hint = |line: &&str| line.starts_with(&hint);
    let rows = printed.lines().skip(1).filter(|line| !is_hint(line));
    let keys = rows.filter_map(|row| row.split_whitespace().next()).map(str::to_owned).collect();
    Ok((keys, printed.lines().next_back().as_ref().is_some_and(is_hint)))
}

fn check_limits(home: &Home) -> Result<()> {
    for limit in [1, 499, 500, 501, 600, KEYS - 1, KEYS + 1, 1_000] {
        let (keys, has_hint) = list(home, limit)?;
        let distinct: BTreeSet<&String> = keys.iter().collect();
        let expected = limit.min(KEYS);
        ensure!(distinct.len() == expected, "limit {limit}: {} keys", distinct.len());
        ensure!(keys.len() == expected, "limit {limit}: {} rows", keys.len());
        ensure!(has_hint == (limit < KEYS), "limit {limit}: the hint is wrong");
    }
    Ok(())
}

#[test]
fn limited_list_states_that_more_keys_may_exist() -> Result<()> {
    let events = text(&in_turn(KEYS, 1));
    let embedded = Home::new(&["tally"], tally::CONFIG)?;
    embedded.write("events.ndjson", &events)?;
    embedded.run_once()?;
    check_limits(&embedded)?;

    let redis = Redis::start(&[])?;
    let home = check_connect::home(&redis.url())?;
    home.write("events.ndjson", &events)?;
    home.run_once_to("out.ndjson")?;
    check_limits(&home)
}
