//! Tests of the workers that execute turns (runs of consecutive events of one key), and of the WebAssembly instances
//! that the workers use.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Result;
use ordain_core::{
    AttemptToken, Event, EventParts, FailureKind, HandlerOutcome, StateUpdate, Turn, TurnResult,
};
use ordain_tests::plugins::plugin;
use ordain_tests::workers::{SINKS, Workers, load, settings, text, turn};
use ordain_wasm::{ActiveVersion, HandlerSettings, InstancePolicy, StreamContext, TurnResults};

// Instructions for the handler `faulty`.
const LOOP_EVENT: &str = r#"{"do":"loop"}"#;
const OK_EVENT: &str = r#"{"do":"ok"}"#;
const STATE_EVENT: &str = r#"{"do":"state"}"#;
const CALLS: &str = r#"{"do":"calls"}"#;

fn texts(done: &TurnResult) -> Vec<String> {
    let messages = done.outcomes.iter().flat_map(|outcome| match outcome {
        HandlerOutcome::Effect { messages, .. } => messages.as_slice(),
        HandlerOutcome::Rejected(_) => &[],
    });
    messages.map(text).collect()
}

fn token(lane: u32, turn: Turn) -> Turn {
    Turn { token: AttemptToken { lane, serial: 1 }, ..turn }
}

#[test]
fn each_event_gets_the_state_of_its_predecessor() -> Result<()> {
    let workers = Workers::faulty()?;
    let put = r#"{"do":"put","bytes":7}"#;
    let mut events =
        turn("key", &[STATE_EVENT, put, STATE_EVENT, r#"{"do":"reject"}"#, STATE_EVENT]);
    events.state = Some(vec![0; 3].into());
    let done = workers.run(events);
    assert_eq!(texts(&done), [r#"{"bytes":3}"#, r#"{"bytes":7}"#, r#"{"bytes":7}"#]);
    assert_eq!(done.outcomes.len(), 5);
    assert!(matches!(&done.state, StateUpdate::Put(state) if state.len() == 7));

    let done = workers.run(turn("key", &[put, r#"{"do":"delete"}"#, STATE_EVENT]));
    assert_eq!((texts(&done), &done.state), (vec!["null".to_owned()], &StateUpdate::Delete));
    let done = workers.run(turn("key", &[OK_EVENT, STATE_EVENT]));
    assert_eq!(done.state, StateUpdate::Keep);
    Ok(())
}

#[test]
fn turn_stops_at_a_failure_and_at_the_end_of_its_key() -> Result<()> {
    let workers = Workers::faulty()?;
    let put = r#"{"do":"put","bytes":7}"#;
    let done = workers.run(turn("key", &[put, r#"{"do":"fail-after","bytes":9}"#, OK_EVENT]));
    assert_eq!(done.outcomes.len(), 1);
    assert!(matches!(&done.state, StateUpdate::Put(state) if state.len() == 7));
    assert_eq!(done.failure.map(|failure| failure.kind), Some(FailureKind::Error));

    let done = workers.run(turn("key", &[OK_EVENT, r#"{"do":"complete"}"#, OK_EVENT]));
    assert_eq!((done.outcomes.len(), done.failure), (2, None));
    assert!(matches!(done.outcomes[1], HandlerOutcome::Effect { complete: true, .. }));

    let mut marked = turn("key", &[OK_EVENT, OK_EVENT, OK_EVENT]);
    let last =
        EventParts { key: "key", data: OK_EVENT.as_bytes(), end: true, ..EventParts::default() };
    marked.events[1].1 = Arc::new(Event::new(&last));
    assert_eq!(workers.run(marked).outcomes.len(), 2);
    Ok(())
}

#[test]
fn instances_are_reused_and_replaced() -> Result<()> {
    let workers = Workers::plugin("faulty", HandlerSettings { instance_events: 5, ..settings() })?;
    let calls = |workers: &Workers, turn: Turn| {
        let report = |text: &String| text.trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
        texts(&workers.run(turn)).iter().map(report).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(calls(&workers, turn("a", &[CALLS; 2])), "1 2");
    assert_eq!(calls(&workers, turn("b", &[CALLS; 5])), "3 4 5 1 2");
    // A retry runs in a fresh instance. Afterwards, each of the two instances has executed two events, and a later turn
    // may use either instance.
    assert_eq!(calls(&workers, Turn { fresh: true, ..turn("b", &[CALLS; 2]) }), "1 2");
    assert_eq!(calls(&workers, turn("b", &[CALLS])), "3");
    for failing in ["trap", "retry", "panic"] {
        workers.failure(format!(r#"{{"do":"{failing}"}}"#));
    }
    assert_eq!(calls(&workers, turn("b", &[CALLS])), "1");

    let fresh = HandlerSettings { instance: InstancePolicy::Fresh, ..settings() };
    let workers = Workers::plugin("faulty", fresh)?;
    assert_eq!(calls(&workers, turn("a", &[CALLS; 3])), "1 1 1");
    Ok(())
}

#[test]
fn slow_key_does_not_block_others() -> Result<()> {
    let workers = Workers::faulty()?;
    let mut turns = vec![token(0, turn("slow", &[OK_EVENT, LOOP_EVENT]))];
    turns.extend((1..=500).map(|lane| token(lane, turn("fast", &[OK_EVENT; 3]))));
    workers.turns.submit(turns);
    let results = workers.results(501);
    let at =
        results.iter().position(|done| done.token.lane == 0).expect("a result of the slow key");
    assert_eq!(at, 500, "the result of the slow key must be the last");
    assert!(results[..500].iter().all(|done| done.outcomes.len() == 3));
    assert_eq!(results[500].outcomes.len(), 1);
    assert_eq!(
        results[500].failure.as_ref().map(|failure| failure.kind),
        Some(FailureKind::Timeout)
    );
    Ok(())
}

#[test]
fn all_slow_keys_time_out() -> Result<()> {
    let mut short = settings();
    short.limits.timeout = Duration::from_millis(20);
    let workers = Workers::plugin("faulty", short)?;
    let slow = (0..70).map(|lane| token(lane, turn("slow", &[LOOP_EVENT])));
    let fast = (70..80).map(|lane| token(lane, turn("fast", &[OK_EVENT])));
    workers.turns.submit(slow.chain(fast).collect());
    let results = workers.results(80);
    for done in results {
        let failed = done.failure.map(|failure| failure.kind);
        let expected = (done.token.lane < 70).then_some(FailureKind::Timeout);
        assert_eq!(failed, expected, "{}", done.token.lane);
    }
    Ok(())
}

#[test]
fn turn_with_large_output_ends_early() -> Result<()> {
    let workers = Workers::faulty()?;
    let emit = r#"{"do":"emit","messages":4,"bytes":100000}"#;
    let done = workers.run(Turn { bytes: 1 << 20, ..turn("key", &[emit; 8]) });
    assert_eq!((done.outcomes.len(), done.failure), (3, None));
    Ok(())
}

#[test]
fn paused_queue_starts_no_turn_and_blocks_no_other_queue() -> Result<()> {
    let workers = Workers::faulty()?;
    let (send, results) = channel();
    let done = Box::new(move |done: TurnResults| {
        let _ = send.send(done.take());
    });
    let payments = StreamContext::new("payments", SINKS);
    let paused = workers.pool.attach(payments, workers.turns.active(), done);
    paused.pause(true);
    paused.submit((0..100).map(|lane| token(lane, turn("paused", &[OK_EVENT]))).collect());
    for _ in 0..10 {
        workers.command(OK_EVENT);
    }
    assert!(results.try_recv().is_err(), "a turn was started");
    paused.pause(false);
    let mut count = 0;
    while count < 100 {
        count += results.recv_timeout(Duration::from_secs(30))?.len();
    }
    Ok(())
}

#[test]
fn pending_results_pause_their_queue() -> Result<()> {
    let workers = Workers::faulty()?;
    let (send, results) = channel();
    let done = Box::new(move |done: TurnResults| {
        let _ = send.send(done);
    });
    let payments = StreamContext::new("payments", SINKS);
    let turns = workers.pool.attach(payments, workers.turns.active(), done);
    let emit = r#"{"do":"emit","messages":10,"bytes":100000}"#;
    turns.submit((0..40).map(|lane| token(lane, turn("large", &[emit]))).collect());
    let mut untaken = vec![results.recv_timeout(Duration::from_secs(30))?];
    for _ in 0..10 {
        // While this event of another stream is executed, the worker could start more of the 40 turns. The worker must
        // start no more of them, because the test has not taken the results of the earlier turns.
        workers.command(OK_EVENT);
    }
    untaken.extend(results.try_iter());
    let untaken: usize = untaken.into_iter().map(|results| results.take().len()).sum();
    assert!((1..10).contains(&untaken), "{untaken} of 40 turns were executed");
    let mut count = untaken;
    while count < 40 {
        count += results.recv_timeout(Duration::from_secs(30))?.take().len();
    }
    Ok(())
}

#[test]
fn slow_stream_does_not_starve_another() -> Result<()> {
    let mut patient = settings();
    patient.limits.timeout = Duration::from_hours(1);
    let workers = Workers::plugin("faulty", patient)?;
    workers.turns.submit((0..200).map(|lane| token(lane, turn("slow", &[LOOP_EVENT]))).collect());
    let (send, results) = channel();
    let done = Box::new(move |done: TurnResults| {
        let _ = send.send(done.take());
    });
    let other = StreamContext::new("payments", SINKS);
    let turns = workers.pool.attach(other, workers.turns.active(), done);
    for _ in 0..3 {
        turns.submit(vec![turn("fast", &[OK_EVENT])]);
        let fast: Vec<TurnResult> = results.recv_timeout(Duration::from_secs(30))?;
        assert_eq!(fast[0].failure, None);
    }
    Ok(())
}

#[test]
fn every_turn_has_one_result_with_many_workers_and_queues() -> Result<()> {
    let settings = HandlerSettings { workers: 4, ..settings() };
    let workers = Workers::plugin("tally", settings)?;
    let (send, results) = channel();
    let queues: Vec<_> = (0..3)
        .map(|_| {
            let send = send.clone();
            let done = Box::new(move |done: TurnResults| {
                let _ = send.send(done.take());
            });
            let stream = StreamContext::new("orders", SINKS);
            workers.pool.attach(stream, workers.turns.active(), done)
        })
        .collect();
    for round in 0..20 {
        for (number, queue) in queues.iter().enumerate() {
            let lane = |n| (number * 10_000 + round * 100 + n) as u32;
            queue.submit((0..100).map(|n| token(lane(n), turn("key", &["1", "2"]))).collect());
        }
    }
    let mut lanes = Vec::new();
    while lanes.len() < 6_000 {
        let done = results.recv_timeout(Duration::from_mins(1))?;
        for done in done {
            assert_eq!((done.outcomes.len(), &done.failure), (2, &None));
            lanes.push(done.token.lane);
        }
    }
    lanes.sort_unstable();
    lanes.dedup();
    assert_eq!(lanes.len(), 6_000);
    Ok(())
}

#[test]
fn handler_is_replaced_between_turns() -> Result<()> {
    let workers = Workers::faulty()?;
    assert!(workers.command(OK_EVENT).rollout.build.version.starts_with("faulty+"));
    let dir = tempfile::tempdir()?;
    let newer = dir.path().join("tally@2.0.0.wasm");
    std::fs::copy(plugin("tally")?, &newer)?;
    let tally = load(&workers.engine, &newer)?;
    // Without a new version, `switch_version` returns the turns that no worker has started. These turns have no
    // results.
    workers.turns.pause(true);
    workers.turns.submit(vec![turn("waits", &[OK_EVENT])]);
    let undone = workers.turns.switch_version(None);
    assert_eq!(undone.len(), 1);
    assert!(undone[0].outcomes.is_empty() && undone[0].failure.is_none());
    workers.turns.pause(false);
    workers.turns.switch_version(Some(ActiveVersion::first(tally)));
    let done = workers.command(OK_EVENT);
    assert_eq!(&*done.rollout.build.version, "tally@2.0.0");
    assert!(texts(&done)[0].contains("\"count\":1"));
    Ok(())
}

#[test]
fn dropping_the_pool_does_not_wait_for_handlers() -> Result<()> {
    let mut patient = settings();
    patient.limits.timeout = Duration::from_hours(1);
    for detached_first in [true, false] {
        let Workers { turns, pool, .. } = Workers::plugin("faulty", patient.clone())?;
        turns.submit((0..100).map(|lane| token(lane, turn("slow", &[LOOP_EVENT]))).collect());
        std::thread::sleep(Duration::from_millis(30));
        if detached_first {
            drop(turns);
            drop(pool);
        } else {
            drop(pool);
            // The pool has been dropped, so this turn is discarded.
            turns.submit(vec![turn("late", &[OK_EVENT])]);
        }
    }
    Ok(())
}

#[test]
fn running_turns_of_a_dropped_queue_are_cancelled() -> Result<()> {
    let mut patient = settings();
    patient.limits.timeout = Duration::from_hours(1);
    let workers = Workers::plugin("faulty", patient)?;
    let stream = StreamContext::new("payments", SINKS);
    let turns = workers.pool.attach(stream, workers.turns.active(), Box::new(|_| ()));
    turns.submit((0..100).map(|lane| token(lane, turn("slow", &[LOOP_EVENT]))).collect());
    std::thread::sleep(Duration::from_millis(30));
    drop(turns);
    assert_eq!(workers.command(OK_EVENT).failure, None);
    Ok(())
}
