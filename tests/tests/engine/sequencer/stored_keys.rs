//! Tests of keys in the store: loads, expiry, the due index and spilled events.

use anyhow::{Context, Result};
use ordain_core::{Cause, KeyRecord};

use super::rig::{Rig, snapshot};

#[test]
fn key_in_memory_is_forgotten_when_the_store_forgets_it() -> Result<()> {
    let mut rig = Rig::new("key_ttl = \"1m\"")?;
    rig.deliver(0, 1);
    rig.deliver(0, 2);
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (2, 2));
    // Delivers event 1 again twice: while the store still has the key record, and after the record has expired.
    rig.deliver(59_000, 1);
    assert_eq!((rig.acked, rig.sequencer.stats().duplicates), (3, 1));
    rig.deliver(61_000, 1);
    assert_eq!((rig.acked, rig.sequencer.stats().settled), (4, 3));
    assert!(rig.loads > 0, "the key was not loaded again");
    Ok(())
}

/// A read of the due index returns one key more than the sequencer has free lanes, as if another key had taken a lane
/// in the meantime. The sequencer must read the due index again soon and load the remaining key, and must not wait for
/// the next regular read.
#[test]
fn due_key_without_a_lane_is_read_again_soon() -> Result<()> {
    let lanes = 2;
    let mut rig = Rig::new(&format!("[runtime]\nmax_active_keys = {lanes}"))?;
    let due = |number: usize| (1, ordain_core::Key::from(format!("k{number}").as_str()));
    rig.due = (0..=lanes).map(due).collect();
    rig.pass(0, 0);
    assert_eq!(rig.loads, lanes, "each lane has a due key");
    rig.due = vec![due(lanes)];
    rig.pass(0, 2_000);
    assert_eq!(rig.loads, lanes + 1);
    Ok(())
}

/// The due index lists a key whose lane waits for no timeout. The sequencer must then load the key again, because a
/// previous owner may have written the entry of the index.
#[test]
fn due_key_without_a_pending_timeout_is_loaded_again() -> Result<()> {
    let mut rig = Rig::begun("gap = { timeout = \"10m\" }\nspill_after = \"10m\"")?;
    assert_eq!(rig.acked, 1);
    let loads = rig.loads;
    rig.due = vec![(5, "a".into())];
    rig.pass(0, 10_000);
    assert_eq!(rig.loads, loads + 1);
    // A lane that waits for a missing event handles the timeout itself, so the sequencer must not load the key.
    rig.deliver(20_000, 3);
    rig.due = vec![(5, "a".into())];
    let loads = rig.loads;
    rig.pass(20_000, 40_000);
    assert_eq!((rig.loads, rig.due.len()), (loads, 0));
    Ok(())
}

#[test]
fn event_between_spilled_events_is_accepted() -> Result<()> {
    let mut rig = Rig::new("overflow = \"dead-letter\"\ngap = { timeout = \"1h\" }")?;
    for sequence in [1, 3, 5] {
        rig.deliver(0, sequence);
    }
    rig.pass(0, 60_000);
    assert_eq!(rig.acked, 3, "events 3 and 5 are spilled");
    rig.deliver(60_000, 4);
    let batch = rig.batches.last().context("a commit")?;
    assert!(batch.letters.is_empty(), "the key is below its limit: {:?}", batch.letters);
    assert_eq!((batch.writes[0].spill[0].0, rig.acked), (4, 4));
    Ok(())
}

/// If the record of a `fifo` key leaves no free number, the sequencer must treat the record as damaged, because no key
/// can have used all numbers.
#[test]
fn fifo_key_without_free_numbers_is_damaged() -> Result<()> {
    for (next, last) in [(2, u64::MAX - 2), (u64::MAX - 1, 0), (u64::MAX, 0)] {
        let mut rig = Rig::new("ordering = \"fifo\"\nid_window = 5024")?;
        let mut record = KeyRecord::new(next, 0);
        record.ids_from = 1;
        if last > 0 {
            record.spilled.add(last);
        }
        rig.snapshot = Some(Box::new(snapshot(record, Some(0))));
        rig.deliver(0, 1);
        rig.deliver(0, 2);
        let letters = rig.letters_without_write();
        let causes: Vec<_> = letters.iter().map(|letter| letter.cause).collect();
        assert_eq!((rig.acked, causes), (2, vec![Cause::Corrupt; 2]), "{next} {last}");
        assert!(letters[0].error.contains("the record is damaged"), "{}", letters[0].error);
    }
    Ok(())
}
