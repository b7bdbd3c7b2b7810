//! Counts the receipts in the sink file while the host writes this file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Size of the buffer for the end of the file, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// The number of complete lines in a file that grows.
pub(crate) struct ReceiptCounter {
    path: PathBuf,
    lines: u64,
    /// The length of the counted part of the file, in bytes.
    counted_bytes: u64,
}

impl ReceiptCounter {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, lines: 0, counted_bytes: 0 }
    }

    /// Counts the new lines, and returns the number of all lines. A host that starts can truncate the file; the counter
    /// then counts the whole file again.
    pub(crate) fn count(&mut self) -> io::Result<u64> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < self.counted_bytes {
            self.lines = 0;
            self.counted_bytes = 0;
        }
        file.seek(SeekFrom::Start(self.counted_bytes))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = file.read(&mut buffer)?;
            if length == 0 {
                return Ok(self.lines);
            }
            self.counted_bytes += length as u64;
            let is_end = |byte: &&u8| **byte == b'\n';
            self.lines += buffer[..length].iter().filter(is_end).count() as u64;
        }
    }
}

#[test]
fn appended_and_truncated_lines_are_counted() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("receipts");
    let mut counter = ReceiptCounter::new(path.clone());
    assert_eq!(counter.count()?, 0);
    std::fs::write(&path, "a\nb\nc")?;
    assert_eq!(counter.count()?, 2);
    std::fs::write(&path, "a\nb\nc\nd\n")?;
    assert_eq!(counter.count()?, 4);
    std::fs::write(&path, "a\n")?;
    assert_eq!(counter.count()?, 1);
    Ok(())
}
