//! A file sink that contains each message exactly once.
//!
//! The store records the file's length together with the removal of the messages from the outbox (committed messages
//! that are not published yet). If the process dies after it wrote lines and before the store recorded them, the file
//! has lines after the recorded length. The next start removes these lines and publishes their messages again from the
//! outbox. If the outbox lacks the message of a line after the recorded length, the store is at an earlier time than
//! the file. Ordain then keeps all complete lines, because consumers may have read them, and the store could never
//! publish their messages again. If the outbox has the messages of some of these lines, the sink skips the messages. If
//! another file has taken the place of the sink file, Ordain never truncates this other file.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::content::SinkContent;
use super::kept_lines::{ComparedLines, KeptLines};
use ordain_store::Mark;
use ordain_store::published_file::{FileFingerprint, PublishedFile};
use ordain_util::canonical_path::canonical_path;
use ordain_util::tail_fingerprint::TailFingerprint;

/// An open file sink.
#[derive(Debug)]
pub(crate) struct FileSink {
    path: PathBuf,
    mark_name: String,
    file: File,
    inode: u64,
    /// The fingerprint and the end of the written data. The next message is written after this end.
    tail: TailFingerprint,
    is_synced: bool,
    /// The lines of unpublished messages that the sink must not write again.
    kept: KeptLines,
}

/// An opened file sink that may contain more lines than the store has recorded.
#[derive(Debug)]
pub(crate) struct FileSinkRecovery {
    sink: FileSink,
    file_length: u64,
    /// The part of the file in which an earlier start kept the lines of unpublished messages. `None` if the sink has
    /// skipped all these messages.
    kept_range: Option<Range<u64>>,
}

impl FileSinkRecovery {
    /// Returns whether [`finish`](Self::finish) needs the ids of the messages in the outbox.
    pub(crate) fn needs_outbox(&self) -> bool {
        self.file_length > self.sink.tail.end() || self.kept_range.is_some()
    }

    /// Truncates the file to the length in the store, if every message beyond that length is in the outbox. If the
    /// outbox lacks one of these messages, keeps all complete lines. `outbox` has the ids of the messages in the
    /// outbox. A truncation to the length in the store also removes lines of other programs. Returns the sink and, for
    /// each stream, the number of messages in the file that the store lacks.
    pub(crate) fn finish(
        self,
        outbox: &HashSet<String>,
    ) -> io::Result<(FileSink, BTreeMap<String, u64>)> {
        let Self { mut sink, file_length, kept_range } = self;
        if let Some(range) = kept_range {
            let compared = ComparedLines::read(&sink.file, range.clone(), outbox)?;
            sink.kept.add(range, compared.unpublished);
        }
        let lost = sink.recover(file_length, outbox)?;
        sink.kept.report(&sink.path);
        Ok((sink, lost))
    }
}

impl FileSink {
    /// Opens the file. `mark` is the store's record of the file's published length. Without a mark, the contents of the
    /// file stay, and the sink writes new messages after these contents.
    pub(crate) fn open(path: &Path, mark: Option<&[u8]>) -> io::Result<FileSinkRecovery> {
        let file = open_or_create(path)?;
        let metadata = file.metadata()?;
        let file_length = metadata.len();
        let inode = metadata.ino();
        let published = match mark {
            None => None,
            Some(mark) => Some(PublishedFile::decode(mark).ok_or_else(|| {
                let message = "the store's mark for this file has an unknown format";
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?),
        };
        let mut kept_range = None;
        let length = match published {
            None => file_length,
            Some(PublishedFile { length, .. }) if file_length < length => {
                warn_shorter(path, file_length, length);
                file_length
            }
            Some(published) if !is_published(&published, &file, inode)? => {
                tracing::warn!(
                    path = %path.display(), bytes = file_length,
                    "sink file is not the file of the last run: Ordain removes nothing from it, and writes new \
                     messages at its end"
                );
                file_length
            }
            Some(PublishedFile { length, kept, .. }) => {
                // The range exceeds the length if another process has truncated the file during a run.
                kept_range = kept.filter(|range| range.end <= length);
                length
            }
        };
        let tail = TailFingerprint::read(&file, length)?;
        let mark = Self::mark_name(path);
        let sink = Self {
            path: path.to_owned(),
            mark_name: mark,
            file,
            inode,
            tail,
            is_synced: true,
            kept: KeptLines::default(),
        };
        Ok(FileSinkRecovery { sink, file_length, kept_range })
    }

    /// Removes the data after the published length, or keeps its complete lines. Returns, for each stream, the number
    /// of messages in the kept lines that the store lacks.
    fn recover(
        &mut self,
        file_length: u64,
        outbox: &HashSet<String>,
    ) -> io::Result<BTreeMap<String, u64>> {
        let length = self.tail.end();
        if file_length == length {
            return Ok(BTreeMap::new());
        }
        let ComparedLines { complete_length, lost, unpublished } =
            ComparedLines::read(&self.file, length..file_length, outbox)?;
        if lost.is_empty() {
            self.file.set_len(length)?;
            tracing::info!(
                path = %self.path.display(), bytes = file_length - length,
                "removed the last lines of the sink file, because the store had not recorded them as published; \
                 Ordain writes their messages again"
            );
            return Ok(lost);
        }
        self.file.set_len(complete_length)?;
        // Make these lines durable before the store's mark includes them.
        self.file.sync_all()?;
        self.tail = TailFingerprint::read(&self.file, complete_length)?;
        self.kept.add(length..complete_length, unpublished);
        Ok(lost)
    }

    /// Returns the name of a file's mark in the store. The name is the same for every spelling of the path.
    pub(crate) fn mark_name(path: &Path) -> String {
        format!("sink/{}", canonical_path(path).display())
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file already has an unpublished message, so that the sink must skip the message. `number` is
    /// the number that the store has given to the message.
    pub(super) fn take_kept(
        &mut self,
        stream: &str,
        content: &SinkContent,
        number: Option<u64>,
    ) -> bool {
        self.kept.take(&self.path, stream, content, number)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_synced {
            self.check_length()?;
        }
        self.file.write_all_at(bytes, self.tail.end())?;
        self.tail.extend(bytes);
        self.is_synced = false;
        Ok(())
    }

    /// Checks the file's length before the first write after a sync. If another process has truncated the file, a write
    /// at the old end would fill the missing part with zeros.
    fn check_length(&mut self) -> io::Result<()> {
        let file_length = self.file.metadata()?.len();
        if file_length < self.tail.end() {
            warn_shorter(&self.path, file_length, self.tail.end());
            self.tail = TailFingerprint::read(&self.file, file_length)?;
        }
        Ok(())
    }

    pub(super) fn needs_sync(&self) -> bool {
        !self.is_synced
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if !self.is_synced {
            self.file.sync_data()?;
            self.is_synced = true;
        }
        Ok(())
    }

    /// Returns the mark for the store: the length and fingerprint of the written data, and the range of the kept lines.
    pub(crate) fn mark(&self) -> Mark {
        let fingerprint = FileFingerprint { inode: self.inode, tail: self.tail.digest() };
        let value = PublishedFile::encode(self.tail.end(), fingerprint, self.kept.range());
        Mark { name: self.mark_name.clone(), value }
    }
}

/// Opens a file. Creates a missing file, and syncs its folder.
fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = options.create(true).truncate(false).open(path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(file)
        }
        opened => opened,
    }
}

fn warn_shorter(path: &Path, present: u64, published: u64) {
    tracing::warn!(
        path = %path.display(),
        present,
        published,
        "the sink file is shorter than the data that Ordain has written to it: another process has truncated, replaced \
         or removed the file. Ordain appends new messages, and does not write published messages again"
    );
}

/// Returns whether a file is the file that the sink wrote, or a copy of that file. Compares the end of the content or,
/// if the published length is 0, the inode.
fn is_published(published: &PublishedFile, file: &File, inode: u64) -> io::Result<bool> {
    Ok(match &published.fingerprint {
        None => true,
        Some(fingerprint) if published.length == 0 => fingerprint.inode == inode,
        Some(fingerprint) => {
            fingerprint.tail == TailFingerprint::read(file, published.length)?.digest()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Opens a sink whose outbox is empty.
    fn open(path: &Path, mark: Option<&[u8]>) -> FileSink {
        FileSink::open(path, mark).expect("opened").finish(&HashSet::new()).expect("finished").0
    }

    /// Writes a file with two messages. Returns its path, and a mark that covers only the first message.
    fn written(folder: &Path, before: &str) -> (PathBuf, Mark) {
        let path = folder.join("out");
        fs::write(&path, before).expect("written");
        let mut sink = open(&path, None);
        sink.append(b"one\n").expect("appended");
        let known = sink.mark();
        sink.append(b"two\n").expect("appended");
        (path, known)
    }

    /// Opens the file with this mark, appends a message, and returns the contents of the file.
    fn after(path: &Path, mark: &[u8], message: &str) -> String {
        let mut sink = open(path, Some(mark));
        sink.append(message.as_bytes()).expect("appended");
        fs::read_to_string(path).expect("read")
    }

    #[test]
    fn lines_unknown_to_the_store_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "kept\n");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");
        let first_form = 9_u64.to_le_bytes();
        assert_eq!(after(&path, &first_form, "two\n"), "kept\none\ntwo\n");

        // A copy of the sink file counts as the same file.
        fs::copy(&path, folder.path().join("copy")).expect("copied");
        fs::rename(folder.path().join("copy"), &path).expect("renamed");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");

        fs::remove_file(&path).expect("removed");
        assert_eq!(after(&path, &known.value, "three\n"), "three\n");
    }

    #[test]
    fn lines_missing_from_the_outbox_are_never_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "");
        let line = |id: &str| format!("{{\"id\":\"{id}\",\"source\":\"/ordain/s\"}}\n");
        let foreign = "{\"id\":\"c\",\"source\":\"/shop\"}\nno JSON\n";
        let more = [&*line("a"), foreign, &*line("b"), "{\"id\":\"to"].concat();
        let all = [b"one\n", more.as_bytes()].concat();
        let after = |outbox: &[&str]| {
            fs::write(&path, &all).expect("written");
            let opened = FileSink::open(&path, Some(&known.value)).expect("opened");
            assert!(opened.needs_outbox());
            let outbox = outbox.iter().map(|id| (*id).to_owned()).collect();
            let (mut sink, lost) = opened.finish(&outbox).expect("finished");
            sink.append(b"new\n").expect("appended");
            (fs::read_to_string(&path).expect("read"), lost.get("s").copied())
        };
        assert_eq!(after(&["a", "b", "z"]), ("one\nnew\n".to_owned(), None));
        for (outbox, lost) in [(&["a"][..], 1), (&["b"], 1), (&[], 2)] {
            let (content, counted) = after(outbox);
            assert_eq!(counted, Some(lost));
            assert_eq!(content, format!("one\n{}{foreign}{}new\n", line("a"), line("b")));
        }

        // If the process crashes before the store has the new length, the next start finds the same lines.
        fs::write(&path, &all).expect("written");
        for _ in 0..2 {
            let kept = open(&path, Some(&known.value)).mark();
            let lines = format!("one\n{}{foreign}{}", line("a"), line("b"));
            assert_eq!(fs::read_to_string(&path).expect("read"), lines);
            let published = PublishedFile::decode(&kept.value).expect("a mark");
            assert_eq!(published.length, lines.len() as u64);
        }
    }

    #[test]
    fn another_file_is_not_truncated() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "");
        fs::write(&path, "a longer one of another program\n").expect("written");
        assert_eq!(after(&path, &known.value, "2\n"), "a longer one of another program\n2\n");

        // A file that takes the place of an empty sink file is not truncated.
        fs::remove_file(&path).expect("removed");
        let sink = open(&path, None);
        // `sink` keeps the old file open, so that its inode is not used again.
        let empty = sink.mark();
        fs::write(folder.path().join("other"), "other\n").expect("written");
        fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_eq!(after(&path, &empty.value, "1\n"), "other\n1\n");
    }

    #[test]
    fn file_truncated_during_a_run_gets_no_zeros() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let mut sink = open(&path, None);
        for cut_to in [4, 0] {
            sink.append(b"one\ntwo\n").expect("appended");
            sink.sync().expect("synced");
            fs::File::options()
                .write(true)
                .open(&path)
                .expect("opened")
                .set_len(cut_to)
                .expect("cut");
        }
        sink.append(b"three\n").expect("appended");
        assert_eq!(fs::read_to_string(&path).expect("read"), "three\n");
        let mark = sink.mark();
        drop(sink);
        assert_eq!(after(&path, &mark.value, "four\n"), "three\nfour\n");
    }
}
