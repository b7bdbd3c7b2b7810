//! The input of the tests, and a check of the final state of each stage.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::ledger::Ledger;

/// Creates the input: 10,000 transactions of 500 orders, in batches of 100.
pub(super) fn ledger(seed: u64) -> Ledger {
    Ledger::new(seed, 10_000, 500, 100)
}

/// Checks for each stage that every key is completed, that each key has executed the right number of events, and that
/// the stage has no dead letters. Reads the keys from the store, or from the process that has the store open.
pub(super) fn check_stages(home: &Home, ledger: &Ledger) -> Result<()> {
    let batches = BTreeMap::from([("main".to_owned(), ledger.batches.len() as u64)]);
    for (stream, right) in
        [("ledgers", batches), ("orders", ledger.orders()), ("months", ledger.months())]
    {
        let mut executed = BTreeMap::new();
        for row in home.rows(&["keys", "list", stream, "--json", "--limit", "1000000"])? {
            ensure!(row["status"] == "completed", "{stream}: {row}");
            let key = row["key"].as_str().context("a key")?.to_owned();
            executed.insert(key, row["next"].as_u64().context("next")? - 1);
        }
        ensure!(executed == right, "a key of {stream} has executed a wrong number of events");
        let dead = home.rows(&["dead", "list", stream, "--json", "--limit", "10"])?;
        ensure!(dead.is_empty(), "{stream}: {dead:?}");
    }
    Ok(())
}
