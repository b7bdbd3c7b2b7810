//! The findings about a server that `ordain check --connect` reports.

use std::time::Duration;

/// The importance of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A fact that needs no action.
    Note,
    /// A setting or a state with which events can be lost, or can take effect twice or out of order.
    Warning,
    /// The server cannot be reached, or refuses a request now. A later try may succeed.
    Unavailable,
    /// A start fails, or a stream loses events, until an operator changes the configuration or the server.
    Error,
}

impl Severity {
    /// Returns the name, for output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Unavailable => "unavailable",
            Self::Error => "error",
        }
    }
}

/// A finding about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The importance of the finding.
    pub severity: Severity,
    /// The description, with the next step if one is needed. Never contains a password.
    pub text: String,
}

impl Finding {
    /// Creates a finding that needs no action.
    pub fn note(text: impl Into<String>) -> Self {
        Self { severity: Severity::Note, text: text.into() }
    }

    /// Creates a finding about a setting or state that is a risk.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, text: text.into() }
    }

    /// Creates a finding about a server that cannot be used now.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self { severity: Severity::Unavailable, text: text.into() }
    }

    /// Creates a finding about a fault that a later try does not resolve.
    pub fn error(text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, text: text.into() }
    }
}

/// The findings about one server, or about servers that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectedServer {
    /// The part of Ordain that uses the server: `store` or `broker`.
    pub role: &'static str,
    /// The address, without a password.
    pub address: String,
    /// The findings, in the order in which the inspection made them.
    pub findings: Vec<Finding>,
}

impl InspectedServer {
    /// Inspects a server, at most for the time `limit`. If the inspection takes longer, keeps the findings made until
    /// then, and adds a finding that the server is unavailable.
    pub async fn inspect(
        role: &'static str,
        address: String,
        limit: Duration,
        inspection: impl AsyncFnOnce(&mut Vec<Finding>),
    ) -> Self {
        let mut findings = Vec::new();
        if tokio::time::timeout(limit, inspection(&mut findings)).await.is_err() {
            findings.push(Finding::unavailable(format!(
                "{address} did not answer all requests within {limit:?}"
            )));
        }
        Self { role, address, findings }
    }
}
