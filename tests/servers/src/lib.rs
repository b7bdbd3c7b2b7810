//! Real servers for tests, each in a private folder on a private port, so that a test can kill, pause, restart and
//! disconnect them: Redis alone, as a Cluster and under a Sentinel, RabbitMQ, and a TCP proxy in front of a server.
//!
//! The crate uses only servers that it has started, and never imitates a server. If a server's program is not
//! installed, the error names the command that installs it. Every call blocks its thread. A server ends when its value
//! is dropped, and when the test's process is killed.

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
pub use proxy::{Counts, Mode, Proxy};
pub use rabbit::{Rabbit, RabbitOptions, rabbit_version};
pub use redis::{Options, Redis, SECOND_ADDRESS, Snapshot};
pub use resp::{Connection, Reply};
pub use running::all_threads_stopped;
pub use sentinel::{CutOff, Sentinel};
pub use tls::Certificates;
pub use wait::{wait_for_command, wait_until};
