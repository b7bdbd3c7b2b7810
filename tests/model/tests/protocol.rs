//! Walks through all runs of the model of owners and their store, in small scopes. `docs/internals/protocol.md`
//! describes these scopes. `ORDAIN_MODEL=large` adds larger scopes.

use ordain_model::{Fault, Scope, check_faults, walk};

// Each scope below lists some of these properties. The runs of the scope must show exactly the listed properties. A
// scope whose runs do not show them is too small to test anything.
const ALL_DONE: &str = "everything is done";
const EVENT_SPILLED: &str = "an event waits in the store";
const MOVED_BACK: &str = "a key is taken over and back";
const WRITE_REFUSED: &str = "a write is refused";
const HANDED_OVER: &str = "an owner hands over";
const OWNER_FENCED: &str = "an owner is fenced";
const OWNER_STOPPED: &str = "an owner stops";
const REPEATED: &str = "an owner repeats a lost commit";

// The properties that must always hold. Each fault must break one of these properties, and at least one fault must
// break each property. Without a fault, only `moved_outbox` breaks a property: `PUBLISHED_IN_ORDER`.
const NOTHING_LOST: &str = "nothing is lost";
const NOTHING_STUCK: &str = "nothing gets stuck";
const SETTLED_IN_ORDER: &str = "events of a key settle in order, each once";
const CURRENT_RECORD: &str = "a write changes the record that its lane knows";
const APPLIED_ONCE: &str = "a commit is applied once";
const RIGHT_ANSWER: &str = "an answer belongs to its own commit";
const IN_SEQUENCE: &str = "a commit builds on the previous commit";
const ONE_OWNER_PER_EPOCH: &str = "two owners never commit under one epoch";
const LEASE_ABOVE_CLAIMS: &str = "a lease is above every claim";
const ONLY_NEWER_FENCES: &str = "only a newer lease fences an owner";
const STOP_AFTER_ROLLBACK: &str = "an owner stops only if the store went back";
const PUBLISHED_AFTER_COMMIT: &str = "only committed messages are published";
const REMOVED_AFTER_PUBLISHING: &str = "an entry leaves the outbox after its publication";
const PUBLISHED_IN_ORDER: &str = "messages of a key are published in order";

/// A scope with its name. The list contains all properties that the runs of the scope show, and all properties that
/// they break.
type Case = (&'static str, fn() -> Scope, &'static [&'static str]);
type FaultCase = (Fault, fn() -> Scope, &'static str);

const ONE_PARTITION: &[Case] = &[
    (
        "one_partition",
        Scope::one_partition,
        &[ALL_DONE, EVENT_SPILLED, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED],
    ),
    (
        "three_events",
        Scope::three_events,
        &[ALL_DONE, EVENT_SPILLED, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED],
    ),
    ("outbox", Scope::outbox, &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED]),
    (
        "two_shards",
        Scope::two_shards,
        &[ALL_DONE, EVENT_SPILLED, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED],
    ),
    ("three_owners", Scope::three_owners, &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED]),
];

const TWO_PARTITIONS: &[Case] = &[
    (
        "two_partitions",
        Scope::two_partitions,
        &[ALL_DONE, EVENT_SPILLED, MOVED_BACK, WRITE_REFUSED],
    ),
    (
        "older_owner",
        Scope::older_owner,
        &[ALL_DONE, EVENT_SPILLED, MOVED_BACK, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED],
    ),
    ("two_keys", Scope::two_keys, &[ALL_DONE, EVENT_SPILLED, MOVED_BACK, WRITE_REFUSED]),
    // A run of this scope breaks a property because of a limit of the protocol (`docs/internals/protocol.md`). If a key
    // moves to another partition, its messages may be published out of order.
    ("moved_outbox", Scope::moved_outbox, &[ALL_DONE, PUBLISHED_IN_ORDER]),
];

const GOES_BACK: &[Case] = &[
    (
        "goes_back",
        Scope::goes_back,
        &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED],
    ),
    (
        "goes_back_under_three",
        Scope::goes_back_under_three,
        &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED],
    ),
    (
        "goes_back_in_part",
        Scope::goes_back_in_part,
        &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED],
    ),
    (
        "goes_back_with_outbox",
        Scope::goes_back_with_outbox,
        &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED],
    ),
    (
        "goes_back_with_late_commit",
        Scope::goes_back_with_late_commit,
        &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED],
    ),
];

const REPEATS_COMMITS: &[Case] = &[
    (
        "repeats_commits",
        Scope::repeats_commits,
        &[ALL_DONE, EVENT_SPILLED, OWNER_STOPPED, REPEATED],
    ),
    (
        "repeats_commits_twice",
        Scope::repeats_commits_twice,
        &[ALL_DONE, EVENT_SPILLED, OWNER_STOPPED, REPEATED],
    ),
];

const FAULTS: &[FaultCase] = &[
    (Fault::CommitWithoutClaim, Scope::three_events, NOTHING_LOST),
    (Fault::CommitWithoutClaim, Scope::three_events, RIGHT_ANSWER),
    (Fault::ClaimWithoutRandom, Scope::goes_back, ONE_OWNER_PER_EPOCH),
    (Fault::ClaimWithoutRandom, Scope::goes_back, RIGHT_ANSWER),
    (Fault::EpochFromFence, Scope::two_shards, ONLY_NEWER_FENCES),
    (Fault::EpochFromLease, Scope::goes_back, LEASE_ABOVE_CLAIMS),
    (Fault::SpillWithoutFence, Scope::three_events, NOTHING_LOST),
    (Fault::AcknowledgeBeforeCommit, Scope::one_partition, NOTHING_LOST),
    (Fault::AcknowledgeBeyondPrefix, Scope::one_partition, NOTHING_LOST),
    (Fault::WriteWithoutCondition, Scope::two_partitions, SETTLED_IN_ORDER),
    (Fault::TakeOversNotCounted, Scope::two_partitions, NOTHING_LOST),
    (Fault::TakeOversNotCounted, Scope::older_owner, NOTHING_LOST),
    (Fault::TakeOversNotCounted, Scope::two_partitions, CURRENT_RECORD),
    (Fault::AnswerForgotten, Scope::one_partition, APPLIED_ONCE),
    (Fault::RepeatRefused, Scope::one_partition, STOP_AFTER_ROLLBACK),
    (Fault::NumberIgnored, Scope::goes_back, IN_SEQUENCE),
    (Fault::SpilledNotDue, Scope::one_partition, NOTHING_STUCK),
    (Fault::DueStays, Scope::two_partitions, NOTHING_STUCK),
    (Fault::DueIgnoredByLane, Scope::two_partitions, NOTHING_STUCK),
    (Fault::DueIgnoredByLane, Scope::older_owner, NOTHING_STUCK),
    (Fault::EvictTooEarly, Scope::one_partition, NOTHING_STUCK),
    (Fault::PublishBeforeCommit, Scope::outbox, PUBLISHED_AFTER_COMMIT),
    (Fault::PublishNewestFirst, Scope::outbox, PUBLISHED_IN_ORDER),
    (Fault::RemoveUnpublished, Scope::outbox, REMOVED_AFTER_PUBLISHING),
    (Fault::RemoveWithoutClaim, Scope::goes_back_with_outbox, REMOVED_AFTER_PUBLISHING),
    (Fault::RecordNotRepeated, Scope::repeats_commits, NOTHING_LOST),
    (Fault::SpilledNotRepeated, Scope::repeats_commits, NOTHING_LOST),
    (Fault::DueNotRepeated, Scope::repeats_commits, NOTHING_STUCK),
    (Fault::OldReadsKept, Scope::repeats_commits, NOTHING_LOST),
    (Fault::OldReadsKept, Scope::repeats_commits, CURRENT_RECORD),
    (Fault::ReadsDiscardedEarly, Scope::repeats_commits, NOTHING_LOST),
    (Fault::OldCommitKept, Scope::repeats_commits, NOTHING_LOST),
];

#[test]
fn no_run_with_one_partition_breaks_a_rule() {
    ONE_PARTITION.iter().for_each(walk_case);
}

#[test]
fn no_run_with_two_partitions_breaks_a_rule_except_in_moved_outbox() {
    TWO_PARTITIONS.iter().for_each(walk_case);
}

#[test]
fn no_run_with_a_rollback_breaks_a_rule() {
    GOES_BACK.iter().for_each(walk_case);
}

#[test]
fn no_run_with_repeated_commits_breaks_a_rule() {
    REPEATS_COMMITS.iter().for_each(walk_case);
}

#[test]
fn no_large_run_with_one_partition_breaks_a_rule() {
    walk_large(&(
        "one_partition_large",
        Scope::one_partition_large,
        &[ALL_DONE, EVENT_SPILLED, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED],
    ));
}

#[test]
fn no_large_run_with_two_shards_breaks_a_rule() {
    walk_large(&(
        "two_shards_large",
        Scope::two_shards_large,
        &[ALL_DONE, EVENT_SPILLED, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED],
    ));
}

#[test]
fn no_large_run_with_two_partitions_breaks_a_rule() {
    let expected = &[ALL_DONE, EVENT_SPILLED, MOVED_BACK, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED];
    walk_large(&("two_partitions_large", Scope::two_partitions_large, expected));
}

#[test]
fn no_large_run_with_a_rollback_breaks_a_rule() {
    walk_large(&(
        "goes_back_large",
        Scope::goes_back_large,
        &[ALL_DONE, EVENT_SPILLED, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED],
    ));
}

#[test]
fn no_large_run_with_a_rollback_and_an_outbox_breaks_a_rule() {
    let expected = &[ALL_DONE, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED];
    walk_large(&("goes_back_with_outbox_large", Scope::goes_back_with_outbox_large, expected));
}

#[test]
fn no_large_run_with_a_rollback_and_two_partitions_breaks_a_rule() {
    let expected = &[ALL_DONE, MOVED_BACK, WRITE_REFUSED, HANDED_OVER, OWNER_FENCED, OWNER_STOPPED];
    walk_large(&(
        "goes_back_under_two_partitions",
        Scope::goes_back_under_two_partitions,
        expected,
    ));
}

#[test]
fn every_fault_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, property)| {
        (*fault, Scope { fault: Some(*fault), ..scope() }, *property)
    });
    check_faults(&Fault::ALL, cases);
}

fn walk_case((name, scope, expected): &Case) {
    walk(name, &scope(), expected);
}

/// Walks through the runs of a larger scope if `ORDAIN_MODEL` is `large`; otherwise does nothing.
fn walk_large(case: &Case) {
    if std::env::var("ORDAIN_MODEL").is_ok_and(|size| size == "large") {
        walk_case(case);
    }
}
