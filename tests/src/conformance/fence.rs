//! Tests of claims, commit numbers, and lost replies.

use std::sync::Arc;

use ordain_core::{Batch, CommitReply, StateUpdate, WriteCondition, WriteRefusal};
use ordain_store::{Claim, Store};

use super::{
    Fixture, Owner, commit_number, event, first_write, key_record, next_write, record_write,
};

/// Each claim has a higher epoch than all claims before it, and returns the number of the last commit of each shard.
pub async fn claim_has_a_higher_epoch_than_all_earlier_claims(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut first = Owner::claim(store, "s", 0).await;
    assert!(first.numbers.iter().all(|number| *number == 0));
    first.write(store, first_write("a")).await;
    first.write(store, next_write("a", 2)).await;
    let second = Owner::claim(store, "s", 0).await;
    assert!(second.claim.epoch > first.claim.epoch);
    assert_eq!(second.numbers, first.numbers);
    assert_eq!(commit_number(&second, "a"), 2);
    fixture.reopen().await;
    let third = Owner::claim(fixture.store(), "s", 0).await;
    assert!(third.claim.epoch > second.claim.epoch);
    assert_eq!(third.numbers, first.numbers);
}

/// After another owner has claimed the partition, the store answers each commit of the previous owner with `Fenced`,
/// even a repetition of an applied commit.
pub async fn commit_under_an_older_claim_is_fenced(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut old = Owner::claim(store, "s", 0).await;
    let committed = old.batch(vec![first_write("a")]);
    assert!(matches!(old.send(store, &committed).await, CommitReply::Applied(_)));
    let mut new = Owner::claim(store, "s", 0).await;
    let late = old.batch(vec![next_write("a", 2)]);
    assert_eq!(old.send(store, &late).await, CommitReply::Fenced);
    assert_eq!(old.send(store, &committed).await, CommitReply::Fenced);
    new.write(store, next_write("a", 2)).await;
    assert_eq!(new.load(store, "a").await.expect("a key record").record.next, 3);
}

/// The store rejects commits under a claim that it does not have, for example because it lost this claim when it went
/// back in time.
pub async fn commit_under_an_unknown_claim_is_rejected(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    let batch = owner.batch(vec![first_write("a")]);
    let stored = owner.claim;
    owner.claim = Claim { random: stored.random ^ 1, ..stored };
    assert!(matches!(owner.send(store, &batch).await, CommitReply::RolledBack { .. }));
    owner.claim = Claim { epoch: stored.epoch + 1, ..stored };
    assert!(matches!(owner.send(store, &batch).await, CommitReply::RolledBack { .. }));
    owner.claim = stored;
    assert!(matches!(owner.send(store, &batch).await, CommitReply::Applied(_)));

    let unclaimed = Owner {
        partition: ordain_store::Partition { stream: "never".into(), number: 0 },
        claim: stored,
        numbers: owner.numbers.clone(),
    };
    let reply = unclaimed.send(store, &batch).await;
    assert!(matches!(reply, CommitReply::RolledBack { .. }), "{reply:?}");
}

/// The store accepts only two commit numbers: the number that follows the last commit, and the number of the last
/// commit itself (a repeat).
pub async fn commit_with_a_wrong_number_is_rejected(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let mut owner = Owner::claim(store, "s", 0).await;
    owner.write(store, first_write("a")).await;
    owner.write(store, next_write("a", 2)).await;
    let following = owner.batch(vec![next_write("a", 3)]);
    for number in [0, 1, 4, u64::MAX] {
        let wrong = Arc::new(Batch { number, ..(*following).clone() });
        let reply = owner.send(store, &wrong).await;
        assert!(matches!(reply, CommitReply::RolledBack { .. }), "{number}: {reply:?}");
    }
    let CommitReply::Applied(applied) = owner.send(store, &following).await else {
        panic!("the commit with the following number is not applied")
    };
    assert_eq!(applied.refused, []);
}

/// A test repeats the commit. Its reply reports a refused write, and an event that the commit was to spill, but whose
/// sequence was already spilled.
async fn commit_with_details(store: &dyn Store) -> (Owner, Arc<Batch>, CommitReply) {
    let mut owner = Owner::claim(store, "s", 0).await;
    let keys = owner.keys(3);
    let mut spilling = first_write(&keys[0]);
    spilling.spill = vec![(5, event(&keys[0], 5, "five"))];
    spilling.record.spilled.add(5);
    owner.write(store, spilling).await;

    let mut again = record_write(&keys[0], WriteCondition::Next(2), key_record(2));
    again.spill = vec![(5, event(&keys[0], 5, "other")), (6, event(&keys[0], 6, "six"))];
    again.record.spilled = ordain_core::SpillExtent { count: 2, first: 5, last: 6 };
    let mut state = first_write(&keys[2]);
    state.state = StateUpdate::Put("once".into());
    let batch = owner.batch(vec![again, next_write(&keys[1], 7), state]);
    let reply = owner.send(store, &batch).await;
    let CommitReply::Applied(applied) = &reply else { panic!("{reply:?}") };
    assert_eq!(applied.refused, [(1, WriteRefusal::Next(None))]);
    assert_eq!(applied.existing_spills.len(), 1);
    assert!(!applied.existing_spills[0].same);
    (owner, batch, reply)
}

/// If an owner repeats the last commit, the store returns the first reply again and writes nothing.
pub async fn repeated_commit_gets_its_first_reply(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let (mut owner, batch, reply) = commit_with_details(store).await;
    assert_eq!(owner.send(store, &batch).await, reply);
    // The store recognises a repeated commit by its number, even if the content differs.
    let other = Arc::new(Batch { writes: vec![first_write("else")], ..(*batch).clone() });
    assert_eq!(owner.send(store, &other).await, reply);
    assert_eq!(owner.load(store, "else").await, None);
    let key = &batch.writes[2].key;
    assert_eq!(owner.load(store, key).await.expect("a key record").record.next, 2);
    owner.write(store, next_write(key, 2)).await;
}

/// If an owner repeats the last commit after the store was closed and opened again, the store returns the first reply.
pub async fn repeated_commit_gets_its_first_reply_after_reopening(fixture: &mut impl Fixture) {
    let (mut owner, batch, reply) = commit_with_details(fixture.store()).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(owner.send(store, &batch).await, reply);
    let key = &batch.writes[2].key;
    owner.write(store, next_write(key, 2)).await;
}

/// A commit of one shard does not affect the commit number of another shard.
pub async fn shards_number_their_commits_independently(fixture: &mut impl Fixture) {
    let store = fixture.store();
    let owner = Owner::claim(store, "s", 0).await;
    for shard in 0..store.shards() {
        let batch = Batch {
            shard,
            number: 1,
            writes: Vec::new(),
            letters: Vec::new(),
            forward: false,
            repeated: false,
        };
        let reply = owner.send(store, &Arc::new(batch)).await;
        assert!(matches!(reply, CommitReply::Applied(_)), "{reply:?}");
    }
    let beyond = store.shards();
    let batch = Batch {
        shard: beyond,
        number: 1,
        writes: Vec::new(),
        letters: Vec::new(),
        forward: false,
        repeated: false,
    };
    let reply = owner.send(store, &Arc::new(batch)).await;
    assert!(matches!(reply, CommitReply::RolledBack { .. }), "{reply:?}");
    let again = Owner::claim(store, "s", 0).await;
    assert!(again.numbers.iter().all(|number| *number == 1));
}
