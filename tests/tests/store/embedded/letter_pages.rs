//! A test of the listing of dead letters that have expired and that the store has not removed yet.

use bytes::Bytes;
use ordain_core::{Cause, DeadLetter, LetterContent, LetterId};
use ordain_store::LETTERS_PAGE_BYTES;
use ordain_tests::conformance::{DEAD_TTL, Fixture, Owner, first_write};

use super::support::Rig;

/// The number of large dead letters. All of them except the last large dead letter fill a page.
const LARGE_LETTERS: usize = 9;

fn letter(key: &str, sequence: u64, bytes: usize) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: key.into(), sequence, tag: 0 },
        cause: Cause::Rejected,
        error: "a test".to_owned(),
        origin: None,
        version: None,
        content: LetterContent::Raw(Bytes::from(vec![b'x'; bytes])),
    }
}

/// The read of a page must end at its size limit, even if all dead letters that it has read have expired.
#[tokio::test]
async fn page_of_expired_letters_ends_at_size_limit() {
    let mut rig = Rig::open();
    let mut owner = Owner::claim(rig.store(), "s", 0).await;
    let mut write = first_write("a");
    let bytes = LETTERS_PAGE_BYTES / (LARGE_LETTERS - 1);
    write.letters = (1..=LARGE_LETTERS as u64).map(|number| letter("a", number, bytes)).collect();
    owner.write(rig.store(), write).await;
    rig.advance_clock(DEAD_TTL * 3 / 4).await;
    let mut write = first_write("b");
    write.letters = vec![letter("b", 1, 1)];
    owner.write(rig.store(), write).await;
    rig.advance_clock(DEAD_TTL / 2).await;

    let store = rig.store();
    let first = store.letters("s", None, None, 10).await.expect("a page");
    assert_eq!(
        first.rows.len(),
        0,
        "the first page must end before the dead letter that has not expired"
    );
    let cursor = first.cursor.expect("further letters");
    let last = store.letters("s", None, Some(&cursor), 10).await.expect("a page");
    let keys: Vec<&str> = last.rows.iter().map(|row| &*row.letter.id.key).collect();
    assert_eq!((keys, last.cursor), (vec!["b"], None));
}
