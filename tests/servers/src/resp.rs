//! As much of the Redis protocol (version 2) as a test needs to look into a server. It never
//! reconnects or tries again: a test must see what happened.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, bail, ensure};

use crate::wait::DEADLINE;

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// A status such as `OK`, or a value, with bytes that are no UTF-8 replaced.
    Text(String),
    /// An error, with its word in front: `MOVED 866 127.0.0.1:20001`.
    Error(String),
    /// Several, one after the other.
    Array(Vec<Reply>),
}

impl Reply {
    /// The text, or nothing where it is another kind.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, or nothing where it is another kind.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// The parts, none where it is another kind.
    pub fn parts(&self) -> &[Reply] {
        match self {
            Self::Array(parts) => parts,
            _ => &[],
        }
    }
}

/// A connection to a server. It waits at most 30 seconds for an answer.
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
        stream.set_read_timeout(Some(DEADLINE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and waits for its answer, of whatever kind. Fails only where the
    /// connection does.
    pub fn attempt(&mut self, command: &[&str]) -> Result<Reply> {
        self.send(command)?;
        self.receive()
    }

    /// Sends a command and waits for its answer; an error of the server is an error.
    pub fn command(&mut self, command: &[&str]) -> Result<Reply> {
        match self.attempt(command)? {
            Reply::Error(error) => bail!("`{}`: {error}", command.join(" ")),
            reply => Ok(reply),
        }
    }

    /// Sends a command; its answer comes by [`Self::receive`], in the order of the commands.
    pub fn send(&mut self, command: &[&str]) -> Result<()> {
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        Ok(self.stream.get_mut().write_all(request.as_bytes())?)
    }

    /// Waits for the next answer.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("no answer came")?;
        let line = line.strip_suffix("\r\n").context("the server closed the connection")?;
        ensure!(line.is_ascii() && !line.is_empty(), "no answer of Redis: {line:?}");
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
            _ => bail!("no answer of Redis: {line:?}"),
        })
    }

    fn bytes(&mut self, length: usize) -> Result<Reply> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        Ok(Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned()))
    }
}
