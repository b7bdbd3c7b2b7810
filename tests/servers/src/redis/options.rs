//! Options of a Redis server or a Sentinel. By default, a Redis server writes each change to disk before it replies,
//! and evicts no keys.

use std::path::Path;

use crate::clock::Clock;
use crate::redis::Redis;
use crate::tls::Certificates;

/// A second address at which every Redis server and every Sentinel listens. Tests need this address for a host name
/// that first resolves to 127.0.0.1 and later to this address. The address differs from 127.0.0.2, at which this crate
/// reserves ports.
pub const SECOND_ADDRESS: &str = "127.0.0.3";

/// Lines of `redis.conf`, for every Redis server and every Sentinel. A later line overrides an earlier line with the
/// same setting.
const DEFAULTS: &[&str] = &[
    "bind 127.0.0.1 127.0.0.3",
    "protected-mode no",
    "daemonize no",
    "logfile \"\"",
    "pidfile \"\"",
    "dir data",
    "enable-debug-command yes",
];
const DATA: &[&str] = &[
    "save \"\"",
    "maxmemory-policy noeviction",
    // Without this line, a child process of the server could rewrite the append-only file while a snapshot copies it,
    // even while the server is paused.
    "auto-aof-rewrite-percentage 0",
    "repl-diskless-sync-delay 0",
];
const DURABLE: &[&str] = &["appendonly yes", "appendfsync always"];

/// The options of a server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    lines: Vec<String>,
    password: Option<String>,
    kind: Kind,
    tls: bool,
    certificates: Option<Certificates>,
    volatile: bool,
    follower: bool,
    env: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Alone,
    Node,
    Sentinel,
}

impl Options {
    /// Returns the options of a durable server that is neither a replica nor a node of a Cluster: `appendonly yes`,
    /// `appendfsync always`, `noeviction`, no password.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line of `redis.conf`, which overrides earlier lines with the same setting.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Gives the user `default` a password. A server that becomes a replica also logs in at its master with this
    /// password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.line(&format!("requirepass {password}")).line(&format!("masterauth {password}"))
    }

    /// Adds a user with a password and rules such as `~ordain:* +@all`. The user `default` stays.
    #[must_use]
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.line(&format!("user {name} on >{password} {rules}"))
    }

    /// Adds a port with TLS, and keeps the plain port for the commands of tests. The nodes of a Cluster also use TLS
    /// among themselves.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds a port with TLS, as [`tls`](Self::tls) does, with the certificates of another server.
    #[must_use]
    pub(crate) fn tls_like(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self.tls()
    }

    /// Keeps all data in memory only.
    #[must_use]
    pub fn without_persistence(mut self) -> Self {
        self.volatile = true;
        self
    }

    /// Makes the server a replica of another server. If that server has a password, the replica logs in with this
    /// password. [`Redis::with`] waits until the replica is in step with its master.
    #[must_use]
    pub fn replica_of(mut self, master: &Redis) -> Self {
        self.follower = true;
        let auth = master.password().map(|password| format!("masterauth {password}"));
        self.lines.extend(auth);
        self.line(&format!("replicaof 127.0.0.1 {}", master.port()))
    }

    /// Makes the server use this clock.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.env = clock.env();
        self
    }

    /// Makes the server a node of a Cluster. The node has no slots yet, and is not connected to other nodes.
    #[must_use]
    pub(crate) fn cluster(mut self) -> Self {
        self.kind = Kind::Node;
        self
    }

    /// Returns the options of a Sentinel that monitors no servers yet.
    pub(crate) fn sentinel() -> Self {
        Self { kind: Kind::Sentinel, ..Self::default() }
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls
    }

    /// Returns the certificates that this server takes from another server ([`tls_like`](Self::tls_like)).
    pub(crate) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn env(&self) -> &[(String, String)] {
        &self.env
    }

    pub(crate) fn is_follower(&self) -> bool {
        self.follower
    }

    pub(crate) fn password_of_default(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub(crate) fn config(&self, ports: &Ports, certificates: Option<&Certificates>) -> String {
        let mut lines: Vec<String> = vec![format!("port {}", ports.plain)];
        let mut add = |some: &[&str]| lines.extend(some.iter().map(|line| (*line).to_owned()));
        add(DEFAULTS);
        if self.kind != Kind::Sentinel {
            add(DATA);
        }
        if self.kind != Kind::Sentinel && !self.volatile {
            add(DURABLE);
        }
        if self.kind == Kind::Node {
            add(&[
                "cluster-enabled yes",
                "cluster-node-timeout 2000",
                "cluster-replica-no-failover yes",
            ]);
        }
        lines.extend(ports.bus.map(|port| format!("cluster-port {port}")));
        if let (Some(port), Some(certificates)) = (ports.tls, certificates) {
            let file = |path: &Path| path.display().to_string();
            lines.push(format!("tls-port {port}"));
            lines.push(format!("tls-cert-file {}", file(&certificates.certificate())));
            lines.push(format!("tls-key-file {}", file(&certificates.key())));
            lines.push(format!("tls-ca-cert-file {}", file(&certificates.authority())));
            lines.push("tls-auth-clients no".to_owned());
            if self.kind == Kind::Node {
                lines.push("tls-cluster yes".to_owned());
                lines.push("tls-replication yes".to_owned());
            }
        }
        lines.extend_from_slice(&self.lines);
        lines.join("\n") + "\n"
    }
}

#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) plain: u16,
    pub(crate) tls: Option<u16>,
    /// The port for connections between the nodes of a Cluster.
    pub(crate) bus: Option<u16>,
}
