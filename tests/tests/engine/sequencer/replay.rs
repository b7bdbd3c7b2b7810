//! Tests of the rounds of replay that a gap gets, and of the gap history.

use anyhow::{Context, Result};
use ordain_core::{Effect, GapEnd};

use super::rig::{Rig, SKIPPING_SETTINGS};

#[test]
fn next_event_of_a_silent_key_is_requested() -> Result<()> {
    let mut rig = Rig::new("gap = { tail = \"1s\" }")?;
    rig.deliver(0, 1);
    assert_eq!(
        rig.batches[0].writes[0].due_in,
        Some(1_000),
        "the store must have the time of the next request, because the lane may leave memory"
    );
    assert_eq!(rig.sequencer.poll_timeout(), Some(1_000));
    rig.sequencer.handle_timeout(1_000);
    let is_requested = std::iter::from_fn(|| rig.sequencer.poll_effect())
        .any(|effect| matches!(effect, Effect::Replay { missing, .. } if missing == [2..=2]));
    assert!(is_requested);
    Ok(())
}

#[test]
fn late_arrivals_cause_no_extra_replay_round() -> Result<()> {
    let gap =
        "gap = { timeout = \"1s\", attempts = 3, backoff = \"2s..2s\" }\nspill_after = \"10m\"\n";
    let mut rig = Rig::begun(gap)?;
    rig.deliver(0, 50);
    rig.pass(0, 1_000);
    assert_eq!(rig.requests, [(1_000, vec![2..=49])]);
    for sequence in 2..=40 {
        rig.deliver(1_000 + sequence, sequence);
    }
    assert_eq!(rig.requests.len(), 1, "{:?}", rig.requests);
    rig.pass(1_041, 3_100);
    assert_eq!(
        rig.requests[1..],
        [(3_040, vec![41..=49])],
        "the second round must follow one backoff after the first answer"
    );
    // Until all events of the gap have arrived, the gap history lists arrived and missing sequences in separate
    // entries.
    let listed = |rig: &Rig| -> Result<Vec<_>> {
        let record = &rig.batches.last().context("a commit")?.writes[0].record;
        Ok(record.gaps.iter().map(|gap| (gap.first, gap.last, gap.rounds, gap.end)).collect())
    };
    let arrived = (2, 40, 1, GapEnd::Arrived);
    let open = (41, 49, 2, GapEnd::Open);
    assert_eq!(listed(&rig)?, [arrived, open]);
    for sequence in 41..=49 {
        rig.deliver(3_100 + sequence, sequence);
    }
    assert_eq!(listed(&rig)?, [(2, 49, 2, GapEnd::Arrived)]);
    Ok(())
}

/// Replay found an event that cannot have an early dead letter. The commit must then remove only one dead letter of
/// this event.
#[test]
fn replayed_event_removes_no_letters_that_cannot_exist() -> Result<()> {
    let mut rig = Rig::new("gap = { timeout = \"1s\" }\nspill_after = \"10m\"\n")?;
    rig.kept = [2].into();
    for sequence in [1, 3] {
        rig.deliver(0, sequence);
        rig.remember()?;
    }
    rig.pass(0, 5_000);
    assert_eq!(rig.sequencer.stats().settled, 3);
    let removed: Vec<_> = rig.writes().flat_map(|write| &write.removed_letters).collect();
    assert!(removed.len() == 1 && removed[0].sequence == 2, "{removed:?}");
    Ok(())
}

/// The missing events arrive after the timeout of their gap, in each possible order. The gap history must then contain
/// all their sequences in one entry.
#[test]
fn gap_history_lists_an_arrived_gap_as_one_entry() -> Result<()> {
    let gap = "gap = { timeout = \"1s\", attempts = 1, on_exhausted = \"wait\" }\nspill_after = \"10m\"\n";
    for order in [[2, 3, 4], [3, 2, 4], [4, 3, 2], [2, 4, 3], [3, 4, 2], [4, 2, 3]] {
        let mut rig = Rig::begun(gap)?;
        rig.deliver(0, 5);
        rig.pass(0, 2_000);
        for (at, sequence) in (2_000..).zip(order) {
            rig.deliver(at, sequence);
        }
        let record = &rig.batches.last().context("a commit")?.writes[0].record;
        let listed: Vec<_> = record.gaps.iter().map(|gap| (gap.first, gap.last, gap.end)).collect();
        assert_eq!(listed, [(2, 4, GapEnd::Arrived)], "{order:?}");
    }
    Ok(())
}

/// If the replay source is too busy to search, the round must not count towards `gap.attempts`.
#[test]
fn round_with_a_busy_source_does_not_count() -> Result<()> {
    let mut rig = Rig::begun(SKIPPING_SETTINGS)?;
    rig.busy = 10;
    rig.deliver(0, 3);
    rig.pass(0, 60_000);
    assert_eq!((rig.requests.len(), rig.sequencer.stats().settled), (12, 2));
    assert_eq!(rig.writes().map(|write| write.letters.len()).sum::<usize>(), 1);
    Ok(())
}

/// A round with a busy replay source must also not count if the missing event has the sequence 0.
#[test]
fn round_with_a_busy_source_does_not_count_for_event_zero() -> Result<()> {
    let mut rig = Rig::new(&format!("first = 0\n{SKIPPING_SETTINGS}"))?;
    rig.busy = 10;
    rig.deliver(0, 1);
    rig.pass(0, 1_500);
    rig.remember()?;
    rig.pass(1_500, 60_000);
    assert_eq!((rig.requests.len(), rig.sequencer.stats().settled), (12, 1));
    Ok(())
}
