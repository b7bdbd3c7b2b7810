//! A file that contains each message exactly once.
//!
//! Its length is written to the store together with the removal of the messages from the outbox. Lines
//! beyond that length were written by a process that died before the store knew of them. At the start they
//! are cut off, and published again from the outbox. If the outbox lacks one of them, the store is at an
//! earlier time than the file, and nothing is cut: consumers may have read these lines, and they would never
//! come again. Another file in its place is never cut either.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ordain_store::Mark;
use ordain_store::published_file::{FileFingerprint, PublishedFile};
use ordain_util::probe::Probe;
use ordain_util::whole::whole;
use serde::Deserialize;

/// Bytes of the longest line that may be one of Ordain: an event of the largest size, in base64.
const LINE_BYTES: u64 = 128 << 20;
/// How the `source` of all messages and letters begins.
const OWN_SOURCE: &str = "/ordain/";

/// An open file sink.
#[derive(Debug)]
pub(crate) struct FileSink {
    path: PathBuf,
    mark: String,
    file: File,
    inode: u64,
    /// What was written last. The next message goes behind it.
    tail: Probe,
    synced: bool,
}

/// A file sink that may have more than the store knows to be published.
#[derive(Debug)]
pub(crate) struct Opened {
    sink: FileSink,
    present: u64,
}

/// The attributes by which a line is recognised.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    source: Cow<'a, str>,
}

impl Opened {
    /// Returns whether the file is longer than the store knows.
    pub(crate) fn has_more(&self) -> bool {
        self.present > self.sink.tail.end()
    }

    /// Cuts the file back to the length that the store knows, if `unpublished`, the ids of all messages in the
    /// outbox, has every message beyond it. Lines of other programs are removed with them.
    pub(crate) fn finish(self, unpublished: &HashSet<String>) -> io::Result<FileSink> {
        let Self { mut sink, present } = self;
        let length = sink.tail.end();
        if present == length {
            return Ok(sink);
        }
        let (whole, lost) = sink.lines_beyond(unpublished)?;
        if lost == 0 {
            sink.file.set_len(length)?;
            tracing::info!(
                path = %sink.path.display(), bytes = present - length,
                "removed lines that the store had not marked as published; the outbox publishes its messages again"
            );
            return Ok(sink);
        }
        sink.file.set_len(whole)?;
        // The mark of the store will include these lines.
        sink.file.sync_all()?;
        sink.tail = Probe::read(&sink.file, whole)?;
        tracing::warn!(
            path = %sink.path.display(), lines = lost,
            "THE STORE WENT BACK IN TIME: it does not have these last messages of the file, and cannot \
             publish them again. Was an older copy of its folder put back? They stay in the file, and new \
             messages are written behind them"
        );
        Ok(sink)
    }
}

impl FileSink {
    /// Opens the file, with the mark that the store has of it. Without one, what is in the file
    /// stays and messages come behind it.
    pub(crate) fn open(path: &Path, mark: Option<&[u8]>) -> io::Result<Opened> {
        let file = open_or_make(path)?;
        let metadata = file.metadata()?;
        let (present, inode) = (metadata.len(), metadata.ino());
        let published = match mark {
            None => None,
            Some(mark) => Some(PublishedFile::decode(mark).ok_or_else(|| {
                let message = "what the store knows of it is of no known form";
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?),
        };
        let length = match published {
            None => present,
            Some(PublishedFile { length, .. }) if present < length => {
                warn_shorter(path, present, length);
                present
            }
            Some(published) if !is_published(&published, &file, inode)? => {
                tracing::warn!(
                    path = %path.display(), bytes = present,
                    "another file than that of the last run, or changed: nothing of it is cut, \
                     and new messages are written at its end"
                );
                present
            }
            Some(PublishedFile { length, .. }) => length,
        };
        let tail = Probe::read(&file, length)?;
        let mark = Self::mark_name(path);
        let sink = Self { path: path.to_owned(), mark, file, inode, tail, synced: true };
        Ok(Opened { sink, present })
    }

    /// Of what lies beyond the published length: where its last whole line ends, and how many messages of
    /// Ordain it has that are not in the outbox.
    fn lines_beyond(&self, unpublished: &HashSet<String>) -> io::Result<(u64, u64)> {
        let mut reader = BufReader::new(&self.file);
        let mut at = reader.seek(SeekFrom::Start(self.tail.end()))?;
        let (mut whole, mut lost) = (at, 0);
        let mut line = Vec::new();
        let mut is_begun = false;
        loop {
            line.clear();
            let read = reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok((whole, lost));
            }
            at += read as u64;
            let is_whole = line.ends_with(b"\n");
            if is_whole {
                whole = at;
            }
            if is_whole && !is_begun {
                let own = serde_json::from_slice::<Line<'_>>(&line).ok();
                let own = own.filter(|it| it.source.starts_with(OWN_SOURCE));
                lost += u64::from(own.is_some_and(|it| !unpublished.contains(&*it.id)));
            }
            // The rest of a longer line is no line.
            is_begun = !is_whole;
        }
    }

    /// The name of a file's length among the store's marks: the same however the path is spelled.
    pub(crate) fn mark_name(path: &Path) -> String {
        format!("sink/{}", whole(path).display())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.synced {
            self.look()?;
        }
        self.file.write_all_at(bytes, self.tail.end())?;
        self.tail.extend(bytes);
        self.synced = false;
        Ok(())
    }

    /// Before the first of some messages: writing behind the end of a file that somebody has cut
    /// would fill what is missing with zeros.
    fn look(&mut self) -> io::Result<()> {
        let present = self.file.metadata()?.len();
        if present < self.tail.end() {
            warn_shorter(&self.path, present, self.tail.end());
            self.tail = Probe::read(&self.file, present)?;
        }
        Ok(())
    }

    pub(super) fn needs_sync(&self) -> bool {
        !self.synced
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if !self.synced {
            self.file.sync_data()?;
            self.synced = true;
        }
        Ok(())
    }

    /// What is to be kept in the store.
    pub(crate) fn mark(&self) -> Mark {
        let fingerprint = FileFingerprint { inode: self.inode, tail: self.tail.digest() };
        let value = PublishedFile::encode(self.tail.end(), fingerprint);
        Mark { name: self.mark.clone(), value }
    }
}

/// Opens a file. A file that does not exist is created, and its folder synced.
fn open_or_make(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = options.create(true).truncate(false).open(path)?;
            let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
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
        "the file is shorter than what has been published to it: somebody cut or removed it; new \
         messages are written at its end"
    );
}

/// Returns whether a file is the one that was written, or a copy of it: by its content, or, where
/// nothing was written yet, by its inode.
fn is_published(published: &PublishedFile, file: &File, inode: u64) -> io::Result<bool> {
    Ok(match &published.fingerprint {
        None => true,
        Some(fingerprint) if published.length == 0 => fingerprint.inode == inode,
        Some(fingerprint) => fingerprint.tail == Probe::read(file, published.length)?.digest(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A sink whose outbox is empty.
    fn open(path: &Path, mark: Option<&[u8]>) -> FileSink {
        FileSink::open(path, mark).expect("opened").finish(&HashSet::new()).expect("finished")
    }

    /// A file with two messages, of which the store knows one, and the mark.
    fn written(folder: &Path, before: &str) -> (PathBuf, Mark) {
        let path = folder.join("out");
        fs::write(&path, before).expect("written");
        let mut sink = open(&path, None);
        sink.append(b"one\n").expect("appended");
        let known = sink.mark();
        sink.append(b"two\n").expect("appended");
        (path, known)
    }

    /// What is in the file after one more message.
    fn after(path: &Path, mark: &[u8], message: &str) -> String {
        let mut sink = open(path, Some(mark));
        sink.append(message.as_bytes()).expect("appended");
        fs::read_to_string(path).expect("read")
    }

    #[test]
    fn what_the_store_does_not_know_of_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "kept\n");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");
        let first_form = 9_u64.to_le_bytes();
        assert_eq!(after(&path, &first_form, "two\n"), "kept\none\ntwo\n");

        // A copy is as good.
        fs::copy(&path, folder.path().join("copy")).expect("copied");
        fs::rename(folder.path().join("copy"), &path).expect("renamed");
        assert_eq!(after(&path, &known.value, "2\n"), "kept\none\n2\n");

        fs::remove_file(&path).expect("removed");
        assert_eq!(after(&path, &known.value, "three\n"), "three\n");
    }

    #[test]
    fn what_the_outbox_does_not_have_is_never_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "");
        let line = |id: &str| format!("{{\"id\":\"{id}\",\"source\":\"/ordain/s\"}}\n");
        let foreign = "{\"id\":\"c\",\"source\":\"/shop\"}\nno JSON\n";
        let more = [&*line("a"), foreign, &*line("b"), "{\"id\":\"to"].concat();
        let all = [b"one\n", more.as_bytes()].concat();
        let after = |outbox: &[&str]| {
            fs::write(&path, &all).expect("written");
            let opened = FileSink::open(&path, Some(&known.value)).expect("opened");
            assert!(opened.has_more());
            let outbox = outbox.iter().map(|id| (*id).to_owned()).collect();
            let mut sink = opened.finish(&outbox).expect("finished");
            sink.append(b"new\n").expect("appended");
            fs::read_to_string(&path).expect("read")
        };
        assert_eq!(after(&["a", "b", "z"]), "one\nnew\n");
        for outbox in [&["a"][..], &["b"], &[]] {
            assert_eq!(after(outbox), format!("one\n{}{foreign}{}new\n", line("a"), line("b")));
        }

        // A crash before the store has the new length: the next start finds the same.
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
    fn another_file_is_not_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "");
        fs::write(&path, "a longer one of somebody else\n").expect("written");
        assert_eq!(after(&path, &known.value, "2\n"), "a longer one of somebody else\n2\n");

        // Nor one in the place of one to which nothing was written.
        fs::remove_file(&path).expect("removed");
        let sink = open(&path, None);
        let (empty, _still_there) = (sink.mark(), sink);
        fs::write(folder.path().join("other"), "other\n").expect("written");
        fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_eq!(after(&path, &empty.value, "1\n"), "other\n1\n");
    }

    #[test]
    fn no_zeros_in_a_file_that_is_cut_while_it_is_written() {
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
