//! The part of the Redis protocol (version 2) that tests need to query a server. This module never reconnects or
//! retries, because a test must see each failure.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

use crate::wait::WAIT_TIMEOUT;

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// A status such as `OK`, or a value, with invalid UTF-8 replaced.
    Text(String),
    /// An error that starts with its code: `MOVED 866 127.0.0.1:20001`.
    Error(String),
    /// Several replies, in order.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the text, or `None` for another kind of reply.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the number, or `None` for another kind of reply.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// Returns the elements of an array, or an empty slice for another kind of reply.
    pub fn parts(&self) -> &[Reply] {
        match self {
            Self::Array(parts) => parts,
            _ => &[],
        }
    }
}

/// A connection to a server. The connection waits at most a minute for a reply.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to a port of 127.0.0.1.
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("cannot connect to 127.0.0.1:{port}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and waits for its reply. Returns an error only if no valid reply arrives; a reply that reports
    /// an error is a [`Reply::Error`].
    pub fn attempt(&mut self, command: &[&str]) -> Result<Reply> {
        self.send(command)?;
        self.receive()
    }

    /// Sends a command and waits for its reply. Returns an error if no valid reply arrives, or if the reply reports an
    /// error.
    pub fn command(&mut self, command: &[&str]) -> Result<Reply> {
        match self.attempt(command)? {
            Reply::Error(error) => bail!("`{}`: {error}", command.join(" ")),
            reply => Ok(reply),
        }
    }

    /// Sends a command; [`Self::receive`] returns the replies in the order of the commands.
    pub fn send(&mut self, command: &[&str]) -> Result<()> {
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        Ok(self.stream.get_mut().write_all(request.as_bytes())?)
    }

    /// Waits for the next reply.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("no reply arrived")?;
        let line = line.strip_suffix("\r\n").context("the server closed the connection")?;
        ensure!(line.is_ascii() && !line.is_empty(), "not a reply of Redis: {line:?}");
        let (kind, rest) = line.split_at(1);
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(rest.parse()?),
            "$" | "*" if rest == "-1" => Reply::Nil,
            "$" => self.bytes(rest.parse()?)?,
            "*" => Reply::Array(
                (0..rest.parse::<usize>()?).map(|_| self.receive()).collect::<Result<_>>()?,
            ),
            _ => bail!("not a reply of Redis: {line:?}"),
        })
    }

    fn bytes(&mut self, length: usize) -> Result<Reply> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        Ok(Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned()))
    }
}
