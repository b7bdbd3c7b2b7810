//! The HTTP client settings that all requests of a process share.

use std::sync::{Arc, LazyLock};

use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// Returns the configuration of a client for a URL. The client follows no redirects, ignores the proxy variables of the
/// environment, and treats no HTTP status as an error.
pub fn agent(url: &str) -> ConfigBuilder<AgentScope> {
    let config =
        ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None);
    if url.starts_with("https:") { config.tls_config(tls()) } else { config }
}

/// Returns the TLS settings. The process reads the trusted certificates of the machine only once.
fn tls() -> TlsConfig {
    static ROOT_CERTIFICATES: LazyLock<RootCerts> = LazyLock::new(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(
                "cannot read all trusted certificates of this machine: {error}; https requests may fail"
            );
        }
        RootCerts::from(
            found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()),
        )
    });
    TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(ROOT_CERTIFICATES.clone())
        .build()
}
