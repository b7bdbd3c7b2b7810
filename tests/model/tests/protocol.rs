//! Walks through all runs of small scopes. `docs/internals/protocol.md` describes them. `ORDAIN_MODEL=large` adds
//! larger scopes.

use ordain_model::{Fault, Scope, breaks, walk};

// Properties that the runs of a scope must show. A scope without them would be too small to test anything.
const DONE: &str = "everything is done";
const SPILLED: &str = "an event waits in the store";
const AND_BACK: &str = "a key is taken over and back";
const REFUSED: &str = "a write is refused";
const OVER: &str = "an owner hands over";
const LATE: &str = "an owner is fenced";
const STOPPED: &str = "an owner stops";

// The properties that the faults must break.
const LOST: &str = "nothing is lost";
const STUCK: &str = "nothing gets stuck";
const ORDER: &str = "events of a key settle in order, each once";
const KNOWN: &str = "a write changes the record that its lane knows";
const ONCE: &str = "a commit is applied once";
const OWN_ANSWER: &str = "an answer belongs to its own commit";
const BUILDS: &str = "a commit builds on the one before it";
const ONE_OF_EPOCH: &str = "no two owners of one epoch commit";
const ABOVE: &str = "a lease is above every claim";
const FENCED: &str = "only a newer lease fences an owner";
const NOT_IN_VAIN: &str = "an owner stops only if the store went back";
const COMMITTED: &str = "only committed messages are published";
const PUBLISHED: &str = "an entry leaves the outbox after its publication";
const IN_ORDER: &str = "messages of a key are published in order";

/// A scope, and all properties that its runs show.
type Case = (&'static str, fn() -> Scope, &'static [&'static str]);
/// A fault, a scope, and the property that the fault breaks in the runs of this scope.
type Break = (Fault, fn() -> Scope, &'static str);

const ONE_PARTITION: &[Case] = &[
    ("one_partition", Scope::one_partition, &[DONE, SPILLED, REFUSED, OVER, LATE]),
    ("three_events", Scope::three_events, &[DONE, SPILLED, REFUSED, OVER, LATE]),
    ("outbox", Scope::outbox, &[DONE, REFUSED, OVER, LATE]),
    ("two_shards", Scope::two_shards, &[DONE, SPILLED, REFUSED, OVER, LATE]),
    ("three_owners", Scope::three_owners, &[DONE, REFUSED, OVER, LATE]),
];

const TWO_PARTITIONS: &[Case] = &[
    ("two_partitions", Scope::two_partitions, &[DONE, SPILLED, AND_BACK, REFUSED]),
    ("older_owner", Scope::older_owner, &[DONE, SPILLED, AND_BACK, REFUSED, OVER, LATE]),
    ("two_keys", Scope::two_keys, &[DONE, SPILLED, AND_BACK, REFUSED]),
    // This scope shows a limit that `docs/internals/protocol.md` names: messages of a moved key may be published out of
    // order.
    ("moved_outbox", Scope::moved_outbox, &[DONE, IN_ORDER]),
];

const GOES_BACK: &[Case] = &[
    ("goes_back", Scope::goes_back, &[DONE, REFUSED, OVER, LATE, STOPPED]),
    ("goes_back_under_three", Scope::goes_back_under_three, &[DONE, REFUSED, OVER, LATE, STOPPED]),
    ("goes_back_in_part", Scope::goes_back_in_part, &[DONE, REFUSED, OVER, LATE, STOPPED]),
    ("goes_back_with_outbox", Scope::goes_back_with_outbox, &[DONE, REFUSED, OVER, LATE, STOPPED]),
    (
        "goes_back_with_late_commit",
        Scope::goes_back_with_late_commit,
        &[DONE, REFUSED, OVER, LATE, STOPPED],
    ),
];

const FAULTS: &[Break] = &[
    (Fault::CommitWithoutClaim, Scope::three_events, LOST),
    (Fault::CommitWithoutClaim, Scope::three_events, OWN_ANSWER),
    (Fault::ClaimWithoutRandom, Scope::goes_back, ONE_OF_EPOCH),
    (Fault::ClaimWithoutRandom, Scope::goes_back, OWN_ANSWER),
    (Fault::EpochFromFence, Scope::two_shards, FENCED),
    (Fault::EpochFromLease, Scope::goes_back, ABOVE),
    (Fault::SpillWithoutFence, Scope::three_events, LOST),
    (Fault::AcknowledgeBeforeCommit, Scope::one_partition, LOST),
    (Fault::AcknowledgeBeyondPrefix, Scope::one_partition, LOST),
    (Fault::WriteWithoutCondition, Scope::two_partitions, ORDER),
    (Fault::TakeOversNotCounted, Scope::two_partitions, LOST),
    (Fault::TakeOversNotCounted, Scope::older_owner, LOST),
    (Fault::TakeOversNotCounted, Scope::two_partitions, KNOWN),
    (Fault::AnswerForgotten, Scope::one_partition, ONCE),
    (Fault::RepeatRefused, Scope::one_partition, NOT_IN_VAIN),
    (Fault::NumberIgnored, Scope::goes_back, BUILDS),
    (Fault::SpilledNotDue, Scope::one_partition, STUCK),
    (Fault::DueStays, Scope::two_partitions, STUCK),
    (Fault::DueLeftToLane, Scope::two_partitions, STUCK),
    (Fault::DueLeftToLane, Scope::older_owner, STUCK),
    (Fault::LeaveTooEarly, Scope::one_partition, STUCK),
    (Fault::PublishBeforeCommit, Scope::outbox, COMMITTED),
    (Fault::RemoveUnpublished, Scope::outbox, PUBLISHED),
    (Fault::RemoveWithoutClaim, Scope::goes_back_with_outbox, PUBLISHED),
];

#[test]
fn one_partition() {
    ONE_PARTITION.iter().for_each(walk_case);
}

#[test]
fn two_partitions() {
    TWO_PARTITIONS.iter().for_each(walk_case);
}

#[test]
fn a_store_that_goes_back() {
    GOES_BACK.iter().for_each(walk_case);
}

#[test]
fn large_one_partition() {
    walk_large(&(
        "one_partition_large",
        Scope::one_partition_large,
        &[DONE, SPILLED, REFUSED, OVER, LATE],
    ));
}

#[test]
fn large_two_shards() {
    walk_large(&(
        "two_shards_large",
        Scope::two_shards_large,
        &[DONE, SPILLED, REFUSED, OVER, LATE],
    ));
}

#[test]
fn large_two_partitions() {
    let expected = &[DONE, SPILLED, AND_BACK, REFUSED, OVER, LATE];
    walk_large(&("two_partitions_large", Scope::two_partitions_large, expected));
}

#[test]
fn large_goes_back() {
    walk_large(&(
        "goes_back_large",
        Scope::goes_back_large,
        &[DONE, SPILLED, REFUSED, OVER, LATE, STOPPED],
    ));
}

#[test]
fn large_goes_back_with_outbox() {
    let expected = &[DONE, REFUSED, OVER, LATE, STOPPED];
    walk_large(&("goes_back_with_outbox_large", Scope::goes_back_with_outbox_large, expected));
}

#[test]
fn large_goes_back_under_two_partitions() {
    let expected = &[DONE, AND_BACK, REFUSED, OVER, LATE, STOPPED];
    walk_large(&(
        "goes_back_under_two_partitions",
        Scope::goes_back_under_two_partitions,
        expected,
    ));
}

#[test]
fn every_fault_is_found() {
    for (fault, scope, property) in FAULTS {
        breaks(fault, &Scope { fault: Some(*fault), ..scope() }, property);
    }
}

fn walk_case((name, scope, expected): &Case) {
    walk(name, &scope(), expected);
}

fn walk_large(case: &Case) {
    if std::env::var("ORDAIN_MODEL").is_ok_and(|size| size == "large") {
        walk_case(case);
    }
}
