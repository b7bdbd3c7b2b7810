//! A test of a file that grows in pieces, while the test repeatedly kills the process that reads the file. A piece may
//! end within a line. The host must execute each line once, and must not join two lines.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Result;
use ordain_tests::host::Home;
use ordain_tests::log::{by_key, disturb, in_turn, text};
use ordain_tests::seed::kill_seed;
use ordain_tests::service::Service;
use ordain_tests::tally;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The maximum length of a piece, in bytes. A piece contains several lines, or only a part of a line.
const PIECE_BYTES_LIMIT: usize = 2_000;
const KILLS: usize = 8;

#[test]
fn file_written_in_pieces_survives_kills() -> Result<()> {
    // The seed also determines the pieces.
    let seed = kill_seed()?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let lines = in_turn(60, 60);
    let disturbed = disturb(&lines, 50, 10, seed);
    let content = text(&disturbed).into_bytes();

    let home = Home::new(&["tally"], tally::CONFIG)?;
    home.write("events.ndjson", "")?;
    let args = ["--log", "warn", "run"];
    let mut service = Service::start(&home, &args)?;
    let mut file = std::fs::File::options().append(true).open(home.path("events.ndjson"))?;
    let mut written = 0;
    let mut kills = 0;
    while written < content.len() {
        let piece = rng.random_range(1..=PIECE_BYTES_LIMIT).min(content.len() - written);
        file.write_all(&content[written..written + piece])?;
        written += piece;
        if rng.random_ratio(1, 20) {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..250)));
        }
        if written * (KILLS + 1) / content.len() > kills {
            kills += 1;
            service.kill()?;
            service = Service::start(&home, &args)?;
        }
    }
    service.until("all messages", || home.lines("out.ndjson") >= lines.len())?;
    service.kill()?;
    let report = home.run_once()?;
    assert_eq!((&report["settled"], &report["dead_total"]), (&0.into(), &0.into()), "{report}");
    assert!(home.rows(&["dead", "list", "cases", "--json"])?.is_empty());
    tally::check(&by_key(&lines)?, &home.read("out.ndjson"))
}
