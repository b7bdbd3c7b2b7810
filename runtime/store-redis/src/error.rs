//! Translates the server's errors for callers.

use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use ordain_store::RedisAddress;
use ordain_store::StoreError;
use ordain_util::text::escape_invisible;

/// The maximum number of characters of a server's text that a message shows.
const DISPLAY_LIMIT: usize = 400;

/// Texts in the errors of the TLS library, with the advice for each. The first text that the error contains applies.
const TLS_ADVICE: [(&str, &str); 4] = [
    (
        "CertificateRequired",
        "The server requires a client certificate, but Ordain has none: set \
         tls-auth-clients no in the server",
    ),
    (
        "CaUsedAsEndEntity",
        "A CA certificate cannot be a server's own certificate: create a certificate for the \
         server, signed by the CA",
    ),
    ("PEM", "The damaged file is the one that SSL_CERT_FILE names"),
    (
        "certificate",
        "The server's certificate must be signed by a CA that the system trusts, or by a CA in the \
         file that SSL_CERT_FILE names",
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
    // If only one of client and server uses TLS, the server closes the connection or does not answer, and reports no
    // reason.
    let tls_hint = |words: &str| match address.tls {
        true if words.contains("timed out") => ". Does this port use TLS? If not, use redis://",
        false if words.contains("reset by peer") => ". If this port uses TLS, use rediss://",
        _ => "",
    };
    match error {
        StoreError::Unusable(words) => StoreError::Unusable(named(words)),
        StoreError::Unavailable(words) => {
            let hint = tls_hint(&words);
            StoreError::Unavailable(named(words + hint))
        }
        error => error,
    }
}

/// Returns whether a command failed with this code. The command may be a part of a pipeline.
pub(super) fn has_code(error: &RedisError, code: &str) -> bool {
    let of_one = |errors: Arc<[(usize, redis::ServerError)]>| {
        errors.iter().any(|(_, error)| error.code() == code)
    };
    error.code() == Some(code) || error.clone().into_server_errors().is_some_and(of_one)
}

/// Converts the error of a request: [`StoreError::Corrupt`] if the stored value is damaged. All other errors become
/// [`StoreError::Unavailable`], because a retry may succeed, for example after an operator has restored a permission.
pub(super) fn request_error(error: &RedisError) -> StoreError {
    if ["WRONGTYPE", "CORRUPT"].into_iter().any(|code| has_code(error, code)) {
        return StoreError::Corrupt(error_text(error));
    }
    StoreError::Unavailable(error_text(error))
}

/// Converts an error that occurred while the store was opened. An error that a retry cannot resolve becomes
/// [`StoreError::Unusable`], which ends the start.
#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
pub(super) fn start_error(error: RedisError) -> StoreError {
    let words = error_text(&error);
    // A server that has reached its limit of clients refuses a login with this text. A retry may succeed.
    let is_full = words.contains("max number of clients");
    let refused = matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM" | "WRONGTYPE"))
        || matches!(error.kind(), ErrorKind::InvalidClientConfig | ErrorKind::AuthenticationFailed);
    // If the user lacks a right that a script needs, the error has no separate code, and its text depends on the
    // server's version.
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

/// Returns the text of the server or of the Redis library, without the parts that are useful only to a programmer.
fn error_text(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some("CORRUPT" | "NOPERM"), Some(detail)) => detail.to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ if error.kind() == ErrorKind::InvalidClientConfig => {
            error.detail().map_or_else(|| error.to_string(), str::to_owned)
        }
        _ => error.to_string(),
    };
    let words = without_script_position(&words);
    if words.contains("unauthenticated") {
        return display_text(&format!(
            "{words}. The server requires a password: add it to `store.url`"
        ));
    }
    display_text(words)
}

/// Removes the end of a server's text that names the digest of a script and a line in the script.
fn without_script_position(words: &str) -> &str {
    const BEFORE_DIGEST: &str = " script: ";
    let is_digest =
        |text: &str| text.len() >= 40 && text.bytes().take(40).all(|byte| byte.is_ascii_hexdigit());
    match words.rsplit_once(BEFORE_DIGEST) {
        Some((text, rest)) if is_digest(rest) => text,
        _ => words,
    }
}

/// Returns a server's text for display: limited in length, and on one line.
pub(super) fn display_text(words: &str) -> String {
    escape_invisible(&words.chars().take(DISPLAY_LIMIT).collect::<String>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_in_a_script_is_removed_and_the_reason_is_kept() {
        let digest = "0123456789abcdef0123456789abcdef01234567";
        for (text, shown) in [
            (
                format!(
                    "ERR ACL failure in script: User a has no permissions to run the 'hset' command script: {digest}, on @user_script:12."
                ),
                "ERR ACL failure in script: User a has no permissions to run the 'hset' command",
            ),
            (
                format!("OOM command not allowed script: {digest}, on @user_script:1."),
                "OOM command not allowed",
            ),
            ("BUSY running a script: wait".to_owned(), "BUSY running a script: wait"),
        ] {
            assert_eq!(without_script_position(&text), shown);
        }
    }
}
