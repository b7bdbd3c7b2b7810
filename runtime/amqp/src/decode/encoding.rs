//! Returns the data in bodies: undoes the compression that the property `content_encoding` names, and removes the
//! encoding of an AMQP value. The result must never exceed the size limit of an event, even if the compressed body is
//! small.

use std::borrow::Cow;
use std::io::{self, Read};

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use lapin::message::Delivery;
use lapin::types::ShortString;

use super::amqp_value::amqp_value;

/// The lowest memory limit of a zstd decoder, as the base-2 logarithm of a number of bytes (8 MiB). All usual levels of
/// compression need at most this memory.
const ZSTD_WINDOW_LOG: u32 = 23;
/// The highest memory limit of a zstd decoder, as the base-2 logarithm of a number of bytes (128 MiB): the default of
/// zstd.
const ZSTD_WINDOW_LOG_LIMIT: u32 = 27;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Deflate,
    Zstd,
}

impl Compression {
    /// Returns the single compression that a content encoding names, and the other codings in the text. Some clients
    /// also write the character set into the property, such as `gzip, utf-8`. Returns `None` if the text names no
    /// compression, or several.
    pub(crate) fn of(content_encoding: &str) -> Option<(Self, String)> {
        let mut found = None;
        let mut others = Vec::new();
        for coding in content_encoding.split([',', ':']).map(str::trim) {
            match (Self::parse(coding), found) {
                (Some(compression), None) => found = Some(compression),
                (Some(_), Some(_)) => return None,
                (None, _) => others.push(coding),
            }
        }
        found.map(|compression| (compression, others.join(", ")))
    }

    fn parse(coding: &str) -> Option<Self> {
        let is = |name| coding.eq_ignore_ascii_case(name);
        if is("gzip") || is("x-gzip") {
            Some(Self::Gzip)
        } else if is("deflate") {
            Some(Self::Deflate)
        } else if is("zstd") {
            Some(Self::Zstd)
        } else {
            None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the decompressed body, or the first `limit + 1` bytes of a larger decompressed body.
    fn decompress(self, body: &[u8], limit: usize) -> io::Result<Vec<u8>> {
        let bound = limit as u64 + 1;
        let mut data = Vec::new();
        match self {
            Self::Gzip => MultiGzDecoder::new(body).take(bound).read_to_end(&mut data)?,
            Self::Deflate if is_zlib(body) => {
                ZlibDecoder::new(body).take(bound).read_to_end(&mut data)?
            }
            Self::Deflate => DeflateDecoder::new(body).take(bound).read_to_end(&mut data)?,
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(body)?;
                let window_log = limit.max(1).ilog2() + 1;
                decoder.window_log_max(window_log.clamp(ZSTD_WINDOW_LOG, ZSTD_WINDOW_LOG_LIMIT))?;
                decoder.take(bound).read_to_end(&mut data)?
            }
        };
        Ok(data)
    }
}

/// Returns whether a body begins with the header of zlib (RFC 1950). Some clients use the name `deflate` for raw
/// DEFLATE (RFC 1951).
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [method, flags, ..]
        if method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31))
}

/// The body of a message without its compression, and without the encoding of an AMQP value.
pub(super) struct PlainBody<'a> {
    pub(super) data: Cow<'a, [u8]>,
    /// The content encoding without the compression; `None` if nothing remains.
    pub(super) encoding: Option<Cow<'a, str>>,
    /// True if the data was an AMQP value. The property `type` then only states that the body was encoded.
    pub(super) is_amqp_value: bool,
}

/// Returns the data in the body of a message. A body with an unknown content encoding remains as it is. The error
/// states that the body does not have the form that its content encoding names, or that the data exceeds `limit` bytes.
pub(super) fn plain_body(delivery: &Delivery, limit: usize) -> Result<PlainBody<'_>, String> {
    let value = amqp_value(delivery);
    let is_amqp_value = value.is_some();
    let body = value.unwrap_or(&delivery.data);
    let encoding = delivery.properties.content_encoding().as_ref().map(ShortString::as_str);
    let Some((compression, rest)) = encoding.and_then(Compression::of) else {
        let encoding = encoding.map(Cow::Borrowed);
        return Ok(PlainBody { data: Cow::Borrowed(body), encoding, is_amqp_value });
    };
    let name = compression.name();
    let data = compression.decompress(body, limit).map_err(|error| {
        format!(
            "the property content_encoding names {name}, but the body is not encoded in this way: {error}"
        )
    })?;
    if data.len() > limit {
        return Err(format!(
            "the decompressed body ({name}) has more than {limit} bytes; runtime.event_size allows {limit} bytes"
        ));
    }
    let encoding = (!rest.is_empty()).then_some(Cow::Owned(rest));
    Ok(PlainBody { data: Cow::Owned(data), encoding, is_amqp_value })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use lapin::BasicProperties;

    use super::*;

    const SIZE_LIMIT: usize = 1 << 20;

    fn plain(encoding: &str, body: Vec<u8>) -> Result<(Vec<u8>, Option<String>), String> {
        let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, body);
        delivery.properties = BasicProperties::default().with_content_encoding(encoding.into());
        let body = plain_body(&delivery, SIZE_LIMIT)?;
        Ok((body.data.into_owned(), body.encoding.map(Cow::into_owned)))
    }

    /// Returns the data in each form, with the encoding that names the form.
    fn compressed(data: &[u8]) -> [(&'static str, Vec<u8>); 5] {
        let level = flate2::Compression::default();
        let mut gzip = GzEncoder::new(Vec::new(), level);
        gzip.write_all(data).expect("memory");
        let gzip = gzip.finish().expect("memory");
        let mut zlib = ZlibEncoder::new(Vec::new(), level);
        zlib.write_all(data).expect("memory");
        let mut raw = DeflateEncoder::new(Vec::new(), level);
        raw.write_all(data).expect("memory");
        let zstd = zstd::encode_all(data, 0).expect("memory");
        [
            ("gzip", gzip.clone()),
            ("X-GZIP", gzip),
            ("deflate", zlib.finish().expect("memory")),
            ("deflate", raw.finish().expect("memory")),
            ("zstd", zstd),
        ]
    }

    #[test]
    fn compression_is_undone_within_the_limit() {
        for data in [&b"{\"a\":1}"[..], b"", &vec![b'x'; SIZE_LIMIT]] {
            for (encoding, body) in compressed(data) {
                let found = plain(encoding, body.clone());
                assert_eq!(found, Ok((data.to_vec(), None)), "{encoding}");
                let found = plain(&format!("{encoding}, utf-8"), body);
                assert_eq!(found, Ok((data.to_vec(), Some("utf-8".to_owned()))), "{encoding}");
            }
        }
    }

    #[test]
    fn decompressed_body_above_the_limit_is_rejected() {
        for (encoding, body) in compressed(&vec![0; 64 * SIZE_LIMIT]) {
            let error = plain(encoding, body).expect_err(encoding);
            assert!(error.contains("runtime.event_size allows 1048576 bytes"), "{error}");
        }
    }

    #[test]
    fn invalid_or_truncated_body_is_rejected() {
        for (encoding, mut body) in compressed(b"{\"a\":1}") {
            body.truncate(body.len() - 1);
            let error = plain(encoding, body).expect_err(encoding);
            assert!(error.contains("the property content_encoding names"), "{error}");
        }
        plain("gzip", b"{}".to_vec()).expect_err("no gzip");
    }

    #[test]
    fn compressed_amqp_value_is_decompressed() {
        for (encoding, body) in compressed(b"{\"a\":1}") {
            let size = u32::try_from(body.len()).expect("a small body").to_be_bytes();
            let value = [&b"\x00\x53\x77\xb0"[..], &size, &body].concat();
            let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, value);
            delivery.properties = BasicProperties::default()
                .with_type("amqp-1.0".into())
                .with_content_encoding(encoding.into());
            let found = plain_body(&delivery, SIZE_LIMIT).expect(encoding);
            assert_eq!(
                (&*found.data, found.is_amqp_value),
                (&b"{\"a\":1}"[..], true),
                "{encoding}"
            );
        }
    }

    #[test]
    fn body_with_another_encoding_is_unchanged() {
        for encoding in ["utf-8", "br", "gzip, gzip", "identity"] {
            let found = plain(encoding, b"{}".to_vec());
            assert_eq!(found, Ok((b"{}".to_vec(), Some(encoding.to_owned()))));
        }
    }
}
