//! The compressed files of a source. The source cannot read a compressed file. If a compressed file appears, either a
//! file of the set has become this compressed file, or the source has never read the lines of the compressed file.
//! Lines that the source has never read must not be lost without a report.
//!
//! The name of a compressed file does not show which file it was before. The set compares the first bytes of the
//! content of a gzip file with the first bytes of the files of the set. It also compares the length of the content with
//! the lengths of these files. The last bytes of a gzip file contain the length of its content. The set matches each of
//! its files with at most one compressed file. If a compressed file has another format, the set knows neither the first
//! bytes nor the length.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ordain_core::digest;
use ordain_store::checkpoint::{FileProgress, SourceProgress, created_ns};
use ordain_util::canonical_path::canonical_path;
use ordain_util::file_pattern::{FilePattern, FileRole};
use ordain_util::tail_fingerprint::TailFingerprint;

use super::FileSet;
use super::gzip::{GZIP_MODULUS, content_bytes, content_head};
use super::identity::is_denied;
use super::listed_file::{ListedFile, open_listed};
use super::loss_report::LOST_FILES_LIMIT;
use super::tracked_file::TrackedFile;

#[derive(Debug, Clone)]
pub(in crate::source) struct CompressedFile {
    /// The position is 0, because the source reads nothing of the file.
    pub(in crate::source) progress: FileProgress,
    /// The source recognises the file by this digest, also under another name and in a copy of the folder.
    pub(in crate::source) digest: u64,
    /// The length of the content modulo [`GZIP_MODULUS`]. `None` if the file does not state the length, or if this
    /// process cannot read the file.
    content_bytes: Option<u64>,
    /// The first bytes of the content. `None` if the file needs no report, if its format is not gzip, or if this
    /// process cannot read the file.
    head: Option<Vec<u8>>,
    /// `true` if the file was in the folder before the path of the source led to this folder. It then needs no report.
    is_ignored: bool,
    /// `true` if a program may still be writing the compressed file, because the folder also has its original (see
    /// [`may_become`]).
    is_incomplete: bool,
}

impl CompressedFile {
    /// Returns whether the content has exactly the last measured length of the file `tracked`.
    pub(super) fn has_length_of(&self, tracked: &TrackedFile) -> bool {
        self.content_bytes == Some(tracked.progress.length % GZIP_MODULUS)
    }

    /// Returns whether the content begins with the bytes that the set knows of the file `tracked`. Returns `None` if
    /// the set does not know the first bytes of one of the two files.
    fn begins_like(&self, tracked: &TrackedFile) -> Option<bool> {
        let (beginning, head) = tracked.beginning().zip(self.head.as_deref())?;
        Some(beginning.begins(head))
    }

    /// Returns whether the content may come from the file `tracked`: the first bytes of the two are equal or unknown.
    fn may_come_from(&self, tracked: &TrackedFile) -> bool {
        self.begins_like(tracked) != Some(false)
    }

    /// Returns whether the file may contain lines that need a report. `known` contains the digests of the files that
    /// need none. If `head` is unknown, the file counts as not empty.
    fn is_new(&self, known: &BTreeSet<u64>) -> bool {
        let is_empty = self.head.as_ref().is_some_and(Vec::is_empty);
        !(self.is_ignored || self.is_incomplete || is_empty || known.contains(&self.digest))
    }

    /// Returns whether the content may be longer than the last measured length of the file `tracked`.
    fn may_be_longer_than(&self, tracked: &TrackedFile) -> bool {
        let length = tracked.progress.length;
        self.content_bytes.is_none_or(|bytes| bytes > length || length >= GZIP_MODULUS)
    }

    /// Returns whether the length of the content is known, and differs from the last measured length of the file
    /// `tracked`.
    pub(super) fn has_other_length_than(&self, tracked: &TrackedFile) -> bool {
        self.content_bytes.is_some() && !self.has_length_of(tracked)
    }

    /// Returns whether log rotation can derive the name of the file from the path of `pattern`.
    fn is_derived_from(&self, pattern: &FilePattern) -> bool {
        let name = Path::new(&self.progress.path).file_name();
        name.and_then(|name| pattern.role(name)) == Some(FileRole::Compressed)
    }

    /// Returns a description of the file for a dead letter about the rest of another file.
    pub(super) fn description(&self) -> String {
        let content = self.content_bytes.map(|bytes| format!(" and contains {bytes} bytes"));
        format!("{}, which is compressed{}", self.progress.path, content.unwrap_or_default())
    }

    /// Returns the text of the dead letter about this file, whose lines the source has never read.
    pub(in crate::source) fn describe_loss(&self) -> String {
        let FileProgress { path, device, inode, .. } = &self.progress;
        let bytes =
            self.content_bytes.map_or("the".to_owned(), |bytes| format!("{bytes} bytes of"));
        format!(
            "{path}, device {device}, inode {inode}: {bytes} lines in this compressed file were not read. This file \
             does not match any file that Ordain has read, so a program compressed the lines before Ordain could read \
             them. Uncompress the file in its folder, and Ordain reads the lines. But if Ordain has already read the \
             same lines in another file, no step is necessary"
        )
    }
}

/// The inode, the length and the modification time. The set reads a file again only after a change of these values.
type FileState = (u64, u64, i64, i64);

#[derive(Debug, Default)]
pub(super) struct CompressedFiles {
    /// The digests of the files that need no report. At the beginning: files that are no longer in the folder, at most
    /// [`LOST_FILES_LIMIT`]. After them: the files of the folder. `None` if the next scan must treat all files as
    /// known.
    known: Option<Arc<[u64]>>,
    /// The files of the newest listing, in reading order.
    listed: Vec<CompressedFile>,
    /// The digest and the length of each content of the newest listing.
    contents: BTreeMap<FileState, (u64, Option<u64>)>,
    /// The source has never read lines of these files, and the stream has no dead letter about them yet.
    pub(super) unreported: VecDeque<CompressedFile>,
}

impl CompressedFiles {
    pub(super) fn resume(known: Option<&[u64]>) -> Self {
        Self { known: known.map(Arc::from), ..Self::default() }
    }

    pub(super) fn known(&self) -> Option<&Arc<[u64]>> {
        self.known.as_ref()
    }

    /// Keeps the digests of at most [`LOST_FILES_LIMIT`] files that have left the folder.
    fn set_known(&mut self, present: &BTreeSet<u64>) {
        let before = self.known.as_deref().unwrap_or_default();
        let left: Vec<u64> =
            before.iter().copied().filter(|digest| !present.contains(digest)).collect();
        let surplus = left.len().saturating_sub(LOST_FILES_LIMIT);
        let known: Vec<u64> = left[surplus..].iter().chain(present).copied().collect();
        if self.known.as_deref() != Some(&known[..]) {
            self.known = Some(known.into());
        }
    }

    pub(super) fn record_reported(&mut self, digest: u64) {
        let before = self.known.as_deref().unwrap_or_default();
        if !before.contains(&digest) {
            self.known = Some(before.iter().copied().chain([digest]).collect());
        }
    }

    /// Returns `None` if the path no longer leads to the listed file, or if a program has truncated it.
    pub(super) fn content(&self, found: &ListedFile) -> io::Result<Option<(u64, Option<u64>)>> {
        let state = state_of(found);
        if let Some(content) = self.contents.get(&state) {
            return Ok(Some(*content));
        }
        match read_content(found) {
            Err(error) if is_denied(&error) => Ok(Some((digest_of(state), None))),
            content => content,
        }
    }

    /// Searches for the compressed file that `tracked` may have become, also among the files that need no report. Omits
    /// each file whose first bytes show another origin. Prefers a file whose content has the same length, then the
    /// newest file whose name log rotation can derive from the path of `tracked`, then the newest file.
    pub(super) fn any_rest_of(&self, tracked: &TrackedFile) -> Option<&CompressedFile> {
        let pattern = FilePattern::new(Path::new(&tracked.progress.path));
        let candidates = || self.listed.iter().rev().filter(|file| file.may_come_from(tracked));
        let equal = candidates().find(|file| file.has_length_of(tracked));
        let derived = || candidates().find(|file| file.is_derived_from(&pattern));
        equal.or_else(derived).or_else(|| candidates().next())
    }
}

impl FileSet {
    /// Returns the digests of the compressed files that need no report.
    pub fn known_compressed(&self) -> Option<&[u64]> {
        self.compressed.known().map(|known| &**known)
    }

    /// Returns the digests of the compressed files that need no report, or that the next dead letter about a file of
    /// the set names. Returns `None` if all compressed files of the next scan need no report.
    fn known_digests(&self) -> Option<BTreeSet<u64>> {
        let known = self.compressed.known()?.iter().copied();
        Some(known.chain(self.files.iter().filter_map(TrackedFile::unreported_rest)).collect())
    }

    /// Finds the compressed files of a listing. Reads the length of the content of each of these files. If a file may
    /// need a report, also reads the first bytes of its content. Sets `is_listing_outdated` if a file is no longer at
    /// its path.
    pub(super) fn find_compressed(&mut self, listed: &[ListedFile]) -> io::Result<()> {
        let known = self.known_digests();
        let mut files = Vec::new();
        let mut contents = BTreeMap::new();
        let has_compressed = listed.iter().any(|found| found.role == FileRole::Compressed);
        let siblings = listed.iter().filter(|_| has_compressed);
        let siblings: BTreeMap<&Path, &Metadata> =
            siblings.map(|found| (&*found.path, &found.metadata)).collect();
        let gone = self.files.iter().filter(|tracked| tracked.may_have_unknown_rest());
        let gone: BTreeSet<&Path> = gone.map(|tracked| Path::new(&tracked.progress.path)).collect();
        // If a tracked file has become missing, its path may lead to a new file. The compressed file beside this path
        // then contains the tracked file, and the program has finished the compressed file.
        let is_replaced = |path: &Path| !gone.is_empty() && gone.contains(&*canonical_path(path));
        for found in listed.iter().filter(|found| found.role == FileRole::Compressed) {
            let metadata = &found.metadata;
            let Some(content) = self.compressed.content(found)? else {
                self.is_listing_outdated = true;
                continue;
            };
            contents.insert(state_of(found), content);
            let path = found.path.display().to_string();
            let plain = found.path.with_extension("");
            let is_incomplete = siblings
                .get(&*plain)
                .is_some_and(|sibling| may_become(sibling, metadata) && !is_replaced(&plain));
            let mut file = CompressedFile {
                progress: FileProgress::unread(path, metadata),
                digest: content.0,
                content_bytes: content.1,
                head: None,
                is_ignored: found.is_ignored,
                is_incomplete,
            };
            if known.as_ref().is_some_and(|known| file.is_new(known)) {
                match open_listed(found) {
                    Err(error) if is_denied(&error) => {}
                    opened => match opened? {
                        Some(opened) => file.head = content_head(&opened)?,
                        None => self.is_listing_outdated = true,
                    },
                }
            }
            files.push(file);
        }
        self.compressed.listed = files;
        self.compressed.contents = contents;
        Ok(())
    }

    /// Matches the files of the set with the compressed files that appeared since the previous scan. Returns, for each
    /// file of the set, the compressed file that this file may have become. Records the remaining compressed files as
    /// unreported: the source has never read their lines.
    pub(super) fn match_compressed(&mut self) -> Vec<Option<CompressedFile>> {
        let mut rests = vec![None; self.files.len()];
        self.compressed.unreported.clear();
        let Some(known) = self.known_digests() else { return rests };
        let listed = self.compressed.listed.iter();
        let mut new: VecDeque<_> = listed.filter(|file| file.is_new(&known)).cloned().collect();
        // First match the files that were in the folder at the previous scan: these files are more probably the
        // originals of the new compressed files.
        for was_gone in [false, true] {
            for (tracked, rest) in self.files.iter_mut().zip(&mut rests) {
                if tracked.may_be_compressed() && tracked.was_gone == was_gone {
                    take(&mut new, tracked, rest, |file, tracked| {
                        file.has_length_of(tracked) && file.may_come_from(tracked)
                    });
                }
            }
        }
        // A program may have appended lines to a file after the source last measured this file, even if the file was
        // renamed. Only equal first bytes then show which renamed file has become a compressed file. Make these matches
        // before the matches without such evidence.
        for (tracked, rest) in self.files.iter_mut().zip(&mut rests) {
            if tracked.may_be_compressed() && !tracked.was_gone {
                take(&mut new, tracked, rest, |file, tracked| {
                    file.begins_like(tracked) == Some(true) && file.may_be_longer_than(tracked)
                });
            }
        }
        for (tracked, rest) in self.files.iter_mut().zip(&mut rests) {
            if !tracked.may_be_compressed() || tracked.was_gone {
                continue;
            }
            if tracked.may_have_unknown_rest() {
                let pattern = FilePattern::new(Path::new(&tracked.progress.path));
                let may_be_rest = |file: &CompressedFile, tracked: &TrackedFile| {
                    file.may_come_from(tracked) && file.may_be_longer_than(tracked)
                };
                take(&mut new, tracked, rest, |file, tracked| {
                    file.is_derived_from(&pattern) && may_be_rest(file, tracked)
                });
                take(&mut new, tracked, rest, may_be_rest);
            } else {
                take(&mut new, tracked, rest, |file, tracked| {
                    file.content_bytes.is_none() && file.may_come_from(tracked)
                });
            }
        }
        self.compressed.unreported = new;
        rests
    }

    /// Records that the compressed files of the newest listing need no report. There are two exceptions: the files that
    /// need a dead letter, and the files that a program may still be writing.
    pub(super) fn record_known_compressed(&mut self) {
        let rests = self.files.iter().filter_map(TrackedFile::unreported_rest);
        let unreported = self.compressed.unreported.iter().map(|file| file.digest);
        let unreported: BTreeSet<u64> = unreported.chain(rests).collect();
        let is_first = self.compressed.known.is_none();
        let known = self.compressed.known.as_deref().unwrap_or_default();
        let known: BTreeSet<u64> = known.iter().copied().collect();
        let is_known = |file: &&CompressedFile| {
            is_first
                || known.contains(&file.digest)
                || !(file.is_incomplete || unreported.contains(&file.digest))
        };
        let listed = self.compressed.listed.iter();
        let present = listed.filter(is_known).map(|file| file.digest).collect();
        self.compressed.set_known(&present);
    }

    pub(in crate::source) fn record_reported(&mut self, digest: u64) {
        self.compressed.record_reported(digest);
    }

    /// Records that the stream gets a dead letter about the file, whose lines the source has never read. Also returns
    /// the progress of the source.
    pub(in crate::source) fn take_unreported(
        &mut self,
    ) -> Option<(CompressedFile, SourceProgress)> {
        let file = self.compressed.unreported.pop_front()?;
        self.compressed.record_reported(file.digest);
        let progress = if self.files.is_empty() {
            // The checkpoint does not contain the compressed file, because the list of files is empty.
            let compressed = self.compressed.known().cloned();
            let current = file.progress.clone();
            SourceProgress { files: Vec::new().into(), index: 0, current, compressed }
        } else {
            self.source_progress(0)
        };
        Some((file, progress))
    }
}

/// Moves the first matching file of `new` into an empty `rest`, and records in `tracked` that `tracked` has become this
/// file.
fn take(
    new: &mut VecDeque<CompressedFile>,
    tracked: &mut TrackedFile,
    rest: &mut Option<CompressedFile>,
    matches: impl Fn(&CompressedFile, &TrackedFile) -> bool,
) {
    if rest.is_none()
        && let Some(at) = new.iter().position(|file| matches(file, tracked))
    {
        *rest = new.remove(at);
        tracked.progress.is_compressed = true;
    }
}

/// Returns whether a program may be writing the content of the file `sibling` to the file `compressed`. The result is
/// `false` if `sibling` was created after the creation of `compressed`, and after the newest change of `compressed`. In
/// this case, for example, a program compressed the earlier file of this name, and then created `sibling`. If the file
/// system does not record when a file was created (a creation time of 0), the result is `true`.
fn may_become(sibling: &Metadata, compressed: &Metadata) -> bool {
    let created = created_ns(sibling);
    let changed = compressed.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let changed = changed.map_or(0, |since| since.as_nanos());
    // The modification time of the compressed file alone does not show its newest change. A program may give the
    // compressed file the modification time of the uncompressed file. This time may precede the creation of each of the
    // two files.
    let compressed_created = created_ns(compressed);
    let is_known = created > 0 && compressed_created > 0;
    !(is_known && compressed_created <= created && changed < u128::from(created))
}

fn state_of(found: &ListedFile) -> FileState {
    let metadata = &found.metadata;
    (metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

fn digest_of((inode, length, seconds, nanoseconds): FileState) -> u64 {
    let numbers = [inode, length, seconds.cast_unsigned(), nanoseconds.cast_unsigned()];
    digest(numbers.map(u64::to_be_bytes).as_flattened())
}

/// Returns the digest of a compressed file, and the length of its content. The digest covers the length of the
/// compressed data and its last bytes, which contain a checksum of the content in most formats. Returns `None` if the
/// path no longer leads to the file, or if a program has truncated the file.
fn read_content(found: &ListedFile) -> io::Result<Option<(u64, Option<u64>)>> {
    let Some(file) = open_listed(found)? else { return Ok(None) };
    let length = found.metadata.len();
    let Some(tail) = TailFingerprint::read_if_whole(&file, length)? else { return Ok(None) };
    let digest = digest(&[&length.to_be_bytes()[..], tail.bytes()].concat());
    Ok(Some((digest, content_bytes(&found.path, &tail))))
}
