//! The URL of a broker.

use amq_protocol::uri::AMQPUri;

/// Takes a URL apart; the error says in words what is wrong, without showing the password.
///
/// As in RabbitMQ's URI specification, but for parameters: what they would say is a setting here.
pub fn parse(url: &str) -> Result<AMQPUri, String> {
    let rest = ["amqp://", "amqps://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or("it begins with amqp:// or, for TLS, with amqps://")?;
    if url.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err("it has no blanks and no line breaks: in a password they are written %20, %0A"
            .to_owned());
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(path)),
        None => (rest, None),
    };
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let login_ends_early = [path.unwrap_or_default(), query].iter().any(|it| it.contains('@'));
    if login_ends_early || login.contains('@') || url.contains('#') {
        return Err("a /, @, ? or # in a user's name or password is written %2F, %40, %3F or %23"
            .to_owned());
    }
    if !query.is_empty() {
        return Err("it has no parameters: the heartbeat is `broker.heartbeat`".to_owned());
    }
    // One that is empty would be taken for the default one.
    if !login.is_empty() && login.split_once(':').is_none_or(|(_, password)| password.is_empty()) {
        return Err("before the @ comes user:password".to_owned());
    }
    match path {
        Some("") => {
            return Err("the slash at its end names a virtual host without a name: leave it away \
                        for the default one"
                .to_owned());
        }
        Some("." | "..") => {
            return Err("a virtual host cannot be named by dots alone".to_owned());
        }
        Some(path) if path.contains('/') => {
            return Err("a / in the name of a virtual host is written %2F".to_owned());
        }
        _ => {}
    }
    // Not shown: it may be a part of a password.
    if host.is_empty() || host.contains([',', '[']) || host.ends_with(":0") {
        return Err(
            "what stands between the login and the virtual host is one host, by its name or \
                    IPv4 address, or host:port"
                .to_owned(),
        );
    }
    url.parse().map_err(|_| {
        "what stands between the login and the virtual host is no host, or host:port".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let full = parse("amqps://shop:p%40ss%2F@host:5000/sh%2Fop").expect("a right URL");
        assert_eq!(full.authority.userinfo.password, "p@ss/");
        assert_eq!((&*full.authority.host, full.authority.port), ("host", 5_000));
        assert_eq!(full.vhost, "sh/op");
        let short = parse("amqp://127.0.0.1").expect("a right URL");
        assert_eq!((&*short.authority.host, &*short.vhost), ("127.0.0.1", "/"));
    }

    #[test]
    fn wrong_urls_are_refused_without_showing_the_password() {
        for (url, words) in [
            ("http://secret@h", "begins with amqp://"),
            ("amqp://u:secret/w@h", "%2F"),
            ("amqp://u:secret@w@h", "%40"),
            ("amqp://u:secret?w@h", "%3F"),
            ("amqp://u:secret#w", "%23"),
            ("amqp://u:secret@h:5672/", "leave it away"),
            ("amqp://u:secret@h/a/b", "virtual host is written"),
            ("amqp://u:secret@h?heartbeat=600", "`broker.heartbeat`"),
            ("amqp://u:secret@a:1,b:2", "one host"),
            ("amqp://u:secret@[2001:db8::1]:5672", "one host"),
            ("amqp://u:secret@h:port", "host:port"),
            ("amqp://", "one host"),
            ("amqp://secret:@h", "user:password"),
            ("amqp://secret@h", "user:password"),
            ("amqp://u:secret@h/..", "dots"),
            ("amqp://u:secret@h:0", "one host"),
            ("amqp://u:secret\n@h", "line breaks"),
        ] {
            let error = parse(url).expect_err(url);
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
