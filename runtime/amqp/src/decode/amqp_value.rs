//! Reads a message that a client of AMQP 1.0 has sent as an AMQP value. Such a value is a text or bytes, encoded
//! together with their type, instead of plain data. RabbitMQ delivers the encoding of such a value as the body of the
//! message. This module must not copy the body, and must not read any other part of a message of AMQP 1.0.

use lapin::message::Delivery;

/// The value of the property `type` in a message whose body is the encoding of an AMQP value or an AMQP sequence.
const ENCODED_TYPE: &str = "amqp-1.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageSection {
    Value,
    Footer,
}

impl MessageSection {
    fn of_code(code: u64) -> Option<Self> {
        match code {
            0x77 => Some(Self::Value),
            0x78 => Some(Self::Footer),
            _ => None,
        }
    }

    fn of_name(name: &[u8]) -> Option<Self> {
        match name {
            b"amqp:amqp-value:*" => Some(Self::Value),
            b"amqp:footer:map" => Some(Self::Footer),
            _ => None,
        }
    }
}

/// Returns the text or the bytes of an AMQP value. Returns `None` for plain data, for a value of another type (such as
/// a map), and for a body that is not the encoding of a value.
pub(super) fn amqp_value(delivery: &Delivery) -> Option<&[u8]> {
    let kind = delivery.properties.kind().as_ref()?;
    if kind.as_str() == ENCODED_TYPE { decode_value(&delivery.data) } else { None }
}

/// Decodes a body that consists of a value, and possibly a footer after the value.
fn decode_value(body: &[u8]) -> Option<&[u8]> {
    let (MessageSection::Value, value) = split_descriptor(body)? else { return None };
    let (data, rest) = match value.split_first()? {
        // Bytes and texts of up to 255 bytes.
        (0xa0 | 0xa1, rest) => split_short(rest)?,
        // Bytes and texts of any size.
        (0xb0 | 0xb1, rest) => split_long(rest)?,
        _ => return None,
    };
    let is_whole =
        rest.is_empty() || matches!(split_descriptor(rest), Some((MessageSection::Footer, _)));
    is_whole.then_some(data)
}

/// Splits the descriptor of a section, which is a number or a name, from the content of the section.
fn split_descriptor(body: &[u8]) -> Option<(MessageSection, &[u8])> {
    let (0x00, described) = body.split_first()? else { return None };
    let (section, content) = match described.split_first()? {
        (0x53, rest) => {
            let (code, content) = rest.split_first()?;
            (MessageSection::of_code((*code).into()), content)
        }
        (0x80, rest) => {
            let (code, content) = rest.split_first_chunk()?;
            (MessageSection::of_code(u64::from_be_bytes(*code)), content)
        }
        (0xa3, rest) => {
            let (name, content) = split_short(rest)?;
            (MessageSection::of_name(name), content)
        }
        (0xb3, rest) => {
            let (name, content) = split_long(rest)?;
            (MessageSection::of_name(name), content)
        }
        _ => return None,
    };
    Some((section?, content))
}

/// Splits bytes that begin with a size in one byte. Returns the value of this size, and the rest.
fn split_short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first()?;
    rest.split_at_checked((*size).into())
}

/// Splits bytes that begin with a size in four bytes. Returns the value of this size, and the rest.
fn split_long(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*size)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptors of an AMQP value: a small number, a large number, a short name and a long name.
    const DESCRIPTORS: [&[u8]; 4] = [
        b"\x00\x53\x77",
        b"\x00\x80\0\0\0\0\0\0\0\x77",
        b"\x00\xa3\x11amqp:amqp-value:*",
        b"\x00\xb3\0\0\0\x11amqp:amqp-value:*",
    ];

    #[test]
    fn texts_and_bytes_are_decoded() {
        let long = [b"\xb1\0\0\x01\x2c".as_slice(), &[b'x'; 300]].concat();
        let cases: [(&[u8], &[u8]); 6] = [
            (b"\xa1\x02{}", b"{}"),
            (b"\xa0\x02\xff\x00", b"\xff\x00"),
            (b"\xb1\0\0\0\x02{}", b"{}"),
            (b"\xb0\0\0\0\x03\x01\x02\x03", b"\x01\x02\x03"),
            (b"\xa1\x00", b""),
            (&long, &[b'x'; 300]),
        ];
        for descriptor in DESCRIPTORS {
            for (value, data) in cases {
                let body = [descriptor, value].concat();
                assert_eq!(decode_value(&body), Some(data), "{body:?}");
                for footer in
                    [&b"\x00\x53\x78\xc1\x01\x00"[..], b"\x00\xa3\x0famqp:footer:map\xc1\x01\x00"]
                {
                    let body = [descriptor, value, footer].concat();
                    assert_eq!(decode_value(&body), Some(data), "{body:?}");
                }
            }
        }
    }

    /// A body that ends too early, states a wrong size or has another form is not decoded.
    #[test]
    fn other_bodies_are_not_decoded() {
        for descriptor in DESCRIPTORS {
            for value in [&b"\xa1\x05hello"[..], b"\xb0\0\0\0\x05hello"] {
                let body = [descriptor, value].concat();
                assert!(decode_value(&body).is_some(), "{body:?}");
                for end in 0..body.len() {
                    assert_eq!(decode_value(&body[..end]), None, "{:?}", &body[..end]);
                }
                let with_rest = [&body[..], b"!"].concat();
                assert_eq!(decode_value(&with_rest), None, "{with_rest:?}");
            }
            for value in [
                // A null, a number, a symbol, a list, a map and a nested value.
                &b"\x40"[..],
                b"\x54\x01",
                b"\xa3\x01a",
                b"\x45",
                b"\xc1\x01\x00",
                b"\x00\x53\x77\xa1\x01a",
                b"\xb1\xff\xff\xff\xffa",
                b"\xa1\xffa",
            ] {
                let body = [descriptor, value].concat();
                assert_eq!(decode_value(&body), None, "{body:?}");
            }
        }
        // A data section, a sequence, a footer, and descriptor numbers that belong to no section.
        for body in [
            &b"\x00\x53\x75\xa0\x01a"[..],
            b"\x00\x53\x76\x45",
            b"\x00\x53\x78\xa1\x01a",
            b"\x00\x80\xff\xff\xff\xff\xff\xff\xff\x77\xa1\x01a",
            b"\x01\x53\x77\xa1\x01a",
            b"{}",
        ] {
            assert_eq!(decode_value(body), None, "{body:?}");
        }
    }
}
