//! The error of a listener that cannot start.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use ordain_config::{ConfigError, LoadedConfig};

/// Returns the error of a listener that cannot use the address of its configuration section. The error is temporary in
/// two cases. First, another process uses the address: that process may end. Second, the machine does not have the
/// address: the machine may get the address later, for example by DHCP. The error is permanent if the process lacks the
/// permission to use the address.
pub(crate) fn listen_error(
    loaded: &LoadedConfig,
    section: &str,
    address: SocketAddr,
    error: &io::Error,
) -> ConfigError {
    let remedy = format!(
        "Set `listen` of [{section}] to another address; port 0 selects a free port: [{section}] listen = \
         \"127.0.0.1:0\""
    );
    let reason = match error.kind() {
        ErrorKind::AddrInUse => format!("another process listens at this address. {remedy}"),
        ErrorKind::AddrNotAvailable | ErrorKind::PermissionDenied => format!("{error}. {remedy}"),
        _ => error.to_string(),
    };
    let message = format!("cannot listen at {address}: {reason}");
    loaded.setting_error(&format!("{section}.listen"), message).caused_by(error)
}
