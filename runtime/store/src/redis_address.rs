//! The address of Redis, parsed from a URL. The URL does not state whether it leads to a single server, a Cluster, or
//! Sentinels. The store detects which of these three kinds the server is. This module must never show the password.

use std::fmt;

use ordain_util::refreshed_url::{RefreshedUrl, may_show_port, refused_login_hint};

const DEFAULT_PORT: u16 = 6379;

/// The parts of a URL of the form `redis[s]://[user:password@]host[:port][,host[:port]…][/path]`.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// `true` to use TLS, for a URL that begins with `rediss`.
    pub tls: bool,
    /// The ACL user; `None` if the URL names none.
    pub user: Option<String>,
    /// The password; `None` if the URL names none.
    pub password: Option<String>,
    /// The first hosts to contact: nodes of one Cluster, Sentinels, or one server.
    pub hosts: Vec<(String, u16)>,
    /// The path after the hosts: the number of a database, or the name of a master for Sentinels.
    pub path: String,
    /// `false` if messages must not show the ports, because a port may be a password. If a URL lacks its host, the
    /// password is in the place of the port.
    shows_ports: bool,
    /// The next step after a refused login, if the URL contains an environment variable.
    pub refused_login_hint: Option<String>,
}

const URL_SETTING: &str = "store.url";

/// The address of Redis. If the URL contains variables such as `${file:/path}`, the process reads the files that they
/// name before each connection.
pub type RedisUrl = RefreshedUrl<RedisAddress>;

impl RedisAddress {
    /// Parses the URL of the setting `store.url`. The error describes the fault without showing the password.
    pub fn parse(url: &str) -> Result<RedisUrl, String> {
        RedisUrl::parse(URL_SETTING, url, Self::parse_text)
    }

    /// Parses `url`. `template` is the text of the setting, before the variables in it were replaced.
    fn parse_text(url: &str, template: &str) -> Result<Self, String> {
        let (tls, rest) = match (url.strip_prefix("redis://"), url.strip_prefix("rediss://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err("the URL must begin with redis:// or, for TLS, rediss://".to_owned()),
        };
        // In a password, `/` and `%` must be written %2F and %25.
        let (rest, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, rest),
        };
        if path.contains('@') {
            return Err("a / or @ in a user name or password must be written %2F or %40".to_owned());
        }
        if path.contains(['/', '?', '#']) {
            return Err(
                "only the number of a database, or the name of a master, may follow the hosts"
                    .to_owned(),
            );
        }
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) = login
                    .split_once(':')
                    .ok_or("the text before the @ must be user:password, or :password")?;
                let user = percent_decode(user)?;
                ((!user.is_empty()).then_some(user), Some(percent_decode(password)?))
            }
        };
        let hosts = hosts.split(',').map(parse_host).collect::<Result<Vec<_>, _>>()?;
        let shows_ports =
            hosts.iter().all(|(_, port)| may_show_port(url, template, *port, DEFAULT_PORT));
        let refused_login_hint = refused_login_hint(URL_SETTING, template);
        let path = percent_decode(path)?;
        Ok(Self { tls, user, password, hosts, path, shows_ports, refused_login_hint })
    }
}

fn parse_host(text: &str) -> Result<(String, u16), String> {
    let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, port)) => (name, port.strip_prefix(':').or(port.is_empty().then_some(""))),
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port {
        Some("") => Some(DEFAULT_PORT),
        Some(port) => port.parse().ok().filter(|port| *port != 0),
        None => None,
    };
    match port {
        Some(port) if !name.is_empty() && !name.contains(char::is_whitespace) => {
            Ok((name.to_owned(), port))
        }
        // The error does not show the text, because it may be a part of a password.
        _ => Err("each host between the login and the path must be a name, an address or host:port; separate several hosts \
                by commas"
            .to_owned()),
    }
}

/// Replaces each `%XX` by the byte with these two hexadecimal digits. Returns an error for any other use of `%`, and if
/// the result is not UTF-8.
fn percent_decode(text: &str) -> Result<String, String> {
    const NOT_HEXADECIMAL_ERROR: &str =
        "a % must be followed by two hexadecimal digits (% itself is written %25)";
    const NOT_UTF8_ERROR: &str =
        "the bytes that the URL writes with % and two hexadecimal digits must be a text in UTF-8";
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let high = digit(bytes.next());
        let low = digit(bytes.next());
        let (high, low) = high.zip(low).ok_or(NOT_HEXADECIMAL_ERROR)?;
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).map_err(|_| NOT_UTF8_ERROR.to_owned())
}

/// Writes the hosts, for messages. If a port may be a password, writes `${…}` in place of every port.
impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (host, port)) in self.hosts.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            if self.shows_ports {
                write!(f, "{comma}{host}:{port}")?;
            } else {
                write!(f, "{comma}{host}:${{…}}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let parse = |url| RedisAddress::parse_text(url, url).expect("a right URL");
        let one = parse("redis://localhost");
        assert_eq!((one.tls, &one.hosts[..]), (false, &[("localhost".to_owned(), 6379)][..]));
        assert_eq!((one.user, one.password, one.path), (None, None, String::new()));
        let full = parse("rediss://shop:p%40ss%2F%25@a:7000,[::1]:7001,[::2]/main");
        assert!(full.tls);
        assert_eq!(full.to_string(), "a:7000,::1:7001,::2:6379");
        assert_eq!(full.user.as_deref(), Some("shop"));
        assert_eq!(full.password.as_deref(), Some("p@ss/%"));
        assert_eq!(full.path, "main");
        assert!(!format!("{full:?}").contains("p@ss"));
        let only_password = parse("redis://:secret@h/3");
        assert_eq!((only_password.user, only_password.password), (None, Some("secret".into())));
    }

    /// The URL lacks its host, so the password is in the place of the port.
    #[test]
    fn password_in_place_of_the_port_is_not_shown() {
        for (url, template) in [
            ("redis://user:12345", "redis://user:${PASSWORD}"),
            ("redis://user:12345/3", "${URL}"),
            ("redis://user:12345,b:7000", "redis://user:${PASSWORD},b:7000"),
        ] {
            let address = RedisAddress::parse_text(url, template).expect("a valid URL");
            let shown = format!("{address} {address:?}");
            assert!(shown.starts_with("user:${…}") && !shown.contains("12345"), "{shown}");
        }
        let named = RedisAddress::parse_text("redis://u:12345@h:7000", "${URL}").expect("a URL");
        assert_eq!(named.to_string(), "h:7000");
    }

    #[test]
    fn error_distinguishes_wrong_digits_from_wrong_text() {
        for (url, right) in [
            ("redis://:sec%2ret@h", "followed by two hexadecimal digits"),
            ("redis://:sec%ffret@h", "must be a text in UTF-8"),
            ("redis://h/%ff", "must be a text in UTF-8"),
        ] {
            let words = RedisAddress::parse(url).expect_err(url);
            assert!(words.contains(right), "{url}: {words}");
        }
    }

    #[test]
    fn wrong_urls_are_refused_without_password() {
        for url in [
            "http://h",
            "redis://",
            "redis://:secret@",
            "redis://secret@h",
            "redis://:secret@h:port",
            "redis://:secret@h:0",
            "redis://:secret@h:70000",
            "redis://:secret@a,,b",
            "redis://:sec%2ret@h/%g",
            "redis://:secret@h/0?x=1",
            "redis://:secret@[::1",
            "redis://:secret@[::1]x",
            "redis://user:secret",
            "redis://user:12/secret@h",
            "redis://:secret/x@h",
        ] {
            let words = RedisAddress::parse(url).expect_err(url);
            assert!(!words.is_empty() && !words.contains("secret"), "{url}: {words}");
        }
    }
}
