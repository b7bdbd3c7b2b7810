//! Options of a broker.

/// The options of a broker. Tests with equal options can share a broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RabbitOptions {
    pub(super) lines: Vec<String>,
    pub(super) parameters: Vec<[String; 2]>,
    pub(super) tls: bool,
    pub(super) plain: bool,
    pub(super) management: bool,
    pub(super) plugins: Vec<String>,
}

impl RabbitOptions {
    /// Returns the options of a broker with the plugins of Ordain's exchanges and the user `guest`, without TLS.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line of `rabbitmq.conf`.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Sets a parameter of the Erlang application `rabbit` to a value in Erlang's notation, on the command line and not
    /// in `rabbitmq.conf`.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push([name.to_owned(), value.to_owned()]);
        self
    }

    /// Adds a port with TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds the management API ([`Rabbit::management_url`](super::Rabbit::management_url)).
    #[must_use]
    pub fn management(mut self) -> Self {
        self.management = true;
        self
    }

    /// Enables an additional plugin.
    #[must_use]
    pub fn plugin(mut self, name: &str) -> Self {
        self.plugins.push(name.to_owned());
        self
    }

    /// Disables all plugins.
    #[must_use]
    pub fn without_plugins(mut self) -> Self {
        self.plain = true;
        self
    }
}
