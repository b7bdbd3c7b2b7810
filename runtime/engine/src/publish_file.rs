//! Publishes a file of CloudEvents, one event per line. The store keeps a checkpoint of the file, and the next run
//! continues at the checkpoint. If an earlier run has published events after the checkpoint, this run publishes them a
//! second time. Repeated events take effect only once. For a `sequenced` stream, the store recognises repeated events
//! by their ids or numbers. A `fifo` stream itself recognises repeated events by their ids. A run must never write a
//! checkpoint whose position is after an unpublished line. If log rotation has renamed files since the previous run, a
//! run first publishes the rest of the previous run's file, and then all newer files of the rotation. If the previous
//! run's file is missing, the checkpoint keeps the position in this file. After the file has returned, the next run
//! publishes the rest of the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use ordain_core::{Event, OrderingMode};

use crate::source::{self, FileOptions, FileSet, find_by_identity, is_same_inode, rotated_files};
use ordain_cloudevents::EventDecoder;
use ordain_cloudevents::{DecodedDelivery, FilePosition, ReadFingerprint};
use ordain_config::LoadedConfig;
use ordain_publish::{PartialPublishError, PublishError, StreamPublisher};
use ordain_store::checkpoint::{Checkpoint, FileProgress};
use ordain_store::{AssignItemReply, Mark, StoreError};
use ordain_util::shutdown::shutdown_requested;
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};
use tokio::sync::watch;

/// The run publishes the collected events when their number reaches this limit, or when no more deliveries of the
/// reader wait.
const PUBLISH_THRESHOLD_EVENTS: usize = 2_048;
/// Number of losses of the store's newest writes at which a run fails. After each earlier loss, the run reads the file
/// again from the oldest of the shards' checkpoints.
const REWIND_ATTEMPTS: usize = 5;

/// Maximum number of missing files that the checkpoint keeps. If such a file returns, a run publishes the rest of the
/// file.
const LOST_FILES_LIMIT: usize = 16;

/// The part of a log line about a repeated file: how Ordain recognises repeated events, and for how long.
const REPEAT_ADVICE: &str = "\
    Ordain recognises a repeated event by its id or, if the stream is `sequenced` and the event has a sequence, by the \
    sequence. A `sequenced` stream remembers an id for the time `retain`; a `fifo` stream remembers at most the last \
    `id_window` ids of a key";

/// The reason why a file was not published to its end. If the error names a line, all lines before that line are
/// published.
#[derive(Debug, thiserror::Error)]
pub enum PublishFileError {
    /// A line is faulty.
    #[error(
        "{origin}: {words}. Correct the line and run the command again: the command continues a file at this line, \
         but reads standard input from the beginning"
    )]
    Line {
        /// The line number and the name of the file.
        origin: String,
        /// The fault of the line, and how to correct it.
        words: String,
    },
    /// The store refused to number the event of a line. The line itself has no fault.
    #[error("{origin}: {words}")]
    Event {
        /// The line number and the name of the file.
        origin: String,
        /// The reason of the refusal, and the next step.
        words: String,
    },
    /// The file cannot be read.
    #[error("{name} cannot be read: {error}")]
    Read {
        /// The name of the file.
        name: String,
        /// The error of the read.
        error: std::io::Error,
    },
    /// Publishing failed, and the cause is neither a single line nor the file.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// The numbers of published events and skipped lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishCounts {
    /// The number of new events.
    pub published: u64,
    /// The number of events that the store recognised as already published.
    pub known: u64,
    /// The number of lines that earlier runs published and that this run did not read: in each file, the lines before
    /// the first line that this run read.
    pub skipped_lines: u64,
}

/// Publishes a file, or standard input if `path` is `None`. Each run reads standard input from its beginning. Each time
/// this function starts to read the file or an older file, it calls `progress` with the counts and the position in
/// bytes. It also calls `progress` after each batch, even if the batch failed. If `stop` becomes true, ends after the
/// batch in progress. Returns whether all lines are published.
pub fn publish_file<'a>(
    publisher: &'a mut StreamPublisher,
    loaded: &'a LoadedConfig,
    ordering: OrderingMode,
    path: Option<&'a Path>,
    stop: watch::Receiver<bool>,
    progress: impl FnMut(PublishCounts, u64) + 'a,
) -> LocalBoxFuture<'a, Result<bool, PublishFileError>> {
    Box::pin(publish_lines(publisher, loaded, ordering, path, stop, Box::new(progress)))
}

async fn publish_lines(
    publisher: &mut StreamPublisher,
    loaded: &LoadedConfig,
    ordering: OrderingMode,
    path: Option<&Path>,
    mut stop: watch::Receiver<bool>,
    mut progress: Box<dyn FnMut(PublishCounts, u64) + '_>,
) -> Result<bool, PublishFileError> {
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let locations = loaded.config.streams.get(&**publisher.stream());
    let locations = locations.map(|stream| stream.source.cloudevent_locations());
    let decoder = EventDecoder::new(ordering, loaded.config.runtime.event_size.bytes())
        .with_locations(locations.unwrap_or_default());
    let mut counts = RunCounts::default();
    let mut rewinds = 0;
    let mut finished = Vec::new();
    loop {
        let input = PublishInput { path, name: &name, finished: &finished };
        let ended =
            publish_once(publisher, decoder.clone(), input, &mut stop, &mut counts, &mut progress);
        match ended.await? {
            PublishEnd::AtEnd => return Ok(true),
            PublishEnd::Stopped => return Ok(false),
            PublishEnd::AtEndOfOlderFile(file) => finished.push(file),
            PublishEnd::StoreRolledBack => {
                rewinds += 1;
                if rewinds == REWIND_ATTEMPTS {
                    return Err(PublishError::from(StoreError::RolledBack).into());
                }
                finished.clear();
                tracing::warn!(
                    file = %name,
                    "the store went back in time and may have lost events of this file; publishing the file again from \
                     the oldest position that the store has (each shard remembers a position in the file). \
                     {REPEAT_ADVICE}"
                );
            }
        }
    }
}

/// The counts of a run, and the lines at which the run has begun to read its files.
#[derive(Default)]
struct RunCounts {
    all: PublishCounts,
    /// For each file, the number of lines before the first line that this run has read.
    first_lines: BTreeMap<FileId, u64>,
}

impl RunCounts {
    /// Records that the run starts to read `file` after the first `lines` lines. After the store went back in time, the
    /// run may read the same file a second time, from another line on.
    fn start(&mut self, file: FileId, lines: u64) {
        let first = self.first_lines.entry(file).or_insert(lines);
        *first = lines.min(*first);
        self.all.skipped_lines = self.first_lines.values().sum();
    }
}

/// The reason why the run stopped reading a file.
#[derive(PartialEq, Eq)]
enum PublishEnd {
    /// All lines of the file that the path names, or of standard input, are published.
    AtEnd,
    /// The caller has requested the end. All lines before the checkpoint are published.
    Stopped,
    /// All lines of this older file are published. Log rotation had given another name to the file.
    AtEndOfOlderFile(FileId),
    /// The store went back in time. This process possibly no longer has all lost events in memory, but the file has all
    /// of them.
    StoreRolledBack,
}

type FileId = (u64, u64);

/// The input of one execution of `ordain publish`.
#[derive(Clone, Copy)]
struct PublishInput<'a> {
    /// The path of the file; `None` for standard input.
    path: Option<&'a Path>,
    /// The name of the file for messages.
    name: &'a str,
    /// The older files that this run has published to their ends. Without this list, blank lines at the end of such a
    /// file would count as unpublished.
    finished: &'a [FileId],
}

/// The file that a run publishes next, and the position at which the run begins to read this file.
struct NextFile {
    file: Arc<File>,
    path: PathBuf,
    position: FilePosition,
    /// The identity of an older file; `None` for the file of the path.
    older: Option<FileId>,
}

/// Publishes one file from its checkpoint on. Without a usable checkpoint, publishes the file from its beginning.
async fn publish_once(
    publisher: &mut StreamPublisher,
    decoder: EventDecoder,
    input: PublishInput<'_>,
    stop: &mut watch::Receiver<bool>,
    counts: &mut RunCounts,
    progress: &mut dyn FnMut(PublishCounts, u64),
) -> Result<PublishEnd, PublishFileError> {
    let read_error = |error| PublishFileError::Read { name: input.name.to_owned(), error };
    let ordering = decoder.ordering;
    let mut name = input.name.to_owned();
    let mut position = FilePosition::default();
    let mut files = None;
    let mut checkpoints = None;
    let mut older = None;
    if let Some(path) = input.path {
        // The canonical path is the same for every spelling of the path.
        let canonical_path = std::fs::canonicalize(path).map_err(read_error)?;
        // This check comes before the open, because the open of a pipe may block forever.
        if !std::fs::metadata(&canonical_path).map_err(read_error)?.is_file() {
            let error = std::io::Error::other("not a regular file; pass - to read a pipe");
            return Err(read_error(error));
        }
        let mut of_file = Checkpoints::read(publisher, &canonical_path).await?;
        let next = of_file.next_file(&canonical_path, input).map_err(read_error)?;
        let opened = next.file;
        let path = next.path.display().to_string();
        position = next.position;
        older = next.older;
        if older.is_some() {
            name.clone_from(&path);
        }
        // First write a checkpoint of this run. If this checkpoint is missing later, the store has gone back in time.
        // In this case, the store may also have lost events that an earlier run published after its own final
        // checkpoint.
        let print = read_fingerprint(&opened, position).map_err(read_error)?;
        let metadata = opened.metadata().map_err(read_error)?;
        let mut progress = FileProgress::unread(path, &metadata).at(position, print);
        progress.is_live = older.is_none();
        if !of_file.put(publisher, &progress).await? {
            publisher.restore().await?;
            return Ok(PublishEnd::StoreRolledBack);
        }
        counts.start(file_id(&opened).map_err(read_error)?, position.line);
        checkpoints = Some((of_file, progress.clone(), Arc::clone(&opened)));
        files = Some(FileSet::fixed(opened, &name, progress, ordering));
    }
    progress(counts.all, position.offset);
    let options =
        FileOptions { files, stream: publisher.stream().to_string(), follow: false, decoder };
    let mut source = source::read_file(options).map_err(read_error)?;
    let rewinds = publisher.rewinds();
    let mut waiting = Vec::new();
    let mut fingerprint = None;
    let mut end = false;
    let mut is_stopped = false;
    while !end {
        let received = tokio::select! {
            biased;
            () = shutdown_requested(stop) => {
                is_stopped = true;
                break;
            }
            received = source.deliveries.recv() => received,
        };
        let Some(deliveries) = received else {
            let reader_ended =
                |_| std::io::Error::other("the reader of the file ended unexpectedly");
            return Err(read_error((&mut source.failure).await.unwrap_or_else(reader_ended)));
        };
        waiting.extend(deliveries.items);
        fingerprint = deliveries.progress.map(|progress| progress.current.print).or(fingerprint);
        end = deliveries.end;
        if waiting.len() < PUBLISH_THRESHOLD_EVENTS && !end && !source.deliveries.is_empty() {
            continue;
        }
        let batch = std::mem::take(&mut waiting);
        let ended = publish_batch(publisher, &name, batch, &mut counts.all).await;
        if let Ok((Some(done), _)) = &ended {
            position = *done;
        }
        progress(counts.all, position.offset);
        let (done, bad) = ended?;
        if let Some((of_file, progress, opened)) = &mut checkpoints {
            if publisher.rewinds() != rewinds {
                return Ok(PublishEnd::StoreRolledBack);
            }
            if bad.is_some() {
                // The fingerprint ends before the invalid line, because a user is expected to correct this line.
                fingerprint = Some(read_fingerprint(opened, position).map_err(read_error)?);
            }
            if (done.is_some() || bad.is_some())
                && let Some(print) = fingerprint
                && !of_file.put(publisher, &progress.clone().at(position, print)).await?
            {
                publisher.restore().await?;
                return Ok(PublishEnd::StoreRolledBack);
            }
        }
        if let Some(line_error) = bad {
            return Err(line_error);
        }
    }
    publisher.restore().await?;
    let is_back = checkpoints.is_some() && publisher.rewinds() != rewinds;
    Ok(match older {
        _ if is_stopped => PublishEnd::Stopped,
        _ if is_back => PublishEnd::StoreRolledBack,
        Some(file) => PublishEnd::AtEndOfOlderFile(file),
        None => PublishEnd::AtEnd,
    })
}

/// The checkpoints of a file, one in each shard.
struct Checkpoints {
    /// The marks with this name contain the checkpoints.
    name: String,
    /// A random number that distinguishes the checkpoints of this pass over the file from all other checkpoints.
    run: u64,
    /// The checkpoint of each shard, as this run most recently read or wrote it.
    marks: Vec<Option<Bytes>>,
    /// The files that were missing when a later run continued with another file, the oldest file first.
    lost: Vec<FileProgress>,
    /// The index in `lost` of the file that this run now publishes, and the progress with which the run continues
    /// afterwards.
    returned: Option<(usize, FileProgress)>,
}

impl Checkpoints {
    async fn read(publisher: &StreamPublisher, path: &Path) -> Result<Self, PublishError> {
        let name = format!("publish/{}/{}", publisher.stream(), path.display());
        let marks = publisher.store().mark_in_shards(&name).await?;
        let lost = lost_files(&marks);
        Ok(Self { name, run: rand::random(), marks, lost, returned: None })
    }

    /// Returns the file to publish next: the oldest file with unpublished lines. Without such an older file, returns
    /// the file of the path.
    fn next_file(&mut self, path: &Path, input: PublishInput<'_>) -> std::io::Result<NextFile> {
        let is_finished = |lost: &FileProgress| input.finished.contains(&(lost.device, lost.inode));
        self.lost.retain(|lost| !is_finished(lost));
        let file = Arc::new(File::open(path)?);
        let point = resume_point(&self.marks, &file)?;
        if let ResumePoint::Uncertain(position) = point {
            report_uncertain(input.name, position);
        }
        let rotated = rotated_files(path)?;
        if let Some((index, next)) = self.returned_file(&file, &rotated, input)? {
            self.returned = Some((index, point.progress(path, &file)?));
            return Ok(next);
        }
        let position = match point {
            ResumePoint::OtherFile(last) => {
                let found = find_last_file(&last, &rotated)?;
                if found.is_none() && last.is_begun() {
                    report_other_file(input.name, &last);
                    self.keep_lost(&last);
                }
                let older = next_older_file(&last, found, &rotated, &self.lost, &file, input)?;
                if let Some(older) = older {
                    return Ok(older);
                }
                FilePosition::default()
            }
            ResumePoint::NeverPublished => FilePosition::default(),
            ResumePoint::Through(position) | ResumePoint::Uncertain(position) => position,
        };
        Ok(NextFile { file, path: path.to_owned(), position, older: None })
    }

    /// Adds a file to the missing files, and removes the oldest missing files above [`LOST_FILES_LIMIT`].
    fn keep_lost(&mut self, file: &FileProgress) {
        self.lost.retain(|lost| !has_same_identity(lost, file));
        let mut file = file.clone();
        file.is_lost = true;
        self.lost.push(file);
        let surplus = self.lost.len().saturating_sub(LOST_FILES_LIMIT);
        self.lost.drain(..surplus);
    }

    /// Returns the first file of `lost` that has returned to the folder and has unpublished lines, with its index.
    /// `live` is the open file of the path. A file at the path is omitted, because the run publishes it anyway.
    fn returned_file(
        &self,
        live: &File,
        rotated: &[FileProgress],
        input: PublishInput<'_>,
    ) -> std::io::Result<Option<(usize, NextFile)>> {
        for (index, lost) in self.lost.iter().enumerate() {
            let found = find_last_file(lost, rotated)?;
            if let Some((path, file)) = found
                && file_id(&file)? != file_id(live)?
                && let Some(next) = unfinished_file(path, file, lost.position(), input)?
            {
                return Ok(Some((index, next)));
            }
        }
        Ok(None)
    }

    /// Writes a checkpoint into each shard, with the progress in the file that this run publishes now. Returns false if
    /// a shard has gone back in time.
    async fn put(
        &mut self,
        publisher: &StreamPublisher,
        progress: &FileProgress,
    ) -> Result<bool, PublishError> {
        let present = match &self.returned {
            None => progress,
            Some((index, present)) => {
                self.lost[*index].clone_from(progress);
                present
            }
        };
        let files = std::iter::once(present).chain(&self.lost).cloned().collect();
        let checkpoint = Checkpoint::new(files, Vec::new()).of_run(self.run);
        let mark = Mark { name: self.name.clone(), value: checkpoint.encode().into() };
        publisher.put_mark(&mark, &mut self.marks).await
    }
}

/// The part of a file that earlier runs published, according to the checkpoints of all shards.
enum ResumePoint {
    /// No shard has a checkpoint of the file, so this run publishes the file from its beginning.
    NeverPublished,
    /// All lines before this position were published; the checkpoints of all shards have this position.
    Through(FilePosition),
    /// At least the lines before this position were published. The shards have different positions, and this position
    /// is the lowest; a shard without a usable checkpoint has the position 0.
    Uncertain(FilePosition),
    /// At least one checkpoint belongs to another file, or to earlier content of the file. The value is the progress in
    /// that file or content. If there are several such checkpoints, the value is from the checkpoint of the file that
    /// was created first.
    OtherFile(Box<FileProgress>),
}

impl ResumePoint {
    /// Returns the progress that this run writes into the checkpoints of all shards, so that a later run gets the same
    /// resume point. `file` is the open file of `path`.
    fn progress(self, path: &Path, file: &File) -> std::io::Result<FileProgress> {
        let position = match self {
            Self::OtherFile(last) => return Ok(*last),
            Self::NeverPublished => FilePosition::default(),
            Self::Through(position) | Self::Uncertain(position) => position,
        };
        let progress = FileProgress::unread(path.display().to_string(), &file.metadata()?);
        Ok(progress.at(position, read_fingerprint(file, position)?))
    }
}

/// Returns the missing files in the checkpoints of all shards, each with the lowest position.
fn lost_files(of_shards: &[Option<Bytes>]) -> Vec<FileProgress> {
    let mut all: Vec<FileProgress> = Vec::new();
    for stored in of_shards.iter().flatten() {
        let Ok(checkpoint) = Checkpoint::decode(stored) else { continue };
        for lost in checkpoint.files().iter().skip(1) {
            match all.iter().position(|other| has_same_identity(other, lost)) {
                None => all.push(lost.clone()),
                Some(at) if lost.position().offset < all[at].position().offset => {
                    all[at].clone_from(lost);
                }
                Some(_) => {}
            }
        }
    }
    all
}

fn has_same_identity(one: &FileProgress, other: &FileProgress) -> bool {
    (one.inode, one.created_ns) == (other.inode, other.created_ns)
}

fn resume_point(of_shards: &[Option<Bytes>], file: &File) -> std::io::Result<ResumePoint> {
    if of_shards.iter().all(Option::is_none) {
        return Ok(ResumePoint::NeverPublished);
    }
    let mut positions = Vec::with_capacity(of_shards.len());
    let mut other = None::<FileProgress>;
    for stored in of_shards {
        let checkpoint = stored.as_ref().and_then(|kept| Checkpoint::decode(kept).ok());
        let progress = checkpoint.and_then(|checkpoint| checkpoint.files().first().cloned());
        let Some(progress) = progress else {
            positions.push(FilePosition::default());
            continue;
        };
        positions.push(progress.position());
        // After a rotation, the checkpoints of two shards may name two files.
        let age = |progress: &FileProgress| (progress.created_ns, progress.position().line);
        let is_first = |other: &FileProgress| age(&progress) < age(other);
        // If the earlier run had read nothing of its file, the fingerprint in the checkpoint is empty and matches every
        // file. Compare the inode too.
        let is_same = progress.print.matches(file)?
            && (progress.is_begun() || is_same_inode(&progress, &file.metadata()?));
        if !is_same && other.as_ref().is_none_or(is_first) {
            other = Some(progress);
        }
    }
    if let Some(other) = other {
        return Ok(ResumePoint::OtherFile(Box::new(other)));
    }
    let position =
        positions.iter().copied().min_by_key(|position| position.line).unwrap_or_default();
    let is_unclear = positions.iter().any(|other| *other != position);
    Ok(if is_unclear { ResumePoint::Uncertain(position) } else { ResumePoint::Through(position) })
}

/// Returns the oldest file with unpublished lines. The candidates are `found` (the file of the previous run), and the
/// files in `rotated` that are newer. `missing` are the missing files of earlier runs. `live` is the open file of the
/// path.
fn next_older_file(
    last: &FileProgress,
    found: Option<(PathBuf, Arc<File>)>,
    rotated: &[FileProgress],
    missing: &[FileProgress],
    live: &File,
    input: PublishInput<'_>,
) -> std::io::Result<Option<NextFile>> {
    let mut place = None;
    if let Some((path, file)) = found {
        let metadata = file.metadata()?;
        place = rotated.iter().position(|older| is_same_inode(older, &metadata));
        if let Some(next) = unfinished_file(path, file, last.position(), input)? {
            return Ok(Some(next));
        }
    }
    let is_live = is_same_inode(last, &live.metadata()?);
    for (index, older) in rotated.iter().enumerate() {
        // If the file of the previous run is not among the rotated files, the times of creation show which rotated
        // files are newer. If the path still names the file of the previous run, a program has rewritten this file. The
        // rotated files may then be older, so publish none of them.
        let is_newer = match place {
            Some(place) => index > place,
            None => !is_live && last.created_ns != 0 && older.created_ns > last.created_ns,
        };
        let is_lost = missing.iter().any(|file| has_same_identity(file, older));
        if is_newer
            && !is_lost
            && let Some((path, file)) = find_by_identity(older)?
            && let Some(next) = unfinished_file(path, file, FilePosition::default(), input)?
        {
            return Ok(Some(next));
        }
    }
    Ok(None)
}

/// Searches for the file of the previous run under any name in its folder, or for a copy of that file among the older
/// files of a log rotation.
fn find_last_file(
    last: &FileProgress,
    rotated: &[FileProgress],
) -> std::io::Result<Option<(PathBuf, Arc<File>)>> {
    if let Some((path, file)) = find_by_identity(last)?
        && last.print.matches(&file)?
    {
        return Ok(Some((path, file)));
    }
    if last.is_begun() {
        for older in rotated {
            if let Some((path, file)) = find_by_identity(older)?
                && last.print.matches(&file)?
            {
                return Ok(Some((path, file)));
            }
        }
    }
    Ok(None)
}

/// Returns an older file as the next file, from `position` on. Returns `None` if the file has no bytes after the
/// position, or if this run has published the file to its end.
fn unfinished_file(
    path: PathBuf,
    file: Arc<File>,
    position: FilePosition,
    input: PublishInput<'_>,
) -> std::io::Result<Option<NextFile>> {
    let id = file_id(&file)?;
    let length = file.metadata()?.len();
    if length <= position.offset || input.finished.contains(&id) {
        return Ok(None);
    }
    tracing::info!(
        file = input.name, older = %path.display(), bytes = length - position.offset,
        "the file was rotated: first publishing the rest of the older file"
    );
    Ok(Some(NextFile { file, path, position, older: Some(id) }))
}

fn file_id(file: &File) -> std::io::Result<FileId> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

fn report_other_file(name: &str, last: &FileProgress) {
    let FileProgress { device, inode, .. } = last;
    if last.unread_bytes() > 0 {
        tracing::error!(
            file = name,
            device,
            inode,
            unread_bytes = last.unread_bytes(),
            from_byte = last.position().offset,
            "the last bytes of the last run's file were not published: the file was removed from its folder, truncated \
             or overwritten. If you still have the file, put it into its folder as an older file (for example, with \
             `.1` at the end of its name). Or publish it under a new name"
        );
    }
    tracing::warn!(
        file = name,
        device,
        inode,
        "the file changed, or is another file than in the last run: publishing the file from its beginning. \
         {REPEAT_ADVICE}"
    );
}

fn report_uncertain(name: &str, position: FilePosition) {
    tracing::warn!(
        file = name,
        line = position.line + 1,
        "the last run ended early, or the store has lost events of the last run: publishing from this line on. \
         {REPEAT_ADVICE}"
    );
}

/// Publishes the events before the first line without a valid event. Returns the position after the last published line
/// (`None` if no line was published), and the error of the invalid line (`None` if no line is invalid).
async fn publish_batch(
    publisher: &mut StreamPublisher,
    name: &str,
    batch: Vec<(DecodedDelivery, FilePosition)>,
    counts: &mut PublishCounts,
) -> Result<(Option<FilePosition>, Option<PublishFileError>), PublishFileError> {
    let line_error = |position: FilePosition, words: String| {
        Some(PublishFileError::Line { origin: format!("line {} of {name}", position.line), words })
    };
    let mut events = Vec::<Arc<Event>>::new();
    let mut ends = Vec::new();
    let mut stop = None;
    for (delivered, position) in batch {
        match delivered {
            Ok(event) if event.key().is_empty() => {
                stop = line_error(
                    position,
                    "the event has no key: set `partitionkey` or `subject`".to_owned(),
                );
            }
            Err(letter) => {
                // Take the line's number from the dead letter, because `position` may be after empty lines that follow
                // the line.
                let origin = letter.origin.unwrap_or_else(|| name.to_owned());
                stop = Some(PublishFileError::Line { origin, words: letter.error });
            }
            Ok(event) => {
                events.push(Arc::new(event));
                ends.push(position);
                continue;
            }
        }
        break;
    }
    let done = publisher.publish(&events).await;
    let assigned = match &done {
        Ok(assigned) | Err(PartialPublishError { assigned, .. }) => assigned,
    };
    let count = |count_if: fn(&AssignItemReply) -> bool| {
        assigned.iter().filter(|result| count_if(result)).count() as u64
    };
    counts.published += count(|result| matches!(result, AssignItemReply::New(_)));
    counts.known +=
        count(|result| matches!(result, AssignItemReply::Known(_) | AssignItemReply::Settled(_)));
    match done {
        Ok(_) => {}
        Err(PartialPublishError { error: PublishError::Event { at, words }, assigned }) => {
            // The user can correct the line only if the event is faulty, or if the event conflicts with an event in the
            // store.
            let is_refused =
                assigned[at].is_refused() && !matches!(assigned[at], AssignItemReply::Conflict(_));
            let origin = format!("line {} of {name}", ends[at].line);
            stop = Some(if is_refused {
                PublishFileError::Event { origin, words }
            } else {
                PublishFileError::Line { origin, words }
            });
            ends.truncate(at);
        }
        Err(PartialPublishError { error, .. }) => return Err(error.into()),
    }
    Ok((ends.pop(), stop))
}

fn read_fingerprint(file: &File, position: FilePosition) -> std::io::Result<ReadFingerprint> {
    let head = TailFingerprint::read(file, position.offset.min(TAIL_LIMIT_BYTES as u64))?;
    Ok(ReadFingerprint::new(head.bytes(), &TailFingerprint::read(file, position.offset)?))
}
