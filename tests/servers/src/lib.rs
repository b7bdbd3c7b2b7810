//! Real servers for tests: RabbitMQ, and Redis as a single server, as a Cluster and under a Sentinel. Each server has a
//! private folder and private ports, so that a test can kill, pause and restart the server. A TCP proxy in front of a
//! server disturbs the connections to the server.
//!
//! The crate uses only servers that it has started, and never imitates a server. If a server's program is not
//! installed, the error names the command that installs it. Every call blocks its thread. A server ends when its value
//! is dropped, and at the latest when the test's process ends or is killed. A broker that several tests share ends only
//! with the process.

mod clock;
mod cluster;
mod port;
mod preload;
mod process;
mod proxy;
mod rabbit;
mod redis;
mod resp;
mod running;
mod sentinel;
mod tls;
mod wait;

pub use clock::Clock;
pub use cluster::{Cluster, Migration, Takeover};
pub use port::Port;
pub use preload::compile_preload;
pub use process::send_signal;
pub use proxy::{Mode, Proxy, ProxyCounts};
pub use rabbit::{Rabbit, RabbitOptions, rabbit_version};
pub use redis::{Options, Redis, SECOND_ADDRESS, Snapshot};
pub use resp::{Connection, Reply};
pub use running::all_threads_stopped;
pub use sentinel::{CutOff, Sentinel};
pub use tls::Certificates;
pub use wait::{wait_for_command, wait_until};
