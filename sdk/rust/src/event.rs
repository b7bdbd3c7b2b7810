//! The event that a handler is given.

/// One event, its data read as `D`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event<D> {
    /// The stream it runs through.
    pub stream: String,
    /// The unit of order: an order id, an account, a session.
    pub key: String,
    /// Its number within the key, without holes.
    pub sequence: u64,
    /// Its identity as the producer gave it.
    pub id: String,
    /// Its type, for example `order.paid`.
    pub kind: String,
    /// Who produced it.
    pub source: String,
    /// The producer's clock, in ms since the Unix epoch.
    pub time_ms: Option<u64>,
    /// Media type of the data, as the producer gave it.
    pub content_type: String,
    /// Everything else that came with it, names and values, in order.
    pub headers: Vec<(String, String)>,
    /// The data.
    pub data: D,
    /// Whether the producer marked it as the last one of its key. The key then ends whatever the
    /// outcome says.
    pub end_of_sequence: bool,
}

impl<D> Event<D> {
    /// The value of the first header of this name, in whatever case its letters are.
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name))?;
        Some(&header.1)
    }

    /// The same event with other data.
    pub fn with_data<T>(self, data: T) -> Event<T> {
        Event {
            stream: self.stream,
            key: self.key,
            sequence: self.sequence,
            id: self.id,
            kind: self.kind,
            source: self.source,
            time_ms: self.time_ms,
            content_type: self.content_type,
            headers: self.headers,
            data,
            end_of_sequence: self.end_of_sequence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_in_any_case_and_the_first_one_counts() {
        let event = Event::<()> {
            headers: vec![("X-A".into(), "1".into()), ("x-a".into(), "2".into())],
            ..Event::default()
        };
        assert_eq!(event.header("x-A"), Some("1"));
        assert_eq!(event.header("x"), None);
    }
}
