//! A cache of compiled functions. A new build of a handler usually has most functions of the previous build: the
//! runtime of the language, and the libraries. The compiler takes the code of these functions from the cache.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use wasmtime::CacheStore;

use super::cache::PARTIAL_EXTENSION_PREFIX;

/// The subfolder of the cache folder that contains one file for each handler.
pub(super) const FOLDER: &str = "functions";
/// Maximum size of a file, in bytes. The functions of the largest measured component (Python) take about 60 MB.
const FILE_LIMIT_BYTES: u64 = 256 << 20;
/// Size of the two lengths before each entry of a file, in bytes.
const LENGTHS_BYTES: usize = 8;

/// The functions of a handler's newest build, from a file. The compiler names each function by a digest of its content
/// and of all settings that affect its code.
#[derive(Debug)]
pub(super) struct FunctionCache {
    file: PathBuf,
    content: Vec<u8>,
    /// The position of each function's code in `content`.
    stored: HashMap<Vec<u8>, std::ops::Range<usize>>,
    changes: Mutex<Changes>,
}

/// The functions that the compiler needed since the cache was opened.
#[derive(Debug, Default)]
struct Changes {
    used: HashSet<Vec<u8>>,
    added: HashMap<Vec<u8>, Vec<u8>>,
}

impl FunctionCache {
    /// Opens the functions of a handler. `cache` is the folder of compiled handlers, and `name` is the name of the
    /// handler. Begins with no functions if the file is missing, unreadable or damaged.
    pub(super) fn open(cache: &Path, name: &str) -> Self {
        let file = cache.join(FOLDER).join(name);
        let is_small = fs::metadata(&file).is_ok_and(|found| found.len() <= FILE_LIMIT_BYTES);
        let content = if is_small { fs::read(&file).unwrap_or_default() } else { Vec::new() };
        let stored = index(&content).unwrap_or_default();
        Self { file, content, stored, changes: Mutex::default() }
    }

    /// Writes the functions that the compiler needed, and forgets all others. Writes nothing if the compiler needed
    /// only functions of the file: either all of them, or none because it found the whole component in another cache.
    pub(super) fn save(&self) -> io::Result<()> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.added.is_empty() {
            return Ok(());
        }
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let name = self.file.file_name().unwrap_or_default();
        let suffix = format!(".{PARTIAL_EXTENSION_PREFIX}functions");
        let mut file = tempfile::Builder::new().prefix(name).suffix(&suffix).tempfile_in(folder)?;
        let mut out = io::BufWriter::new(file.as_file_mut());
        let kept = changes.used.iter().map(|key| (key, &self.content[self.stored[key].clone()]));
        let added = changes.added.iter().map(|(key, code)| (key, &code[..]));
        for (key, code) in kept.chain(added) {
            out.write_all(&(key.len() as u32).to_le_bytes())?;
            out.write_all(&(code.len() as u32).to_le_bytes())?;
            out.write_all(key)?;
            out.write_all(code)?;
        }
        out.flush()?;
        drop(out);
        file.persist(&self.file).map_err(|error| error.error)?;
        Ok(())
    }
}

impl CacheStore for FunctionCache {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = self.stored.get(key) {
            changes.used.insert(key.to_vec());
            return Some(Cow::Borrowed(&self.content[place.clone()]));
        }
        changes.added.get(key).map(|code| Cow::Owned(code.clone()))
    }

    fn insert(&self, key: &[u8], code: Vec<u8>) -> bool {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        // If the file has code for this function, the compiler could not read that code. The new code replaces it.
        changes.used.remove(key);
        changes.added.insert(key.to_vec(), code);
        true
    }
}

/// Returns the position of each function's code in the content of a file; `None` if the content is damaged.
fn index(content: &[u8]) -> Option<HashMap<Vec<u8>, std::ops::Range<usize>>> {
    let mut stored = HashMap::new();
    let mut at = 0;
    while at < content.len() {
        let lengths = content.get(at..at + LENGTHS_BYTES)?;
        let (key, code) = lengths.split_at(LENGTHS_BYTES / 2);
        let [key, code] =
            [key, code].map(|length| u32::from_le_bytes(length.try_into().unwrap_or_default()));
        let key_at = at + LENGTHS_BYTES;
        let code_at = key_at + key as usize;
        at = code_at + code as usize;
        content.get(code_at..at)?;
        stored.insert(content[key_at..code_at].to_vec(), code_at..at);
    }
    Some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(folder: &Path) -> FunctionCache {
        FunctionCache::open(folder, "orders")
    }

    #[test]
    fn file_contains_the_functions_of_the_newest_build() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let first = opened(folder.path());
        assert_eq!(first.get(b"a"), None);
        for (key, code) in [(b"a", "code of a"), (b"b", "code of b")] {
            assert!(first.insert(key, code.into()));
        }
        assert_eq!(first.get(b"a").as_deref(), Some(&b"code of a"[..]));
        first.save()?;

        let second = opened(folder.path());
        assert_eq!(second.get(b"b").as_deref(), Some(&b"code of b"[..]));
        second.insert(b"c", b"".to_vec());
        second.save()?;

        let third = opened(folder.path());
        assert_eq!(third.get(b"a"), None, "the second build lacked this function");
        assert_eq!(third.get(b"b").as_deref(), Some(&b"code of b"[..]));
        assert_eq!(third.get(b"c").as_deref(), Some(&b""[..]));
        Ok(())
    }

    #[test]
    fn build_from_another_cache_keeps_the_file() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let first = opened(folder.path());
        first.insert(b"a", b"code".to_vec());
        first.save()?;
        opened(folder.path()).save()?;
        assert!(opened(folder.path()).get(b"a").is_some());
        Ok(())
    }

    #[test]
    fn damaged_file_counts_as_empty() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let first = opened(folder.path());
        first.insert(b"key", b"code".to_vec());
        first.save()?;
        let file = folder.path().join(FOLDER).join("orders");
        let whole = fs::read(&file)?;
        for length in 1..whole.len() {
            fs::write(&file, &whole[..length])?;
            assert_eq!(opened(folder.path()).get(b"key"), None, "{length} bytes");
        }
        fs::write(&file, [0xff; 20])?;
        assert_eq!(opened(folder.path()).get(b"key"), None);
        Ok(())
    }
}
