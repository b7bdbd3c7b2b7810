//! Tests of decoding and encoding lines. Property tests also cover `compact`.

use ordain_config::{EventLocations, KeyLocation, KeyPlace, Place};
use ordain_core::{
    Cause, DeadLetter, EmittedMessage, Event, LetterContent, LetterId, Message, MessageParts,
    OrderingMode, is_json, json_digest,
};
use proptest::prelude::*;

use super::*;
use ordain_store::{KEY_SIZE_LIMIT, OutboxMessage};

const SEQUENCED_DECODER: EventDecoder = EventDecoder::new(OrderingMode::Sequenced, 1 << 20);
const FIFO_DECODER: EventDecoder = EventDecoder::new(OrderingMode::Fifo, 1 << 20);

/// Returns the line of a valid event, with the additional members in `more`.
fn line(more: &str) -> String {
    format!(
        r#"{{"specversion":"1.0","id":"e1","source":"/shop","type":"order.paid","subject":"o-1"{more}}}"#
    )
}

fn decode(more: &str) -> Event {
    SEQUENCED_DECODER
        .decode(line(more).as_bytes())
        .unwrap_or_else(|error| panic!("{more}: {error}"))
}

/// Checks that a decoder rejects a line with this cause, and with an error that contains `message`. Returns the error.
#[track_caller]
fn refused(decoder: &EventDecoder, line: &str, cause: Cause, message: &str) -> DecodeError {
    let error = decoder.decode(line.as_bytes()).expect_err(line);
    assert_eq!(error.cause, cause, "{line}: {error}");
    assert!(error.message.contains(message), "{line}: {error}");
    error
}

#[test]
fn error_contains_only_a_part_of_the_line() {
    let name = "x".repeat(500_000);
    let twice = line(&format!(r#","{name}":1,"{name}":2"#));
    let error = refused(&SEQUENCED_DECODER, &twice, Cause::Unreadable, "xxx…` occurs twice");
    assert!(error.message.len() < 100, "{} bytes", error.message.len());
    let error = refused(
        &SEQUENCED_DECODER,
        &format!("\"{name}\""),
        Cause::Unreadable,
        "invalid type: string",
    );
    assert!(error.message.len() < 5_000, "{} bytes", error.message.len());
}

#[test]
fn event_is_decoded() {
    let event = decode(
        r#","sequence":"17","time":"2010-10-02T07:20:39.266999+02:00","endofsequence":true,
           "traceparent":"00-ab","retries":3,"ok":true,"none":null,"tags":[ 1, "a b" ],
           "data":{"a": 1}"#,
    );
    assert_eq!((event.key(), event.id(), event.source()), ("o-1", "e1", "/shop"));
    assert_eq!((event.kind(), event.content_type()), ("order.paid", "application/json"));
    assert_eq!((event.sequence(), event.end()), (Some(17), true));
    assert_eq!(event.time_us(), Some(1_285_996_839_266_999));
    assert_eq!(event.data(), br#"{"a":1}"#);
    let headers: Vec<_> = event.headers().collect();
    assert_eq!(
        headers,
        [("traceparent", "00-ab"), ("retries", "3"), ("ok", "true"), ("tags", r#"[1,"a b"]"#)]
    );
    let bare = decode("");
    assert_eq!((bare.sequence(), bare.time_ms(), bare.end()), (None, None, false));
    assert_eq!((bare.data(), bare.headers().count()), (&b""[..], 0));
}

/// The SDK for Python writes a Boolean in the text form of Python.
#[test]
fn end_of_a_key_is_read_in_upper_and_lower_case() {
    for (value, end) in [
        ("true", true),
        ("\"true\"", true),
        ("\"True\"", true),
        ("\"TRUE\"", true),
        ("false", false),
        ("\"False\"", false),
    ] {
        assert_eq!(decode(&format!(",\"endofsequence\":{value}")).end(), end, "{value}");
    }
}

#[test]
fn key_is_partitionkey_or_else_subject() {
    let event = decode(r#","partitionkey":"customer \u0031""#);
    assert_eq!(event.key(), "customer 1");
    assert_eq!(event.headers().collect::<Vec<_>>(), [("subject", "o-1")]);
    assert_eq!(decode(r#","partitionkey":null"#).key(), "o-1");
}

#[test]
fn sequences_are_numbers_or_decimal_text() {
    for (raw, expected) in [
        ("0", 0),
        ("1", 1),
        ("\"00042\"", 42),
        ("18446744073709551614", u64::MAX - 1),
        ("\"18446744073709551614\"", u64::MAX - 1),
    ] {
        assert_eq!(decode(&format!(",\"sequence\":{raw}")).sequence(), Some(expected), "{raw}");
    }
    for raw in [
        "-1",
        "1.0",
        "1e3",
        "\"\"",
        "\"+1\"",
        "\" 1\"",
        "true",
        "[1]",
        "18446744073709551615",
        "99999999999999999999",
    ] {
        let line = line(&format!(",\"sequence\":{raw}"));
        let error = refused(
            &SEQUENCED_DECODER,
            &line,
            Cause::NoSequence,
            "`sequence` must be a whole number",
        );
        assert_eq!((error.key.as_deref(), error.sequence), (Some("o-1"), None));
        // Ordain numbers the events of a fifo stream, so the producer's number is an ordinary header.
        let event = FIFO_DECODER.decode(line.as_bytes()).expect("an event");
        assert_eq!(event.sequence(), None);
        assert_eq!(event.headers().map(|(name, _)| name).collect::<Vec<_>>(), ["sequence"]);
    }
}

#[test]
fn data_is_json_or_text_or_bytes() {
    for (more, expected) in [
        (r#""data":null"#, "null"),
        (r#""data":"a\u0062""#, r#""a\u0062""#),
        (
            r#""data":{"b" : 1.0, "a":1e400,"b":[ ] , "c": "x  \" y\\" }"#,
            r#"{"b":1.0,"a":1e400,"b":[],"c":"x  \" y\\"}"#,
        ),
        (r#""data":123456789012345678901234567890.10"#, "123456789012345678901234567890.10"),
        (r#""datacontenttype":"text/plain","data":"a\u0062""#, "ab"),
        (r#""datacontenttype":"text/plain","data":{"a" : 1}"#, r#"{"a":1}"#),
        (r#""datacontenttype":"application/vnd.shop+JSON; charset=utf-8","data":"a""#, r#""a""#),
        (r#""data_base64":"eyAiYSI6IDF9""#, r#"{ "a": 1}"#),
        (r#""data_base64":"YQ""#, "a"),
        (r#""data_base64":"YQ==","data_base64_":1"#, "a"),
        (r#""data_base64":null"#, ""),
    ] {
        let event = decode(&format!(",{more}"));
        assert_eq!(std::str::from_utf8(event.data()), Ok(expected), "{more}");
    }
    let layouts = [r#","data":{"a":[1,2]}"#, ",\"data\": {\"a\" :\t[1,\r\n2] } "];
    assert_eq!(decode(layouts[0]).content(), decode(layouts[1]).content());
}

#[test]
fn time_before_1970_counts_as_no_time() {
    for (time, expected) in [
        ("0001-01-01T00:00:00Z", None),
        ("1969-12-31T23:59:59Z", None),
        ("2026-11-25T12:00:00.123456789123Z", Some(1_795_608_000_123_456)),
        ("9999-12-31T23:59:59.9999999Z", Some(253_402_300_799_999_999)),
    ] {
        let event = decode(&format!(",\"time\":\"{time}\""));
        assert_eq!(event.time_us(), expected, "{time}");
    }
}

#[test]
fn invalid_event_is_rejected_with_a_valid_form() {
    use Cause::{NoId, NoKey, Unreadable};
    for (line, cause, message) in [
        ("", Unreadable, "not a CloudEvent in JSON: EOF"),
        ("[]", Unreadable, "expected a JSON object"),
        (
            "[{}, {}]",
            Unreadable,
            "write each event on a line of its own, for example with `jq -c '.[]'`",
        ),
        ("{", Unreadable, "EOF"),
        ("{\r", Unreadable, "write each event on one line, for example with `jq -c .`"),
        ("{} {}", Unreadable, "trailing characters"),
        ("{\"a\":\u{1}}", Unreadable, "not a CloudEvent"),
        ("{}", Unreadable, "`specversion` is missing: it must be \"1.0\""),
        (r#"{"specversion":1.0}"#, Unreadable, "`specversion` must be \"1.0\", found 1.0"),
        (r#"{"specversion":"0.3"}"#, Unreadable, "found \"0.3\""),
        (r#"{"specversion":"1.0"}"#, NoKey, "the key is missing: `partitionkey` or `subject`"),
        (r#"{"specversion":"1.0","subject":""}"#, NoKey, "the key, `subject`, must be a text"),
        (
            r#"{"specversion":"1.0","partitionkey":7,"subject":"a"}"#,
            NoKey,
            "`partitionkey`, must be a text that is not empty, found 7",
        ),
        (r#"{"specversion":"1.0","subject":"a"}"#, Unreadable, "`id` is missing"),
        (r#"{"specversion":"1.0","subject":"a","id":""}"#, Unreadable, "`id` must be a text"),
        (r#"{"specversion":"1.0","subject":"a","id":"\ud800"}"#, Unreadable, "`id` must be a text"),
        (r#"{"specversion":"1.0","subject":"a","id":"1"}"#, Unreadable, "`source` is missing"),
        (
            r#"{"specversion":"1.0","subject":"a","id":"1","source":"s"}"#,
            Unreadable,
            "`type` is missing",
        ),
    ] {
        refused(&SEQUENCED_DECODER, line, cause, message);
    }
    refused(
        &FIFO_DECODER,
        r#"{"specversion":"1.0","subject":"a"}"#,
        NoId,
        "`id` is missing: it must be a text; a fifo",
    );
    for (more, message) in [
        (r#""id":"e2""#, "`id` occurs twice"),
        (r#""\u0069d":"e2""#, "`id` occurs twice"),
        (r#""x":1,"x":1"#, "`x` occurs twice"),
        (r#""datacontenttype":"""#, "`datacontenttype` must be a text"),
        (r#""time":"yesterday""#, "`time` must be a time"),
        (r#""time":"2026-01-31T12:00:00""#, "as in RFC 3339, such as"),
        (r#""time":1285996839"#, "found 1285996839"),
        (r#""endofsequence":1"#, "`endofsequence` must be true or false, found 1"),
        (r#""data":1,"data_base64":"YQ==""#, "both `data` and `data_base64`"),
        (r#""data_base64":"?""#, "must be base64"),
        (r#""data_base64":[1]"#, "must be base64"),
        (r#""ordainheaders":"[1]""#, "must be a text that contains a JSON array of pairs"),
        (r#""data":01"#, "not a CloudEvent in JSON"),
        (r#""data":"\x""#, "not a CloudEvent in JSON"),
    ] {
        refused(&SEQUENCED_DECODER, &line(&format!(",{more}")), Unreadable, message);
    }
    let error =
        refused(&SEQUENCED_DECODER, &line(r#","sequence":5,"time":0"#), Unreadable, "`time`");
    assert_eq!((error.key.as_deref(), error.sequence), (Some("o-1"), Some(5)));
    let error = SEQUENCED_DECODER.decode(b"{\"subject\":\"\xff\"}").expect_err("not UTF-8");
    assert!(error.message.contains("not UTF-8"), "{error}");
    // Two lines of a file in UTF-16. The first line begins with the byte order mark. The second line begins with a NUL,
    // the second byte of the preceding line end.
    for begin in [&b"\xff\xfe"[..], b"\0"] {
        let text = "{\"specversion\":\"1.0\"}".encode_utf16().flat_map(u16::to_le_bytes);
        let line: Vec<u8> = begin.iter().copied().chain(text).collect();
        let error = SEQUENCED_DECODER.decode(&line).expect_err("UTF-16");
        assert!(error.message.contains("UTF-16"), "{error}");
    }
}

#[test]
fn second_event_on_a_line_is_explained() {
    let rejection = |text: &str| {
        SEQUENCED_DECODER.decode(text.as_bytes()).expect_err("no single event").message
    };
    let event = line("");
    for both in [event.clone() + &event, format!("{event} {event}"), format!("{event}{{")] {
        let error = rejection(&both);
        assert!(error.contains("trailing characters at byte"), "{error}");
        assert!(error.ends_with("ends of a file: use `curl --data-binary`"), "{error}");
    }
    let error = rejection(&format!("{event}\r\n{event}"));
    assert!(error.ends_with("use the content type application/x-ndjson"), "{error}");
    for text in [event.clone() + "}", format!("[] {event}"), event.clone() + ",1"] {
        let error = rejection(&text);
        assert!(!error.contains("second event"), "{error}");
    }
}

#[test]
fn wrong_case_of_an_interpreted_name_is_rejected() {
    for (more, right) in [
        (r#""EndOfSequence":true"#, "`endofsequence` instead of `EndOfSequence`"),
        (r#""endOfSequence":true"#, "`endofsequence` instead of `endOfSequence`"),
        (r#""Sequence":5"#, "`sequence` instead of `Sequence`"),
        (r#""partitionKey":"a""#, "`partitionkey` instead of `partitionKey`"),
        (r#""SUBJECT":"a""#, "`subject` instead of `SUBJECT`"),
        (r#""Time":"2026-01-31T12:00:00Z""#, "`time` instead of `Time`"),
        (r#""dataContentType":"text/plain""#, "`datacontenttype` instead of `dataContentType`"),
        (r#""Data":1"#, "`data` instead of `Data`"),
        (r#""\u0045ndofsequence":true"#, "`endofsequence` instead of `Endofsequence`"),
    ] {
        let words = format!("the names of attributes are lower case: write {right}");
        refused(&SEQUENCED_DECODER, &line(&format!(",{more}")), Cause::Unreadable, &words);
    }
    let error = refused(
        &SEQUENCED_DECODER,
        &line(r#","sequence":7,"EndOfSequence":true"#),
        Cause::Unreadable,
        "write `endofsequence`",
    );
    assert_eq!((error.key.as_deref(), error.sequence), (Some("o-1"), Some(7)));

    let fifo = |more: &str| FIFO_DECODER.decode(line(more).as_bytes());
    let error = fifo(r#","EndOfSequence":true"#).expect_err("the end of the key");
    assert!(error.message.contains("write `endofsequence`"), "{error}");
    // The decoder does not interpret these attributes, so they are headers.
    let event = fifo(r#","Sequence":5"#).expect("an event of a fifo stream");
    assert_eq!(event.headers().collect::<Vec<_>>(), [("Sequence", "5")]);
    let event = decode(r#","partitionkey":"a","SUBJECT":"b","TraceParent":"c""#);
    let headers: Vec<_> = event.headers().filter(|(name, _)| *name != "subject").collect();
    assert_eq!((event.key(), headers), ("a", vec![("SUBJECT", "b"), ("TraceParent", "c")]));
    assert_eq!(decode(r#","EndOfSequence":null"#).headers().count(), 0);
}

/// A setting names the places of the key. The decoder reads the key from the first attribute that is present.
#[test]
fn wrong_case_of_a_named_key_is_rejected() {
    let decode = |names: &[&str], more: &str| {
        let places = names.iter().map(|name| KeyPlace::Place(Place::Attribute((*name).to_owned())));
        let key = Some(KeyLocation(places.collect()));
        let locations = EventLocations { key, ..EventLocations::DEFAULT };
        SEQUENCED_DECODER.clone().with_locations(locations).decode(line(more).as_bytes())
    };
    let error = decode(&["partitionkey", "subject"], r#","partitionKey":"b""#);
    let error = error.expect_err("the wrong case of partitionkey");
    assert!(error.message.contains("write `partitionkey` instead of `partitionKey`"), "{error}");
    // The decoder does not read these attributes.
    let event = decode(&["subject", "partitionkey"], r#","partitionKey":"b""#);
    assert_eq!(event.expect("an event").key(), "o-1");
    let event = decode(&["customer"], r#","customer":"c","Subject":"a","partitionKey":"b""#);
    assert_eq!(event.expect("an event").key(), "c");
}

#[test]
fn errors_name_the_limits() {
    let long = |bytes: usize| "x".repeat(bytes);
    let many = |count: usize| {
        (0..count).fold(String::new(), |text, index| text + &format!(",\"x{index}\":1"))
    };
    let deep = |depth: usize| format!(",\"data\":{}{}", "[".repeat(depth), "]".repeat(depth));
    for (valid, invalid, message) in [
        (
            format!(",\"partitionkey\":\"{}\"", long(KEY_SIZE_LIMIT)),
            format!(",\"partitionkey\":\"{}\"", long(KEY_SIZE_LIMIT + 1)),
            "the key has 1025 bytes; at most 1024 bytes are allowed",
        ),
        (
            format!(",\"datacontenttype\":\"{}\"", long(ATTRIBUTE_LIMIT)),
            format!(",\"datacontenttype\":\"{}\"", long(ATTRIBUTE_LIMIT + 1)),
            "`datacontenttype` has 4097 bytes",
        ),
        (many(HEADERS_LIMIT), many(HEADERS_LIMIT + 1), "129 extensions, "),
        (many(HEADERS_LIMIT), many(10 * HEADERS_LIMIT), "more than 128 extensions"),
        (
            format!(",\"x\":\"{}\"", long(HEADERS_SIZE_LIMIT - 1)),
            format!(",\"x\":\"{}\"", long(HEADERS_SIZE_LIMIT)),
            "1 extensions, 65537 bytes in total",
        ),
        (deep(NESTING_LIMIT), deep(NESTING_LIMIT + 1), "nested deeper than 127"),
        (deep(NESTING_LIMIT), deep(100_000), "nested deeper than 127"),
    ] {
        decode(&valid);
        refused(&SEQUENCED_DECODER, &line(&invalid), Cause::Unreadable, message);
    }
    let size = line("").len();
    assert!(
        EventDecoder { event_size: size, ..SEQUENCED_DECODER }.decode(line("").as_bytes()).is_ok()
    );
    let small = EventDecoder { event_size: size - 1, ..SEQUENCED_DECODER };
    refused(&small, &line(""), Cause::Unreadable, "runtime.event_size allows");
}

#[test]
fn serde_json_reads_exactly_the_accepted_nesting() {
    for depth in [1, NESTING_LIMIT, NESTING_LIMIT + 1] {
        let json = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let readable = serde_json::from_str::<serde_json::Value>(&json).is_ok();
        assert_eq!(compact(&json).is_ok(), readable, "{depth}");
    }
}

fn message(parts: &MessageParts<'_>) -> OutboxMessage {
    let emitted =
        EmittedMessage { sequence: 7, index: 2, event_digest: 0, message: Message::new(parts) };
    OutboxMessage { key: "o/1 ü".into(), incarnation: 99, emitted }
}

fn encoded(message: &OutboxMessage, sequence: Option<u64>) -> String {
    let mut out = Vec::new();
    encode("orders", message, sequence, TextForm::Text, &mut out);
    String::from_utf8(out).expect("JSON is text")
}

#[test]
fn message_becomes_a_line() {
    let headers = [("traceparent", "00-ab"), ("X-Shop", "1"), ("id", "mine"), ("traceparent", "2")];
    let parts = MessageParts {
        sink: "out",
        kind: "receipt",
        content_type: "application/json",
        headers: &headers,
        data: b"{\n  \"a\": 1\n}",
        ..MessageParts::default()
    };
    assert_eq!(
        encoded(&message(&parts), None),
        concat!(
            r#"{"specversion":"1.0","id":"orders/o%2F1%20%C3%BC/99/7/2","source":"/ordain/orders","#,
            r#""type":"receipt","subject":"o/1 ü","datacontenttype":"application/json","#,
            r#""traceparent":"00-ab","ordainheaders":"[[\"X-Shop\",\"1\"],[\"id\",\"mine\"],[\"traceparent\",\"2\"]]","#,
            r#""data":{"a":1}}"#,
            "\n"
        )
    );
    let parts = MessageParts {
        key: Some("k"),
        content_type: "image/png",
        headers: &[],
        data: &[0xff],
        end: true,
        ..parts
    };
    let line = encoded(&message(&parts), Some(12));
    assert!(line.contains(r#""subject":"k","sequence":"12","endofsequence":true,"#), "{line}");
    assert!(line.ends_with("\"data_base64\":\"/w==\"}\n"), "{line}");
}

/// Returns the part of a message's line that begins with the data.
fn encoded_data(content_type: &str, data: &[u8], text_form: TextForm) -> String {
    let parts =
        MessageParts { sink: "out", kind: "t", content_type, data, ..MessageParts::default() };
    let mut out = Vec::new();
    encode("orders", &message(&parts), None, text_form, &mut out);
    let line = String::from_utf8(out).expect("JSON is text");
    let event = SEQUENCED_DECODER.decode(line.as_bytes()).expect("an event");
    assert_eq!((event.content_type(), event.data()), (content_type, data), "{line}");
    let start = line.rfind(",\"data").expect("data");
    line[start..].trim_end().to_owned()
}

#[test]
fn text_in_utf8_stays_text() {
    let text = "<a b=\"ü\">\n</a>".as_bytes();
    let as_text = r#","data":"<a b=\"ü\">\n</a>"}"#;
    let as_base64 = r#","data_base64":"PGEgYj0iw7wiPgo8L2E+"}"#;
    for (content_type, expected) in [
        ("text/plain", as_text),
        ("Text/XML; version=1", as_text),
        ("application/xml;Charset=\"UTF-8\"", as_text),
        ("application/atom+xml", as_text),
        ("application/yaml", as_text),
        ("application/x-www-form-urlencoded", as_text),
        ("application/x-lines; charset=utf-8", as_text),
        ("text/plain; charset=iso-8859-1", as_base64),
        ("text/plain; charset=utf-16", as_base64),
        ("application/octet-stream", as_base64),
        ("application/protobuf", as_base64),
        ("image/png", as_base64),
        // A decoder would read a JSON string in `data` as JSON, not as this text.
        ("application/json; charset=utf-8", as_base64),
    ] {
        assert_eq!(encoded_data(content_type, text, TextForm::Text), expected, "{content_type}");
        assert_eq!(encoded_data(content_type, text, TextForm::Base64), as_base64, "{content_type}");
    }
    for form in [TextForm::Text, TextForm::Base64] {
        assert_eq!(encoded_data("text/plain", b"a\xff", form), r#","data_base64":"Yf8="}"#);
        assert_eq!(encoded_data("application/json", b"[1]", form), r#","data":[1]}"#);
    }
}

/// The size limit of a message applies to its line. Text must therefore never take more space than base64.
#[test]
fn text_with_many_escapes_becomes_base64() {
    assert_eq!(encoded_data("text/plain", b"ab\n", TextForm::Text), r#","data":"ab\n"}"#);
    let escapes = "\u{1}".repeat(6);
    let expected = r#","data_base64":"AQEBAQEB"}"#;
    assert_eq!(encoded_data("text/plain", escapes.as_bytes(), TextForm::Text), expected);
}

fn letter(cause: Cause, content: LetterContent) -> DeadLetter {
    DeadLetter {
        id: LetterId { key: "o/1".into(), sequence: 7, tag: 0xab },
        cause,
        error: "sold \"out\"".to_owned(),
        origin: None,
        version: None,
        content,
    }
}

fn forwarded(letter: &DeadLetter) -> String {
    let mut out = Vec::new();
    encode_letter("orders", letter, None, TextForm::Text, &mut out);
    String::from_utf8(out).expect("JSON is text")
}

#[test]
fn dead_letter_becomes_a_line() {
    let event = decode(
        r#","sequence":"7","time":"2026-01-01T02:00:00.500250+02:00","endofsequence":true,"data":{"a":1},
           "traceparent":"00-ab","deadcause":"mine""#,
    );
    let rejected = letter(Cause::Rejected, LetterContent::Event(event.into()));
    let rejected = DeadLetter { version: Some("orders@1.0.0".into()), ..rejected };
    assert_eq!(
        forwarded(&rejected),
        concat!(
            r#"{"specversion":"1.0","id":"orders/o%2F1/dead/7/ab","source":"/ordain/orders","#,
            r#""type":"order.paid","subject":"o/1","deadcause":"rejected","#,
            r#""deaderror":"sold \"out\"","deadversion":"orders@1.0.0","deadsequence":"7","#,
            r#""deadid":"e1","deadsource":"/shop","deadtime":"2026-01-01T00:00:00.50025Z","#,
            r#""deadend":"true","datacontenttype":"application/json","traceparent":"00-ab","#,
            r#""ordainheaders":"[[\"deadcause\",\"mine\"]]","data":{"a":1}}"#,
            "\n"
        )
    );
    let again =
        SEQUENCED_DECODER.decode(forwarded(&rejected).trim_end().as_bytes()).expect("an event");
    assert_eq!((again.kind(), again.data()), ("order.paid", &br#"{"a":1}"#[..]));

    let unreadable = DeadLetter {
        id: LetterId { key: "".into(), sequence: 0, tag: 1 },
        origin: Some("line 17 of orders.ndjson".to_owned()),
        ..letter(Cause::Unreadable, LetterContent::Raw(bytes::Bytes::from_static(b"{\xff")))
    };
    assert_eq!(
        forwarded(&unreadable),
        concat!(
            r#"{"specversion":"1.0","id":"orders//dead/0/1","source":"/ordain/orders","#,
            r#""type":"ordain.dead-letter","deadcause":"unreadable","deaderror":"sold \"out\"","#,
            r#""deadorigin":"line 17 of orders.ndjson","#,
            r#""datacontenttype":"application/octet-stream","data_base64":"e/8="}"#,
            "\n"
        )
    );

    let gap = letter(Cause::Gap, LetterContent::Nothing);
    let one = DeadLetter { id: LetterId::of_skipped(&gap.id.key, 7, 7), ..gap.clone() };
    let one = forwarded(&one);
    assert!(one.contains(r#""deadcause":"gap""#) && !one.contains(r#""data"#), "{one}");
    assert!(one.contains(r#""deadsequence":"7"}"#) && !one.contains("deadlastsequence"), "{one}");
    let several = DeadLetter { id: LetterId::of_skipped(&gap.id.key, 7, 20_000_000), ..gap };
    let several = forwarded(&several);
    assert!(several.contains(r#""deadsequence":"7","deadlastsequence":"20000000""#), "{several}");
}

/// Generates texts with special characters of JSON, URLs and attribute names.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![".{1,12}", "[a-z0-9]{1,8}", "[\"\\\\/%\n\r\t {}\u{0}\u{7f}]{1,8}"]
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any_text().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::hash_map(any_text(), inner, 0..4)
                .prop_map(|members| members.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

/// Writes JSON in another form: with additional white space, with escapes for all characters of strings, and with the
/// members of objects in reverse order.
fn write_loosely(json: &serde_json::Value, out: &mut String) {
    let mut separator = "\n";
    match json {
        serde_json::Value::Array(values) => {
            out.push('[');
            for value in values {
                *out += separator;
                write_loosely(value, out);
                separator = "\t, ";
            }
            *out += " ]";
        }
        serde_json::Value::Object(members) => {
            out.push('{');
            for (name, value) in members.iter().rev() {
                *out += separator;
                write_escaped(name, out);
                *out += " :\r\n";
                write_loosely(value, out);
                separator = " ,";
            }
            *out += "\t}";
        }
        serde_json::Value::String(text) => write_escaped(text, out),
        other => *out += &other.to_string(),
    }
}

fn write_escaped(text: &str, out: &mut String) {
    out.push('"');
    for unit in text.encode_utf16() {
        *out += &format!("\\u{unit:04X}");
    }
    out.push('"');
}

fn any_data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        any_json().prop_map(|json| serde_json::to_vec_pretty(&json).expect("JSON")),
        "[\\[\\]{}\",:0-9a-z \n\\\\]{0,32}".prop_map(String::into_bytes),
    ]
}

fn any_content_type() -> impl Strategy<Value = String> {
    prop_oneof![Just("application/json".to_owned()), Just("text/plain".to_owned()), any_text()]
}

fn sorted<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, &'a str)> {
    let mut headers: Vec<_> = headers.collect();
    headers.sort_by_key(|(name, _)| *name);
    headers
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..400) {
        let _ = SEQUENCED_DECODER.decode(&bytes);
        // A valid line that is truncated, or that has one changed byte, also causes no panic.
        let mut whole = line(r#","sequence":"1","time":"2026-01-01T00:00:00Z","data":{"a":[1,"b\n"]},"x":"\u00fc""#).into_bytes();
        if let (Some(place), Some(byte)) = (whole.get_mut(cut), bytes.first()) {
            *place = *byte;
        }
        let _ = SEQUENCED_DECODER.decode(&whole);
        let _ = FIFO_DECODER.decode(&whole[..cut.min(whole.len())]);
    }

    #[test]
    fn decoding_reverses_encoding(
        kind in any_text(),
        key in prop::option::of(any_text()),
        content_type in any_content_type(),
        headers in prop::collection::vec((any_text(), any_text()), 0..6),
        data in any_data(),
        sequence in prop::option::of(0..u64::MAX),
        end in any::<bool>(),
    ) {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let parts = MessageParts {
            sink: "out", key: key.as_deref(), kind: &kind, content_type: &content_type,
            headers: &headers, data: &data, delay_ms: None, end,
        };
        let message = message(&parts);
        let line = encoded(&message, sequence);
        prop_assert_eq!(line.matches('\n').count(), 1);
        let event = SEQUENCED_DECODER.decode(line.as_bytes()).map_err(|error| TestCaseError::fail(format!("{error}: {line}")))?;
        prop_assert_eq!(event.key(), key.as_deref().unwrap_or(&message.key));
        prop_assert_eq!(event.id(), message_id("orders", &message));
        prop_assert_eq!((event.kind(), event.source()), (kind.as_str(), "/ordain/orders"));
        prop_assert_eq!((event.sequence(), event.end(), event.time_ms()), (sequence, end, None));
        prop_assert_eq!(event.content_type(), content_type.as_str());
        prop_assert_eq!(sorted(event.headers()), sorted(headers.into_iter()));
        let as_json = serde_json::from_slice::<&serde_json::value::RawValue>(&data).ok();
        let expected = match as_json.filter(|_| is_json(&content_type)) {
            Some(raw) => compact(raw.get()).expect("nesting within the limit").as_bytes().to_vec(),
            None => data,
        };
        prop_assert_eq!(event.data(), expected);
    }

    #[test]
    fn compact_keeps_the_value_and_is_idempotent(json in any_json(), blanks in "[ \n\t\r]{0,3}") {
        let tight = json.to_string();
        prop_assert_eq!(&*compact(&tight).expect("nesting within the limit"), tight.as_str());
        let pretty = serde_json::to_string_pretty(&json).expect("JSON");
        let loose = format!("{blanks}{pretty}{blanks}");
        prop_assert_eq!(&*compact(&loose).expect("nesting within the limit"), tight.as_str());
    }

    #[test]
    fn digest_depends_only_on_the_value(one in any_json(), other in any_json()) {
        let digest = |text: &str| json_digest(text.as_bytes());
        let tight = one.to_string();
        let mut loose = String::new();
        write_loosely(&one, &mut loose);
        prop_assert!(digest(&tight).is_some());
        prop_assert_eq!(digest(&tight), digest(&loose), "{}", loose);
        let pretty = serde_json::to_string_pretty(&one).expect("JSON");
        prop_assert_eq!(digest(&tight), digest(&pretty));
        let other = other.to_string();
        prop_assert_eq!(digest(&tight) == digest(&other), tight == other, "{} {}", tight, other);
    }

    #[test]
    fn only_json_has_a_digest(text in "[\\[\\]{}\",:0-9a-z.+ \\\\-]{0,12}") {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        prop_assert_eq!(json_digest(text.as_bytes()).is_some(), is_json, "{}", text);
    }

    #[test]
    fn compact_is_idempotent_for_any_text(text in "[\\[\\]{}\",:0-9a-zü \n\\\\]{0,64}") {
        if let Ok(once) = compact(&text) {
            prop_assert_eq!(compact(&once).expect("the same nesting"), once.clone());
        }
    }
}
