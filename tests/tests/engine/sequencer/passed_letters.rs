//! Tests of a key whose previous owner ended before it decided about the dead letters that the key had passed.

use anyhow::{Context, Result};
use ordain_core::{AheadRange, SpillExtent};

use super::rig::Rig;

/// Returns a rig whose store has the record of a key that has passed event 30. The previous owner of the key ended
/// before it decided about the dead letters of event 30. `next` is the next sequence of the key.
fn rig_with_a_passed_range(stream: &str, next: u64) -> Result<Rig> {
    let mut rig = Rig::begun(stream)?;
    let record = rig.stored_record()?;
    record.next = next;
    record.ahead = Some(Box::new(AheadRange { first: 30, last: 30 }));
    Ok(Rig { snapshot: rig.snapshot, ..Rig::new(stream)? })
}

/// A key has no gap when its record is loaded. When it gets a gap later, the clock of this gap must run for the whole
/// `gap.timeout`.
#[test]
fn gap_after_a_load_waits_for_its_whole_timeout() -> Result<()> {
    let stream = "gap = { timeout = \"10s\", attempts = 1, max_width = 10, on_exhausted = \"skip\" }\n\
                  spill_after = \"10m\"\n";
    // The event that causes the load shows the gap, or a later event shows it. The key may also have spilled events
    // that it can execute immediately.
    for (next, spilled, delivered) in
        [(33, 0, &[34][..]), (32, 0, &[32, 34][..]), (31, 2, &[34][..])]
    {
        let mut rig = rig_with_a_passed_range(stream, next)?;
        rig.spilled = (next..next + spilled).collect();
        if spilled > 0 {
            rig.stored_record()?.spilled =
                SpillExtent { count: spilled, first: next, last: next + spilled - 1 };
        }
        for sequence in delivered {
            rig.deliver(60_000, *sequence);
        }
        rig.pass(60_000, 69_000);
        let label = format!("next {next}, {spilled} spilled");
        assert!(rig.requests.is_empty(), "{label}: {:?}", rig.requests);
        rig.pass(69_000, 71_000);
        assert_eq!(rig.requests, [(70_000, vec![33..=33])], "{label}");
    }
    Ok(())
}

/// The owner of a key ended before it decided about the dead letters that the key had passed. The next owner decides
/// about them, and must then request the next event of the silent key (`gap.tail`).
#[test]
fn next_event_is_requested_after_the_decision_about_passed_letters() -> Result<()> {
    let mut rig = rig_with_a_passed_range("gap = { tail = \"1s\", max_width = 10 }", 32)?;
    rig.snapshot.as_mut().context("a record")?.due_in = Some(0);
    rig.due = vec![(0, "a".into())];
    rig.pass(0, 0);
    assert_eq!(rig.last_record()?.ahead, None);
    assert_eq!(rig.last_write()?.due_in, Some(1_000));
    rig.pass(0, 1_000);
    assert_eq!(rig.requests, [(1_000, vec![32..=32])]);
    Ok(())
}
