//! `swap`: measures the added delay of events while versions of their handler are swapped under a steady load, and
//! checks that no event is lost, repeated or failed.
//!
//! One version of the handler stays in the folder. The benchmark adds another version, which is new each time and slow
//! to compile. As soon as the other version executes the events, the benchmark removes this version. An addition and
//! the following removal are two swaps. When the message of an event arrives, the benchmark measures the age of the
//! event. It compares these ages with the ages in a run without swaps under the same load.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use ordain_servers::Rabbit;
use serde_json::Value;
use wasm_encoder::{
    CodeSection, ComponentSection as _, Function, FunctionSection, Module, ModuleSection,
    TypeSection, ValType,
};

use crate::CommonArgs;
use crate::amqp::admin;
use crate::amqp::case::Case;
use crate::amqp::load::{Keys, Load};
use crate::amqp::side::RunningSide;
use crate::instances::fleet;
use crate::instances::watch::Watch;
use crate::process::{cpu_seconds, peak};
use crate::report::{Report, Row};
use crate::sides::{Sides, medians};

/// Seconds at the start of a load that are not measured.
const WARMUP_S: f64 = 2.0;
/// Seconds of the load for each swap.
const LOAD_PER_SWAP_S: f64 = 6.0;
/// Time limit for the start of the host, and for the last messages.
const HOST_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two requests for the running version.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct SwapArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    sides: Sides,
    /// Number of events per second; docs/internals/performance.md shows the results at the default rate
    #[arg(long, default_value_t = 4_000.0)]
    rate: f64,
    /// Number of swaps of the handler version in a run
    #[arg(long, default_value_t = 50)]
    swaps: usize,
    /// Number of functions that the slow version contains but never calls; the host compiles each of them
    #[arg(long, default_value_t = 30_000)]
    functions: u32,
}

const SIDES: [(&str, bool); 2] = [("steady", false), ("swaps", true)];

pub(crate) fn bench(args: &SwapArgs) -> Result<Report> {
    let sides = args.sides.of(&SIDES, |side| side.0)?;
    ensure!(args.rate >= 1.0 && args.swaps >= 2, "--rate must be 1 or more, and --swaps 2 or more");
    eprintln!("starting RabbitMQ");
    let rabbit = Rabbit::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measure = |side| runtime.block_on(measure(args, &rabbit, side));
    let rows = medians(args.common.runs, &sides, |side| side.0, measure)?;
    let of = |name: &str| rows.iter().find(|row| row.side == name).cloned();
    let extra = of("steady").zip(of("swaps")).and_then(|(steady, swaps)| {
        let longest = swaps.longest_ms? - steady.longest_ms?;
        Some((swaps.p999_ms? - steady.p999_ms?, longest))
    });
    let mut report = Report::new("swap", rows).note(format!(
        "{} events/s of 10,000 keys on four partitions, one message per event, Redis with appendfsync everysec. In \
         `swaps`, the handler is swapped {} times, to and from a version of {} functions that is new each time. CPU: \
         the host with its compilers. Ages: from the publication of an event until the benchmark receives its \
         message. The benchmark checked that no event was lost, repeated or failed, and that the version of a key \
         changed only with a rollout.",
        args.rate, args.swaps, args.functions
    ));
    if let Some((p999, longest)) = extra {
        report = report
            .note(format!("`swaps` minus `steady`: p99.9 {p999:.2} ms, longest {longest:.2} ms"));
    }
    Ok(report)
}

async fn measure(
    SwapArgs { common, rate, swaps, functions, .. }: &SwapArgs,
    rabbit: &Rabbit,
    (name, is_swapped): (&str, bool),
) -> Result<Row> {
    let rate = *rate;
    let plugins = Plugins::new(&common.plugins, *functions)?;
    let case = fleet::case(plugins.dir.path(), rabbit).await?;
    let host = Host::start(common, case).await?;
    let seconds = WARMUP_S + *swaps as f64 * LOAD_PER_SWAP_S;
    let load = Load::new(Keys::Many, (rate * seconds) as usize, "emit");
    let watch = Watch::start(rabbit).await?;
    let (cold, warm) = load.split((rate * WARMUP_S) as usize);
    host.case.pace(&load, cold, rate).await?;
    let before = host.cpu()?;
    watch.begin();
    let swapping = async {
        let started = Instant::now();
        let mut seen = Versions::default();
        for number in 0..swaps / 2 {
            if is_swapped {
                plugins.put(number)?;
                host.until_runs(&format!("probe@2.{number}.0"), &mut seen).await?;
                plugins.remove(number)?;
                host.until_runs("probe@1.0.0", &mut seen).await?;
            }
            seen.check_rollouts(&host).await?;
            // Spreads the swaps evenly over the load.
            let due =
                started + Duration::from_secs_f64(2.0 * LOAD_PER_SWAP_S * (number + 1) as f64);
            tokio::time::sleep_until(due.into()).await;
        }
        let took = started.elapsed().as_secs_f64();
        ensure!(took < seconds, "{swaps} swaps took {took:.0} s, longer than the load");
        Ok(seen)
    };
    let (reached, seen) = tokio::try_join!(host.case.pace(&load, warm, rate), swapping)?;
    // The age of an event begins at its publication, so the ages do not show whether the benchmark published the load
    // too slowly.
    ensure!(reached > 0.95 * rate, "{name}: only {reached:.0} events/s were published");
    watch.until(load.deliveries.len(), HOST_TIMEOUT).await?;
    let used = host.cpu()? - before;
    let peak_mib = peak(host.running.id());
    let rollouts = seen.versions_by_rollout.len();
    ensure!(rollouts == if is_swapped { swaps / 2 * 2 + 1 } else { 1 }, "{rollouts} rollouts");
    ensure!(watch.repeats() == 0, "{} repeated messages arrived", watch.repeats());
    host.failed_nothing().await?;
    let ages = watch.end()?;
    ensure!(
        ages.len() >= warm.len(),
        "{name}: the benchmark measured the ages of {} events instead of at least {}",
        ages.len(),
        warm.len()
    );
    host.running.finish()?;
    host.case.end().await?;
    let ms = |part: f64| Some(ages[((ages.len() - 1) as f64 * part) as usize] / 1_000.0);
    Ok(Row {
        side: name.to_owned(),
        events_per_s: reached,
        consumer_cpu_s_per_million: Some(used / (warm.len() as f64 / 1e6)),
        p50_ms: ms(0.50),
        p99_ms: ms(0.99),
        p999_ms: ms(0.999),
        longest_ms: ms(1.0),
        peak_mib,
        ..Row::default()
    })
}

/// A running host, with the queues and the Redis of its measurement.
struct Host {
    case: Case,
    running: RunningSide,
    port: u16,
}

impl Host {
    async fn start(common: &CommonArgs, case: Case) -> Result<Self> {
        let mut running = RunningSide::on(&common.ordain, case.home.path())?;
        let started = Instant::now();
        while !case.is_consumed().await? {
            running.check()?;
            ensure!(started.elapsed() < HOST_TIMEOUT, "not all queues have a consumer");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let port = case.admin;
        Ok(Self { case, running, port })
    }

    /// Returns the processor time of the host, including its compiler processes that have ended.
    fn cpu(&self) -> Result<f64> {
        cpu_seconds(self.running.id())
    }

    /// Waits until the host reports that a version executes the events.
    async fn until_runs(&self, version: &str, seen: &mut Versions) -> Result<()> {
        let started = Instant::now();
        loop {
            let streams: Value =
                serde_json::from_str(&admin::get(self.port, "/v1/streams").await?)?;
            let stream = &streams["streams"][0];
            let rollout_number = stream["generation"].as_u64().unwrap_or(0);
            seen.note(rollout_number, stream["handler"].as_str().unwrap_or_default())?;
            if stream["handler"] == version && stream["missing"].is_null() {
                return Ok(());
            }
            ensure!(started.elapsed() < HOST_TIMEOUT, "version {version} does not run: {stream}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn failed_nothing(&self) -> Result<()> {
        let metrics = admin::get(self.port, "/metrics").await?;
        for line in metrics.lines() {
            let is_failure = ["ordain_handler_failures_total", "ordain_dead_letters_total"]
                .iter()
                .any(|name| line.starts_with(name));
            ensure!(!is_failure || line.ends_with(" 0"), "{line}");
        }
        Ok(())
    }
}

/// The versions that the benchmark has observed in the host.
#[derive(Debug, Default)]
struct Versions {
    /// The version of each rollout.
    versions_by_rollout: BTreeMap<u64, String>,
    /// The rollout under which each observed key was last executed.
    rollouts_by_key: BTreeMap<String, u64>,
}

impl Versions {
    fn note(&mut self, rollout_number: u64, version: &str) -> Result<()> {
        let known =
            self.versions_by_rollout.entry(rollout_number).or_insert_with(|| version.to_owned());
        ensure!(
            known == version,
            "rollout {rollout_number} has the versions {known} and {version}"
        );
        Ok(())
    }

    /// Reads up to 100 keys of the host, and checks that the rollout number of no key has decreased.
    async fn check_rollouts(&mut self, host: &Host) -> Result<()> {
        let keys = admin::get(host.port, "/v1/streams/bench/keys?limit=100").await?;
        let keys: Value = serde_json::from_str(&keys)?;
        for key in keys["keys"].as_array().context("the listing has no keys")? {
            let Some(rollout_number) = key["version_generation"].as_u64() else { continue };
            self.note(rollout_number, key["version"].as_str().unwrap_or_default())?;
            let name = key["key"].as_str().context("a row has no key")?;
            let last = self.rollouts_by_key.insert(name.to_owned(), rollout_number).unwrap_or(0);
            ensure!(
                last <= rollout_number,
                "key {name} went from rollout {last} back to {rollout_number}"
            );
        }
        Ok(())
    }
}

/// A folder of handlers: it always contains version 1.0.0 of `probe`, and at times also a slow version.
struct Plugins {
    dir: tempfile::TempDir,
    probe: Vec<u8>,
    functions: u32,
}

impl Plugins {
    fn new(from: &Path, functions: u32) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let probe = fs::read(from.join("probe.wasm"))?;
        fs::write(dir.path().join("probe@1.0.0.wasm"), &probe)?;
        Ok(Self { dir, probe, functions })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("probe@2.{number}.0.wasm"))
    }

    /// Puts a slow version into the folder. Each number results in a different component, so the host has not compiled
    /// this component before.
    fn put(&self, number: usize) -> Result<()> {
        let mut component = self.probe.clone();
        let module = module(self.functions, number as u32);
        ModuleSection(&module).append_to_component(&mut component);
        Ok(fs::write(self.path(number), component)?)
    }

    fn remove(&self, number: usize) -> Result<()> {
        Ok(fs::remove_file(self.path(number))?)
    }
}

/// Returns a module of many functions, each of which returns a number. The first function returns `first`, so that no
/// two modules are the same.
fn module(functions: u32, first: u32) -> Module {
    let mut types = TypeSection::new();
    let mut all = FunctionSection::new();
    let mut code = CodeSection::new();
    types.ty().function([], [ValType::I32]);
    for at in 0..functions {
        all.function(0);
        let mut function = Function::new([]);
        function.instructions().i32_const(if at == 0 { first.cast_signed() } else { 0 }).end();
        code.function(&function);
    }
    let mut module = Module::new();
    module.section(&types).section(&all).section(&code);
    module
}
