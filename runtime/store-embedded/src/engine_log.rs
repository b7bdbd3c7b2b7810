//! The last error that the engine logged. If a background thread of the engine fails, the engine reports the reason
//! only in its log, and every later write returns an error without a reason. The program passes the engine's errors
//! from the log to this module.

use std::sync::{Mutex, PoisonError};

/// The name of the engine in the log.
pub const LOG_TARGET: &str = "fjall";

static LAST_ERROR: Mutex<Option<String>> = Mutex::new(None);

/// Records an error that the engine logged.
pub fn record_error(words: String) {
    *LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
}

/// Returns the error that the engine logged last; `None` if the engine has logged no error.
pub(super) fn last_error() -> Option<String> {
    LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
