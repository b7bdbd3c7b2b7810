//! The client for HTTP: what all requests of a process have in common.

use std::sync::{Arc, LazyLock};

use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// The beginning of a client for a URL: it goes there and nowhere else, whatever redirects or variables
/// of the environment say.
pub fn agent(url: &str) -> ConfigBuilder<AgentScope> {
    let config =
        ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None);
    if url.starts_with("https:") { config.tls_config(tls()) } else { config }
}

/// The certificates that this machine trusts, read once.
fn tls() -> TlsConfig {
    static ROOTS: LazyLock<RootCerts> = LazyLock::new(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!("certificates that this machine trusts cannot be read: {error}");
        }
        RootCerts::from(found.certs.iter().map(|it| Certificate::from_der(it).to_owned()))
    });
    TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(ROOTS.clone())
        .build()
}
