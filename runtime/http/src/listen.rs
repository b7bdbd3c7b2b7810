//! The error of a listener that cannot start.

use std::io;
use std::net::SocketAddr;

use ordain_config::{ConfigError, LoadedConfig};

/// The reason why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The configuration is invalid, or the process cannot listen at the configured address.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another process listens at the address. The message names the setting to change.
    #[error(transparent)]
    AddressInUse(ConfigError),
}

impl ListenError {
    /// Returns the error of a listener that cannot use the address of its configuration section.
    pub(crate) fn new(
        loaded: &LoadedConfig,
        section: &str,
        address: SocketAddr,
        error: &io::Error,
    ) -> Self {
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        let reason =
            if is_taken { "another process listens there".to_owned() } else { error.to_string() };
        let refused = loaded.setting_error(
            &format!("{section}.listen"),
            format!(
                "cannot listen at {address}: {reason}. Set `listen` of [{section}] to another address; port 0 \
                 selects a free one: [{section}] listen = \"127.0.0.1:0\""
            ),
        );
        if is_taken { Self::AddressInUse(refused) } else { Self::Config(refused) }
    }
}
