//! A store that goes back in time under an owner who still has in memory what it lost.

use std::path::Path;
use std::sync::Arc;

use ordain::config::{Loaded, Share};
use ordain_core::{
    Applied, Batch, Change, CommitReply, Effect, Event, EventParts, Input, Refusal, Sequencer,
    Settings, Stop, TurnDone, Verdict,
};

/// A sequencer, and a store with one shard that can forget its last commits.
struct Rig {
    sequencer: Sequencer,
    /// Every batch that was sent, in order.
    sent: Vec<Arc<Batch>>,
    /// What the store has.
    stored: Vec<Arc<Batch>>,
    /// The next commits are not answered.
    silent: u32,
    /// The next commit refuses its first write.
    refuses: bool,
    now: u64,
    acked: u64,
    stopped: Option<Stop>,
}

fn settings(keep_bytes: usize) -> Settings {
    let text = "[store]\nkind = \"redis\"\nurl = \"redis://unused\"\nshards = 1\n\
                [streams.s]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"-\" }\n";
    let loaded = Loaded::parse(Path::new("ordain.toml"), text, &|_| None).expect("a configuration");
    let stream = loaded.config.streams.values().next().expect("a stream");
    let share =
        Share { partition: 0, of_stream: 1, of_process: 1, workers: 1, version: None, seed: 1 };
    let settings = loaded.config.settings(stream, &share);
    assert!(settings.keep_bytes > 1 << 20, "a shared store may go back");
    Settings { keep_bytes, ..settings }
}

impl Rig {
    fn new(keep_bytes: usize) -> Self {
        Self {
            sequencer: Sequencer::new(settings(keep_bytes), &[0], 0),
            sent: Vec::new(),
            stored: Vec::new(),
            silent: 0,
            refuses: false,
            now: 0,
            acked: 0,
            stopped: None,
        }
    }

    /// Delivers an event; each is a commit.
    fn deliver(&mut self, sequence: u64) {
        self.now += 1;
        let event = Event::new(&EventParts {
            key: "a",
            sequence: Some(sequence),
            data: &sequence.to_le_bytes(),
            ..EventParts::default()
        });
        let input = Input::Arrived { delivery: sequence, event: Arc::new(event) };
        self.sequencer.handle(self.now, input);
        self.perform();
        // As long as a batch without an answer waits to be sent again, and longer.
        let until = self.now + 1_000;
        while let Some(at) = self.sequencer.poll_timeout().filter(|at| *at < until) {
            self.now = at.max(self.now + 1);
            self.sequencer.handle_timeout(self.now);
            self.perform();
        }
    }

    fn perform(&mut self) {
        while let Some(effect) = self.sequencer.poll_effect() {
            let answer = match effect {
                Effect::Run(turn) => Input::TurnDone(TurnDone {
                    token: turn.token,
                    version: "h@1.0.0".into(),
                    verdicts: vec![Verdict::Effect { messages: Vec::new(), complete: false }],
                    state: Change::Put(vec![0; 100].into()),
                    failure: None,
                }),
                Effect::Commit(batch) => {
                    let (shard, number) = (batch.shard, batch.number);
                    self.sent.push(Arc::clone(&batch));
                    Input::Committed { shard, number, reply: self.commit(batch) }
                }
                Effect::Load { token, .. } => Input::Loaded { token, loaded: Ok(None) },
                Effect::ReadDue { .. } => Input::DueRead { entries: Vec::new(), next_in: None },
                Effect::Ack { through } => {
                    self.acked = through;
                    continue;
                }
                Effect::Stop(stop) => {
                    self.stopped = Some(stop);
                    continue;
                }
                effect => panic!("nothing here leads to {effect:?}"),
            };
            self.sequencer.handle(self.now, answer);
        }
    }

    fn commit(&mut self, batch: Arc<Batch>) -> CommitReply {
        let (last, number) = (self.stored.len() as u64, batch.number);
        if self.silent > 0 {
            self.silent -= 1;
            return CommitReply::Unknown;
        }
        if number != last && number != last + 1 {
            return CommitReply::Rewound { found: "less".to_owned(), last: Some(last) };
        }
        let mut applied = Applied { time: 1_000 + self.now, ..Applied::default() };
        if std::mem::take(&mut self.refuses) {
            applied.refused.push((0, Refusal::Next(None)));
        }
        if number > last {
            self.stored.push(batch);
        }
        CommitReply::Applied(applied)
    }

    fn numbers(&self) -> Vec<u64> {
        self.sent.iter().map(|batch| batch.number).collect()
    }
}

#[test]
fn what_the_store_lost_is_committed_again_from_memory() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    let first = Arc::clone(&rig.sent[0]);
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5]);
    // All of it: also the commit that made the job.
    rig.stored.clear();
    rig.deliver(6);
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]);
    assert_eq!((rig.stored.len(), rig.acked, rig.stopped), (6, 6, None));
    assert_eq!(rig.sequencer.stats().rewound, 5);
    let again = &rig.stored[0].writes[0];
    assert_eq!(first.writes[0].job.incarnation, 0, "the store filled it in");
    assert_eq!(again.job.incarnation, 1_001, "as it was, or messages would get other ids");
    assert_eq!((again.expect, again.job.next), (first.writes[0].expect, 2));
}

#[test]
fn lost_answers_and_another_step_back_are_survived_on_the_way() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.silent = 1;
    rig.deliver(6);
    // The first try was silent; time passes.
    rig.deliver(7);
    assert_eq!(rig.numbers()[5..], [6, 6, 3, 4, 5, 6, 7]);
    assert_eq!((rig.stored.len(), rig.acked, rig.stopped), (7, 7, None));
}

#[test]
fn what_memory_does_not_have_ends_ownership() {
    let mut rig = Rig::new(2_000);
    for sequence in 1..=20 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.deliver(21);
    let Some(Stop::Rewound { shard: 0, detail }) = rig.stopped else { panic!("{:?}", rig.stopped) };
    assert!(detail.contains("commits 3 to 20 are lost"), "{detail}");
    assert_eq!((rig.stored.len(), rig.acked), (2, 20), "nothing more is written");
}

#[test]
fn what_does_not_apply_as_it_did_ends_ownership() {
    let mut rig = Rig::new(1 << 20);
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(3);
    rig.refuses = true;
    rig.deliver(6);
    let Some(Stop::Rewound { detail, .. }) = rig.stopped else { panic!("{:?}", rig.stopped) };
    assert!(detail.contains("commit 4 could not be made again"), "{detail}");
}
