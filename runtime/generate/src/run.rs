//! Generates a load. For each event, this module chooses a key, and determines the next step (if the events are steps
//! of orders). It then sends the event through the faulty channel, writes the lines that are due, and updates the
//! manifest.

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

/// An observer of the events. The observer may delay the generation of an event.
pub trait LoadObserver {
    /// Observes an event before it is generated. `index` is the index of the event, and `after` its time from the
    /// start. `out` may hold data that is not flushed.
    fn before(&mut self, index: u64, after: Duration, out: &mut dyn Write) -> io::Result<()>;
}

/// An observer that does nothing, for a caller that needs only the bytes.
impl LoadObserver for () {
    fn before(&mut self, _: u64, _: Duration, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the events of a load to `out`, without the lost events, and the manifest to `manifest`. Returns the totals.
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
        order_random: SeededRandom::new(load.seed, RandomPurpose::Orders),
        lines: LineFormatter::new(load),
        channel: FaultyChannel::new(load),
        keys: Population::new(load),
        // The last event of each key is known only after the keys of all events are chosen, so `keys::count` chooses
        // all keys in advance.
        remaining_events: if load.end_of_sequence { keys::count(load) } else { Vec::new() },
    };
    run.manifest
        .write_entry(|| ManifestEntry::Options(serde_json::to_value(load).unwrap_or_default()))?;
    let mut chooser = KeyChooser::new(load);
    let mut clock = ArrivalClock::new(load);
    for index in 0..load.events {
        let time_ns = clock.next();
        observer.before(index, Duration::from_nanos(time_ns), run.out)?;
        run.send_event(index, chooser.next(), time_ns)?;
        run.receive(index)?;
    }
    run.receive(u64::MAX)?;
    run.finish()
}

struct LoadGenerator<'a> {
    load: &'a LoadOptions,
    out: &'a mut (dyn Write + 'a),
    manifest: ManifestWriter<'a>,
    order_random: SeededRandom,
    lines: LineFormatter,
    channel: FaultyChannel,
    keys: Population,
    /// For each slot (see `population`), the number of remaining events. Empty if the last events are not to be marked.
    remaining_events: Vec<u64>,
}

impl LoadGenerator<'_> {
    fn send_event(&mut self, index: u64, slot: usize, time_ns: u64) -> io::Result<()> {
        let place = self.keys.of_slot(slot);
        let step = match self.load.shape {
            EventShape::Opaque => None,
            EventShape::Orders => {
                Some(self.keys[place].order.step(&mut self.order_random, self.load.impossible.0))
            }
        };
        let over = step.is_some_and(|step| step.last);
        let end = self.is_last_of(slot) || (self.load.end_of_sequence && over);
        let key = &mut self.keys[place];
        key.events += 1;
        key.ended = end;
        key.is_finished = over;
        let sequence = key.events;
        self.count_event(place, step, end)?;
        let faults = self.channel.draw_faults();
        let mut line = self.channel.take_buffer();
        let key = &self.keys[place];
        self.lines.write(&LineFields { key: &key.name, sequence, step, time_ns, end }, &mut line);
        if over {
            self.keys.release_slot(slot);
        }
        if faults.lost {
            self.channel.reuse(line);
            self.manifest.counts.lost += 1;
            self.write_event_entry(place, sequence, ManifestEntry::Lost)?;
            return self.remove_finished(place);
        }
        self.keys[place].pending += 1 + u64::from(faults.repeated);
        self.channel.send(index, faults, place, sequence, line);
        Ok(())
    }

    fn is_last_of(&mut self, slot: usize) -> bool {
        let Some(left) = self.remaining_events.get_mut(slot) else { return false };
        *left -= 1;
        *left == 0
    }

    fn count_event(&mut self, place: usize, step: Option<OrderStep>, end: bool) -> io::Result<()> {
        let counts = &mut self.manifest.counts;
        counts.events += 1;
        counts.ended += u64::from(end);
        if step.is_some_and(|step| step.impossible) {
            counts.impossible += 1;
            self.write_event_entry(place, self.keys[place].events, ManifestEntry::Impossible)?;
        }
        Ok(())
    }

    fn write_event_entry(
        &mut self,
        place: usize,
        sequence: u64,
        entry: fn(EventRef) -> ManifestEntry,
    ) -> io::Result<()> {
        let key = &self.keys[place].name;
        self.manifest.write_entry(|| entry(EventRef { key: key.clone(), sequence }))
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
                self.write_event_entry(place, sequence, ManifestEntry::Repeated)?;
            } else if swapped {
                counts.swapped += 1;
                self.write_event_entry(place, sequence, ManifestEntry::Swapped)?;
            }
            self.remove_finished(place)?;
        }
        Ok(())
    }

    /// If the key at `place` gets no more events and has no lines in transit, releases the key and writes its totals to
    /// the manifest.
    fn remove_finished(&mut self, place: usize) -> io::Result<()> {
        let key = &self.keys[place];
        if !key.is_finished || key.pending > 0 {
            return Ok(());
        }
        self.write_key_entry(place)?;
        self.keys.release_place(place);
        Ok(())
    }

    fn write_key_entry(&mut self, place: usize) -> io::Result<()> {
        let KeyState { name, events, ended, .. } = &self.keys[place];
        self.manifest.counts.keys += 1;
        self.manifest.write_entry(|| {
            ManifestEntry::Key(KeyEntry { key: name.clone(), events: *events, ended: *ended })
        })
    }

    fn finish(mut self) -> io::Result<ManifestCounts> {
        for place in self.keys.unfinished() {
            self.write_key_entry(place)?;
        }
        self.out.flush()?;
        self.manifest.finish()
    }
}
