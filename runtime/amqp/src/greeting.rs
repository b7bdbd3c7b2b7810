//! The greeting of a broker: the properties that the broker sends before the login. The client library does not show
//! these properties.

use std::io;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lapin::runtime;
use lapin::tcp::AMQPUriTcpExt;
use lapin::uri::AMQPUri;
use tokio::time::timeout;

use super::connect::install_tls_provider;
use ordain_util::text::{escape_invisible, truncated};

/// The name and version of the protocol, AMQP 0-9-1.
const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";
/// The type of a frame that contains a method (a command of AMQP).
const METHOD_FRAME: u8 = 1;
/// The length of the part of a frame before its content, in bytes: the type, the channel and the length of the content.
const FRAME_HEADER_LENGTH: usize = 7;
/// Maximum accepted length of the greeting, in bytes. RabbitMQ sends about 500 bytes.
const GREETING_LIMIT: usize = 64 << 10;
/// Maximum length of a property, in bytes. Longer properties are truncated, because messages for operators contain
/// them.
const PROPERTY_LIMIT: usize = 100;
/// Time limit for the greeting, including the connection and the TLS handshake.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// The product and version of a broker; `unknown` if the greeting lacks the property.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BrokerGreeting {
    product: String,
    version: String,
}

impl BrokerGreeting {
    pub(super) async fn read(uri: &AMQPUri) -> io::Result<Self> {
        let content = timeout(GREETING_TIMEOUT, read_content(uri)).await;
        let content = content.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let unknown = || "unknown".to_owned();
        Ok(Self {
            product: text_property(&content, "product").unwrap_or_else(unknown),
            version: text_property(&content, "version").unwrap_or_else(unknown),
        })
    }

    /// Returns the product and the version, for messages to operators.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.product, self.version)
    }

    /// Returns `None` if the product is not RabbitMQ, or if the version does not begin with two numbers.
    pub(super) fn rabbitmq_version(&self) -> Option<(u64, u64)> {
        if self.product != "RabbitMQ" {
            return None;
        }
        let mut numbers = self.version.split('.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }
}

async fn read_content(uri: &AMQPUri) -> io::Result<Vec<u8>> {
    install_tls_provider(uri);
    let runtime = runtime::default_runtime().map_err(io::Error::other)?;
    let mut stream = uri.connect_async(&runtime).await?;
    stream.write_all(PROTOCOL_HEADER).await?;
    stream.flush().await?;
    let mut header = [0; FRAME_HEADER_LENGTH];
    stream.read_exact(&mut header).await?;
    let [kind, _, _, length @ ..] = header;
    let length = u32::from_be_bytes(length) as usize;
    if kind != METHOD_FRAME || length > GREETING_LIMIT {
        return Err(io::Error::other("the server sent no valid greeting of AMQP 0-9-1"));
    }
    let mut content = vec![0; length];
    stream.read_exact(&mut content).await?;
    Ok(content)
}

/// Returns the value of a text property from the greeting's content; `None` if the property is missing or incomplete.
/// Searches for the bytes of the property's name and type, and does not parse the other properties.
fn text_property(content: &[u8], name: &str) -> Option<String> {
    let start = [&[u8::try_from(name.len()).ok()?], name.as_bytes(), b"S"].concat();
    let at = content.windows(start.len()).position(|part| part == start)? + start.len();
    let (length, rest) = content[at..].split_first_chunk()?;
    let text = rest.get(..u32::from_be_bytes(*length) as usize)?;
    let text = truncated(String::from_utf8_lossy(text).into_owned(), PROPERTY_LIMIT);
    Some(escape_invisible(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(properties: &[(&str, &str)]) -> Vec<u8> {
        let mut content = vec![0, 10, 0, 10, 0, 9];
        for (name, value) in properties {
            content.push(name.len() as u8);
            content.extend(name.as_bytes());
            content.push(b'S');
            content.extend((value.len() as u32).to_be_bytes());
            content.extend(value.as_bytes());
        }
        content
    }

    #[test]
    fn product_and_version_are_read() {
        let content =
            content(&[("platform", "Erlang"), ("product", "RabbitMQ"), ("version", "4.0.5")]);
        let property = |name| text_property(&content, name).expect("a property");
        let greeting =
            BrokerGreeting { product: property("product"), version: property("version") };
        assert_eq!(greeting.name(), "RabbitMQ 4.0.5");
        assert_eq!(greeting.rabbitmq_version(), Some((4, 0)));
        assert_eq!(BrokerGreeting { product: "Other".into(), ..greeting }.rabbitmq_version(), None);
    }

    /// A broker may send an incomplete greeting.
    #[test]
    fn incomplete_greeting_has_no_properties() {
        let whole = content(&[("version", "4.0.5")]);
        for end in 0..whole.len() {
            assert_eq!(text_property(&whole[..end], "version"), None, "{end}");
        }
    }
}
