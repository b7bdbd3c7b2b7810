//! Inspects the servers of a store for `ordain check --connect`. This module must not write anything.

use std::time::Duration;

use futures_util::future::{BoxFuture, join_all, try_join_all};
use tokio::time::timeout;

use super::connection::{RedisConnection, replica_info};
use super::error::{display_text, start_error, with_address};
use super::server::{ServerSettings, check_replica};
use super::{RedisStore, SCHEMA_VERSION, writable_keys};
use ordain_store::{RedisOptions, StoreError};
use ordain_util::finding::{Finding, Severity};

/// The time limit for the answers of all replicas. A replica may have an address that only its master can reach.
const REPLICAS_TIMEOUT: Duration = Duration::from_secs(3);

impl RedisStore {
    /// Connects once, without retries, and appends one finding for each property that this function checks. These are
    /// the properties of the servers and of the store that [`RedisStore::open`] would refuse or report, and the
    /// settings of the replicas. This function writes nothing, and creates no store. If the caller drops the future,
    /// `findings` keeps the findings that were already appended.
    pub fn inspect(options: RedisOptions, findings: &mut Vec<Finding>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = inspect_all(&options, findings).await {
                findings.push(match with_address(&options.address, error) {
                    StoreError::Unavailable(words) | StoreError::InUse(words) => {
                        Finding::unavailable(words)
                    }
                    error => Finding::error(error.to_string()),
                });
            }
        })
    }

    async fn inspect_store(
        &self,
        options: &RedisOptions,
        findings: &mut Vec<Finding>,
    ) -> Result<(), StoreError> {
        let shards = self.shards;
        findings.push(Finding::note(if self.check_schema(&options.address, false).await? {
            format!("no store with the prefix {:?}: the first start creates one", options.prefix)
        } else {
            format!(
                "a store with the prefix {:?}, {shards} shards and schema {SCHEMA_VERSION}",
                options.prefix
            )
        }));
        // Check every shard, because the shards of a Cluster are on several servers.
        let checks = (0..shards).map(async |shard| {
            let mut call =
                self.script_call(&self.scripts.writable, &writable_keys(&self.names, shard));
            call.arg("");
            self.run_script_once(&self.scripts.writable, &call).await.map_err(start_error)
        });
        findings.push(match try_join_all(checks).await {
            Ok(_) => Finding::note("accepts writes"),
            Err(StoreError::Unavailable(words)) => {
                Finding::unavailable(format!("accepts no writes now: {words}"))
            }
            Err(error) => return Err(error),
        });
        Ok(())
    }
}

async fn inspect_all(
    options: &RedisOptions,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    let link = RedisConnection::connect(&options.address).await.map_err(start_error)?;
    let settings = ServerSettings::read(&link).await?;
    findings.push(Finding::note(format!(
        "{}: {}, {}",
        options.address,
        settings.products(),
        link.deployment(settings.masters())
    )));
    settings.report(options.replicas, findings);
    if findings.iter().any(|finding| finding.severity >= Severity::Unavailable) {
        return Ok(());
    }
    inspect_replicas(options, &settings, findings).await;
    let store = RedisStore::with_connections(link, Vec::new(), &settings, options);
    store.inspect_store(options, findings).await
}

/// Checks the settings of the replicas, because each replica may become master.
async fn inspect_replicas(
    options: &RedisOptions,
    settings: &ServerSettings,
    findings: &mut Vec<Finding>,
) {
    let replicas = settings.replicas();
    let address = options.address.newest();
    let requests = replicas
        .iter()
        .map(|(host, port)| timeout(REPLICAS_TIMEOUT, replica_info(&address, host, *port)));
    for ((host, port), answer) in replicas.iter().zip(join_all(requests).await) {
        let replica = display_text(&format!("{host}:{port}"));
        let unknown = |reason: &str| {
            Finding::note(format!(
                "the settings of the replica {replica} are unknown ({reason}): its maxmemory-policy must be noeviction \
                 too"
            ))
        };
        match answer {
            Ok(Ok(info)) => findings.extend(check_replica(&replica, &info)),
            Ok(Err(error)) => findings.push(unknown(&display_text(&error.to_string()))),
            Err(_) => findings.push(unknown("no answer")),
        }
    }
}
