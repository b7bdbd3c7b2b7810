//! The error of a listener that cannot start.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use ordain_config::{ConfigError, LoadedConfig};

/// Returns the error of a listener that cannot use the address of its configuration section. The error is permanent if
/// the machine does not have the address or does not permit its use. Otherwise [`ConfigError::caused_by`] decides
/// whether the error is temporary.
pub(crate) fn listen_error(
    loaded: &LoadedConfig,
    section: &str,
    address: SocketAddr,
    error: &io::Error,
) -> ConfigError {
    let refused = |reason: &str| {
        let message = format!("cannot listen at {address}: {reason}");
        loaded.setting_error(&format!("{section}.listen"), message)
    };
    let remedy = format!(
        "Set `listen` of [{section}] to another address; port 0 selects a free one: [{section}] listen = \
         \"127.0.0.1:0\""
    );
    match error.kind() {
        ErrorKind::AddrInUse => {
            refused(&format!("another process listens there. {remedy}")).caused_by(error)
        }
        ErrorKind::AddrNotAvailable | ErrorKind::PermissionDenied => {
            refused(&format!("{error}. {remedy}"))
        }
        _ => refused(&error.to_string()).caused_by(error),
    }
}
