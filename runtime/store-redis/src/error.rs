//! Converts the errors of the server and of the Redis library into errors of the store.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};
use rustls::{AlertDescription, CertificateError};

use ordain_store::RedisUrl;
use ordain_store::StoreError;
use ordain_util::text::escape_invisible;

/// The maximum number of characters of a server's text that an error or a log line shows.
const DISPLAY_LIMIT: usize = 400;

/// Adds the address and the login to an error. Also adds a hint if the URL may be wrong about TLS.
pub(super) fn with_address(url: &RedisUrl, error: StoreError) -> StoreError {
    let address = url.newest();
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

/// Returns whether a command failed with this error code of the server, such as `NOSCRIPT`. The command may be a part
/// of a pipeline.
pub(super) fn has_code(error: &RedisError, code: &str) -> bool {
    let of_one = |errors: Arc<[(usize, redis::ServerError)]>| {
        errors.iter().any(|(_, error)| error.code() == code)
    };
    error.code() == Some(code) || error.clone().into_server_errors().is_some_and(of_one)
}

/// Converts the error of a request: [`StoreError::Corrupt`] if a stored value is damaged or has the wrong type. All
/// other errors become [`StoreError::Unavailable`], because a retry may succeed, for example after an operator has
/// restored a permission.
pub(super) fn request_error(error: &RedisError) -> StoreError {
    if ["WRONGTYPE", "CORRUPT"].into_iter().any(|code| has_code(error, code)) {
        return StoreError::Corrupt(error_text(error));
    }
    StoreError::Unavailable(error_text(error))
}

/// Converts an error that occurred while the store was opened. An error that a retry cannot resolve becomes
/// [`StoreError::Unusable`], which ends the start. Such an error occurs if the URL does not match the server, or if
/// another program has written a Redis key of the store. A refused login, a missing right or a refused certificate does
/// not become `Unusable`, because a later try may succeed.
#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
pub(super) fn start_error(error: RedisError) -> StoreError {
    let is_unusable = error.code() == Some("WRONGTYPE")
        || error.kind() == ErrorKind::InvalidClientConfig
        || error.detail().is_some_and(|words| words.contains("DB index"));
    if is_unusable { StoreError::Unusable(error_text(&error)) } else { request_error(&error) }
}

/// Returns the text of the server or of the Redis library, without the parts that are useful only to a programmer.
/// Appends the next step if `advice` returns one.
pub(super) fn error_text(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some("CORRUPT" | "NOPERM"), Some(detail)) => detail.to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (_, Some(detail))
            if matches!(
                error.kind(),
                ErrorKind::InvalidClientConfig | ErrorKind::AuthenticationFailed | ErrorKind::Io
            ) =>
        {
            detail.to_owned()
        }
        _ => error.to_string(),
    };
    let words = display_text(without_script_position(without_arguments(&words)));
    match advice(error, &words) {
        Some(advice) => format!("{}. {advice}", words.trim_end_matches('.')),
        None => words,
    }
}

/// Returns the next step for the operator; `None` for an error whose own text contains the next step. `words` is the
/// text of the error.
fn advice(error: &RedisError, words: &str) -> Option<&'static str> {
    if error.code() == Some("NOAUTH") || words.contains("unauthenticated") {
        return Some("The server requires a password: add it to `store.url`");
    }
    // Redis 7 does not name the command that a script could not run.
    if words.contains("can't run this command or subcommand") {
        return Some("ACL LOG on the server names the command");
    }
    match tls_error(error)? {
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => Some(
            "The server requires a client certificate, but Ordain has none: set tls-auth-clients no in the server",
        ),
        // The last two of these reasons occur if the authority that signed the certificate has the name of a trusted
        // authority, but another key pair.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer
            | CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => Some(
            "The server's certificate must be signed by a CA that the system trusts, or by a CA in the file that \
             SSL_CERT_FILE names",
        ),
        // The library has no variants for the following two reasons.
        rustls::Error::InvalidCertificate(CertificateError::Other(reason)) => {
            match &*reason.0.to_string() {
                "CaUsedAsEndEntity" => Some(
                    "A CA certificate cannot be a server's own certificate: create a certificate for the server, \
                     signed by the CA",
                ),
                "UnsupportedCertVersion" => {
                    Some("Create a certificate of version 3 of X.509 for the server")
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the error of the TLS library that is the cause of `error`; `None` if `error` has another cause.
fn tls_error(error: &RedisError) -> Option<&rustls::Error> {
    let cause = error.source()?;
    let cause = cause.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
}

/// Removes the arguments of the command from the end of a server's text. The arguments may contain a password or the
/// data of an event.
pub(super) fn without_arguments(words: &str) -> &str {
    words.split_once(", with args beginning with").map_or(words, |(command, _)| command)
}

/// Removes the digest of a script, and the line in the script, from the end of a server's text.
fn without_script_position(words: &str) -> &str {
    const DIGEST_PREFIX: &str = " script: ";
    let is_digest =
        |text: &str| text.len() >= 40 && text.bytes().take(40).all(|byte| byte.is_ascii_hexdigit());
    match words.rsplit_once(DIGEST_PREFIX) {
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
    fn text_contains_no_category_of_the_library() {
        for kind in [ErrorKind::InvalidClientConfig, ErrorKind::AuthenticationFailed, ErrorKind::Io]
        {
            let words = "the Cluster has assigned slot 7 to no node";
            let error = RedisError::from((kind, "not yet", words.to_owned()));
            assert_eq!(error_text(&error), words, "{kind:?}");
        }
        // The error of the operating system has no other text.
        let error = RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(error_text(&error), "broken pipe");
    }

    /// Redis 7 does not name the command that a script could not run.
    #[test]
    fn log_of_the_server_is_named_for_an_unnamed_command() {
        let words = "The user executing the script can't run this command or subcommand";
        let error = RedisError::from((ErrorKind::Io, "ERR", words.to_owned()));
        assert!(error_text(&error).ends_with("ACL LOG on the server names the command"));
    }

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
