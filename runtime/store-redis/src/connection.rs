//! The connections: to one server, to the master that Sentinels name, or to all masters of a Cluster.
//!
//! After a connection has broken, the next call opens a new connection; concurrent calls share the result of one
//! attempt to connect. A server executes each call at most once. In a Cluster, this module repeats a call only if it
//! knows that no node has executed the call: a node has redirected or refused the call, or no connection to the node
//! could be opened. In all other cases the caller decides whether to repeat a call, because only the caller can judge
//! whether a repetition is harmless.

mod cluster;
mod connect;
mod master;
mod sentinel;
mod single;

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

pub(super) use self::connect::{info_field, replica_info};

use self::cluster::{Cluster, LINKS_LIMIT};
use self::connect::config_error;
use self::master::SentinelMaster;
use self::single::{ServerTarget, SingleServer};
use super::script::tag_of;
use ordain_store::{RedisAddress, RedisUrl};

pub(super) struct RedisConnection {
    deployment: RedisDeployment,
}

enum RedisDeployment {
    Single(Box<SingleServer>),
    Cluster {
        cluster: Arc<Cluster>,
        /// The index of the link (one of several connections to the same node) that this connection uses to each node.
        link: usize,
    },
}

enum CommandGroup<'a> {
    Command(&'a Cmd),
    Pipeline(&'a Pipeline),
}

impl CommandGroup<'_> {
    fn tag(&self) -> &[u8] {
        match self {
            Self::Command(cmd) => tag_of(cmd),
            Self::Pipeline(pipe) => pipe.cmd_iter().next().map(tag_of).unwrap_or_default(),
        }
    }

    async fn execute(&self, connection: &mut (impl ConnectionLike + Send)) -> RedisResult<Value> {
        match self {
            Self::Command(cmd) => cmd.query_async(connection).await,
            Self::Pipeline(pipe) => pipe.query_async(connection).await,
        }
    }

    /// Executes the commands at a node to which their slot is moving. Before each command, the node needs the command
    /// `ASKING`.
    async fn execute_asking(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<Value> {
        let mut asking = Pipeline::new();
        let mut add = |cmd: &Cmd| {
            asking.add_command(redis::cmd("ASKING")).ignore().add_command(cmd.clone());
        };
        match self {
            Self::Command(cmd) => add(cmd),
            Self::Pipeline(pipe) => pipe.cmd_iter().for_each(add),
        }
        let answers = asking.query_async(connection).await?;
        match (self, answers) {
            (Self::Command(_), Value::Array(mut answers)) => {
                Ok(answers.pop().unwrap_or(Value::Nil))
            }
            (_, answers) => Ok(answers),
        }
    }
}

impl RedisConnection {
    pub(super) async fn connect(url: &RedisUrl) -> RedisResult<Self> {
        let address = &url.refresh();
        if address.tls {
            // Ignore a failure of `install_default`: it means that another crypto provider is already installed. This
            // provider serves the purpose too.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let (mut first, host) = connect::connect_any(address).await?;
        let to = match &*connect::mode(&mut first).await? {
            "cluster" => {
                let cluster = Arc::new(Cluster::connect(url, &mut first, host).await?);
                RedisDeployment::Cluster { cluster, link: 0 }
            }
            "sentinel" => {
                let name = sentinel::master_name(&mut first, address).await?;
                let master = Arc::new(SentinelMaster::new(url.clone(), name));
                tokio::spawn(master::follow_master(Arc::downgrade(&master)));
                let single = SingleServer::new(url.clone(), ServerTarget::Master(master));
                RedisDeployment::Single(Box::new(single))
            }
            _ => {
                check_single(address)?;
                let single = SingleServer::new(url.clone(), ServerTarget::Url);
                RedisDeployment::Single(Box::new(single))
            }
        };
        if let RedisDeployment::Single(single) = &to {
            single.connection().await?;
        }
        Ok(Self { deployment: to })
    }

    /// Returns another connection to the same servers, for commits that wait for replicas: such a commit delays all
    /// later calls on its connection. `number`, from 1 to 8, distinguishes these additional connections.
    pub(super) async fn connect_again(&self, number: usize) -> RedisResult<Self> {
        match &self.deployment {
            RedisDeployment::Single(single) => {
                let link = Box::new(single.another_link());
                link.connection().await?;
                Ok(Self { deployment: RedisDeployment::Single(link) })
            }
            // All links to a Cluster share the table of the slots' masters, and the counts of disconnects.
            RedisDeployment::Cluster { cluster, .. } => {
                let link = number % LINKS_LIMIT;
                let deployment = RedisDeployment::Cluster { cluster: Arc::clone(cluster), link };
                Ok(Self { deployment })
            }
        }
    }

    /// Returns the number of broken connections, plus the number of known changes of a master. A master changes when
    /// the Sentinels name another master, or when slots move between the masters of a Cluster. After each broken
    /// connection and each change of a master, the servers may have other data than before. In a Cluster, the count
    /// covers all links.
    pub(super) fn disconnects(&self) -> u64 {
        match &self.deployment {
            RedisDeployment::Single(single) => single.disconnects(),
            RedisDeployment::Cluster { cluster, .. } => cluster.disconnects(),
        }
    }

    /// Returns the part of [`Self::disconnects`] that concerns the Redis keys with this hash tag. In a Cluster, this
    /// part consists of the broken connections to the nodes that may have these Redis keys, and the replacements of
    /// these nodes by other nodes. Without a Cluster, the part is the whole count.
    pub(super) fn tag_disconnects(&self, tag: &str) -> u64 {
        match &self.deployment {
            RedisDeployment::Single(single) => single.disconnects(),
            RedisDeployment::Cluster { cluster, .. } => cluster.tag_disconnects(tag.as_bytes()),
        }
    }

    /// Returns whether the Redis keys with these hash tags are, or may be, on several nodes of a Cluster.
    pub(super) fn has_several_nodes(&self, tags: &[String]) -> bool {
        match &self.deployment {
            RedisDeployment::Single(_) => false,
            RedisDeployment::Cluster { cluster, .. } => cluster.has_several_masters(tags),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.deployment, RedisDeployment::Cluster { .. })
    }

    pub(super) fn kind(&self) -> &'static str {
        match &self.deployment {
            RedisDeployment::Single(single) if !single.is_under_sentinel() => "Redis",
            RedisDeployment::Single(_) => "Redis under Sentinel",
            RedisDeployment::Cluster { .. } => "Redis Cluster",
        }
    }

    /// Returns a description of the deployment, with the number of masters in a Cluster.
    pub(super) fn deployment(&self, masters: usize) -> String {
        match &self.deployment {
            RedisDeployment::Single(single) if !single.is_under_sentinel() => {
                "one server".to_owned()
            }
            RedisDeployment::Single(_) => "the master that the Sentinels name".to_owned(),
            RedisDeployment::Cluster { .. } => format!("a Cluster of {masters} masters"),
        }
    }

    /// Sends a command to the node that has the command's Redis key.
    pub(super) async fn call(&self, cmd: &Cmd) -> RedisResult<Value> {
        let answer = self.send(&CommandGroup::Command(cmd), u64::MAX).await;
        answer.map(|value| value.unwrap_or(Value::Nil))
    }

    /// Sends a command as [`Self::call`] does, unless the count of [`Self::disconnects`] exceeds `breaks`. In this
    /// case, sends nothing and returns `None`.
    pub(super) async fn call_unless_broken(
        &self,
        cmd: &Cmd,
        breaks: u64,
    ) -> RedisResult<Option<Value>> {
        self.send(&CommandGroup::Command(cmd), breaks).await
    }

    /// Sends commands one directly after the other on one connection. The Redis keys of all commands must be on one
    /// node. Returns the array of the answers.
    pub(super) async fn pipe(&self, pipe: &Pipeline) -> RedisResult<Value> {
        let answer = self.send(&CommandGroup::Pipeline(pipe), u64::MAX).await;
        answer.map(|value| value.unwrap_or(Value::Nil))
    }

    async fn send(&self, commands: &CommandGroup<'_>, breaks: u64) -> RedisResult<Option<Value>> {
        match &self.deployment {
            RedisDeployment::Cluster { cluster, link } => {
                cluster.execute(*link, commands, breaks).await
            }
            RedisDeployment::Single(single) => {
                let (mut connection, before) = single.connection().await?;
                if before > breaks {
                    return Ok(None);
                }
                let answer = commands.execute(&mut connection).await;
                if answer.as_ref().is_err_and(is_broken) {
                    single.drop_broken(before);
                }
                answer.map(Some)
            }
        }
    }

    /// Sends a command to every master, and returns the answers. Without a Cluster, the server is the only master.
    pub(super) async fn call_all_masters(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        match &self.deployment {
            RedisDeployment::Single(_) => Ok(vec![self.call(cmd).await?]),
            RedisDeployment::Cluster { cluster, .. } => cluster.call_all_masters(cmd).await,
        }
    }

    /// Learns the addresses of the nodes that have joined a Cluster. One of these nodes may become master later.
    pub(super) async fn learn_nodes(&self) {
        if let RedisDeployment::Cluster { cluster, .. } = &self.deployment {
            cluster.learn_nodes().await;
        }
    }
}

fn check_single(address: &RedisAddress) -> RedisResult<()> {
    if let [_, _, ..] = address.hosts[..] {
        return Err(config_error(format!(
            "{address} is a single server, but the URL names several hosts. Several hosts must be nodes of one \
             Cluster, or Sentinels: name one host"
        )));
    }
    if address.path.parse::<u32>().is_err() && !address.path.is_empty() {
        return Err(config_error(format!(
            "{address} is a single server, so the path of the URL must be the number of a database, such as 0, or \
             empty; found {:?}",
            address.path
        )));
    }
    Ok(())
}

/// Returns whether the error means that the connection must be replaced. A call on a new connection may succeed.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}
