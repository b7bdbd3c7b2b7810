//! `broker.management`: the management API of the broker.

use super::scalar::Scalar;

/// The URL of RabbitMQ's management API, without a slash at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagementUrl(pub String);

impl ManagementUrl {
    /// Returns scheme, host and port. Messages name the API by this text, because the path may be confidential.
    pub fn origin(&self) -> String {
        let parsed = self.0.parse::<url::Url>();
        parsed.map(|url| url.origin().ascii_serialization()).unwrap_or_default()
    }
}

impl Scalar for ManagementUrl {
    const FORM: &'static str = "a URL such as \"https://rabbit-1:15671\"";
    const HIDES_VARIABLES: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        // The errors do not show the URL, because a part of it may be a password.
        let parsed = text.parse::<url::Url>().map_err(|_| String::new())?;
        if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
            return Err(String::new());
        }
        if text.contains('@') {
            return Err("write no user: Ordain logs in as the user of `broker.url`".to_owned());
        }
        if parsed.path().trim_end_matches('/').ends_with("/api") {
            return Err("write the URL without `/api`".to_owned());
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err("write no `?` and no `#`".to_owned());
        }
        Ok(Self(parsed.as_str().trim_end_matches('/').to_owned()))
    }

    fn placeholder() -> Option<Self> {
        Some(Self("http://unnamed:15672".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_no_slash_at_its_end() {
        let parsed = |text| ManagementUrl::parse(text).map(|url| url.0);
        assert_eq!(parsed("http://rabbit-1:15672"), Ok("http://rabbit-1:15672".to_owned()));
        assert_eq!(ManagementUrl("http://a:1/secret".to_owned()).origin(), "http://a:1");
        assert_eq!(parsed("https://rabbit/api-proxy/"), Ok("https://rabbit/api-proxy".to_owned()));
        for bad in [
            "",
            "rabbit:15672",
            "amqp://rabbit",
            "http://",
            "http://a:b@rabbit",
            "http://a?b",
            "http://a#b",
            "http://a/api/",
        ] {
            let error = parsed(bad).expect_err(bad);
            assert!(!error.contains("a:b"), "{error}");
        }
    }
}
