//! What the server's errors mean for whoever asked.

use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use ordain_store::RedisAddress as Address;
use ordain_store::StoreError;
use ordain_util::text::clean;

/// Characters of what the server says that are shown.
const LONGEST: usize = 400;

/// What the TLS library says, and what helps. The first that fits.
const TLS: [(&str, &str); 4] = [
    (
        "CertificateRequired",
        "The server wants a certificate of its clients too, which Ordain has none of: set \
         tls-auth-clients no in the server",
    ),
    (
        "CaUsedAsEndEntity",
        "A certificate that vouches for others cannot be a server's own: make one for the server, \
         signed by it",
    ),
    ("PEM", "It is the file that SSL_CERT_FILE names"),
    (
        "certificate",
        "The server's certificate must be vouched for by one that the system trusts, or by one in \
         the file that SSL_CERT_FILE names",
    ),
];

/// An error of a start, with where and as whom.
pub(super) fn at(address: &Address, error: StoreError) -> StoreError {
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

/// Whether a command, or one of a pipeline, failed for this reason.
pub(super) fn has_code(error: &RedisError, code: &str) -> bool {
    let of_one = |errors: Arc<[(usize, redis::ServerError)]>| {
        errors.iter().any(|(_, error)| error.code() == code)
    };
    error.code() == Some(code) || error.clone().into_server_errors().is_some_and(of_one)
}

/// Why something was not done: what is stored is of another form, or what asking again may mend,
/// be it that somebody gives a right back.
pub(super) fn failed(error: &RedisError) -> StoreError {
    if ["WRONGTYPE", "CORRUPT"].into_iter().any(|code| has_code(error, code)) {
        return StoreError::Corrupt(words(error));
    }
    StoreError::Unavailable(words(error))
}

/// Why a start did not go on: what another try cannot mend ends it.
#[allow(clippy::needless_pass_by_value, reason = "it is an argument of `map_err`")]
pub(super) fn unusable_or_away(error: RedisError) -> StoreError {
    let words = words(&error);
    // A server that has all the clients that it may have refuses logins with this.
    let is_full = words.contains("max number of clients");
    let refused = matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM" | "WRONGTYPE"))
        || matches!(error.kind(), ErrorKind::InvalidClientConfig | ErrorKind::AuthenticationFailed);
    // A script that may not do all that it does is a plain error, whose words depend on the version.
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
        && let Some((_, advice)) = TLS.iter().find(|(sign, _)| words.contains(sign))
    {
        return StoreError::Unusable(format!("{words}. {advice}"));
    }
    failed(&error)
}

/// What the server or the library said, without what only the library's users understand.
fn words(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some("CORRUPT" | "NOPERM"), Some(detail)) => detail.to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ if error.kind() == ErrorKind::InvalidClientConfig => {
            error.detail().map_or_else(|| error.to_string(), str::to_owned)
        }
        _ => error.to_string(),
    };
    // Where in which script, by its digest.
    let words = words.split(" script: ").next().unwrap_or_default();
    shown(words)
}

/// What a server says, as it is shown: not too long, and on one line.
pub(super) fn shown(words: &str) -> String {
    clean(&words.chars().take(LONGEST).collect::<String>()).into_owned()
}
