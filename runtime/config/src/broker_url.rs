//! Parses the URL of the broker.
//!
//! An error must never contain a part of the URL, because any part may belong to the password.

use std::fmt;

use amq_protocol::uri::{AMQPScheme, AMQPUri};
use ordain_util::refreshed_url::{RefreshedUrl, may_show_port};

/// The address of the broker, with the user name and the password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    /// The parts of the URL, including the login.
    pub uri: AMQPUri,
    /// False if the host is missing: the text in the place of the port may then be a password.
    shows_port: bool,
}

/// The URL of the broker. Before each connection, the process rereads the files of variables such as `${file:/path}` in
/// the URL.
pub type BrokerUrl = RefreshedUrl<BrokerAddress>;

impl BrokerAddress {
    /// Parses the URL of the setting `broker.url`. An error describes the fault in words and never contains the
    /// password.
    pub fn parse(url: &str) -> Result<BrokerUrl, String> {
        BrokerUrl::parse("broker.url", url, Self::parse_text)
    }

    /// Parses `url`. The configuration contains this URL as `template`, in which the variables are not replaced.
    fn parse_text(url: &str, template: &str) -> Result<Self, String> {
        let uri = parse(url)?;
        let port = uri.authority.port;
        let default = uri.scheme.default_port();
        Ok(Self { shows_port: may_show_port(url, template, port, default), uri })
    }
}

/// Formats the address without its login. In place of a port that may be a password, writes `${…}`.
impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AMQPUri { scheme, authority, vhost, .. } = &self.uri;
        let tls = if *scheme == AMQPScheme::AMQPS { "s" } else { "" };
        write!(f, "amqp{tls}://{}:", authority.host)?;
        if self.shows_port { write!(f, "{}", authority.port) } else { f.write_str("${…}") }?;
        if vhost == "/" { Ok(()) } else { write!(f, "/{vhost}") }
    }
}

/// Parses the parts of a URL.
///
/// The syntax follows RabbitMQ's URI specification, but without query parameters: a configuration sets the heartbeat
/// with `broker.heartbeat`, not with `?heartbeat=10`.
fn parse(url: &str) -> Result<AMQPUri, String> {
    let rest = ["amqp://", "amqps://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or("must begin with amqp:// or, for TLS, with amqps://")?;
    if url.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(
            "must not contain blanks or line breaks: in a password write %20 and %0A".to_owned()
        );
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(path)),
        None => (rest, None),
    };
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let login_ends_early = [path.unwrap_or_default(), query].iter().any(|part| part.contains('@'));
    if login_ends_early || login.contains('@') || url.contains('#') {
        return Err(
            "in a user's name or password, write %2F for /, %40 for @, %3F for ? and %23 for #"
                .to_owned(),
        );
    }
    if !query.is_empty() {
        return Err("must have no parameters: set the heartbeat with `broker.heartbeat`".to_owned());
    }
    // The AMQP client would replace an empty user or password by a default.
    let is_complete = |(user, password): (&str, &str)| !user.is_empty() && !password.is_empty();
    if authority.contains('@') && !login.split_once(':').is_some_and(is_complete) {
        return Err("needs user:password before the @".to_owned());
    }
    match path {
        Some("") => {
            return Err(
                "ends with a slash, which names a virtual host with an empty name: remove the \
                 slash to use the default virtual host"
                    .to_owned(),
            );
        }
        Some("." | "..") => {
            return Err("the name of a virtual host must not be \".\" or \"..\"".to_owned());
        }
        Some(path) if path.contains('/') => {
            return Err("in the name of a virtual host, write %2F for /".to_owned());
        }
        _ => {}
    }
    // The error does not show `host`: in a mistyped URL, a part of the password may be in the place of the host.
    if host.is_empty() || host.contains([',', '[']) || host.ends_with(":0") {
        return Err(
            "between the login and the virtual host there must be one host (a name or an IPv4 \
                    address) or host:port"
                .to_owned(),
        );
    }
    url.parse().map_err(|_| {
        "between the login and the virtual host there must be a host or host:port".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_its_parts() {
        let full = parse("amqps://shop:p%40ss%2F@host:5000/sh%2Fop").expect("a valid URL");
        assert_eq!(full.authority.userinfo.password, "p@ss/");
        assert_eq!((&*full.authority.host, full.authority.port), ("host", 5_000));
        assert_eq!(full.vhost, "sh/op");
        let short = parse("amqp://127.0.0.1").expect("a valid URL");
        assert_eq!((&*short.authority.host, &*short.vhost), ("127.0.0.1", "/"));
    }

    /// The URL has no host, so the parser mistakes the password for the port.
    #[test]
    fn password_in_place_of_the_port_is_not_shown() {
        for (url, template, shown) in [
            ("amqp://user:12345", "amqp://user:${PASSWORD}", "amqp://user:${…}"),
            ("amqps://user:12345/shop", "${URL}", "amqps://user:${…}/shop"),
            ("amqp://user:12345@h:5000", "${URL}", "amqp://h:5000"),
            ("amqp://h:5000", "amqp://${HOST}:5000", "amqp://h:5000"),
        ] {
            let address = BrokerAddress::parse_text(url, template).expect("a valid URL");
            assert_eq!(address.to_string(), shown, "{url}");
        }
    }

    #[test]
    fn invalid_url_is_rejected_without_showing_the_password() {
        for (url, words) in [
            ("http://secret@h", "must begin with amqp://"),
            ("amqp://u:secret/w@h", "%2F"),
            ("amqp://u:secret@w@h", "%40"),
            ("amqp://u:secret?w@h", "%3F"),
            ("amqp://u:secret#w", "%23"),
            ("amqp://u:secret@h:5672/", "remove the slash"),
            ("amqp://u:secret@h/a/b", "name of a virtual host"),
            ("amqp://u:secret@h?heartbeat=600", "`broker.heartbeat`"),
            ("amqp://u:secret@a:1,b:2", "one host"),
            ("amqp://u:secret@[2001:db8::1]:5672", "one host"),
            ("amqp://u:secret@h:port", "host:port"),
            ("amqp://", "one host"),
            ("amqp://secret:@h", "user:password"),
            ("amqp://secret@h", "user:password"),
            ("amqp://:secret@h", "user:password"),
            ("amqp://:@h", "user:password"),
            ("amqp://@h", "user:password"),
            ("amqp://u:secret@h/..", "\".\" or"),
            ("amqp://u:secret@h:0", "one host"),
            ("amqp://u:secret\n@h", "line breaks"),
        ] {
            let error = parse(url).expect_err(url);
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
