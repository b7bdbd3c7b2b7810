//! A test of a host whose Redis server requires a password.

use anyhow::{Result, ensure};
use ordain_servers::{Options, Redis};
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, in_turn, text};
use ordain_tests::tally;

const SECRET: &str = "s/cr@t-of-redis";
/// The password in percent-encoded form, as in a URL.
const WRITTEN: &str = "s%2Fcr%40t-of-redis";

#[test]
fn password_from_the_environment_is_never_printed() -> Result<()> {
    let redis = Redis::with(&Options::new().password(SECRET))?;
    let config = tally::CONFIG.replace("path = \"out.ndjson\"", "path = \"-\"");
    let url = format!("redis://:${{REDIS_PASSWORD}}@127.0.0.1:{}", redis.port());
    let config = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n{config}");
    let home = Home::new(&["tally"], &config)?;
    let lines = in_turn(5, 10);
    home.write("events.ndjson", text(&lines))?;
    for (password, code) in [(None, 78), (Some("s%2Fcr%40t-wrong"), 75), (Some(WRITTEN), 0)] {
        let mut run = home.ordain(&["--wait-divisor=50", "--log", "debug", "run", "--once"])?;
        run.env_remove("REDIS_PASSWORD");
        run.envs(password.map(|password| ("REDIS_PASSWORD", password)));
        let output = run.output()?;
        let out = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code), "{password:?}: {stderr}");
        for shown in ["s/cr@t", "s%2Fcr"] {
            ensure!(!stderr.contains(shown) && !out.contains(shown), "{password:?}: {stderr}");
        }
        if code == 0 {
            tally::check(&by_key(&lines)?, &out)?;
        }
    }
    Ok(())
}
