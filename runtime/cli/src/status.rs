//! Draws the status line of a run on a terminal.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use ordain_core::{LaneState, Stats};

use super::logs;
use ordain_engine::run::RunStatus;

/// Interval between two updates of the status line: short enough to show changes soon, long enough to read the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// Draws the status line until the caller drops the future. Draws nothing if standard error is not a terminal. The
/// future never completes.
pub(crate) async fn show(figures: &RunStatus) -> std::convert::Infallible {
    let line = ProgressBar::new_spinner();
    if line.is_hidden() {
        return std::future::pending().await;
    }
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}") {
        line.set_style(style);
    }
    logs::set_status_line(line.clone());
    let mut before = figures.total_stats();
    let mut at = Instant::now();
    loop {
        tokio::time::sleep(UPDATE_INTERVAL).await;
        let now = figures.total_stats();
        let rate = (now.delivered - before.delivered) as f64 / at.elapsed().as_secs_f64();
        (before, at) = (now, Instant::now());
        line.set_message(text(&now, rate as u64));
        line.tick();
    }
}

fn text(stats: &Stats, rate: u64) -> String {
    let mut text = format!(
        "{}/s  settled {}  duplicates {}  dead {}  lanes",
        HumanCount(rate),
        HumanCount(stats.settled),
        HumanCount(stats.duplicates),
        HumanCount(stats.dead_total()),
    );
    for state in LaneState::ALL {
        let lanes = stats.lanes_in(state);
        if lanes > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "  {} {}", state.name(), HumanCount(lanes as u64));
        }
    }
    text
}
