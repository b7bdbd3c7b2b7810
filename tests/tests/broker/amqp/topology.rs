//! Tests of exchanges, queues, bindings and logins that change in the broker while a stream runs, or between two
//! starts.

mod bindings;
mod exchanges;
mod foreign;
mod logins;
mod messages;
mod queues;
mod stream_queues;

use anyhow::Result;
use ordain_tests::http::{admin, get, metric};
use ordain_tests::service::Service;

fn changes(service: &mut Service) -> Result<u64> {
    Ok(metric(admin(service)?, "ordain_topology_changes_total")?.unwrap_or(0))
}

fn until_not_ready(service: &mut Service) -> Result<()> {
    let address = admin(service)?;
    service.until("unreadiness", || get(address, "/readyz").is_ok_and(|page| page.status == 503))
}
