//! The URL of a server. The password in the URL may come from a file that changes while a process runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::expand::{expand_again, has_environment_variable, has_file_variable};
use super::log_throttle::LogThrottle;

/// Minimum time between two warnings about a URL that cannot be refreshed.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

/// The address of a server, parsed from a URL of the configuration.
///
/// If a variable of the URL names a file, for example with a password, [`RefreshedUrl::refresh`] reads the file again.
/// All clones share the newest address and the limit on warnings.
pub struct RefreshedUrl<A>(Arc<UrlSource<A>>);

struct UrlSource<A> {
    /// The name of the setting, for messages.
    setting: &'static str,
    /// The URL as in the configuration, with variables in place of their values.
    template: String,
    parse: UrlParser<A>,
    newest: Mutex<NewestAddress<A>>,
}

struct NewestAddress<A> {
    address: A,
    throttle: LogThrottle,
}

/// A function that parses a URL. Its second argument is the URL as in the configuration, with variables in place of
/// their values. An error must not contain any part of the URL.
pub type UrlParser<A> = fn(&str, &str) -> Result<A, String>;

impl<A: Clone> RefreshedUrl<A> {
    /// Parses `url`, a value of the setting `setting`. The value must not contain variables. For a URL that has
    /// variables in the configuration, call [`Self::with_template`] on the result.
    pub fn parse(setting: &'static str, url: &str, parse: UrlParser<A>) -> Result<Self, String> {
        Ok(Self::new(setting, url, parse(url, url)?, parse))
    }

    fn new(setting: &'static str, template: &str, address: A, parse: UrlParser<A>) -> Self {
        let throttle = LogThrottle::new(WARN_INTERVAL);
        let newest = Mutex::new(NewestAddress { address, throttle });
        Self(Arc::new(UrlSource { setting, template: template.to_owned(), parse, newest }))
    }

    /// Parses `url` as another value of the same setting. `template` is the text of `url` in the configuration, with
    /// variables in place of their values; [`Self::refresh`] replaces these variables again.
    pub fn with_template(&self, url: &str, template: &str) -> Result<Self, String> {
        let address = (self.0.parse)(url, template)?;
        Ok(Self::new(self.0.setting, template, address, self.0.parse))
    }

    /// Returns the newest address, without reading a file.
    pub fn newest(&self) -> A {
        self.lock().address.clone()
    }

    /// Reads each file that a variable of the URL names, and returns the resulting address. If a file cannot be read or
    /// the new URL is invalid, returns the newest valid address; the next call tries again.
    pub fn refresh(&self) -> A {
        let UrlSource { setting, template, parse, .. } = &*self.0;
        if !has_file_variable(template) {
            return self.newest();
        }
        let expanded = expand_again(template).map_err(|error| error.to_string());
        let fresh = expanded.and_then(|url| parse(&url, template));
        let mut newest = self.lock();
        match fresh {
            Ok(fresh) => newest.address = fresh,
            Err(reason) if newest.throttle.allow() => tracing::warn!(
                "cannot refresh `{setting}` from the files that it names: {reason}; using the previous URL"
            ),
            Err(_) => {}
        }
        newest.address.clone()
    }

    /// Returns the next step after a refused login; see [`refused_login_hint`].
    pub fn refused_login_hint(&self) -> Option<String> {
        refused_login_hint(self.0.setting, &self.0.template)
    }

    fn lock(&self) -> MutexGuard<'_, NewestAddress<A>> {
        self.0.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the next step after a refused login, if the URL contains an environment variable: such a variable cannot
/// change while the process runs. `template` is the URL as in the configuration, with variables in place of their
/// values.
pub fn refused_login_hint(setting: &str, template: &str) -> Option<String> {
    has_environment_variable(template).then(|| {
        format!(
            "A process keeps the values of its environment. If the login in `{setting}` has changed, restart the \
             process, or name a file with `${{file:/path}}`, which Ordain reads again before each connection"
        )
    })
}

/// Returns whether a message may show the port of a URL. If the host is missing, as in `redis://user:12345`, the parser
/// mistakes the password for the port. For a URL without `@`, a message may therefore show only the default port, or a
/// port that `template` contains as a number and not as a variable.
pub fn may_show_port(url: &str, template: &str, port: u16, default: u16) -> bool {
    url.contains('@') || port == default || template.contains(&format!(":{port}"))
}

impl<A> Clone for RefreshedUrl<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: Clone + PartialEq> PartialEq for RefreshedUrl<A> {
    fn eq(&self, other: &Self) -> bool {
        self.0.template == other.0.template && self.newest() == other.newest()
    }
}

impl<A: Clone + Eq> Eq for RefreshedUrl<A> {}

/// Formats the newest address. The implementation of `Display` for `A` must not show a password.
impl<A: Clone + fmt::Display> fmt::Display for RefreshedUrl<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.newest().fmt(f)
    }
}

impl<A: Clone + fmt::Display> fmt::Debug for RefreshedUrl<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RefreshedUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_follows_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        let template = format!("${{file:{}}}@h", file.display());
        let parse: UrlParser<String> = |url, _| {
            if url == "odd@h" { Err("odd".to_owned()) } else { Ok(url.to_owned()) }
        };
        let url = RefreshedUrl::parse("store.url", "plain", parse).expect("a URL");
        assert_eq!(url.refresh(), "plain");
        let url = url.with_template("first@h", &template).expect("a URL");
        let clone = url.clone();
        assert_eq!(url.refresh(), "first@h", "a missing file");
        std::fs::write(&file, "second\n").expect("a file");
        assert_eq!((url.newest(), url.refresh()), ("first@h".to_owned(), "second@h".to_owned()));
        for unusable in ["odd", ""] {
            std::fs::write(&file, unusable).expect("a file");
            assert_eq!((&*url.refresh(), &*clone.newest()), ("second@h", "second@h"));
        }
        assert_eq!(
            url.lock().throttle.suppressed(),
            2,
            "only the first of three warnings is logged"
        );
    }

    #[test]
    fn port_that_may_be_a_password_is_hidden() {
        for (url, template, port, is_shown) in [
            ("redis://user:12345", "redis://user:${PASSWORD}", 12_345, false),
            ("redis://user:12345", "${URL}", 12_345, false),
            ("redis://a:7000", "redis://${HOST}:7000", 7_000, true),
            ("redis://a", "${URL}", 6_379, true),
            ("redis://user:12345@a:7000", "${URL}", 7_000, true),
            ("redis://user:12345@a:7000", "redis://user:${PASSWORD}@a:7000", 7_000, true),
        ] {
            assert_eq!(may_show_port(url, template, port, 6_379), is_shown, "{url} {template}");
        }
    }
}
