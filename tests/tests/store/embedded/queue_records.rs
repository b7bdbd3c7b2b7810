//! A test of the records of queues that `fifo` streams consume. Several processes write such a record.

use std::sync::Arc;

use ordain_store::{QueueRecord, QueueRecords, SharedRecord, Store};
use ordain_store_embedded::{EmbeddedOptions, EmbeddedStore};

/// Two processes have read the same record. One of them records the loss of the queue. The other process, for example a
/// paused earlier owner of the partition, must not overwrite the record of the loss. When an operator has resumed the
/// stream, no process may record the same loss again.
#[tokio::test]
async fn outdated_write_changes_no_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = EmbeddedOptions::new(folder.path());
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(options).expect("the store"));
    let records = QueueRecords::new(&store, &"s".into());
    let consumed = QueueRecord::Consumed { queue: "q".to_owned(), has_marker: true };
    let record_loss = async |before: &SharedRecord<QueueRecord>| {
        let put = records.put_loss(before, "q".to_owned(), "removed".to_owned()).await;
        put.expect("an answer")
    };
    let losses = async || records.losses(1).await.expect("losses");
    let nothing = records.get(0).await.expect("no record");
    assert_eq!(nothing.record, None);
    assert!(records.replace(&nothing, &consumed).await.expect("an answer"));

    let before = records.get(0).await.expect("a record");
    assert!(record_loss(&before).await);
    assert!(!records.replace(&before, &consumed).await.expect("an answer"));
    assert_eq!(losses().await, [(0, "removed".to_owned())]);

    assert_eq!(records.resume(1).await.expect("losses"), [(0, "removed".to_owned())]);
    assert!(!record_loss(&before).await);
    assert!(losses().await.is_empty());
    assert!(records.resume(1).await.expect("losses").is_empty());
}
