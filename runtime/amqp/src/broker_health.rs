//! Monitors whether this process can reach the broker. If other processes reach the broker and this process does not,
//! this process must release its partitions, because it cannot consume their queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::Connection;
use ordain_store::BrokerHealth;
use tokio::sync::watch;
use tokio::time::sleep;

use super::connect::{BrokerEndpoint, BrokerError};

/// Minimum time limit for one check. A check may first have to open a connection, which takes several round trips.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of the health checks.
#[derive(Debug, Clone, Default)]
pub struct BrokerStatus {
    /// The ability of this process to use the broker.
    pub health: BrokerHealth,
    /// The error of the newest check; `None` before the first check, and if the broker responded to the newest check.
    pub error: Option<String>,
}

/// Starts a task that checks the broker until all receivers are dropped. The task waits for a quarter of `lease`
/// between two checks. The task notifies the receivers when the health changes, but not when only the error changes.
pub fn watch_broker_health(
    broker: &Arc<BrokerEndpoint>,
    lease: Duration,
) -> watch::Receiver<BrokerStatus> {
    let (status_sender, status_receiver) = watch::channel(BrokerStatus::default());
    let broker = Arc::clone(broker);
    tokio::spawn(async move {
        let check_interval = lease / 4;
        let response_timeout = check_interval.max(MIN_RESPONSE_TIMEOUT);
        let mut connection = None;
        let mut reached_at = Instant::now();
        let mut responding_since = None;
        while !status_sender.is_closed() {
            let response = check_response(&broker, &mut connection);
            let error = broker.within(response_timeout, response).await.err();
            let error = error.map(|error| error.to_string());
            let health = if error.is_none() {
                reached_at = Instant::now();
                // Report the broker as reachable only after the other processes have had time to reconnect. Otherwise
                // the first process that reconnects would acquire all partitions.
                let all_are_back = responding_since.get_or_insert(reached_at).elapsed()
                    > response_timeout + check_interval;
                let previous = status_sender.borrow().health;
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
            status_sender.send_if_modified(|status| {
                status.error = error;
                std::mem::replace(&mut status.health, health) != health
            });
            sleep(check_interval).await;
        }
    });
    status_receiver
}

/// Checks that the broker responds. Uses the connection of the previous check if it is still open.
async fn check_response(
    broker: &BrokerEndpoint,
    connection: &mut Option<Connection>,
) -> Result<(), BrokerError> {
    let open = if let Some(open) = connection.take() {
        open
    } else {
        let open = broker.connect("ordain watch").await?;
        // The broker may have been upgraded since the previous connection.
        broker.forget_version();
        open
    };
    let failed = |error| broker.error(&error);
    let channel = connection.insert(open).create_channel().await.map_err(failed)?;
    channel.close(200, "done".into()).await.map_err(failed)
}
