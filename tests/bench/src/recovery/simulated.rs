//! Measures gaps in simulated time: a sequencer with one key, a store that answers immediately, and a replay source
//! that answers as the plan states.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ordain_config::{LoadedConfig, PartitionParams, StreamConfig};
use ordain_core::{
    AppliedCommit, AttemptToken, CommitReply, Effect, Event, EventParts, FileDigest, GapEnd,
    HandlerOutcome, Input, KeyRecord, KeySnapshot, Rollout, Sequencer, StateUpdate, TurnResult,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Plan;

/// Returns the mean duration of `trials` gaps.
pub(super) fn mean(plan: &Plan, trials: u64) -> Result<Duration> {
    let text = format!(
        "[streams.bench]\nhandler = \"probe\"\nsource = {{ kind = \"file\", path = \"-\" }}\n{}",
        plan.settings("http://127.0.0.1")
    );
    let loaded = LoadedConfig::parse(Path::new("ordain.toml"), &text, &|_| None)?;
    let stream =
        loaded.config.streams.values().next().context("the configuration has no stream")?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut sum = 0;
    for seed in 0..trials {
        sum += Trial::new(&loaded, stream, seed).run(plan, &mut rng)?;
    }
    Ok(Duration::from_millis(sum) / u32::try_from(trials)?)
}

struct Trial {
    sequencer: Sequencer,
    now: u64,
    delivery: u64,
    request: Option<AttemptToken>,
    /// The stored record of the key; `None` before the first commit.
    snapshot: Option<Box<KeySnapshot>>,
}

impl Trial {
    fn new(loaded: &LoadedConfig, stream: &StreamConfig, seed: u64) -> Self {
        let version = Some(version());
        let share = PartitionParams {
            partition: 0,
            stream_partitions: 1,
            process_partitions: 1,
            workers: 1,
            version,
            seed,
        };
        let sequencer = Sequencer::new(loaded.config.sequencer_settings(stream, &share), &[0], 0);
        Self { sequencer, now: 0, delivery: 0, request: None, snapshot: None }
    }

    /// Delivers the first event, and later the third event. The sequencer requests the second event until the replay
    /// source returns this event, or until the last round has failed. Returns the duration of this gap, in ms.
    fn run(mut self, plan: &Plan, rng: &mut ChaCha8Rng) -> Result<u64> {
        self.deliver(1)?;
        self.now = 10_000;
        let since = self.now;
        self.deliver(3)?;
        for _ in 0..plan.attempts {
            while self.request.is_none() {
                let at = self.sequencer.poll_timeout().context("the sequencer has no timeout")?;
                self.now = self.now.max(at);
                self.sequencer.handle_timeout(self.now);
                self.perform()?;
            }
            let token = self.request.take().context("the replay source has no request")?;
            let is_found = rng.random_bool(plan.success);
            self.now += if is_found { plan.ok } else { plan.fail };
            let found = if is_found { vec![(2, event(2))] } else { Vec::new() };
            let failed = if is_found { None } else { Some("503".into()) };
            self.take(Input::Replayed { token, found, until: u64::MAX, failed })?;
            if is_found {
                ensure!(
                    self.sequencer.stats().settled == 3,
                    "the replay source returned the event, but not all events are settled"
                );
                return Ok(self.now - since);
            }
        }
        let end =
            self.snapshot.as_ref().and_then(|loaded| Some(loaded.record.gaps.iter().next()?.end));
        ensure!(end == Some(GapEnd::Parked), "after the last round, the end of the gap is {end:?}");
        Ok(self.now - since)
    }

    fn deliver(&mut self, sequence: u64) -> Result<()> {
        self.delivery += 1;
        self.take(Input::Arrived { delivery: self.delivery, event: event(sequence) })
    }

    fn take(&mut self, input: Input) -> Result<()> {
        self.sequencer.handle(self.now, input);
        self.perform()
    }

    fn perform(&mut self) -> Result<()> {
        while let Some(effect) = self.sequencer.poll_effect() {
            let answer = match effect {
                Effect::Run(turn) => {
                    let outcome =
                        |_| HandlerOutcome::Effect { messages: Vec::new(), complete: false };
                    Input::TurnDone(TurnResult {
                        token: turn.token,
                        rollout: version(),
                        outcomes: turn.events.iter().map(outcome).collect(),
                        state: StateUpdate::Keep,
                        failure: None,
                    })
                }
                Effect::Commit(batch) => {
                    let shard = batch.shard;
                    let number = batch.number;
                    if let Some(write) = batch.writes.first() {
                        let record = KeyRecord { incarnation: 1, ..write.record.clone() };
                        let state = None;
                        let ids = Vec::new();
                        let loaded = KeySnapshot {
                            record,
                            state,
                            ids,
                            now: 0,
                            due_in: None,
                            expire_in: None,
                            moved_from: None,
                        };
                        self.snapshot = Some(Box::new(loaded));
                    }
                    let reply =
                        CommitReply::Applied(AppliedCommit { time: 1, ..AppliedCommit::default() });
                    Input::Committed { shard, number, reply }
                }
                Effect::Load { token, .. } => {
                    Input::Loaded { token, loaded: Ok(self.snapshot.clone()) }
                }
                Effect::Replay { token, source: 0, .. } => {
                    let found = Vec::new();
                    Input::Replayed { token, found, until: u64::MAX, failed: None }
                }
                Effect::Replay { token, .. } => {
                    self.request = Some(token);
                    continue;
                }
                Effect::ReadDue { .. } => Input::DueRead { entries: Vec::new(), next_in: None },
                Effect::Ack { .. } => continue,
                effect => bail!("this benchmark does not cause {effect:?}"),
            };
            self.sequencer.handle(self.now, answer);
        }
        Ok(())
    }
}

fn event(sequence: u64) -> Arc<Event> {
    let sequence = Some(sequence);
    let parts = EventParts { key: "a", id: "1", kind: "noop", sequence, ..EventParts::default() };
    Arc::new(Event::new(&parts))
}

fn version() -> Arc<Rollout> {
    Rollout::first("probe@1.0.0", FileDigest([0; 32]))
}
