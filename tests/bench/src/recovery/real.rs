//! Measures gaps in the host. The source of the stream is a file that lacks one event of each key, and a server returns
//! the missing events.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::TcpListener as Reserved;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::open::open_store;
use anyhow::{Context as _, Result, ensure};
use ordain_config::LoadedConfig;
use ordain_store::KeyFilter;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::Plan;
use crate::CommonArgs;
use crate::amqp::admin;
use crate::amqp::side::RunningSide;

/// Number of gaps that begin together. At this number, no request waits for the requests of other gaps. The next gaps
/// begin after [`GAP_GROUP_INTERVAL`].
const GAP_GROUP_SIZE: usize = 20;
const GAP_GROUP_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two requests for the number of ended gaps.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for all gaps to end.
const GAPS_TIMEOUT: Duration = Duration::from_mins(1);
const STREAM: &str = "bench";

/// Returns the mean duration of `gaps` gaps, according to the gap histories of the keys.
pub(super) async fn mean(plan: &Plan, common: &CommonArgs, gaps: usize) -> Result<Duration> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", server.local_addr()?);
    tokio::spawn(serve(server, *plan));
    let home = tempfile::tempdir()?;
    let port = Reserved::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = format!(
        "[plugins]\ndir = \"{}\"\n[admin]\nlisten = \"127.0.0.1:{port}\"\n[streams.{STREAM}]\n\
         handler = \"probe\"\nsource = {{ kind = \"file\", path = \"events.ndjson\" }}\n{}",
        common.plugins.canonicalize()?.display(),
        plan.settings(&url)
    );
    fs::write(home.path().join("ordain.toml"), config)?;
    let events = home.path().join("events.ndjson");
    File::create(&events)?;
    let mut host = RunningSide::on(&common.ordain, home.path())?;
    let mut file = OpenOptions::new().append(true).open(&events)?;
    for first in (0..gaps).step_by(GAP_GROUP_SIZE) {
        let keys = first..(first + GAP_GROUP_SIZE).min(gaps);
        let lines = keys.flat_map(|key| [1, 3].map(|sequence| line(key, sequence)));
        file.write_all(lines.collect::<String>().as_bytes())?;
        sleep(GAP_GROUP_INTERVAL).await;
    }
    let started = Instant::now();
    while ended(port).await? < gaps {
        host.check()?;
        ensure!(started.elapsed() < GAPS_TIMEOUT, "not all gaps have ended");
        sleep(POLL_INTERVAL).await;
    }
    host.finish()?;
    let loaded = LoadedConfig::load(&home.path().join("ordain.toml"))?;
    let store = open_store(&loaded, Some(GAPS_TIMEOUT)).await?;
    let mut sum = 0;
    let mut count = 0;
    let mut filter = KeyFilter { limit: 1_000, ..KeyFilter::default() };
    loop {
        let page = store.keys(STREAM, &filter).await?;
        for row in page.rows {
            let record = row.record.map_err(anyhow::Error::msg)?;
            let gap = record.gaps.iter().next().context("the gap history of a key is empty")?;
            sum += gap.lasted(gap.until);
            count += 1;
        }
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    ensure!(count == gaps, "the store has {count} gaps instead of {gaps}");
    Ok(Duration::from_millis(sum) / u32::try_from(gaps)?)
}

fn line(key: usize, sequence: u64) -> String {
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"{key}/{sequence}\",\"source\":\"/bench\",\"type\":\"noop\",\
         \"subject\":\"{key}\",\"sequence\":{sequence},\"data\":{{}}}}\n"
    )
}

/// Returns the number of keys whose gap has ended: the missing event has arrived, or the key is parked.
async fn ended(port: u16) -> Result<usize> {
    // The request fails while the host does not listen yet.
    let metrics = admin::get(port, "/metrics").await.unwrap_or_default();
    let of = |name: &str| {
        let lines =
            metrics.lines().filter_map(|line| line.strip_prefix(name)?.split(' ').next_back());
        lines.filter_map(|number| number.parse::<usize>().ok()).sum::<usize>()
    };
    let found = of("ordain_recovery_seconds_count");
    Ok(found + of("ordain_parked_keys"))
}

/// Answers each request with the delays and failures of the plan.
async fn serve(listener: TcpListener, plan: Plan) {
    let random = Arc::new(Mutex::new(ChaCha8Rng::seed_from_u64(2)));
    while let Ok((stream, _)) = listener.accept().await {
        // The benchmark ignores errors of the spawned task, because a client may close its connection.
        tokio::spawn(answer(stream, plan, Arc::clone(&random)));
    }
}

async fn answer(stream: TcpStream, plan: Plan, random: Arc<Mutex<ChaCha8Rng>>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let path = head.split(' ').nth(1).context("the request has no path")?;
        let (key, sequence) =
            path.trim_start_matches('/').split_once('/').context("the path names no event")?;
        let is_found = {
            let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
            random.random_bool(plan.success)
        };
        sleep(Duration::from_millis(if is_found { plan.ok } else { plan.fail })).await;
        let (status, body) = if is_found {
            ("200 OK", line(key.parse()?, sequence.parse()?))
        } else {
            ("503 Service Unavailable", String::new())
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/cloudevents+json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
}
