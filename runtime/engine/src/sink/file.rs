//! A file that contains each message exactly once.
//!
//! Its length is written to the store together with the removal of the messages from the outbox.
//! At the start it is cut back to that length: what lies beyond was written by a process that
//! died before the store knew of it, and comes again. Another file in its place is never cut.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ordain_store::Mark;
use ordain_store::published_file::{FileFingerprint, PublishedFile};
use ordain_util::probe::Probe;
use ordain_util::whole::whole;

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

impl FileSink {
    /// Opens the file, with the mark that the store has of it. Without one, what is in the file
    /// stays and messages come behind it.
    pub(crate) fn open(path: &Path, mark: Option<&[u8]>) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
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
            Some(PublishedFile { length, .. }) => {
                if present > length {
                    file.set_len(length)?;
                    tracing::info!(
                        path = %path.display(), bytes = present - length,
                        "cut off what is not marked as published: what of it is ours comes again"
                    );
                }
                length
            }
        };
        let tail = Probe::read(&file, length)?;
        let mark = Self::mark_name(path);
        Ok(Self { path: path.to_owned(), mark, file, inode, tail, synced: true })
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

    /// A file with two messages, of which the store knows one, and the mark.
    fn written(folder: &Path, before: &str) -> (PathBuf, Mark) {
        let path = folder.join("out");
        fs::write(&path, before).expect("written");
        let mut sink = FileSink::open(&path, None).expect("opened");
        sink.append(b"one\n").expect("appended");
        let known = sink.mark();
        sink.append(b"two\n").expect("appended");
        (path, known)
    }

    /// What is in the file after one more message.
    fn after(path: &Path, mark: &[u8], message: &str) -> String {
        let mut sink = FileSink::open(path, Some(mark)).expect("opened");
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
    fn another_file_is_not_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = written(folder.path(), "");
        fs::write(&path, "a longer one of somebody else\n").expect("written");
        assert_eq!(after(&path, &known.value, "2\n"), "a longer one of somebody else\n2\n");

        // Nor one in the place of one to which nothing was written.
        fs::remove_file(&path).expect("removed");
        let sink = FileSink::open(&path, None).expect("opened");
        let (empty, _still_there) = (sink.mark(), sink);
        fs::write(folder.path().join("other"), "other\n").expect("written");
        fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_eq!(after(&path, &empty.value, "1\n"), "other\n1\n");
    }

    #[test]
    fn no_zeros_in_a_file_that_is_cut_while_it_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let mut sink = FileSink::open(&path, None).expect("opened");
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
