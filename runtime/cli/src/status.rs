//! Draws the status line of a run on a terminal.

use std::fmt::Write;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, HumanCount};
use ordain_core::{LaneState, Stats};

use ordain_engine::run::RunStatus;
use ordain_util::standard_error::set_status;

/// Interval between two updates of the status line: short enough to show changes soon, long enough to read the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// The characters with which the status lines begin. Each update uses the next character, which shows that the process
/// runs.
const SPINNERS: &str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";

/// Draws the status line until the caller drops the future. Draws nothing if standard error is not a terminal. The
/// future never completes.
pub(crate) async fn show(figures: &RunStatus) -> std::convert::Infallible {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if is_dumb || !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let start = Instant::now();
    let mut before = figures.total_stats();
    let mut at = start;
    let mut spinners = SPINNERS.chars().cycle();
    loop {
        tokio::time::sleep(UPDATE_INTERVAL).await;
        let now = figures.total_stats();
        let rate = (now.delivered - before.delivered) as f64 / at.elapsed().as_secs_f64();
        before = now;
        at = Instant::now();
        let spinner = spinners.next().unwrap_or(' ');
        let elapsed = FormattedDuration(start.elapsed());
        set_status(format!("{spinner} {elapsed} {}", text(&now, rate as u64)));
    }
}

fn text(stats: &Stats, rate: u64) -> String {
    let mut text = format!("{}/s  settled {}", HumanCount(rate), HumanCount(stats.settled));
    // Writing to a string cannot fail.
    if stats.other_types > 0 {
        let _ = write!(text, "  other types {}", HumanCount(stats.other_types));
    }
    let _ = write!(
        text,
        "  duplicates {}  dead {}  lanes",
        HumanCount(stats.duplicates),
        HumanCount(stats.dead_total()),
    );
    for state in LaneState::ALL {
        let lanes = stats.lanes_in(state);
        if lanes > 0 {
            let _ = write!(text, "  {} {}", state.name(), HumanCount(lanes as u64));
        }
    }
    text
}
