//! Whether the process does what it is there for.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use jiff::Timestamp;
use tokio::time::timeout;

use super::App;
use crate::problem::Problem;
use ordain_engine::run::Phase;
use ordain_store::Store;

/// Between two questions to the store, so that one that is away is noticed while nothing happens.
const EVERY: Duration = Duration::from_secs(1);
/// A store that takes longer to answer is out of reach.
const PATIENCE: Duration = Duration::from_secs(2);

/// Since when the store is out of reach, if it is.
#[derive(Default)]
pub(super) struct Health(Mutex<Option<Timestamp>>);

impl Health {
    async fn ask(&self, store: &dyn Store) {
        let since = Timestamp::now();
        // Whether there is such a mark does not matter.
        let mut asking = pin!(store.mark("admin/health"));
        let answer = if let Ok(answer) = timeout(PATIENCE, &mut asking).await {
            answer
        } else {
            self.is_away(since, &format!("no answer within {PATIENCE:?}"));
            asking.await
        };
        match answer {
            Ok(_) => self.is_there(),
            Err(error) => self.is_away(since, &error.to_string()),
        }
    }

    fn is_away(&self, since: Timestamp, why: &str) {
        let mut away = self.lock();
        if away.is_none() {
            tracing::warn!(why, "not ready: the store does not answer");
            *away = Some(since);
        }
    }

    fn is_there(&self) {
        if let Some(since) = self.lock().take() {
            tracing::info!(away_since = %since, "ready again: the store answers");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the store now and then, for ever.
pub(super) async fn watch(app: &App) {
    loop {
        if let Some(store) = app.figures.store() {
            app.health.ask(&*store).await;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// `GET /readyz`. Whoever asks has no token: he is told which part is not ready, and nothing that
/// the store or the system says of addresses and files.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    let reason = match app.figures.phase() {
        _ if *app.shutdown.borrow() => "it is ending".to_owned(),
        Phase::LoadsHandlers => "it is loading its handlers".to_owned(),
        Phase::OpensStore => "it is opening its store".to_owned(),
        Phase::Claims => "it is taking its partitions".to_owned(),
        Phase::Drives => match *app.health.lock() {
            None => match app.figures.share() {
                (has, share) if has < share => {
                    format!("it has {has} of the {share} partitions that are its share")
                }
                _ => match app.figures.handlers().and_then(|it| it.missing()) {
                    Some(stream) => {
                        format!("stream {stream} waits for a version of its handler; see the log")
                    }
                    None => return Ok("ready\n"),
                },
            },
            Some(since) => format!("the store has not answered since {since:.0}; see the log"),
        },
    };
    Err(Problem::unavailable(format!("not ready: {reason}")))
}
