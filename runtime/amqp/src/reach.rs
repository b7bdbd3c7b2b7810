//! Whether this process reaches the broker. One that does not, while others do, is not to keep
//! partitions whose queues nobody consumes then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::Connection;
use ordain_store::Reach;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::connect::Broker;

/// For an answer, at least: a first connection takes several ways there and back.
const SHORTEST: Duration = Duration::from_secs(1);

/// Tries again and again, until nobody wants to know any more.
pub fn watch_reach(broker: &Arc<Broker>, lease: Duration) -> watch::Receiver<Reach> {
    let (tell, told) = watch::channel(Reach::Reached);
    let broker = Arc::clone(broker);
    tokio::spawn(async move {
        let every = lease / 4;
        let patience = every.max(SHORTEST);
        let (mut connection, mut reached_at) = (None, Instant::now());
        let mut since = None;
        while !tell.is_closed() {
            let answers = timeout(patience, answers(&broker, &mut connection)).await;
            let reach = if answers == Ok(true) {
                reached_at = Instant::now();
                // The first one that is back would take everything from those who are still trying.
                let all_are_back = since.get_or_insert(reached_at).elapsed() > patience + every;
                let before = *tell.borrow();
                if all_are_back { Reach::Reached } else { before }
            } else {
                (connection, since) = (None, None);
                if reached_at.elapsed() > lease { Reach::Lost } else { Reach::Doubted }
            };
            tell.send_if_modified(|now| std::mem::replace(now, reach) != reach);
            sleep(every).await;
        }
    });
    told
}

/// Whether there is an answer, on the connection of the last time if there is one.
async fn answers(broker: &Broker, connection: &mut Option<Connection>) -> bool {
    if connection.is_none() {
        *connection = broker.connect("ordain watch").await.ok();
    }
    let Some(connection) = connection else { return false };
    match connection.create_channel().await {
        Ok(channel) => channel.close(200, "done".into()).await.is_ok(),
        Err(_) => false,
    }
}
