//! Generates a load. For each event: chooses a key, takes its next step, sends it through the faulty channel,
//! writes the lines that are due, and updates the manifest.

use std::io::{self, Write};
use std::time::Duration;

use super::arrivals::ArrivalClock;
use super::channel::{FaultyChannel, TransitLine};
use super::keys::{self, KeyChooser};
use super::line::{LineFields, LineFormatter};
use super::manifest::{EventRef, KeyEntry, ManifestCounts, ManifestEntry, ManifestWriter};
use super::options::{EventShape, LoadOptions};
use super::orders::OrderStep;
use super::population::{KeyState, Population};
use super::random::{RandomPurpose, SeededRandom};

/// An observer of the events, which may delay them.
pub trait LoadObserver {
    /// Called before each event, with its index and its time from the start. `out` may hold data that is not
    /// flushed.
    fn before(&mut self, index: u64, after: Duration, out: &mut dyn Write) -> io::Result<()>;
}

/// The observer of a caller that needs only the bytes.
impl LoadObserver for () {
    fn before(&mut self, _: u64, _: Duration, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all events of a load to `out`, and their faults to `manifest`.
pub fn generate_to<'a>(
    load: &'a LoadOptions,
    out: &'a mut (dyn Write + 'a),
    manifest: Option<&'a mut (dyn Write + 'a)>,
    observer: &mut dyn LoadObserver,
) -> io::Result<ManifestCounts> {
    let mut run = LoadGenerator {
        load,
        out,
        manifest: ManifestWriter::new(manifest),
        lives: SeededRandom::new(load.seed, RandomPurpose::Orders),
        lines: LineFormatter::new(load),
        channel: FaultyChannel::new(load),
        keys: Population::new(load),
        // The last event of a key is known only after all choices of keys.
        left: if load.end_of_sequence { keys::count(load) } else { Vec::new() },
    };
    run.manifest.tell(|| ManifestEntry::Options(serde_json::to_value(load).unwrap_or_default()))?;
    let mut chooser = KeyChooser::new(load);
    let mut clock = ArrivalClock::new(load);
    for index in 0..load.events {
        let time_ns = clock.next();
        observer.before(index, Duration::from_nanos(time_ns), run.out)?;
        run.event(index, chooser.next(), time_ns)?;
        run.receive(index)?;
    }
    run.receive(u64::MAX)?;
    run.finish()
}

struct LoadGenerator<'a> {
    load: &'a LoadOptions,
    out: &'a mut (dyn Write + 'a),
    manifest: ManifestWriter<'a>,
    lives: SeededRandom,
    lines: LineFormatter,
    channel: FaultyChannel,
    keys: Population,
    /// For each slot, the number of remaining events. Empty if last events are not marked.
    left: Vec<u64>,
}

impl LoadGenerator<'_> {
    fn event(&mut self, index: u64, slot: usize, time_ns: u64) -> io::Result<()> {
        let place = self.keys.of_slot(slot);
        let step = match self.load.shape {
            EventShape::Opaque => None,
            EventShape::Orders => {
                Some(self.keys[place].life.step(&mut self.lives, self.load.impossible.0))
            }
        };
        let over = step.is_some_and(|step| step.last);
        let end = self.is_last_of(slot) || (self.load.end_of_sequence && over);
        let key = &mut self.keys[place];
        key.events += 1;
        key.ended = end;
        key.over = over;
        let sequence = key.events;
        self.account(place, step, end)?;
        let fate = self.channel.fate();
        let mut line = self.channel.line();
        let key = &self.keys[place];
        self.lines.write(&LineFields { key: &key.name, sequence, step, time_ns, end }, &mut line);
        if over {
            self.keys.leave(slot);
        }
        if fate.lost {
            self.channel.reuse(line);
            self.manifest.counts.lost += 1;
            self.tell(place, sequence, ManifestEntry::Lost)?;
            return self.let_go(place);
        }
        self.keys[place].pending += 1 + u64::from(fate.repeated);
        self.channel.send(index, fate, place, sequence, line);
        Ok(())
    }

    fn is_last_of(&mut self, slot: usize) -> bool {
        let Some(left) = self.left.get_mut(slot) else { return false };
        *left -= 1;
        *left == 0
    }

    fn account(&mut self, place: usize, step: Option<OrderStep>, end: bool) -> io::Result<()> {
        let counts = &mut self.manifest.counts;
        counts.events += 1;
        counts.ended += u64::from(end);
        if step.is_some_and(|step| step.impossible) {
            counts.impossible += 1;
            self.tell(place, self.keys[place].events, ManifestEntry::Impossible)?;
        }
        Ok(())
    }

    fn tell(
        &mut self,
        place: usize,
        sequence: u64,
        entry: fn(EventRef) -> ManifestEntry,
    ) -> io::Result<()> {
        let key = &self.keys[place].name;
        self.manifest.tell(|| entry(EventRef { key: key.clone(), sequence }))
    }

    /// Writes the lines that are due after the event with this index.
    fn receive(&mut self, index: u64) -> io::Result<()> {
        while let Some(TransitLine { copy, key: place, sequence, line, .. }) =
            self.channel.receive(index)
        {
            self.out.write_all(&line)?;
            self.channel.reuse(line);
            let key = &mut self.keys[place];
            key.pending -= 1;
            let swapped = !copy && sequence < key.written;
            key.written = key.written.max(sequence);
            let counts = &mut self.manifest.counts;
            counts.lines += 1;
            if copy {
                counts.repeated += 1;
                self.tell(place, sequence, ManifestEntry::Repeated)?;
            } else if swapped {
                counts.swapped += 1;
                self.tell(place, sequence, ManifestEntry::Swapped)?;
            }
            self.let_go(place)?;
        }
        Ok(())
    }

    /// Removes a key that has no further events or lines.
    fn let_go(&mut self, place: usize) -> io::Result<()> {
        let key = &self.keys[place];
        if !key.over || key.pending > 0 {
            return Ok(());
        }
        self.tell_key(place)?;
        self.keys.forget(place);
        Ok(())
    }

    fn tell_key(&mut self, place: usize) -> io::Result<()> {
        let KeyState { name, events, ended, .. } = &self.keys[place];
        self.manifest.counts.keys += 1;
        self.manifest.tell(|| {
            ManifestEntry::Key(KeyEntry { key: name.clone(), events: *events, ended: *ended })
        })
    }

    fn finish(mut self) -> io::Result<ManifestCounts> {
        for place in self.keys.left() {
            self.tell_key(place)?;
        }
        self.out.flush()?;
        self.manifest.finish()
    }
}
