//! Monitors whether this process can reach the broker. If other processes reach the broker and this process does not,
//! this process must release its partitions, because it cannot consume their queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::Connection;
use ordain_store::BrokerHealth;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::connect::BrokerEndpoint;

/// Shortest time limit for a response. A first connection takes several round trips.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts a task that checks the broker four times in each period of `lease`, until the returned receiver is dropped.
pub fn watch_broker_health(
    broker: &Arc<BrokerEndpoint>,
    lease: Duration,
) -> watch::Receiver<BrokerHealth> {
    let (health_sender, health_receiver) = watch::channel(BrokerHealth::Up);
    let broker = Arc::clone(broker);
    tokio::spawn(async move {
        let check_interval = lease / 4;
        let response_timeout = check_interval.max(MIN_RESPONSE_TIMEOUT);
        let mut connection = None;
        let mut reached_at = Instant::now();
        let mut responding_since = None;
        while !health_sender.is_closed() {
            let answers = timeout(response_timeout, responds(&broker, &mut connection)).await;
            let health = if answers == Ok(true) {
                reached_at = Instant::now();
                // Wait until other processes can have reconnected: otherwise the first process that reconnects would
                // take over all partitions.
                let all_are_back = responding_since.get_or_insert(reached_at).elapsed()
                    > response_timeout + check_interval;
                let previous = *health_sender.borrow();
                if all_are_back { BrokerHealth::Up } else { previous }
            } else {
                connection = None;
                responding_since = None;
                if reached_at.elapsed() > lease {
                    BrokerHealth::Down
                } else {
                    BrokerHealth::Suspect
                }
            };
            health_sender.send_if_modified(|now| std::mem::replace(now, health) != health);
            sleep(check_interval).await;
        }
    });
    health_receiver
}

/// Returns whether the broker responds. Uses the previous connection if there is one.
async fn responds(broker: &BrokerEndpoint, connection: &mut Option<Connection>) -> bool {
    if connection.is_none() {
        *connection = broker.connect("ordain watch").await.ok();
    }
    let Some(connection) = connection else { return false };
    match connection.create_channel().await {
        Ok(channel) => channel.close(200, "done".into()).await.is_ok(),
        Err(_) => false,
    }
}
