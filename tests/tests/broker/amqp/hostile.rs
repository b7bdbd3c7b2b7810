//! Tests of AMQP messages with invalid UTF-8 or with deeply nested headers. Such a message must not make the host fail.

use anyhow::{Result, ensure};
use ordain_tests::log::in_turn;
use ordain_tests::raw_amqp::{RawProducer, nested, table, text};
use ordain_tests::rig::Rig;
use ordain_tests::service::Service;

#[test]
fn invalid_utf8_and_deep_headers_become_dead_letters() -> Result<()> {
    let rig = Rig::new()?;
    let mut service = Service::start(&rig.home, &["run"])?;
    rig.until_declared()?;
    let lines = in_turn(4, 40);
    let (first, rest) = lines.split_at(80);
    rig.publish(first)?;

    let mut raw = RawProducer::connect(rig.rabbit.port(), rig.rabbit.virtual_host())?;
    let one = text(b"1");
    let numbered: &[(&[u8], &[u8])] = &[(b"X-Sequence-ID", &one)];
    raw.publish("cases", b"\xff\xfe\0a", &table(numbered), b"{\"n\":1}")?;
    raw.publish("cases", &[0x80; 255], &table(numbered), b"{\"n\":2}")?;
    let name = [numbered, &[(b"\xc3", &one)]].concat();
    raw.publish("cases", b"name", &table(&name), b"{\"n\":3}")?;
    let list = nested(2);
    let id = [numbered, &[(b"cloudEvents:id", &list)]].concat();
    raw.publish("cases", b"id", &table(&id), b"{\"n\":4}")?;
    let deep = nested(20_000);
    let deep = [numbered, &[(b"deep", &deep)]].concat();
    // The host does not decode arrays that are nested more than 32 levels deep, but keeps these arrays as bytes. The
    // bytes make the event too large.
    raw.publish("cases", b"deep", &table(&deep), b"{\"n\":5}")?;

    rig.publish(rest)?;
    rig.check(&lines)?;
    rig.until_empty()?;
    service.end()?;
    let letters = rig.home.rows(&["dead", "list", "cases", "--json"])?;
    let all = letters.iter().map(ToString::to_string).collect::<String>();
    ensure!(letters.len() == 5, "{all}");
    ensure!(letters.iter().all(|letter| letter["cause"] == "unreadable"), "{all}");
    for part in ["fffe0061", &"80".repeat(255), "c3", "\\\"n\\\":4", "bytes in total"] {
        ensure!(all.contains(part), "no {part} in {all}");
    }
    Ok(())
}
