//! Lets a task wait until the shutdown of its process is requested.

use tokio::sync::watch;

/// Waits until a shutdown is requested. Never completes if the sender is dropped without a request.
pub async fn shutdown_requested(shutdown: &mut watch::Receiver<bool>) {
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
