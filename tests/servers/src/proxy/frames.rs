//! Finds the ends of requests and replies of the Redis protocol (versions 2 and 3). This module parses no other part of
//! the protocol, and never changes a byte.

/// The result of a search for a request or reply at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// A whole request or reply of this many bytes.
    Complete(usize),
    /// More bytes are needed.
    Incomplete,
    /// The bytes do not follow the Redis protocol.
    Invalid,
}

pub(crate) fn scan(bytes: &[u8]) -> Scan {
    let mut at = 0;
    // The number of values that are still to be read: first the value itself, and then also the elements of each array,
    // map or other aggregate.
    let mut open: usize = 1;
    while open > 0 {
        let Some(kind) = bytes.get(at) else { return Scan::Incomplete };
        let Some(end) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return Scan::Incomplete;
        };
        let line = &bytes[at + 1..at + end];
        at += end + 2;
        open -= 1;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                let Some(length) = number(line) else { return Scan::Invalid };
                let Ok(length) = usize::try_from(length) else { continue };
                match kind {
                    b'$' | b'=' | b'!' => at += length + 2,
                    b'%' => open += 2 * length,
                    // An attribute consists of `length` pairs, and the value that it describes follows.
                    b'|' => open += 2 * length + 1,
                    _ => open += length,
                }
            }
            _ => return Scan::Invalid,
        }
    }
    if at <= bytes.len() { Scan::Complete(at) } else { Scan::Incomplete }
}

/// Returns whether a reply is a push message, which belongs to no request.
pub(crate) fn is_push(answer: &[u8]) -> bool {
    answer.first() == Some(&b'>')
}

fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line).ok()?.parse().ok()
}

#[test]
fn ends_of_requests_and_replies_are_found() {
    for whole in [
        "+OK\r\n",
        "-MOVED 1 127.0.0.1:1\r\n",
        "$3\r\na\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
        "*2\r\n*1\r\n:1\r\n*0\r\n",
        "%1\r\n+a\r\n*1\r\n_\r\n",
        "|1\r\n+ttl\r\n:1\r\n$1\r\na\r\n",
        ">2\r\n+invalidate\r\n*0\r\n",
    ] {
        let more = format!("{whole}+next\r\n");
        assert_eq!(scan(more.as_bytes()), Scan::Complete(whole.len()), "{whole:?}");
        for length in 0..whole.len() {
            assert_eq!(
                scan(&whole.as_bytes()[..length]),
                Scan::Incomplete,
                "{length} of {whole:?}"
            );
        }
    }
    assert_eq!(scan(b"AMQP\0\0\x09\x01\r\n"), Scan::Invalid);
}
