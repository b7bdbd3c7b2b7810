//! `recovery`: measures the mean duration of a gap, and compares this duration with the expected duration. The duration
//! begins when the gap clock starts. The duration ends when a replay source returns the event, or when the last round
//! has failed.
//!
//! In each round, the replay source returns the event with the probability p. The expected duration E follows from
//! these values of the plan:
//!
//! - T: `gap.timeout`;
//! - R: the number of rounds;
//! - b(i): the mean wait before round i; 0 before the first round;
//! - ok and fail: the times until an answer with the event, and until a failure.
//!
//! E = T + sum over i from 1 to R of (1-p)^(i-1) * (b(i) + p * ok + (1-p) * fail)
//!
//! For several plans, the benchmark runs the sequencer in simulated time. For one plan, the benchmark measures the
//! host, whose replay source is a server that delays and fails its answers as the plan states.

mod real;
mod simulated;

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::CommonArgs;
use crate::report::{Report, Row};

/// Number of gaps in each simulated row.
const TRIALS: u64 = 20_000;

#[derive(Debug, Args)]
pub(crate) struct RecoveryArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Number of gaps that the benchmark measures with the host; other gaps are simulated
    #[arg(long, default_value_t = 1_000)]
    gaps: usize,
}

/// The settings of a gap and the behaviour of its replay source; all times in ms.
#[derive(Debug, Clone, Copy)]
struct Plan {
    timeout: u64,
    attempts: u32,
    backoff: (u64, u64),
    /// Probability that the source returns the event in a round.
    success: f64,
    /// Time until an answer with the event. `fail` is the time until an answer without the event.
    ok: u64,
    fail: u64,
}

const fn plan(success: f64, attempts: u32, backoff: (u64, u64)) -> Plan {
    Plan { timeout: 2_000, attempts, backoff, success, ok: 30, fail: 200 }
}

/// The plans of the simulated rows: first the default settings with different probabilities, then other numbers of
/// rounds, then other backoffs.
const PLANS: [Plan; 10] = [
    plan(1.0, 5, (200, 5_000)),
    plan(0.9, 5, (200, 5_000)),
    plan(0.5, 5, (200, 5_000)),
    plan(0.1, 5, (200, 5_000)),
    plan(0.0, 5, (200, 5_000)),
    plan(0.5, 1, (200, 5_000)),
    plan(0.5, 20, (200, 5_000)),
    plan(0.1, 20, (200, 5_000)),
    plan(0.5, 5, (100, 100)),
    plan(0.1, 20, (1_000, 60_000)),
];

/// The plan of the measured host. The times of this plan are short, so that many gaps end within a short run.
const HOST_PLAN: Plan =
    Plan { timeout: 500, attempts: 4, backoff: (100, 1_000), success: 0.5, ok: 20, fail: 60 };

impl Plan {
    fn expected(&self) -> f64 {
        let ok = self.ok as f64;
        let fail = self.fail as f64;
        let mut expected = self.timeout as f64;
        for round in 1..=self.attempts {
            let answer = self.success * ok + (1.0 - self.success) * fail;
            let round_probability = (1.0 - self.success).powf(f64::from(round - 1));
            expected += round_probability * (self.wait_before(round) + answer);
        }
        expected
    }

    /// Returns the mean wait before a round, in ms. The wait before round n is random, and spread evenly between two
    /// values. The first value is the lower bound of the backoff. The second value is 2^(n-2) times the lower bound,
    /// but at most the upper bound of the backoff.
    fn wait_before(&self, round: u32) -> f64 {
        let Some(earlier) = round.checked_sub(2) else { return 0.0 };
        let min = self.backoff.0 as f64;
        let max = self.backoff.1 as f64;
        f64::midpoint(min, (min * 2f64.powf(f64::from(earlier))).min(max))
    }

    fn settings(&self, url: &str) -> String {
        let Self { timeout, attempts, backoff: (min, max), .. } = self;
        format!(
            "gap = {{ timeout = \"{timeout}ms\", attempts = {attempts}, backoff = \"{min}ms..{max}ms\", \
             replay = [\"store\", {{ url = \"{url}/{{key}}/{{sequence}}\", concurrency = 64 }}] }}\n\
             spill_after = \"10m\"\n"
        )
    }

    fn row(&self, what: &str, mean: Duration) -> Row {
        let (min, max) = self.backoff;
        let rounds = self.attempts;
        let p = self.success;
        Row {
            side: format!("{what}: p={p} R={rounds} {min}..{max} ms"),
            mean_ms: Some(mean.as_secs_f64() * 1_000.0),
            expected_ms: Some(self.expected()),
            ..Row::default()
        }
    }
}

pub(crate) fn bench(args: &RecoveryArgs) -> Result<Report> {
    let mut rows = Vec::new();
    for plan in &PLANS {
        rows.push(plan.row("simulated", simulated::mean(plan, TRIALS)?));
    }
    eprintln!("{} gaps of the host", args.gaps);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mean = runtime.block_on(real::mean(&HOST_PLAN, &args.common, args.gaps))?;
    rows.push(HOST_PLAN.row("host", mean));
    let host = rows.last().context("no rows")?.side.clone();
    let Plan { timeout, ok, fail, .. } = PLANS[0];
    Ok(Report::new("recovery", rows)
        .ratio_of("host/expected", (&host, |row| row.mean_ms), (&host, |row| row.expected_ms))
        .note(format!(
            "Each simulated row is the mean of {TRIALS} gaps with T = {timeout} ms. An answer takes {ok} ms with the \
             event and {fail} ms without it. The row of the host: {} gaps, T = {} ms, {} ms and {} ms, on the \
             embedded store. Expected: T + sum of (1-p)^(i-1) * (b(i) + p * ok + (1-p) * fail) for i from 1 to R.",
            args.gaps, HOST_PLAN.timeout, HOST_PLAN.ok, HOST_PLAN.fail
        )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_duration_follows_the_formula() {
        let at_once = plan(1.0, 5, (200, 5_000));
        assert!((at_once.expected() - 2_030.0).abs() < 1e-9);
        // The mean waits before the second to the fifth round are 200, 300, 500 and 900 ms.
        let never = plan(0.0, 5, (200, 5_000));
        assert!((never.expected() - (2_000.0 + 5.0 * 200.0 + 1_900.0)).abs() < 1e-9);
        let twice = plan(0.5, 2, (100, 100));
        assert!((twice.expected() - (2_000.0 + 115.0 + 0.5 * (100.0 + 115.0))).abs() < 1e-9);
    }

    #[test]
    fn simulated_duration_matches_the_formula() -> Result<()> {
        for plan in &PLANS {
            let mean = simulated::mean(plan, 4_000)?.as_secs_f64() * 1_000.0;
            let expected = plan.expected();
            assert!((mean / expected - 1.0).abs() < 0.03, "{plan:?}: {mean} instead of {expected}");
        }
        Ok(())
    }
}
