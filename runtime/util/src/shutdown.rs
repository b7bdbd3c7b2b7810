//! The end of a process, as its tasks learn of it.

use tokio::sync::watch;

/// Waits until the end of the process is requested; for ever once nothing can request it any more.
pub async fn asked_to_stop(shutdown: &mut watch::Receiver<bool>) {
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
