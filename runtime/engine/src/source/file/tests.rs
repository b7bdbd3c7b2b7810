//! Tests of the reader of a file while a program rotates the file.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use ordain_core::OrderingMode;
use ordain_util::file_pattern::FilePattern;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

/// The number of lines that a round writes.
const LINES: u32 = 4_000;
/// The number of rounds, each with another seed.
const ROUNDS: u64 = 20;

/// Gives each older file the next number, the oldest file first, as logrotate does.
fn shift(path: &Path) {
    let name = |number: u32| format!("{}.{number}", path.display());
    let is_free = |number: &u32| !fs::exists(name(*number)).expect("a folder");
    let free = (1..LINES).find(is_free).expect("a free number");
    for number in (1..free).rev() {
        fs::rename(name(number), name(number + 1)).expect("an older file");
    }
}

/// Appends all lines to the file, and rotates the file after some of the lines: renames the file, or copies and
/// truncates it. Writes nothing between the copy and the truncation. Rotates for the first time when `first_line_read`
/// receives a message.
fn write_and_rotate(path: &Path, seed: u64, first_line_read: &Receiver<()>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut written = 0;
    while written < LINES {
        let end = LINES.min(written + random.random_range(1..=60));
        let line = |number| {
            format!(
                "{{\"specversion\":\"1.0\",\"id\":\"{number}\",\"source\":\"/s\",\"type\":\"t\",\"subject\":\"k\"}}\n"
            )
        };
        let text: String = (written..end).map(line).collect();
        let mut file = File::options().create(true).append(true).open(path).expect("the file");
        file.write_all(text.as_bytes()).expect("a disk with free space");
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

/// Returns the next batch; `None` if no batch arrives for 30 seconds, or if the source has ended.
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
        while seen.len() < LINES as usize {
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
