//! A test of a sink's file that another program renames. Meanwhile, a message of another sink waits for a queue.

use std::collections::HashSet;
use std::fs;

use anyhow::{Result, ensure};
use ordain_servers::Rabbit;
use ordain_tests::host::Home;
use ordain_tests::service::Service;
use serde_json::{Value, json};

const EVENTS: &str = "events.ndjson";
const SINK_FILE: &str = "out.ndjson";

/// Appends the next `count` events to the input. `written` is the number of all appended events.
fn append(home: &Home, written: &mut usize, count: usize) -> Result<()> {
    for _ in 0..count {
        *written += 1;
        let data =
            json!({ "do": "emit", "sink": if *written == 1 { "exchange" } else { "faulty" } });
        let event = json!({
            "specversion": "1.0", "id": written.to_string(), "source": "/tests", "type": "test",
            "subject": "k", "data": data,
        });
        home.append(EVENTS, format!("{event}\n"))?;
    }
    Ok(())
}

/// The message of the first event waits, because no queue is bound to its exchange. The messages of the later events
/// are written to files, and also stay in the store, because they follow the waiting message. No rotation and no crash
/// may repeat or lose one of these messages.
#[test]
fn renamed_files_keep_the_messages_that_wait_in_the_store() -> Result<()> {
    let rabbit = Rabbit::shared()?;
    let config = format!(
        "[broker]\nurl = \"{}\"\n\
         [streams.cases]\nhandler = \"faulty\"\nordering = \"fifo\"\n\
         source = {{ kind = \"file\", path = \"events.ndjson\" }}\n\
         [sinks.exchange]\nkind = \"amqp\"\nexchange = \"amq.direct\"\n\
         [sinks.faulty]\nkind = \"file\"\npath = \"out.ndjson\"\n",
        rabbit.url()
    );
    let home = Home::new(&["faulty"], &config)?;
    home.write(EVENTS, "")?;
    let mut files = vec![SINK_FILE.to_owned()];
    let rename = |files: &mut Vec<String>| -> Result<()> {
        let name = format!("out.{}", files.len());
        fs::rename(home.path(SINK_FILE), home.path(&name))?;
        files.push(name);
        Ok(())
    };
    let lines = |files: &[String]| files.iter().map(|file| home.lines(file)).sum::<usize>();
    let mut written = 0;
    append(&home, &mut written, 4)?;
    let mut service = Service::start(&home, &["run"])?;
    service.until("the first messages", || lines(&files) == 3)?;
    // The file is renamed twice while the host runs.
    for _ in 0..2 {
        rename(&mut files)?;
        append(&home, &mut written, 2)?;
        service.until("messages in the new file", || home.lines(SINK_FILE) == 2)?;
    }
    // The host is killed three times. After the first kill, the file is renamed once more. In each run, the host first
    // skips the messages in the store that are already in the files, and then writes the message of the new event.
    for is_renamed in [true, false, false] {
        service.kill()?;
        if is_renamed {
            rename(&mut files)?;
        }
        service = Service::start(&home, &["run"])?;
        append(&home, &mut written, 1)?;
        service.until("the new message", || lines(&files) >= written - 1)?;
    }
    // The host must also follow a rotation after it has skipped the messages in the older files.
    rename(&mut files)?;
    append(&home, &mut written, 1)?;
    service.until("a message in the new file", || home.lines(SINK_FILE) == 1)?;
    service.kill()?;
    service = Service::start(&home, &["run"])?;
    append(&home, &mut written, 1)?;
    service.until("the last message", || lines(&files) >= written - 1)?;
    service.kill()?;

    let output: String = files.iter().map(|file| home.read(file)).collect();
    let mut ids = HashSet::new();
    for line in output.lines() {
        let message: Value = serde_json::from_str(line)?;
        ensure!(ids.insert(message["id"].to_string()), "the message is in the files twice: {line}");
    }
    ensure!(ids.len() == written - 1, "{} of {} messages", ids.len(), written - 1);
    Ok(())
}
