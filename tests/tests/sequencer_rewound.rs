//! A store that goes back in time under an owner who still has in memory what it lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ordain::config::{self, Share};
use ordain_core::{
    Applied, Batch, Change, CommitReply, Effect, Event, EventParts, Expect, Input, Job, JobWrite,
    Loaded, Refusal, Sequencer, Settings, Stop, TurnDone, Verdict,
};

/// A sequencer, and a store that can forget its last commits.
struct Rig {
    sequencer: Sequencer,
    /// Every batch that was sent, in order.
    sent: Vec<Arc<Batch>>,
    /// What the store has of the only shard that is used, and what it answered.
    stored: Vec<(Arc<Batch>, Applied)>,
    /// The next commits are not answered.
    silent: u32,
    /// The next commit refuses its first write.
    refuses: bool,
    now: u64,
    delivered: u64,
    acked: u64,
    stopped: Option<Stop>,
}

type Spilled = BTreeMap<u64, Arc<Event>>;

fn settings(keep_bytes: usize) -> Settings {
    let text = "[store]\nkind = \"redis\"\nurl = \"redis://unused\"\nshards = 1\n\
                [streams.s]\nhandler = \"h\"\nsource = { kind = \"file\", path = \"-\" }\n";
    let loaded =
        config::Loaded::parse(Path::new("ordain.toml"), text, &|_| None).expect("a configuration");
    let stream = loaded.config.streams.values().next().expect("a stream");
    let share =
        Share { partition: 0, of_stream: 1, of_process: 1, workers: 1, version: None, seed: 1 };
    let settings = loaded.config.settings(stream, &share);
    assert!(settings.keep_bytes > 1 << 20, "a shared store may go back");
    Settings { keep_bytes, ..settings }
}

impl Rig {
    fn new(keep_bytes: usize) -> Self {
        Self::with(settings(keep_bytes))
    }

    fn with(settings: Settings) -> Self {
        let commits = vec![0; settings.shards as usize];
        Self {
            sequencer: Sequencer::new(settings, &commits, 0),
            sent: Vec::new(),
            stored: Vec::new(),
            silent: 0,
            refuses: false,
            now: 0,
            delivered: 0,
            acked: 0,
            stopped: None,
        }
    }

    /// Delivers an event; each that can run is a commit.
    fn deliver(&mut self, sequence: u64) {
        let event = Event::new(&EventParts {
            key: "a",
            sequence: Some(sequence),
            data: &sequence.to_le_bytes(),
            ..EventParts::default()
        });
        self.delivered += 1;
        self.tell(Input::Arrived { delivery: self.delivered, event: Arc::new(event) });
    }

    /// Something happens, and then nothing for a while.
    fn tell(&mut self, input: Input) {
        self.now += 1;
        self.sequencer.handle(self.now, input);
        self.perform();
        self.wait();
    }

    /// Longer than a batch without an answer waits to be sent again.
    fn wait(&mut self) {
        let until = self.now + 1_000;
        while let Some(at) = self.sequencer.poll_timeout().filter(|at| *at < until) {
            self.now = at.max(self.now + 1);
            self.sequencer.handle_timeout(self.now);
            self.perform();
        }
        self.now = until;
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
                Effect::Load { token, .. } => {
                    let loaded = self.record().map(|(job, _)| Loaded {
                        job,
                        state: None,
                        ids: Vec::new(),
                        due_in: None,
                        expire_in: None,
                    });
                    Input::Loaded { token, loaded: Ok(loaded.map(Box::new)) }
                }
                Effect::ReadSpill { token, from, .. } => {
                    let (_, spilled) = self.record().expect("what is spilled has a job");
                    let events = spilled.into_iter().filter(|it| it.0 >= from).collect();
                    Input::SpillRead { token, events, end: true }
                }
                Effect::Replay { token, .. } => {
                    Input::Replayed { token, found: Vec::new(), again: false }
                }
                Effect::ReadDue { .. } => Input::DueRead { entries: Vec::new(), next_in: None },
                Effect::Ack { through } => {
                    self.acked = through;
                    continue;
                }
                Effect::Stop(stop) => {
                    self.stopped = Some(stop);
                    continue;
                }
                effect @ Effect::Publish { .. } => panic!("nothing here leads to {effect:?}"),
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
        if number == last {
            return CommitReply::Applied(self.stored[last as usize - 1].1.clone());
        }
        if number != last + 1 {
            return CommitReply::Rewound { found: "less".to_owned(), last: Some(last) };
        }
        let mut applied = Applied { time: 1_000 + self.now, ..Applied::default() };
        let next = self.record().map(|(job, _)| job.next);
        let holds = |write: &JobWrite| write.expect == next.map_or(Expect::Absent, Expect::Next);
        if std::mem::take(&mut self.refuses) || batch.writes.iter().any(|write| !holds(write)) {
            applied.refused.push((0, Refusal::Next(next)));
        }
        self.stored.push((batch, applied.clone()));
        CommitReply::Applied(applied)
    }

    /// The job that the store has, and its spilled events.
    fn record(&self) -> Option<(Job, Spilled)> {
        let mut record: Option<(Job, Spilled)> = None;
        let applied = self.stored.iter().filter(|(_, applied)| applied.refused.is_empty());
        for write in applied.flat_map(|(batch, _)| &batch.writes) {
            let mut spilled = record.take().map(|(_, spilled)| spilled).unwrap_or_default();
            spilled.extend(write.spill.iter().cloned());
            spilled.retain(|sequence, _| *sequence >= write.job.next);
            if write.job.spilled.count == 0 {
                spilled.clear();
            }
            record = Some((write.job.clone(), spilled));
        }
        record
    }

    fn next(&self) -> Option<u64> {
        self.record().map(|(job, _)| job.next)
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
    // What was in flight may rest on what was read meanwhile: it is void, and comes once more.
    assert_eq!(rig.numbers(), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((rig.next(), rig.acked, &rig.stopped), (Some(7), 6, &None));
    assert_eq!(rig.sequencer.stats().rewound, 5);
    let again = &rig.stored[0].0.writes[0];
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
    rig.deliver(7);
    assert_eq!(rig.numbers()[5..], [6, 6, 3, 4, 5, 6, 7, 8]);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(8), 7, None));
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
fn a_shard_may_keep_what_the_others_do_not_need() {
    let mut rig = Rig::with(Settings { shards: 4, ..settings(8_000) });
    for sequence in 1..=8 {
        rig.deliver(sequence);
    }
    rig.stored.truncate(2);
    rig.deliver(9);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(10), 9, None));
    assert_eq!(rig.sequencer.stats().rewound, 6);
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

/// Event 3 is spilled and acknowledged by commit 2.
fn rig_with_a_spilled_event() -> Rig {
    let settings = settings(1 << 20);
    let gap = ordain_core::GapSettings { timeout: 1_500, attempts: 1_000, ..settings.gap };
    let mut rig = Rig::with(Settings { spill_after: 10, gap, ..settings });
    rig.deliver(1);
    rig.deliver(3);
    assert_eq!((rig.numbers(), rig.acked), (vec![1, 2], 2));
    rig
}

#[test]
fn what_was_read_before_it_was_noticed_does_not_count() {
    let mut rig = rig_with_a_spilled_event();
    rig.stored.truncate(1);
    // A round of the gap loads the job again, which has nothing spilled now.
    rig.wait();
    rig.deliver(2);
    assert_eq!(rig.stopped, None);
    assert_eq!((rig.next(), rig.acked), (Some(4), 3), "event 3 was acknowledged");
}

#[test]
fn what_is_lost_is_noticed_although_nothing_comes() {
    let mut rig = Rig::new(1 << 20);
    rig.tell(Input::StoreMayHaveGoneBack);
    assert_eq!(rig.numbers(), [0; 0], "there is nothing to lose");
    for sequence in 1..=5 {
        rig.deliver(sequence);
    }
    rig.tell(Input::StoreMayHaveGoneBack);
    assert_eq!(rig.numbers()[5..], [5]);
    assert_eq!((rig.stored.len(), rig.sequencer.stats().rewound), (5, 0), "it has all");
    rig.stored.truncate(2);
    rig.silent = 1;
    rig.tell(Input::StoreMayHaveGoneBack);
    assert_eq!(rig.numbers()[6..], [5, 5, 3, 4, 5]);
    assert_eq!((rig.stored.len(), rig.sequencer.stats().rewound), (5, 3));
    rig.deliver(6);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(7), 6, None));
}

#[test]
fn the_loss_of_the_newest_alone_is_noticed_by_the_time_in_the_answer() {
    let mut rig = rig_with_a_spilled_event();
    rig.stored.truncate(1);
    rig.wait();
    // Nothing is wrong with its number: it is applied at once.
    rig.tell(Input::StoreMayHaveGoneBack);
    assert_eq!((rig.numbers(), rig.sequencer.stats().rewound), (vec![1, 2, 2], 1));
    rig.deliver(2);
    assert_eq!((rig.next(), rig.acked, rig.stopped), (Some(4), 3, None));
}

#[test]
fn where_nothing_is_kept_nothing_is_asked() {
    for keep_bytes in [0, 10] {
        let mut rig = Rig::new(keep_bytes);
        rig.deliver(1);
        rig.tell(Input::StoreMayHaveGoneBack);
        assert_eq!(rig.numbers(), [1]);
    }
}
