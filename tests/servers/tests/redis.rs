//! Tests of Redis servers that run side by side, and of a server that a test kills, stops, pauses or returns to an
//! earlier time.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordain_servers::{Options, Redis, Reply, wait_until};

fn get(redis: &Redis, key: &str) -> Result<Option<String>> {
    Ok(redis.command(&["GET", key])?.text().map(str::to_owned))
}

#[test]
fn servers_run_side_by_side() -> Result<()> {
    let servers = (0..4).map(|_| Redis::start(&[])).collect::<Result<Vec<_>>>()?;
    for (index, redis) in servers.iter().enumerate() {
        redis.command(&["SET", "index", &index.to_string()])?;
    }
    for (index, redis) in servers.iter().enumerate() {
        assert_eq!(get(redis, "index")?, Some(index.to_string()));
        assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
        assert_ne!(redis.port(), 6379);
    }
    Ok(())
}

#[test]
fn default_server_is_durable_and_lines_override_defaults() -> Result<()> {
    let setting = |redis: &Redis, name: &str| -> Result<String> {
        let reply = redis.command(&["CONFIG", "GET", name])?;
        let value = reply.parts().get(1).and_then(Reply::text);
        Ok(value.with_context(|| format!("{name} is not set"))?.to_owned())
    };
    let redis = Redis::start(&["appendfsync everysec", "maxmemory 50mb"])?;
    assert_eq!(setting(&redis, "appendonly")?, "yes");
    assert_eq!(setting(&redis, "appendfsync")?, "everysec");
    assert_eq!(setting(&redis, "maxmemory")?, "52428800");
    assert_eq!(setting(&redis, "maxmemory-policy")?, "noeviction");
    assert_eq!(setting(&redis, "save")?, "");
    assert_eq!(setting(&Redis::start(&[])?, "appendfsync")?, "always");
    let volatile = Redis::with(&Options::new().without_persistence())?;
    assert_eq!(setting(&volatile, "appendonly")?, "no");
    volatile.command(&["SET", "a", "1"])?;
    volatile.restart()?;
    assert_eq!(get(&volatile, "a")?, None);
    Ok(())
}

#[test]
fn written_data_survives_a_kill() -> Result<()> {
    let redis = Redis::start(&[])?;
    let port = redis.port();
    redis.command(&["SET", "a", "1"])?;
    redis.kill()?;
    assert!(!redis.is_running());
    assert!(redis.command(&["PING"]).is_err());
    redis.restart()?;
    assert_eq!((redis.port(), get(&redis, "a")?), (port, Some("1".to_owned())));
    redis.stop()?;
    assert!(!redis.is_running());
    redis.restart()?;
    assert_eq!(get(&redis, "a")?, Some("1".to_owned()));
    Ok(())
}

#[test]
fn server_returns_to_a_snapshot() -> Result<()> {
    let redis = Redis::start(&[])?;
    redis.command(&["SET", "early", "1"])?;
    let snapshot = redis.snapshot()?;
    redis.command(&["SET", "late", "1"])?;
    redis.restart()?;
    assert_eq!(get(&redis, "late")?, Some("1".to_owned()));
    for _ in 0..2 {
        redis.go_back(&snapshot)?;
        assert_eq!((get(&redis, "early")?, get(&redis, "late")?), (Some("1".to_owned()), None));
        redis.command(&["SET", "late", "2"])?;
    }
    redis.kill()?;
    let later = redis.snapshot()?;
    redis.go_back(&later)?;
    assert_eq!(get(&redis, "late")?, Some("2".to_owned()));
    Ok(())
}

#[test]
fn paused_server_replies_after_it_resumes() -> Result<()> {
    let redis = Redis::start(&[])?;
    redis.pause()?;
    assert!(redis.is_running());
    let mut connection = redis.connect()?;
    connection.send(&["INCR", "a"])?;
    let snapshot = redis.snapshot()?;
    redis.resume()?;
    assert_eq!(connection.receive()?, Reply::Int(1));
    redis.go_back(&snapshot)?;
    assert_eq!(get(&redis, "a")?, None, "the server was paused while it was copied");
    redis.pause()?;
    redis.stop()
}

#[test]
fn processor_time_is_counted() -> Result<()> {
    let redis = Redis::start(&[])?;
    let before = redis.cpu()?;
    redis.command(&["EVAL", "for i = 1, 3000000 do end return 1", "0"])?;
    assert!(redis.cpu()? > before);
    assert_eq!(redis.info("server")?.get("tcp_port"), Some(&redis.port().to_string()));
    Ok(())
}

#[test]
fn replica_follows_a_master_with_a_password() -> Result<()> {
    for options in [Options::new(), Options::new().password("secret")] {
        let master = Redis::with(&options)?;
        let replica = Redis::with(&options.clone().replica_of(&master))?;
        let mut connection = master.connect()?;
        connection.command(&["SET", "a", "1"])?;
        assert_eq!(connection.command(&["WAIT", "1", "5000"])?, Reply::Int(1));
        assert_eq!(get(&replica, "a")?, Some("1".to_owned()));
        let refused = replica.attempt(&["SET", "a", "2"])?;
        assert!(matches!(&refused, Reply::Error(error) if error.starts_with("READONLY")));
        master.kill()?;
        replica.restart()?;
        master.restart()?;
        replica.until_in_step()?;
    }
    Ok(())
}

/// After a full copy from its master, a replica writes its append-only file in the background. The replica counts as in
/// step only when this file is complete.
#[test]
fn replica_in_step_has_its_data_on_disk() -> Result<()> {
    let master = Redis::start(&[])?;
    master.command(&["SET", "a", "1"])?;
    // This delay, in microseconds for each key, makes the background process slow.
    let slow = Options::new().line("rdb-key-save-delay 300000");
    let replica = Redis::with(&slow.replica_of(&master))?;
    master.kill()?;
    replica.restart()?;
    assert_eq!(get(&replica, "a")?, Some("1".to_owned()));
    Ok(())
}

#[test]
fn server_requires_passwords_of_its_users() -> Result<()> {
    let options = Options::new().password("secret").user("reader", "open", "~seen:* +get");
    let redis = Redis::with(&options)?;
    assert_eq!(redis.url(), format!("redis://:secret@127.0.0.1:{}", redis.port()));
    let mut stranger = ordain_servers::Connection::open(redis.port())?;
    let refused = stranger.attempt(&["GET", "seen:1"])?;
    assert!(matches!(&refused, Reply::Error(error) if error.starts_with("NOAUTH")));
    stranger.command(&["AUTH", "reader", "open"])?;
    assert_eq!(stranger.command(&["GET", "seen:1"])?, Reply::Nil);
    let refused = stranger.attempt(&["SET", "seen:1", "1"])?;
    assert!(matches!(&refused, Reply::Error(error) if error.starts_with("NOPERM")));
    Ok(())
}

#[test]
fn server_offers_tls_with_valid_certificates() -> Result<()> {
    let redis = Redis::with(&Options::new().tls().password("secret"))?;
    let (port, certificates) = redis.tls().context("the server does not offer TLS")?;
    assert_eq!(redis.url(), format!("rediss://:secret@127.0.0.1:{port}"));
    let ping = |trusted: bool| {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &port.to_string(), "--tls", "--no-auth-warning"]);
        cli.args(["-a", "secret"]);
        if trusted {
            cli.arg("--cacert").arg(certificates.authority());
        }
        cli.arg("PING").output()
    };
    let output = ping(true)?;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "PONG", "{output:?}");
    assert!(!String::from_utf8_lossy(&ping(false)?.stdout).contains("PONG"));
    redis.restart()?;
    assert!(ping(true)?.status.success());
    Ok(())
}

#[test]
fn invalid_setting_is_an_error_with_the_log() {
    let error = Redis::start(&["no-such-setting 1"]).expect_err("the server cannot start");
    let error = format!("{error:#}");
    assert!(
        error.contains("no-such-setting") && error.contains("the server's log ends"),
        "{error}"
    );
}

/// The environment variable that marks the second process of the test below. The second process starts a server, and
/// then sleeps. The first process kills the second process during this sleep, which lasts a minute.
const HOLDER_VARIABLE: &str = "ORDAIN_TEST_HOLDS_A_SERVER";

#[test]
fn killed_process_leaves_no_server_and_no_data() -> Result<()> {
    if env::var_os(HOLDER_VARIABLE).is_some() {
        // Start the server on a thread that ends immediately, as the threads of tests do. The server must not end with
        // this thread.
        let redis = std::thread::spawn(|| Redis::start(&[])).join().expect("no panic")?;
        println!("server {} {}", redis.port(), redis.data().display());
        std::thread::sleep(Duration::from_mins(1));
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(["--exact", "killed_process_leaves_no_server_and_no_data", "--nocapture"]);
    let mut holder = command.env(HOLDER_VARIABLE, "1").stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(
        holder.stdout.take().context("the output of the second process is not piped")?,
    );
    let server = output.lines().map_while(Result::ok).find_map(|line| {
        // The line may begin with the name of the test.
        let (port, data) = line.split_once("server ")?.1.split_once(' ')?;
        Some((port.parse::<u16>().ok()?, PathBuf::from(data)))
    });
    let (port, data) = server.context("the second process did not print its server")?;
    let answers = || {
        let mut connection = ordain_servers::Connection::open(port)?;
        connection.command(&["PING"])
    };
    std::thread::sleep(Duration::from_millis(100));
    ensure!(answers().is_ok(), "the server must outlive the thread that started it");
    holder.kill()?;
    holder.wait()?;
    wait_until("the end of the server", || Ok(answers().is_err() && !data.exists()))
}
