//! The length and the first bytes of the content of a gzip file. The set never decompresses a whole file.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ordain_util::tail_fingerprint::{TAIL_LIMIT_BYTES, TailFingerprint};

/// Smallest number of bytes of a gzip file: the header and the trailer.
const GZIP_BYTES: u64 = 18;
/// The trailer of a gzip file contains the length of the content modulo this number.
pub(super) const GZIP_MODULUS: u64 = 1 << 32;

/// Returns the length of the content of a gzip file modulo [`GZIP_MODULUS`]. `tail` contains the last bytes of the
/// file. Returns `None` if the file does not have the extension of a gzip file, or if the stated length is 0. Such a
/// file may have content: a gzip file can end with an empty member or with NULs.
pub(super) fn content_bytes(path: &Path, tail: &TailFingerprint) -> Option<u64> {
    let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
    let bytes = tail.bytes().last_chunk::<4>().filter(|_| is_gzip && tail.end() >= GZIP_BYTES);
    bytes.map(|bytes| u32::from_le_bytes(*bytes).into()).filter(|length| *length > 0)
}

/// Returns the first bytes of the content, at most [`TAIL_LIMIT_BYTES`] bytes. Returns `None` if the file has another
/// format, or a damaged or incomplete beginning.
pub(super) fn content_head(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let content = MultiGzDecoder::new(file).take(TAIL_LIMIT_BYTES as u64).read_to_end(&mut head);
    match content {
        Ok(_) => Ok(Some(head)),
        Err(error) if is_invalid(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether the decoder reports invalid data. All other errors are errors of the read.
fn is_invalid(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof
    )
}
