//! Tests of gaps whose missing events the sequencer skips.

use anyhow::{Context, Result};
use ordain_core::{Cause, Input, LetterId};

use super::rig::{Rig, SKIPPING_SETTINGS, event};

const WIDE_GAP_SETTINGS: &str = "gap = { timeout = \"1s\", attempts = 2, backoff = \"1s..1s\", \
                    max_width = 1000000000, on_exhausted = \"skip\" }\nspill_after = \"10m\"\n";

/// Returns the first and the last sequence of each dead letter `gap` in the commits.
fn skipped(rig: &Rig) -> Vec<(u64, u64)> {
    let letters = rig.writes().flat_map(|write| &write.letters);
    let gaps = letters.filter(|letter| letter.cause == Cause::Gap);
    gaps.map(|letter| (letter.id.sequence, letter.last_sequence().unwrap_or(letter.id.sequence)))
        .collect()
}

/// The producer jumps by 20 million numbers. After the replay rounds of one gap, the key skips these numbers in one
/// commit, with one dead letter.
#[test]
fn wide_gap_is_skipped_in_one_step() -> Result<()> {
    let mut rig = Rig::begun(WIDE_GAP_SETTINGS)?;
    let commits = rig.batches.len();
    rig.deliver(0, 20_000_001);
    rig.pass(0, 4_000);
    assert_eq!(skipped(&rig), [(2, 20_000_000)]);
    assert_eq!(rig.requests.len(), 2, "{:?}", rig.requests);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (2, 2));
    assert!(rig.batches.len() - commits <= 5, "{} commits", rig.batches.len() - commits);
    let write = &rig.batches.last().context("a commit")?.writes[0];
    assert_eq!(write.record.next, 20_000_002);
    assert_eq!(write.record.skipped.ranges(), [(2, 20_000_000)]);
    Ok(())
}

/// Events of a skipped range arrive late: first an event in the middle of the range, then the first event of the range.
/// Each late event gets its own dead letter, a repeat of the event causes no commit, and the letter of the range stays.
#[test]
fn late_original_of_a_skipped_range_gets_its_own_letter() -> Result<()> {
    let mut rig = Rig::begun(WIDE_GAP_SETTINGS)?;
    rig.deliver(0, 20_000_001);
    rig.pass(0, 4_000);
    for (late, ranges) in
        [(500, vec![(2, 499), (501, 20_000_000)]), (2, vec![(3, 499), (501, 20_000_000)])]
    {
        let commits = rig.batches.len();
        rig.deliver(5_000, late);
        let write = &rig.batches[commits].writes[0];
        let [letter] = &write.letters[..] else { panic!("{:?}", write.letters) };
        assert_eq!((letter.cause, letter.id.sequence), (Cause::Late, late));
        let range = LetterId::of_skipped(&"a".into(), 2, 20_000_000);
        assert!(!write.removed_letters.contains(&range), "the letter of the range must stay");
        assert_eq!(write.record.skipped.ranges(), ranges);
        let commits = rig.batches.len();
        rig.deliver(5_000, late);
        assert_eq!(rig.batches.len(), commits);
    }
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (2, 6));
    Ok(())
}

/// If the skip covers a single number, the letter of the late original replaces the letter of the skip.
#[test]
fn late_original_replaces_the_letter_of_a_single_skip() -> Result<()> {
    let mut rig = Rig::begun(WIDE_GAP_SETTINGS)?;
    rig.deliver(0, 3);
    rig.pass(0, 4_000);
    assert_eq!(skipped(&rig), [(2, 2)]);
    let commits = rig.batches.len();
    rig.deliver(5_000, 2);
    let write = &rig.batches[commits].writes[0];
    assert_eq!(write.removed_letters, [LetterId::of_skipped(&"a".into(), 2, 2)]);
    assert!(write.record.skipped.ranges().is_empty());
    Ok(())
}

#[test]
fn gaps_that_open_together_are_skipped_together() -> Result<()> {
    let gap = "gap = { timeout = \"1s\", attempts = 3, backoff = \"1s..1s\", on_exhausted = \"skip\" }\n\
               spill_after = \"10m\"\n";
    let mut rig = Rig::begun(gap)?;
    for sequence in (3..=199).step_by(2) {
        rig.deliver(0, sequence);
    }
    rig.pass(0, 20_000);
    assert_eq!(rig.requests.len(), 3, "three rounds for all gaps together: {:?}", rig.requests);
    assert!(rig.requests.iter().all(|(_, missing)| missing.len() == 99));
    let gaps: Vec<_> = (2..=198).step_by(2).map(|sequence| (sequence, sequence)).collect();
    assert_eq!(skipped(&rig), gaps);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (100, 100));
    Ok(())
}

/// A request to a replay server contains a limited number of sequences of a gap. The sequencer must not skip the later
/// sequences of the gap before it has requested them. The server has the last missing events.
#[test]
fn wide_gap_is_skipped_only_as_far_as_requested() -> Result<()> {
    let servers = "replay = [\"store\", \"http://127.0.0.1:1/{key}/{sequence}\"], timeout";
    let mut rig = Rig::begun(&SKIPPING_SETTINGS.replace("timeout", servers))?;
    rig.is_kept_by_server = true;
    rig.kept = (5_000..=5_009).collect();
    rig.deliver(0, 5_010);
    rig.pass(0, 60_000);
    assert_eq!(skipped(&rig), [(2, 4_097), (4_098, 4_999)]);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (12, 2));
    Ok(())
}

/// An answer of a replay source has a limited size. After a full answer, the source may have more events with later
/// sequences, so the sequencer must not skip these sequences.
#[test]
fn events_cut_from_a_full_answer_are_not_skipped() -> Result<()> {
    let mut rig = Rig::new(SKIPPING_SETTINGS)?;
    rig.kept = (4..=40).collect();
    rig.page = 10;
    for sequence in [1, 3, 41] {
        rig.deliver(0, sequence);
        rig.remember()?;
    }
    rig.pass(0, 60_000);
    assert_eq!(skipped(&rig), [(2, 2)]);
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (40, 3));
    Ok(())
}

/// While the stream's source is unavailable, the sequencer must skip nothing, because the source may still deliver the
/// missing events.
#[test]
fn nothing_is_skipped_while_the_source_is_unavailable() -> Result<()> {
    let mut rig = Rig::begun(SKIPPING_SETTINGS)?;
    rig.input(0, Input::SourceUnavailable(true));
    rig.input(0, Input::ArrivedEarly(event(4)));
    rig.pass(0, 60_000);
    assert_eq!(rig.requests.len(), 2, "`gap.attempts` still limits the rounds: {:?}", rig.requests);
    rig.input(60_000, Input::SourceUnavailable(false));
    for sequence in 2..=3 {
        rig.deliver(60_500, sequence);
    }
    assert_eq!((rig.sequencer.stats().settled, rig.acked), (4, 3));
    // If an event is still missing when the source is available again, the gap clock starts again.
    rig.input(61_000, Input::SourceUnavailable(true));
    rig.input(61_000, Input::ArrivedEarly(event(6)));
    rig.pass(61_000, 70_000);
    rig.input(70_000, Input::SourceUnavailable(false));
    rig.pass(70_000, 70_900);
    assert_eq!(rig.sequencer.stats().settled, 4);
    rig.pass(70_900, 72_000);
    assert_eq!(rig.sequencer.stats().settled, 5);
    Ok(())
}
