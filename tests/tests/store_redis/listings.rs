//! Tests of the pages of a listing of keys. Redis returns the fields of a hash in groups, whose sizes the store cannot
//! determine exactly.

use ordain_core::shard_of;
use ordain_store::{KeyFilter, KeyListing, RedisOptions};
use ordain_store_redis::RedisStore;
use ordain_tests::conformance::{Owner, first_write};

use super::dedicated::Server;
use super::support::options;

/// The number of shards. All shards except the last shard are empty, so the store increases the number of fields that
/// it requests, until it requests the whole last shard.
const SHARDS: u32 = 16;
const KEYS: usize = 60;

/// If the keys do not change, each key is on exactly one page, whatever the size of the pages.
#[tokio::test]
async fn unchanged_key_is_on_one_page() {
    let server = Server::start(&[]).expect("a server");
    let options = RedisOptions { shards: SHARDS, ..options(&server.url()) };
    let store = RedisStore::open(options).await.expect("a new store");
    let mut owner = Owner::claim(&store, "s", 0).await;
    let names = (0..).map(|number| format!("key-{number}"));
    let of_last_shard = names.filter(|key| shard_of(key, SHARDS) == SHARDS - 1);
    let mut expected: Vec<String> = of_last_shard.take(KEYS).collect();
    for key in &expected {
        owner.write(&store, first_write(key)).await;
    }
    expected.sort();
    for limit in [1, 3, 7, 50, KEYS, 1_000] {
        let mut filter = KeyFilter { limit, ..KeyFilter::default() };
        let mut found: Vec<String> = Vec::new();
        loop {
            let page = store.keys("s", &filter).await.expect("a page");
            if filter.cursor.is_none() {
                assert_eq!(page.rows.len(), limit.min(KEYS), "the first page of {limit} rows");
            }
            found.extend(page.rows.iter().map(|row| row.key.to_string()));
            filter.cursor = page.cursor;
            if filter.cursor.is_none() {
                break;
            }
        }
        found.sort();
        assert_eq!(found, expected, "pages of {limit} rows");
    }
}
