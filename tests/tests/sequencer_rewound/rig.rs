//! A sequencer, and a store that can forget its last commits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ordain::config::{self, Share};
use ordain_core::{
    Applied, Batch, Change, CommitReply, Effect, Event, EventParts, Expect, Input, Job, JobWrite,
    Loaded, Refusal, Sequencer, Settings, Stop, Token, TurnDone, Verdict,
};

/// One key and one shard.
pub(crate) struct Rig {
    pub(crate) sequencer: Sequencer,
    /// Every batch that was sent, in order.
    pub(crate) sent: Vec<Arc<Batch>>,
    /// What the store has of the only shard that is used, and what it answered.
    pub(crate) stored: Vec<(Arc<Batch>, Applied)>,
    /// The next commits are not answered.
    pub(crate) silent: u32,
    /// Commits are applied, and not answered.
    pub(crate) unheard: bool,
    /// Reads of spilled events that wait to be answered, if they are to.
    pub(crate) reads: Option<Vec<(Token, u64)>>,
    /// The store's clock stands still.
    pub(crate) still: bool,
    /// The next commit refuses its first write.
    pub(crate) refuses: bool,
    pub(crate) now: u64,
    pub(crate) delivered: u64,
    pub(crate) acked: u64,
    pub(crate) stopped: Option<Stop>,
}

pub(crate) type Spilled = BTreeMap<u64, Arc<Event>>;

pub(crate) fn settings(keep_bytes: usize) -> Settings {
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
    pub(crate) fn new(keep_bytes: usize) -> Self {
        Self::with(settings(keep_bytes))
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let commits = vec![0; settings.shards as usize];
        Self {
            sequencer: Sequencer::new(settings, &commits, 0),
            sent: Vec::new(),
            stored: Vec::new(),
            silent: 0,
            unheard: false,
            reads: None,
            still: false,
            refuses: false,
            now: 0,
            delivered: 0,
            acked: 0,
            stopped: None,
        }
    }

    /// Delivers an event; each that can run is a commit.
    pub(crate) fn deliver(&mut self, sequence: u64) {
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
    pub(crate) fn tell(&mut self, input: Input) {
        self.now += 1;
        self.sequencer.handle(self.now, input);
        self.perform();
        self.wait();
    }

    /// Longer than a batch without an answer waits to be sent again.
    pub(crate) fn wait(&mut self) {
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
                Effect::Load { token, key } => {
                    let record = self.record().filter(|_| &*key == "a");
                    let loaded = record.map(|(job, _)| Loaded {
                        job,
                        state: None,
                        ids: Vec::new(),
                        due_in: None,
                        expire_in: None,
                    });
                    Input::Loaded { token, loaded: Ok(loaded.map(Box::new)) }
                }
                Effect::ReadSpill { token, from, .. } => {
                    if let Some(reads) = &mut self.reads {
                        reads.push((token, from));
                        continue;
                    }
                    self.spilled(token, from)
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

    /// Answers the reads that wait, from what the store has now.
    pub(crate) fn answer_reads(&mut self) {
        for (token, from) in self.reads.take().unwrap_or_default() {
            let read = self.spilled(token, from);
            self.tell(read);
        }
    }

    fn spilled(&self, token: Token, from: u64) -> Input {
        let (_, spilled) = self.record().expect("what is spilled has a job");
        let events = spilled.into_iter().filter(|it| it.0 >= from).collect();
        Input::SpillRead { token, read: Ok((events, true)) }
    }

    fn commit(&mut self, batch: Arc<Batch>) -> CommitReply {
        let (last, number) = (self.stored.len() as u64, batch.number);
        if self.silent > 0 {
            self.silent -= 1;
            return CommitReply::Unknown;
        }
        if number == last && !self.unheard {
            return CommitReply::Applied(self.stored[last as usize - 1].1.clone());
        }
        if number == last {
            return CommitReply::Unknown;
        }
        if number != last + 1 {
            return CommitReply::Rewound { found: "less".to_owned(), last: Some(last) };
        }
        let time = if self.still { 1_000 } else { 1_000 + self.now };
        let mut applied = Applied { time, ..Applied::default() };
        let next = self.record().map(|(job, _)| job.next);
        let holds = |write: &JobWrite| write.expect == next.map_or(Expect::Absent, Expect::Next);
        if std::mem::take(&mut self.refuses) || batch.writes.iter().any(|write| !holds(write)) {
            applied.refused.push((0, Refusal::Next(next)));
        }
        self.stored.push((batch, applied.clone()));
        if self.unheard {
            return CommitReply::Unknown;
        }
        CommitReply::Applied(applied)
    }

    /// The job that the store has, and its spilled events.
    pub(crate) fn record(&self) -> Option<(Job, Spilled)> {
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

    pub(crate) fn next(&self) -> Option<u64> {
        self.record().map(|(job, _)| job.next)
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.sent.iter().map(|batch| batch.number).collect()
    }
}
