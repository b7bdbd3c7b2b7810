//! Tests of the reader of a file while a program rotates the file.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use ordain_core::OrderingMode;
use ordain_store::checkpoint::Checkpoint;
use ordain_util::file_pattern::FilePattern;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

const LINE_COUNT: u32 = 4_000;
const ROUNDS: u64 = 20;

fn line(number: u32) -> String {
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"{number}\",\"source\":\"/s\",\"type\":\"t\",\"subject\":\"k\"}}\n"
    )
}

fn lines(numbers: Range<u32>) -> String {
    numbers.map(line).collect()
}

/// Increments the numbers of the older files. Renames the oldest file first, as logrotate does.
fn shift(path: &Path) {
    let name = |number: u32| format!("{}.{number}", path.display());
    let is_free = |number: &u32| !fs::exists(name(*number)).expect("a folder");
    let free = (1..LINE_COUNT).find(is_free).expect("a free number");
    for number in (1..free).rev() {
        fs::rename(name(number), name(number + 1)).expect("an older file");
    }
}

/// Rotates after some of the lines: renames the file, or copies and truncates it. Writes nothing between the copy and
/// the truncation. Rotates for the first time when `first_line_read` receives a message.
fn write_and_rotate(path: &Path, seed: u64, first_line_read: &Receiver<()>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut written = 0;
    while written < LINE_COUNT {
        let end = LINE_COUNT.min(written + random.random_range(1..=60));
        let mut file = File::options().create(true).append(true).open(path).expect("the file");
        file.write_all(lines(written..end).as_bytes()).expect("a disk with free space");
        if written == 0 {
            first_line_read.recv().expect("the first line");
        }
        written = end;
        let older = format!("{}.1", path.display());
        match random.random_range(0..4) {
            0 => {
                shift(path);
                fs::rename(path, older).expect("the file");
            }
            1 | 2 => {
                shift(path);
                fs::copy(path, older).expect("the file");
                file.set_len(0).expect("the file");
            }
            _ => thread::sleep(Duration::from_millis(random.random_range(0..20))),
        }
    }
}

/// Returns `None` if no batch arrives for 30 seconds, or if the source has ended.
fn receive(source: &mut SourceHandle) -> Option<DeliveryBatch> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        match source.deliveries.try_recv() {
            Ok(batch) => return Some(batch),
            Err(mpsc::error::TryRecvError::Empty) => thread::sleep(Duration::from_millis(1)),
            Err(mpsc::error::TryRecvError::Disconnected) => return None,
        }
    }
    None
}

/// The reader lists the folder while a program renames the files of the folder. The reader must deliver each line, and
/// must deliver no line for the first time after a later line.
#[test]
fn lines_are_read_in_order_while_files_are_renamed() {
    for seed in 0..ROUNDS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.ndjson");
        fs::write(&path, "").expect("a folder");
        let ordering = OrderingMode::Fifo;
        let files = FileSet::new(FilePattern::new(&path), "s", ordering, true);
        let decoder = EventDecoder::new(ordering, 1 << 20);
        let options = FileOptions { files: Some(files), stream: "s".into(), follow: true, decoder };
        let mut source = read_file(options).expect("a thread");
        let (first_line, first_line_read) = channel();
        let writer = thread::spawn(move || write_and_rotate(&path, seed, &first_line_read));
        let mut seen = BTreeSet::new();
        while seen.len() < LINE_COUNT as usize {
            let batch = receive(&mut source);
            let batch =
                batch.unwrap_or_else(|| panic!("seed {seed}: no line after {:?}", seen.last()));
            for (delivery, _) in batch.items {
                let event = delivery.unwrap_or_else(|letter| panic!("seed {seed}: {letter:?}"));
                let number: u32 = event.id().parse().expect("a number");
                let last = seen.last().copied();
                let is_new = seen.insert(number);
                assert!(
                    !is_new || last.is_none_or(|last| number == last + 1),
                    "seed {seed}: line {number} follows line {last:?}"
                );
                if number == 0 && is_new {
                    first_line.send(()).expect("the writer");
                }
            }
        }
        writer.join().expect("the writer");
    }
}

/// A reader that a test runs step by step.
struct Steps {
    folder: tempfile::TempDir,
    reader: FileReader,
    deliveries: mpsc::Receiver<DeliveryBatch>,
}

impl Steps {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ordering = OrderingMode::Fifo;
        let pattern = FilePattern::new(&folder.path().join(name));
        let set = FileSet::new(pattern, "s", ordering, true);
        let decoder = EventDecoder::new(ordering, 1 << 20);
        let lines = LineDecoder { stream: "s".into(), decoder };
        let (deliver, deliveries) = mpsc::channel(READ_AHEAD_BATCHES);
        let scanned_at = Instant::now();
        let reader = FileReader { set, lines, follow: true, deliver, open: None, scanned_at };
        Self { folder, reader, deliveries }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn append(&self, name: &str, text: &str) {
        let file = File::options().create(true).append(true).open(self.path(name));
        file.expect("the file").write_all(text.as_bytes()).expect("a disk with free space");
    }

    /// The copy gets the name with `.1`.
    fn copy_and_truncate(&self, name: &str) {
        let path = self.path(name);
        shift(&path);
        fs::copy(&path, self.path(&format!("{name}.1"))).expect("the file");
        File::options().write(true).open(path).expect("the file").set_len(0).expect("the file");
    }

    fn scan(&mut self) {
        self.reader.set.scan().expect("a folder");
        self.reader.set.measure().expect("the files");
    }

    /// Returns the numbers of the delivered lines.
    fn visit(&mut self, index: usize) -> Vec<u32> {
        self.reader.visit(index).expect("the file");
        self.received()
    }

    /// Passes over the files until a pass finds no further line. Returns the numbers of the delivered lines.
    fn read_all(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        loop {
            self.scan();
            let mut was_idle = true;
            for index in 0..self.reader.set.len() {
                let visit = self.reader.visit(index).expect("the file");
                numbers.extend(self.received());
                was_idle &= visit == VisitResult::Idle;
                if visit == VisitResult::Changed {
                    break;
                }
            }
            if was_idle {
                return numbers;
            }
        }
    }

    fn received(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Ok(batch) = self.deliveries.try_recv() {
            numbers.extend(batch.items.iter().map(|(delivery, _)| -> u32 {
                let event = delivery.as_ref().unwrap_or_else(|letter| panic!("{letter:?}"));
                event.id().parse().expect("a number")
            }));
        }
        numbers
    }
}

/// A writer without `O_APPEND` continues at its last position, so a truncated file begins with NULs. The reader has
/// read only these NULs and half of a line when the file is copied and truncated again.
#[test]
fn copy_of_file_with_only_blanks_read_is_read_first() {
    let mut steps = Steps::new("f");
    steps.append("f", &line(0));
    assert_eq!(steps.read_all(), [0]);
    steps.copy_and_truncate("f");
    let nuls = "\0".repeat(line(0).len());
    let next = line(1);
    let (half, rest) = next.split_at(30);
    steps.append("f", &format!("{nuls}{half}"));
    assert_eq!(steps.read_all(), [0; 0]);
    steps.append("f", rest);
    steps.scan();
    let more_nuls = "\0".repeat(line(0).len() + next.len());
    steps.copy_and_truncate("f");
    steps.append("f", &format!("{more_nuls}{}{}", line(2), line(3)));
    assert_eq!(steps.visit(1), [0; 0], "the copy must be read first");
    assert_eq!(steps.read_all(), [1, 2, 3]);
}

/// A program copies and truncates the second file of a pattern while the reader is busy with the first file, and the
/// truncated file grows beyond its earlier length.
#[test]
fn second_file_is_copied_and_truncated_while_the_first_is_read() {
    let mut steps = Steps::new("e-*.ndjson");
    steps.append("e-a.ndjson", &line(1_000));
    steps.append("e-b.ndjson", &lines(0..20));
    assert_eq!(steps.read_all().len(), 21);
    steps.append("e-a.ndjson", &line(1_001));
    steps.append("e-b.ndjson", &lines(20..30));
    steps.scan();
    assert_eq!(steps.visit(0), [1_001]);
    steps.copy_and_truncate("e-b.ndjson");
    steps.append("e-b.ndjson", &lines(30..80));
    steps.visit(1);
    let expected: Vec<u32> = (20..80).collect();
    assert_eq!(steps.read_all(), expected);
}

/// A program truncates a file after the reader has measured it and before the reader reads it, and the file grows
/// beyond its earlier length. The reader must report the lost lines.
#[test]
fn file_truncated_before_its_first_read_is_reported() {
    let mut steps = Steps::new("f");
    steps.append("f", &lines(0..20));
    steps.scan();
    File::options().write(true).open(steps.path("f")).expect("the file").set_len(0).expect("cut");
    steps.append("f", &lines(20..60));
    assert_eq!(steps.visit(0), [0; 0], "the reader must scan the folder first");
    steps.scan();
    assert!(steps.reader.set.file(0).loss.is_some());
    steps.reader.visit(0).expect("the file");
    let letter = steps.deliveries.try_recv().expect("the dead letter");
    assert!(letter.items[0].0.is_err());
    assert_eq!(steps.read_all(), (20..60).collect::<Vec<_>>());
}

/// Each generation of the file begins with an empty line. The reader has read only this line when the file is copied
/// and truncated, and the file grows after the reader has scanned the folder. In the second part of the test, the
/// reader ends after the empty line, and another reader continues from the checkpoint.
#[test]
fn copy_of_file_with_only_an_empty_line_read_is_read_first() {
    for is_restarted in [false, true] {
        let mut steps = Steps::new("f");
        steps.append("f", "\n");
        assert_eq!(steps.read_all(), [0; 0]);
        if is_restarted {
            let checkpoint = Checkpoint::new(steps.reader.set.progress(), Vec::new()).encode();
            let checkpoint = Checkpoint::decode(&checkpoint).expect("decoded");
            let pattern = FilePattern::new(&steps.path("f"));
            steps.reader.set = FileSet::resume(pattern, "s", OrderingMode::Fifo, &checkpoint);
            steps.reader.open = None;
        }
        steps.append("f", &lines(0..20));
        steps.scan();
        steps.copy_and_truncate("f");
        steps.append("f", &format!("\n{}", lines(20..60)));
        assert_eq!(steps.visit(0), [0; 0], "the copy must be read first");
        assert_eq!(steps.read_all(), (0..60).collect::<Vec<_>>());
    }
}

/// A program keeps writing to a renamed file in blocks that end within a line. Before the reader reads the newer files,
/// it must wait only for a limited time for the end of this line.
#[test]
fn growing_half_line_of_a_replaced_file_does_not_delay_other_files_forever() {
    let mut steps = Steps::new("f");
    steps.append("f", &line(0));
    assert_eq!(steps.read_all(), [0]);
    fs::rename(steps.path("f"), steps.path("f.1")).expect("the file");
    steps.append("f", &line(10));
    let mut text = String::new();
    for number in 1..4 {
        text.push_str(&line(number));
        let rest = text.split_off(text.len() - 20);
        steps.append("f.1", &std::mem::replace(&mut text, rest));
        steps.scan();
        let expected = if number < 3 { VisitResult::Unfinished } else { VisitResult::Read };
        assert_eq!(steps.reader.visit(0).expect("the file"), expected);
        let tracked = steps.reader.set.file(0);
        assert!(tracked.unfinished_since.is_some());
        if number == 2 {
            tracked.unfinished_since = Instant::now().checked_sub(UNFINISHED_LIMIT);
        }
    }
    assert_eq!(steps.received(), [1, 2]);
    steps.append("f.1", &text);
    steps.scan();
    assert_eq!(steps.visit(0), [3]);
    assert!(steps.reader.set.file(0).unfinished_since.is_none());
}

/// A program truncates a file twice. Before each truncation, the reader has read lines of the same length. Each loss
/// has a letter of its own.
#[test]
fn two_losses_at_one_position_have_two_letters() {
    let mut steps = Steps::new("f");
    let mut ids = BTreeSet::new();
    for number in 10..13 {
        // Wait, so that the file gets a new modification time.
        thread::sleep(Duration::from_millis(20));
        fs::write(steps.path("f"), format!("{}half a line", line(number))).expect("the file");
        loop {
            steps.scan();
            let mut batches = Vec::new();
            for index in 0..steps.reader.set.len() {
                steps.reader.visit(index).expect("the file");
                batches.extend(std::iter::from_fn(|| steps.deliveries.try_recv().ok()));
            }
            let items = batches.into_iter().flat_map(|batch| batch.items);
            let (read, lost): (Vec<_>, Vec<_>) = items.partition(|(delivery, _)| delivery.is_ok());
            ids.extend(
                lost.into_iter().filter_map(|(letter, _)| letter.err()).map(|letter| letter.id.tag),
            );
            if !read.is_empty() {
                break;
            }
        }
    }
    assert_eq!(ids.len(), 2);
}

/// A program truncates a file twice before the reader has read anything of the file. The removed contents have the same
/// length. Each loss has a letter of its own.
#[test]
fn two_losses_of_an_unread_file_have_two_letters() {
    let mut steps = Steps::new("f");
    let mut ids = BTreeSet::new();
    fs::write(steps.path("f"), lines(10..20)).expect("the file");
    steps.scan();
    for number in [20, 30] {
        // Wait, so that the file gets a new modification time.
        thread::sleep(Duration::from_millis(20));
        fs::write(steps.path("f"), lines(number..number + 10)).expect("the file");
        steps.scan();
        steps.reader.visit(0).expect("the file");
        let batch = steps.deliveries.try_recv().expect("the dead letter");
        let letters = batch.items.into_iter().filter_map(|(delivery, _)| delivery.err());
        ids.extend(letters.map(|letter| letter.id.tag));
        steps.scan();
    }
    assert_eq!(ids.len(), 2);
}

/// A program writes to an empty file, copies and truncates it, and writes again, before the reader measures the file.
#[test]
fn copy_made_before_the_measurement_is_read_first() {
    let mut steps = Steps::new("f");
    steps.append("f", "");
    steps.scan();
    steps.append("f", &lines(0..5));
    steps.copy_and_truncate("f");
    steps.append("f", &lines(5..10));
    steps.reader.set.measure().expect("the files");
    assert_eq!(steps.visit(0), [0; 0], "the copy must be read first");
    assert_eq!(steps.read_all(), (0..10).collect::<Vec<_>>());
}

/// The first line of an unread file was known before the last listing, so the reader needs no more listings before it
/// reads the file. The reader therefore reads the file although the folder is missing now.
#[test]
fn file_with_a_known_first_line_needs_no_further_listing() {
    let mut steps = Steps::new("f");
    steps.append("f", &lines(0..5));
    steps.scan();
    steps.scan();
    fs::remove_dir_all(steps.folder.path()).expect("the folder");
    assert_eq!(steps.visit(0), (0..5).collect::<Vec<_>>());
}
