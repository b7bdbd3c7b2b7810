//! A test of dead letters that have expired.

use std::sync::Arc;

use ordain_core::{Cause, CommitReply, DeadLetter, LetterContent, LetterId};
use ordain_store::LetterListing;
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};
use ordain_tests::conformance::{DEAD_TTL, Fixture, Owner, first_write};

use super::support::Rig;

fn letter(sequence: u64, tag: u64) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: "".into(), sequence, tag },
        cause: Cause::Unreadable,
        error: "no".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Nothing,
    }
}

/// The commits write only orphan dead letters, and no key records. After each commit, the store must nevertheless
/// remove the expired dead letters of earlier commits, so that the number of stored dead letters does not grow.
#[tokio::test]
async fn expired_letters_do_not_accumulate() {
    const LETTER_COUNT: u64 = 200;
    let mut rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    for round in 0..3 {
        let mut batch = Arc::unwrap_or_clone(owner.batch(vec![first_write("x")]));
        batch.writes.clear();
        batch.letters = (0..LETTER_COUNT).map(|tag| letter(round, tag)).collect();
        let reply = owner.send(rig.store(), &Arc::new(batch)).await;
        assert!(matches!(reply, CommitReply::Applied(_)), "{reply:?}");
        rig.advance_clock(DEAD_TTL + 1).await;
    }
    // The writer thread removes expired dead letters after its reply, and `close` waits for the thread.
    rig.close();
    // A store that keeps dead letters for a longer time shows all dead letters that have not been removed.
    let options = EmbeddedOptions { dead_ttl: 100 * DEAD_TTL, ..rig.options() };
    let store = EmbeddedStore::open(options).expect("the store again");
    let page = store.letters("s", None, None, 1_000).await.expect("a page");
    assert_eq!(page.rows.len() as u64, LETTER_COUNT);
}
