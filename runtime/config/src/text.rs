//! Values that are text of a certain form: names, paths, addresses, secrets.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::broker_url::{BrokerAddress, BrokerUrl};
use super::reader::{ConfigReader, ReferenceRow, SettingNode, SettingValue};
use super::scalar::Scalar;
use ordain_store::{RedisAddress, RedisUrl};

/// Length limit of a name, in bytes. Names have a limit because they become parts of file names, queue names and metric
/// labels.
const NAME_LIMIT_BYTES: usize = 64;

/// The name of a stream, a sink or a handler, or the prefix of the keys in Redis.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// Returns the name as a shared text.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl ResourceName {
    /// Parses a name. The error describes a valid name.
    pub fn new(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|_| <Self as Scalar>::FORM.to_owned())
    }
}

impl Deref for ResourceName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Scalar for ResourceName {
    const FORM: &'static str = "a name of 1 to 64 letters (a-z, A-Z), digits, `-` and `_` that begins with a letter or digit";

    fn parse(text: &str) -> Result<Self, String> {
        let letters = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        let start = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !letters || !start || text.len() > NAME_LIMIT_BYTES {
            return Err(String::new());
        }
        Ok(Self(text.into()))
    }

    fn placeholder() -> Option<Self> {
        Some(Self("unnamed".into()))
    }
}

/// Tables by name, as under `[streams]`. The reader records the error of an invalid entry, and leaves out the entry.
pub type NamedTables<T> = BTreeMap<ResourceName, T>;

impl<T: SettingValue> SettingValue for NamedTables<T> {
    const FORM: &'static str = "a table of tables, each under its name";
    const ROWS: &'static [ReferenceRow] = T::ROWS;

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let table = reader.any_table(node)?;
        let mut named = Self::new();
        for child in reader.children(&table) {
            let name = ResourceName::parse(child.key).ok();
            if name.is_none() {
                let message =
                    format!("expected {}, found {:?}", <ResourceName as Scalar>::FORM, child.key);
                reader.report(child.line, &node.name, message);
            }
            if let (Some(value), Some(name)) = (T::read(reader, &child), name) {
                named.insert(name, value);
            }
        }
        Some(named)
    }
}

/// The name of a queue, exchange or header in the broker, or a routing key: a text of 1 to 240 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmqpName(pub String);

/// Size limit in bytes. AMQP allows names of up to 255 bytes. Ordain needs the remaining 15 bytes, because it appends a
/// suffix to the name of a queue: `.N` of a partition, `.dropped`, `.N.marker`, `.x123456.marker` or `.version.123456`.
const AMQP_NAME_LIMIT_BYTES: usize = 240;

impl Scalar for AmqpName {
    const FORM: &'static str = "a text of 1 to 240 bytes";

    fn parse(text: &str) -> Result<Self, String> {
        let right = !text.is_empty() && text.len() <= AMQP_NAME_LIMIT_BYTES;
        if right { Ok(Self(text.to_owned())) } else { Err(String::new()) }
    }

    fn placeholder() -> Option<Self> {
        Some(Self("unnamed".to_owned()))
    }
}

/// The exchange of a sink: the name of an exchange, or the empty text for the default exchange of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkExchange(pub String);

impl Scalar for SinkExchange {
    const FORM: &'static str = "a text of 1 to 240 bytes, or \"\" for the default exchange";

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(String::new()));
        }
        AmqpName::parse(text).map(|name| Self(name.0))
    }

    fn placeholder() -> Option<Self> {
        <AmqpName as Scalar>::placeholder().map(|name| Self(name.0))
    }
}

/// A folder or file. A relative path starts at the folder of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl Deref for FilePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl SettingValue for FilePath {
    const FORM: &'static str = "a path";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let text = reader.text(node, Self::FORM)?;
        if text.is_empty() || text.contains('\0') {
            reader.report_wrong_form(node, Self::FORM);
            return None;
        }
        Some(Self(reader.base.join(text.as_ref())))
    }

    fn placeholder() -> Option<Self> {
        Some(Self(PathBuf::from("unnamed")))
    }
}

/// The place from which a source reads lines, or to which a sink writes lines.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FileOrStdio {
    /// `-`: standard input or output.
    Stdio,
    /// A file.
    File(PathBuf),
}

impl SettingValue for FileOrStdio {
    const FORM: &'static str = "a path, or \"-\"";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        match node.value.as_str() {
            Some("-") => Some(Self::Stdio),
            _ => FilePath::read(reader, node).map(|path| Self::File(path.0)),
        }
    }

    fn placeholder() -> Option<Self> {
        Some(Self::Stdio)
    }
}

impl Scalar for SocketAddr {
    const FORM: &'static str = "an address and port such as \"127.0.0.1:7070\" or \"[::1]:0\"";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| match text.strip_prefix("localhost:") {
            Some(port) => format!("write \"127.0.0.1:{port}\""),
            None => String::new(),
        })
    }
}

/// The token of a listener. Its `Debug` form hides the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the token, for authentication only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Minimum length of a token: an attacker could guess a shorter token.
const TOKEN_MIN_BYTES: usize = 16;

impl Scalar for Secret {
    const FORM: &'static str = "a token of at least 16 visible ASCII characters";
    const IS_SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let visible = text.bytes().all(|b| b.is_ascii_graphic());
        if text.len() < TOKEN_MIN_BYTES || !visible {
            return Err("`openssl rand -hex 16` generates a token".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl Scalar for BrokerUrl {
    const FORM: &'static str =
        "a URL such as \"amqp://user:password@host:5672/vhost\" (or amqps://)";
    const IS_SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        BrokerAddress::parse(text)
    }

    fn with_template(self, text: &str, template: &str) -> Result<Self, String> {
        Self::with_template(&self, text, template)
    }

    fn placeholder() -> Option<Self> {
        BrokerAddress::parse("amqp://unnamed").ok()
    }
}

impl Scalar for RedisUrl {
    const FORM: &'static str = "a URL such as \"redis://user:password@host:6379/0\" (or rediss://)";
    const IS_SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        RedisAddress::parse(text)
    }

    fn with_template(self, text: &str, template: &str) -> Result<Self, String> {
        Self::with_template(&self, text, template)
    }

    fn placeholder() -> Option<Self> {
        RedisAddress::parse("redis://unnamed").ok()
    }
}
