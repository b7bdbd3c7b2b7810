//! Translates the server's errors for callers.

use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use ordain_store::RedisAddress;
use ordain_store::StoreError;
use ordain_util::text::escape_invisible;

/// The maximum number of displayed characters of a server's text.
const DISPLAY_LIMIT: usize = 400;

/// Texts of the TLS library and the advice for each. The first match applies.
const TLS_ADVICE: [(&str, &str); 4] = [
    (
        "CertificateRequired",
        "The server requires a client certificate, but Ordain has none: set \
         tls-auth-clients no in the server",
    ),
    (
        "CaUsedAsEndEntity",
        "A CA certificate cannot be a server's own certificate: create one for the server, \
         signed by the CA",
    ),
    ("PEM", "The damaged file is the one that SSL_CERT_FILE names"),
    (
        "certificate",
        "The server's certificate must be signed by a CA that the system trusts, or by a CA in \
         the file that SSL_CERT_FILE names",
    ),
];

/// Adds the address and the user to an error that occurred while the store was opened.
pub(super) fn with_address(address: &RedisAddress, error: StoreError) -> StoreError {
    let user = match (&address.user, &address.password) {
        (Some(user), _) => format!("user {user:?}"),
        (None, Some(_)) => "the default user".to_owned(),
        (None, None) => "no login".to_owned(),
    };
    let named = |words: String| format!("{address} ({user}): {words}");
    match error {
        StoreError::Unusable(words) => StoreError::Unusable(named(words)),
        StoreError::Unavailable(words) => StoreError::Unavailable(named(words)),
        error => error,
    }
}

/// Returns whether a command, or a command of a pipeline, failed with this code.
pub(super) fn has_code(error: &RedisError, code: &str) -> bool {
    let of_one = |errors: Arc<[(usize, redis::ServerError)]>| {
        errors.iter().any(|(_, error)| error.code() == code)
    };
    error.code() == Some(code) || error.clone().into_server_errors().is_some_and(of_one)
}

/// Classifies a failed request. Either the stored value is damaged, or a retry may succeed, for example after an
/// operator has restored a permission.
pub(super) fn request_error(error: &RedisError) -> StoreError {
    if ["WRONGTYPE", "CORRUPT"].into_iter().any(|code| has_code(error, code)) {
        return StoreError::Corrupt(error_text(error));
    }
    StoreError::Unavailable(error_text(error))
}

/// Classifies an error that occurred while the store was opened. An error that a retry cannot resolve ends the start.
#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
pub(super) fn start_error(error: RedisError) -> StoreError {
    let words = error_text(&error);
    // A server at its limit of clients refuses logins with this text.
    let is_full = words.contains("max number of clients");
    let refused = matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM" | "WRONGTYPE"))
        || matches!(error.kind(), ErrorKind::InvalidClientConfig | ErrorKind::AuthenticationFailed);
    // A script without a required right returns a plain error, whose text depends on the version.
    let forbids = [
        "The user executing the script",
        "ACL failure in script",
        "no permissions to run",
        "DB index",
    ];
    if !is_full && (refused || forbids.iter().any(|forbidding| words.contains(forbidding))) {
        return StoreError::Unusable(words);
    }
    if error.is_io_error()
        && let Some((_, advice)) = TLS_ADVICE.iter().find(|(sign, _)| words.contains(sign))
    {
        return StoreError::Unusable(format!("{words}. {advice}"));
    }
    request_error(&error)
}

/// Returns the text of the server or the library, without the parts that make sense only to programmers who use the
/// library.
fn error_text(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some("CORRUPT" | "NOPERM"), Some(detail)) => detail.to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ if error.kind() == ErrorKind::InvalidClientConfig => {
            error.detail().map_or_else(|| error.to_string(), str::to_owned)
        }
        _ => error.to_string(),
    };
    // The rest is the position in a script and the script's digest.
    let words = words.split(" script: ").next().unwrap_or_default();
    display_text(words)
}

/// Returns a server's text for display: limited in length, and on one line.
pub(super) fn display_text(words: &str) -> String {
    escape_invisible(&words.chars().take(DISPLAY_LIMIT).collect::<String>()).into_owned()
}
