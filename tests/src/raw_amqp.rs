//! A producer that encodes AMQP 0-9-1 frames itself. It can send frames that no client library would send.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Result, ensure};

/// The class id and the method id in the AMQP specification.
type Method = (u16, u16);

const START_OK: Method = (10, 11);
const TUNE: Method = (10, 30);
const TUNE_OK: Method = (10, 31);
const OPEN: Method = (10, 40);
const OPEN_OK: Method = (10, 41);
const CHANNEL_OPEN: Method = (20, 10);
const CHANNEL_OPEN_OK: Method = (20, 11);
const CONFIRM: Method = (85, 10);
const CONFIRM_OK: Method = (85, 11);
const PUBLISH: Method = (60, 40);
const ACK: Method = (60, 80);
const NACK: Method = (60, 120);
/// Marks the property `headers` as present in a content header.
const HAS_HEADERS: u16 = 1 << 13;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

/// A connection with a channel in confirm mode.
pub struct RawProducer {
    stream: TcpStream,
}

impl RawProducer {
    /// Connects to a virtual host of a broker on this machine as the user `guest`, and opens a channel in confirm mode.
    pub fn connect(port: u16, virtual_host: &str) -> Result<Self> {
        let mut raw = Self { stream: TcpStream::connect(("127.0.0.1", port))? };
        raw.stream.write_all(b"AMQP\0\0\x09\x01")?;
        let login = [&table(&[])[..], &short(b"PLAIN"), &long(b"\0guest\0guest"), &short(b"C")];
        raw.call(0, START_OK, &login.concat(), TUNE)?;
        // The client allows one channel and frames of at most 128 KiB, and disables heartbeats.
        raw.send(0, TUNE_OK, &[0, 1, 0, 2, 0, 0, 0, 0])?;
        raw.call(
            0,
            OPEN,
            &[&short(virtual_host.as_bytes())[..], &short(b""), &[0]].concat(),
            OPEN_OK,
        )?;
        raw.call(1, CHANNEL_OPEN, &short(b""), CHANNEL_OPEN_OK)?;
        raw.call(1, CONFIRM, &[0], CONFIRM_OK)?;
        Ok(raw)
    }

    /// Publishes a message and waits for its confirm. The routing key may be any bytes, and `headers` is an encoded
    /// table.
    pub fn publish(
        &mut self,
        exchange: &str,
        key: &[u8],
        headers: &[u8],
        body: &[u8],
    ) -> Result<()> {
        let to = [&[0, 0][..], &short(exchange.as_bytes()), &short(key), &[0]].concat();
        self.send(1, PUBLISH, &to)?;
        let properties = [
            &60_u16.to_be_bytes()[..],
            &[0, 0],
            &(body.len() as u64).to_be_bytes(),
            &HAS_HEADERS.to_be_bytes(),
            headers,
        ];
        self.frame(HEADER, 1, &properties.concat())?;
        self.frame(BODY, 1, body)?;
        self.until(ACK)
    }

    fn call(&mut self, channel: u16, method: Method, args: &[u8], answer: Method) -> Result<()> {
        self.send(channel, method, args)?;
        self.until(answer)
    }

    fn send(&mut self, channel: u16, (class, number): Method, args: &[u8]) -> Result<()> {
        let method = [&class.to_be_bytes()[..], &number.to_be_bytes(), args].concat();
        self.frame(METHOD, channel, &method)
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> Result<()> {
        let size = (payload.len() as u32).to_be_bytes();
        let frame = [&[kind][..], &channel.to_be_bytes(), &size, payload, b"\xce"].concat();
        Ok(self.stream.write_all(&frame)?)
    }

    /// Fails if the broker rejects the message, or closes the channel or the connection.
    fn until(&mut self, (class, number): Method) -> Result<()> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head)?;
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut payload = vec![0; size as usize + 1];
            self.stream.read_exact(&mut payload)?;
            if head[0] != METHOD {
                continue;
            }
            let got = (
                u16::from_be_bytes([payload[0], payload[1]]),
                u16::from_be_bytes([payload[2], payload[3]]),
            );
            if got == (class, number) {
                return Ok(());
            }
            ensure!(got != NACK, "the broker rejects the message (basic.nack)");
            let text = String::from_utf8_lossy(&payload);
            ensure!(got.1 != 50 && got != (20, 40), "the broker refuses the request: {text}");
        }
    }
}

/// Encodes a short string, which has at most 255 bytes.
pub fn short(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8][..], bytes].concat()
}

/// Encodes a long string, or other bytes: first the length, then the bytes.
pub fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// Encodes a table. Each field is a name and an encoded value, which begins with its type.
pub fn table(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let fields: Vec<u8> =
        fields.iter().flat_map(|(name, value)| [&short(name)[..], value].concat()).collect();
    long(&fields)
}

/// Encodes a text as a value of a table.
pub fn text(text: &[u8]) -> Vec<u8> {
    [b"S", &long(text)[..]].concat()
}

/// Encodes `depth` nested arrays as a value of a table.
pub fn nested(depth: u32) -> Vec<u8> {
    (0..depth).fold(b"V".to_vec(), |inner, _| [b"A", &long(&inner)[..]].concat())
}
