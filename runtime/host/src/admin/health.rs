//! Whether the process does what it is there for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;

use super::App;
use super::problem::Problem;
use crate::run::Phase;
use crate::store::{Store, StoreError};

/// Between two questions to the store, so that one that is away is noticed while nothing happens.
const EVERY: Duration = Duration::from_secs(1);
/// A store that takes longer to answer is out of reach.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the store answered last.
#[derive(Default)]
pub(super) struct Health(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    /// When it was asked, if it has not answered yet.
    at: Option<Instant>,
    error: Option<String>,
}

impl Health {
    /// What is wrong with the store.
    fn trouble(&self) -> Option<String> {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = asked.at.map(|at| at.elapsed()).filter(|waited| *waited > PATIENCE);
        let silent = |waited: Duration| format!("the store has not answered for {waited:.0?}");
        waited.map(silent).or_else(|| asked.error.clone())
    }

    async fn ask(&self, store: &dyn Store) {
        self.note(Asked { at: Some(Instant::now()), error: None });
        // Whether there is such a mark does not matter.
        let answer = store.mark("admin/health").await;
        let error = answer.err().map(|error: StoreError| error.to_string());
        self.note(Asked { at: None, error });
    }

    fn note(&self, asked: Asked) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let error = if asked.at.is_some() { last.error.take() } else { asked.error };
        *last = Asked { at: asked.at, error };
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

/// `GET /readyz`.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    let reason = match app.figures.phase() {
        _ if *app.shutdown.borrow() => "it is ending".to_owned(),
        Phase::LoadsHandlers => "it is loading its handlers".to_owned(),
        Phase::OpensStore => "it is opening its store".to_owned(),
        Phase::Claims => "it is claiming its partitions".to_owned(),
        Phase::Drives => match app.health.trouble() {
            None => return Ok("ready\n"),
            Some(trouble) => trouble,
        },
    };
    Err(Problem::unavailable(format!("not ready: {reason}")))
}
