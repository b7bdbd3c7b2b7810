//! The readiness of the process.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use jiff::Timestamp;
use tokio::time::timeout;

use super::AdminState;
use crate::problem::ProblemDetails;
use ordain_engine::run::RunPhase;
use ordain_store::Store;

/// Interval between two health checks of the store. The checks detect an unavailable store while the process is idle.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for a response of the store. A store that exceeds the limit counts as unavailable.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The time since which the store is unavailable; `None` while the store is available.
#[derive(Default)]
pub(super) struct StoreHealth(Mutex<Option<Timestamp>>);

impl StoreHealth {
    async fn check(&self, store: &dyn Store) {
        let since = Timestamp::now();
        // The existence of the mark does not matter.
        let mut asking = pin!(store.mark("admin/health"));
        let answer = if let Ok(answer) = timeout(RESPONSE_TIMEOUT, &mut asking).await {
            answer
        } else {
            self.mark_unavailable(since, &format!("no answer within {RESPONSE_TIMEOUT:?}"));
            asking.await
        };
        match answer {
            Ok(_) => self.mark_available(),
            Err(error) => self.mark_unavailable(since, &error.to_string()),
        }
    }

    fn mark_unavailable(&self, since: Timestamp, why: &str) {
        let mut away = self.lock();
        if away.is_none() {
            tracing::warn!(why, "not ready: the store does not answer");
            *away = Some(since);
        }
    }

    fn mark_available(&self) {
        if let Some(since) = self.lock().take() {
            tracing::info!(away_since = %since, "ready again: the store answers");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the store at every [`CHECK_INTERVAL`]. This function never returns.
pub(super) async fn watch(app: &AdminState) {
    loop {
        if let Some(store) = app.figures.store() {
            app.health.check(&*store).await;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// `GET /readyz`. The caller needs no token, so the response names the part that is not ready and contains no text of
/// the store or the system, which may include addresses and files.
pub(super) async fn ready(
    State(app): State<Arc<AdminState>>,
) -> Result<&'static str, ProblemDetails> {
    let reason = match app.figures.phase() {
        _ if *app.shutdown.borrow() => "the process is shutting down".to_owned(),
        RunPhase::LoadingHandlers => "the process is loading its handlers".to_owned(),
        RunPhase::OpeningStore => "the process is opening its store".to_owned(),
        RunPhase::ClaimingPartitions => "the process is claiming its partitions".to_owned(),
        RunPhase::Running => match *app.health.lock() {
            None => match app.figures.share() {
                (has, share) if has < share => {
                    format!("the process owns {has} of the {share} partitions of its share")
                }
                _ => {
                    match app.figures.handlers().and_then(|handlers| handlers.unavailable_stream())
                    {
                        Some(stream) => {
                            format!(
                                "stream {stream} waits for a version of its handler; see the log"
                            )
                        }
                        None => return Ok("ready\n"),
                    }
                }
            },
            Some(since) => format!("the store has not answered since {since:.0}; see the log"),
        },
    };
    Err(ProblemDetails::unavailable(format!("not ready: {reason}")))
}
