//! The connections: to one server, to the master that Sentinels name, or to all masters of a
//! Cluster.
//!
//! A connection that breaks is made anew with the next call, at most one at a time. A call is sent
//! once, except where a Cluster redirects it; whether to send it again is its caller's affair,
//! since only the caller knows whether that is harmless.

mod cluster;
mod connect;
mod nodes;
mod sentinel;
mod single;

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

pub(super) use self::connect::info_field;

use self::connect::wrong;
use self::nodes::Nodes;
use self::single::Single;
use super::script::tag_of;
use ordain_store::RedisAddress as Address;

/// A way to the server, or servers.
pub(super) struct Link {
    to: To,
}

enum To {
    Single(Arc<Single>),
    Cluster(Box<Nodes>),
}

/// What is sent at once.
enum Question<'a> {
    One(&'a Cmd),
    Several(&'a Pipeline),
}

impl Question<'_> {
    /// The hash tag of its keys.
    fn tag(&self) -> Vec<u8> {
        match self {
            Self::One(cmd) => tag_of(cmd),
            Self::Several(pipe) => pipe.cmd_iter().next().map(tag_of).unwrap_or_default(),
        }
    }

    async fn ask(&self, connection: &mut (impl ConnectionLike + Send)) -> RedisResult<Value> {
        match self {
            Self::One(cmd) => cmd.query_async(connection).await,
            Self::Several(pipe) => pipe.query_async(connection).await,
        }
    }
}

impl Link {
    /// Connects, and finds out what is there.
    pub(super) async fn connect(address: &Address) -> RedisResult<Self> {
        if address.tls {
            // Fails where one is installed already, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut first = connect::any(address).await?;
        let to = match &*connect::mode(&mut first).await? {
            "cluster" => {
                let cluster = cluster::connect(address, &mut first).await?;
                To::Cluster(Box::new(Nodes::new(address.clone(), cluster)))
            }
            "sentinel" => {
                let master = sentinel::master_name(&mut first, address).await?;
                let single = Arc::new(Single::new(address.clone(), Some(master)));
                tokio::spawn(single::follow(Arc::downgrade(&single)));
                To::Single(single)
            }
            _ => {
                check_single(address)?;
                To::Single(Arc::new(Single::new(address.clone(), None)))
            }
        };
        if let To::Single(single) = &to {
            single.connection().await?;
        }
        Ok(Self { to })
    }

    /// How often it broke. After each time the servers may have other data than before.
    pub(super) fn breaks(&self) -> u64 {
        match &self.to {
            To::Single(single) => single.breaks(),
            To::Cluster(nodes) => nodes.breaks(),
        }
    }

    /// Like `breaks`, but in a Cluster it counts only calls with keys of this hash tag.
    pub(super) fn breaks_of(&self, tag: &str) -> u64 {
        match &self.to {
            To::Single(single) => single.breaks(),
            To::Cluster(nodes) => nodes.breaks_of(tag.as_bytes()),
        }
    }

    /// What it is connected to, in words.
    pub(super) fn kind(&self) -> &'static str {
        match &self.to {
            To::Single(single) if single.master.is_none() => "Redis",
            To::Single(_) => "Redis under Sentinel",
            To::Cluster(..) => "Redis Cluster",
        }
    }

    /// Sends a command to the node that has its key.
    pub(super) async fn call(&self, cmd: &Cmd) -> RedisResult<Value> {
        let answer = self.send(&Question::One(cmd), u64::MAX).await;
        answer.map(|it| it.unwrap_or(Value::Nil))
    }

    /// Sends a command, unless the link broke more often than so: then there is no answer.
    pub(super) async fn call_unless_broken(
        &self,
        cmd: &Cmd,
        breaks: u64,
    ) -> RedisResult<Option<Value>> {
        self.send(&Question::One(cmd), breaks).await
    }

    /// Sends commands of one node's keys, one right behind the other on one connection. Answers with
    /// an array.
    pub(super) async fn pipe(&self, pipe: &Pipeline) -> RedisResult<Value> {
        let answer = self.send(&Question::Several(pipe), u64::MAX).await;
        answer.map(|it| it.unwrap_or(Value::Nil))
    }

    async fn send(&self, question: &Question<'_>, breaks: u64) -> RedisResult<Option<Value>> {
        match &self.to {
            To::Cluster(..) if self.breaks() > breaks => Ok(None),
            To::Cluster(nodes) => {
                let answer = question.ask(&mut nodes.connection()).await;
                if answer.as_ref().is_err_and(is_broken) {
                    nodes.broke(question.tag()).await;
                } else {
                    nodes.answered(|| question.tag());
                }
                answer.map(Some)
            }
            To::Single(single) => {
                let (mut connection, before) = single.connection().await?;
                if before > breaks {
                    return Ok(None);
                }
                let answer = question.ask(&mut connection).await;
                if answer.as_ref().is_err_and(is_broken) {
                    single.let_go(before);
                }
                answer.map(Some)
            }
        }
    }

    /// Sends a command to every master.
    pub(super) async fn ask_all(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        let To::Cluster(nodes) = &self.to else { return Ok(vec![self.call(cmd).await?]) };
        let to_all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        match nodes.connection().route_command(cmd.clone(), to_all).await?.extract_error()? {
            Value::Map(answers) => Ok(answers.into_iter().map(|(_, answer)| answer).collect()),
            answer => Ok(vec![answer]),
        }
    }
}

/// What only the others can have.
fn check_single(address: &Address) -> RedisResult<()> {
    if let [_, _, ..] = address.hosts[..] {
        return Err(wrong(format!(
            "a single server answers at {address}, and several hosts are for the nodes of one \
             Cluster, or for Sentinels: name one"
        )));
    }
    if address.path.parse::<u32>().is_err() && !address.path.is_empty() {
        return Err(wrong(format!(
            "{address} is a single server, and {:?} is not the number of a database",
            address.path
        )));
    }
    Ok(())
}

/// Whether a new connection may do better.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}
