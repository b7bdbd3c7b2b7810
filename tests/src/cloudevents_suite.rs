//! Reads the events of the CloudEvents conformance suite in `tests/data/cloudevents-suite`.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

use crate::plugins::root;

/// An event of the suite.
#[derive(Debug, Clone)]
pub struct SuiteEvent {
    /// The names and values of all attributes, including `specversion` and `datacontenttype`.
    pub attributes: Vec<(String, String)>,
    /// The data as text.
    pub data: String,
}

/// A request of the suite, and the event that a receiver must read from it.
#[derive(Debug)]
pub struct SuiteRequest {
    /// The first line of the request and its headers.
    pub head: Vec<String>,
    /// The body.
    pub body: String,
    /// The event in the request.
    pub event: SuiteEvent,
}

impl SuiteEvent {
    /// Returns the value of an attribute; empty if the event does not have the attribute.
    pub fn attribute(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// Returns the attributes that binary mode writes into headers: all attributes except `datacontenttype`.
    pub fn header_attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let attributes = self.attributes.iter();
        let pairs = attributes.map(|(name, value)| (name.as_str(), value.as_str()));
        pairs.filter(|(name, _)| *name != "datacontenttype")
    }

    /// Returns the event in structured mode.
    pub fn structured(&self) -> Result<String> {
        let attributes = self.attributes.iter();
        let mut event: Map<String, Value> =
            attributes.map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        event.insert("data".to_owned(), self.json()?);
        Ok(Value::Object(event).to_string())
    }

    /// Returns a text if the data is not JSON.
    fn json(&self) -> Result<Value> {
        let kind = self.attribute("datacontenttype");
        if kind.is_empty() || kind.starts_with("application/json") {
            return serde_json::from_str(&self.data).with_context(|| self.data.clone());
        }
        Ok(self.data.as_str().into())
    }

    /// Checks that `event`, from a listing of dead letters, has the attributes and the data of this event. The times of
    /// the two events must be equal, but may have different texts.
    pub fn check(&self, event: &Value) -> Result<()> {
        for name in ["id", "type", "source"] {
            ensure!(event[name] == self.attribute(name), "{name}: {event}\n{self:?}");
        }
        let kind = self.attribute("datacontenttype");
        ensure!(kind.is_empty() || event["content_type"] == kind, "{event}\n{self:?}");
        let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
        let found = event["time"].as_str().and_then(time);
        ensure!(found == time(self.attribute("time")), "time: {event}\n{self:?}");
        let mut extensions: Vec<(&str, &str)> = self
            .attributes
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, _)| !KNOWN_ATTRIBUTES.contains(name))
            .collect();
        extensions.sort_unstable();
        let headers = event["headers"].as_array().context("headers")?.iter();
        let mut headers: Vec<(&str, &str)> =
            headers.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?))).collect();
        headers.sort_unstable();
        ensure!(headers == extensions, "extensions: {event}\n{self:?}");
        ensure!(event["data"] == self.json()?, "data: {event}\n{self:?}");
        Ok(())
    }
}

/// All other attributes are extensions.
const KNOWN_ATTRIBUTES: [&str; 6] =
    ["specversion", "id", "type", "source", "time", "datacontenttype"];

fn file(name: &str) -> Result<String> {
    let path = root().join("tests/data/cloudevents-suite").join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Returns the events of the suite's files in YAML.
pub fn suite_events() -> Result<Vec<SuiteEvent>> {
    let mut events = Vec::new();
    for name in ["v1.yaml", "v1_minimum.yaml"] {
        for document in YamlLoader::load_from_str(&file(name)?)? {
            let mut attributes = Vec::new();
            let context = &document["ContextAttributes"];
            for table in [context, &context["Extensions"]] {
                for (name, value) in table.as_hash().into_iter().flatten() {
                    let name = name.as_str().context("a name")?.to_owned();
                    match value {
                        // The suite's own client (in the repository `cloudevents/conformance`) trims the values,
                        // because it sends them as headers. This function therefore trims the values too.
                        Yaml::String(text) | Yaml::Real(text) => {
                            attributes.push((name, text.trim().to_owned()));
                        }
                        other => ensure!(name == "Extensions", "{name}: {other:?}"),
                    }
                }
            }
            let data = document["Data"].as_str().context("data")?.to_owned();
            events.push(SuiteEvent { attributes, data });
        }
    }
    Ok(events)
}

/// Returns the requests in the suite's file about HTTP, with the values of all examples.
pub fn suite_requests() -> Result<Vec<SuiteRequest>> {
    let mut requests = Vec::new();
    for scenario in file("http-protocol-binding.feature")?.split("Scenario Outline:").skip(1) {
        let (_, examples) = scenario.split_once("Examples:").context("examples")?;
        for row in cells(examples).into_iter().skip(1) {
            let [value] = &row[..] else { anyhow::bail!("{row:?}") };
            requests.push(request(&scenario.replace("<contentType>", value))?);
        }
    }
    Ok(requests)
}

fn cells(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().map(str::trim).filter(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn request(scenario: &str) -> Result<SuiteRequest> {
    let parts: Vec<&str> = scenario.split("\"\"\"").collect();
    let [_, request, attributes, data, _] = parts[..] else { anyhow::bail!("{scenario}") };
    let lines: Vec<&str> = text_lines(request);
    let end = lines.iter().position(|line| line.is_empty()).context("the end of the headers")?;
    let body = lines[end + 1..].join("\n");
    let head: Vec<String> = lines[..end].iter().map(|line| (*line).to_owned()).collect();
    let length = format!("Content-Length: {}", body.len());
    ensure!(head.contains(&length), "{length}: {head:?}");
    let pair = |row: Vec<&str>| match row[..] {
        [name, value] => Ok((name.to_owned(), value.to_owned())),
        _ => anyhow::bail!("{row:?}"),
    };
    let attributes = cells(attributes).into_iter().skip(1).map(pair).collect::<Result<_>>()?;
    let event = SuiteEvent { attributes, data: text_lines(data).join("\n") };
    Ok(SuiteRequest { head, body, event })
}

/// Removes the common indentation of the lines in the suite's file about HTTP.
fn text_lines(text: &str) -> Vec<&str> {
    const INDENTATION: &str = "        ";
    let mut lines: Vec<&str> = text
        .lines()
        .skip(1)
        .map(|line| line.strip_prefix(INDENTATION).unwrap_or_else(|| line.trim_start()))
        .collect();
    // The last line contains only the indentation of the closing quotation marks.
    lines.pop();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suite_is_read_completely() -> Result<()> {
        let events = suite_events()?;
        assert_eq!(events.len(), 8);
        assert!(events.iter().all(|event| event.attribute("specversion") == "1.0"), "{events:?}");
        assert_eq!(events[0].attribute("comexampleextension2"), "{\"othervalue\": 5}");
        assert_eq!(events[3].data, "Hello, 🌎!\n");
        let requests = suite_requests()?;
        assert_eq!(requests.len(), 4);
        let kinds: Vec<_> =
            requests.iter().map(|request| request.event.attribute("datacontenttype")).collect();
        let json = "application/json";
        assert_eq!(kinds, [json, "application/json; charset=utf-8", json, json]);
        assert_eq!(requests[3].event.attributes.len(), 6);
        Ok(())
    }
}
