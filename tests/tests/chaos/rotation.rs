//! A round in which the events arrive from a file. A program writes events to the file. The file is rotated: renamed
//! and created again, or copied and truncated. The file of the sink is renamed too. Meanwhile the host is stopped,
//! killed and paused, so the host often reads old files. At the end, each event must have one message in the files of
//! the sink, in order within its key.
//!
//! The stream is `sequenced` or `fifo`. In a `fifo` stream, no number shows that a line is missing, so the order and
//! the completeness of the events depend only on the reading of the files. A line that is written between the copy and
//! the truncation of a file is lost, and so are the unread lines of a removed file. So the program writes no line
//! between these two steps, and the test removes no file.

use std::fs::{self, File};
use std::io::Write as _;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, unnumbered};
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

const EVENTS: &str = "events.ndjson";
const SINK_FILE: &str = "out.ndjson";
const KEYS: usize = 20;
const EVENTS_PER_KEY: u64 = 500;
/// The highest number of an old file for which the test searches. A round has fewer rotations.
const FILES_LIMIT: u32 = 10_000;
/// The largest number of lines that the program writes in one step.
const MAX_LINES_AT_ONCE: usize = 150;

/// A change of the files or of the host, or only a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    Write,
    /// The program writes half a line, and the rest of the line later.
    WriteInParts,
    RenameEvents,
    TruncateEvents,
    RenameOutput,
    Terminate,
    Kill,
    Pause,
    /// The host starts, or continues after a pause.
    Resume,
    Sleep,
}

/// The steps, each with its weight in a random choice.
const STEPS: [(Step, u32); 10] = [
    (Step::Write, 50),
    (Step::WriteInParts, 8),
    (Step::RenameEvents, 8),
    (Step::TruncateEvents, 6),
    (Step::RenameOutput, 5),
    (Step::Terminate, 4),
    (Step::Kill, 5),
    (Step::Pause, 3),
    (Step::Resume, 12),
    (Step::Sleep, 12),
];

struct Round {
    home: Home,
    lines: Vec<String>,
    /// The number of lines that the program has written.
    written: usize,
    service: Option<Service>,
    is_paused: bool,
    /// The steps so far, each with the number of lines that the program had written by the end of the step.
    steps: Vec<(Step, usize)>,
    logs: String,
    /// The number of files to which the sink's file was renamed.
    old_outputs: usize,
}

pub(crate) fn play(random: &mut ChaCha8Rng) -> Result<String> {
    let numbered = in_turn(KEYS, EVENTS_PER_KEY);
    let is_fifo = random.random();
    let prefetch = *[1, 100, 4_000].choose(random).context("a number")?;
    let ordering = if is_fifo { "ordering = \"fifo\"\nid_window = 8_000" } else { "" };
    let old = "source = { kind = \"file\", path = \"events.ndjson\" }";
    let new = format!(
        "{ordering}\nsource = {{ kind = \"file\", path = \"{EVENTS}\", prefetch = {prefetch} }}"
    );
    ensure!(tally::CONFIG.contains(old));
    let home = Home::new(&["tally"], &tally::CONFIG.replace(old, &new))?;
    let lines = if is_fifo { unnumbered(&numbered)? } else { numbered.clone() };
    let mut round = Round {
        home,
        lines,
        written: 0,
        service: None,
        is_paused: false,
        steps: Vec::new(),
        logs: String::new(),
        old_outputs: 0,
    };
    round.take(Step::Write, random)?;
    // The first run of a stream does not read older files, so no file is rotated before the host has read the first
    // line.
    round.resume()?;
    let service = round.service.as_mut().context("a host")?;
    service.until("a message", || round.home.lines(SINK_FILE) > 0)?;
    let mut taken = std::collections::BTreeMap::<Step, u32>::new();
    while round.written < round.lines.len() {
        let (step, _) = *STEPS.choose_weighted(random, |(_, weight)| *weight)?;
        if round.take(step, random).with_context(|| format!("{step:?}\n{}", round.log()))? {
            *taken.entry(step).or_default() += 1;
            round.steps.push((step, round.written));
        }
    }
    let kind = if is_fifo { "fifo" } else { "sequenced" };
    let summary = format!("{kind}, prefetch {prefetch}, {} lines, {taken:?}", round.written);
    round.finish().with_context(|| format!("{summary}\n{}", round.log()))?;
    let checked = tally::check(&by_key(&numbered)?, &round.output()?);
    checked.with_context(|| {
        format!("{summary}\n{}\n{}", round.home.folder().display(), round.log())
    })?;
    let letters = round.home.rows(&["dead", "list", "cases", "--json"])?;
    ensure!(letters.is_empty(), "{summary}\n{letters:?}\n{}", round.log());
    Ok(summary)
}

impl Round {
    /// Takes a step. Returns false if the step is impossible now.
    fn take(&mut self, step: Step, random: &mut ChaCha8Rng) -> Result<bool> {
        match step {
            Step::Write => {
                let count = random.random_range(1..=MAX_LINES_AT_ONCE);
                let text = self.next(count);
                self.append(&text)?;
            }
            Step::WriteInParts => {
                let text = self.next(random.random_range(1..=3));
                let (first, rest) = text.split_at(random.random_range(1..text.len()));
                self.append(first)?;
                sleep(Duration::from_millis(random.random_range(0..50)));
                self.append(rest)?;
            }
            Step::RenameEvents => return self.rename_events(),
            Step::TruncateEvents => return self.truncate_events(),
            Step::RenameOutput => return self.rename_output(),
            Step::Terminate => return self.end(Service::end),
            Step::Kill => return self.end(Service::kill),
            Step::Pause => {
                let Some(service) = self.service.as_ref().filter(|_| !self.is_paused) else {
                    return Ok(false);
                };
                service.pause()?;
                self.is_paused = true;
            }
            Step::Resume => return self.resume(),
            Step::Sleep => sleep(Duration::from_millis(random.random_range(1..300))),
        }
        Ok(true)
    }

    fn next(&mut self, count: usize) -> String {
        let end = self.lines.len().min(self.written + count);
        let text = self.lines[self.written..end].iter().map(|line| line.clone() + "\n").collect();
        self.written = end;
        text
    }

    /// Appends text to the file of events. Creates the file if it is missing.
    fn append(&self, text: &str) -> Result<()> {
        let path = self.home.path(EVENTS);
        let mut file = File::options().create(true).append(true).open(&path)?;
        file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
    }

    fn shift_numbers(&self) -> Result<()> {
        let path = |number: u32| self.home.path(&format!("{EVENTS}.{number}"));
        let numbers: Vec<u32> =
            (1..=FILES_LIMIT).take_while(|number| path(*number).exists()).collect();
        for number in numbers.into_iter().rev() {
            fs::rename(path(number), path(number + 1))?;
        }
        Ok(())
    }

    fn rename_events(&self) -> Result<bool> {
        if self.is_empty(EVENTS) {
            return Ok(false);
        }
        self.shift_numbers()?;
        fs::rename(self.home.path(EVENTS), self.home.path(&format!("{EVENTS}.1")))?;
        Ok(true)
    }

    fn truncate_events(&self) -> Result<bool> {
        if self.is_empty(EVENTS) {
            return Ok(false);
        }
        self.shift_numbers()?;
        fs::copy(self.home.path(EVENTS), self.home.path(&format!("{EVENTS}.1")))?;
        File::options().write(true).open(self.home.path(EVENTS))?.set_len(0)?;
        Ok(true)
    }

    fn rename_output(&mut self) -> Result<bool> {
        if self.is_empty(SINK_FILE) {
            return Ok(false);
        }
        self.old_outputs += 1;
        let name = format!("{SINK_FILE}.{}", self.old_outputs);
        fs::rename(self.home.path(SINK_FILE), self.home.path(&name))?;
        Ok(true)
    }

    fn is_empty(&self, name: &str) -> bool {
        fs::metadata(self.home.path(name)).map_or(true, |metadata| metadata.len() == 0)
    }

    /// Ends the host. Returns false if no host is running.
    fn end(&mut self, end: impl FnOnce(&mut Service) -> Result<()>) -> Result<bool> {
        let Some(mut service) = self.service.take() else { return Ok(false) };
        if self.is_paused {
            service.resume()?;
            self.is_paused = false;
        }
        let ended = end(&mut service);
        self.logs += &service.stderr();
        ended?;
        Ok(true)
    }

    fn resume(&mut self) -> Result<bool> {
        match &self.service {
            None => self.service = Some(Service::start(&self.home, &["run"])?),
            Some(service) if self.is_paused => {
                service.resume()?;
                self.is_paused = false;
            }
            Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Waits until the output is complete, and ends the host.
    fn finish(&mut self) -> Result<()> {
        self.resume()?;
        let mut service = self.service.take().context("a host")?;
        let all = self.lines.len();
        let lines = || self.output().map_or(0, |output| output.lines().count());
        // The time limit applies to each message, and not to all messages together: with a prefetch of 1, each event
        // needs a sync of its own.
        let mut present = lines();
        while present < all {
            let waited = service.until("another message", || lines() > present);
            waited
                .with_context(|| format!("{} of {all} messages\n{}", lines(), service.stderr()))?;
            present = lines();
        }
        self.service = Some(service);
        self.end(Service::end)?;
        Ok(())
    }

    fn output(&self) -> Result<String> {
        let mut output = String::new();
        for number in 1..=self.old_outputs {
            output += &fs::read_to_string(self.home.path(&format!("{SINK_FILE}.{number}")))?;
        }
        Ok(output + &self.home.read(SINK_FILE))
    }

    fn log(&self) -> String {
        format!("{:?}\n", self.steps)
            + &self.logs
            + &self.service.as_ref().map(Service::stderr).unwrap_or_default()
    }
}
