//! The places in which a source finds the key, id, sequence, type and time of its events. The settings of a source name
//! these places. This module only parses the names, and must not read any event.

use std::fmt;

use toml::de::DeValue;

use super::reader::{ConfigReader, SettingNode, SettingValue, describe};
use super::scalar::Scalar;
use super::suggest::nearest;
use super::text::AmqpName;

/// Maximum number of places of a setting. Each place of a setting can cost a search in an event.
const PLACES_LIMIT: usize = 16;
/// The hint for a composite key whose braces do not enclose places.
const BRACES_HINT: &str =
    "write each place between `{` and `}`; the name in a place of a key cannot contain braces";

/// A place of an event that contains a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The routing key of a message.
    RoutingKey,
    /// The message header with this name.
    Header(String),
    /// A property of a message.
    Property(MessageProperty),
    /// The CloudEvents attribute or extension with this name.
    Attribute(String),
    /// A value in the event's data. The data must be JSON.
    Data(JsonPointer),
}

/// Formats the place as errors about events name it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoutingKey => f.write_str("the routing key"),
            Self::Header(name) => write!(f, "the header {name:?}"),
            Self::Property(property) => write!(f, "the property {}", property.name()),
            Self::Attribute(name) => write!(f, "the attribute {name:?}"),
            Self::Data(pointer) => write!(f, "the data at {:?}", pointer.text),
        }
    }
}

impl Place {
    /// Returns the place as the configuration names it.
    pub fn setting(&self) -> String {
        match self {
            Self::RoutingKey => "routing-key".to_owned(),
            Self::Header(name) => format!("header:{name}"),
            Self::Property(property) => property.header_name().to_owned(),
            Self::Attribute(name) => format!("attribute:{name}"),
            Self::Data(pointer) => format!("data:{}", pointer.text),
        }
    }

    /// Returns whether the place exists in every form of an event: in a message, in a request and in a line of a file.
    fn is_in_every_form(&self) -> bool {
        matches!(self, Self::Data(_))
    }
}

/// A property of an AMQP message that can contain a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageProperty {
    /// `message_id`.
    MessageId,
    /// `correlation_id`.
    CorrelationId,
    /// `type`.
    Type,
    /// `app_id`.
    AppId,
    /// `user_id`.
    UserId,
    /// `reply_to`.
    ReplyTo,
    /// `timestamp`.
    Timestamp,
    /// `expiration`.
    Expiration,
    /// `priority`.
    Priority,
    /// `content_type`.
    ContentType,
    /// `content_encoding`.
    ContentEncoding,
}

impl MessageProperty {
    /// All properties.
    pub const ALL: [Self; 11] = [
        Self::MessageId,
        Self::CorrelationId,
        Self::Type,
        Self::AppId,
        Self::UserId,
        Self::ReplyTo,
        Self::Timestamp,
        Self::Expiration,
        Self::Priority,
        Self::ContentType,
        Self::ContentEncoding,
    ];

    /// The properties that a handler reads as headers. The other properties are parts of the event.
    pub const HANDLER_HEADERS: [Self; 7] = [
        Self::ContentEncoding,
        Self::CorrelationId,
        Self::ReplyTo,
        Self::AppId,
        Self::UserId,
        Self::Priority,
        Self::Expiration,
    ];

    /// Returns the property that a header of this name contains; `None` for an ordinary header.
    pub fn of_header(name: &str) -> Option<Self> {
        if !name.starts_with("property:") {
            return None;
        }
        Self::HANDLER_HEADERS.into_iter().find(|property| property.header_name() == name)
    }

    /// Returns the name of the property in the configuration and in RabbitMQ.
    pub fn name(self) -> &'static str {
        self.header_name().strip_prefix("property:").unwrap_or_default()
    }

    /// Returns the name of the header in which a handler reads and sets the property. The name has the form of the
    /// place in the configuration.
    pub fn header_name(self) -> &'static str {
        match self {
            Self::MessageId => "property:message_id",
            Self::CorrelationId => "property:correlation_id",
            Self::Type => "property:type",
            Self::AppId => "property:app_id",
            Self::UserId => "property:user_id",
            Self::ReplyTo => "property:reply_to",
            Self::Timestamp => "property:timestamp",
            Self::Expiration => "property:expiration",
            Self::Priority => "property:priority",
            Self::ContentType => "property:content_type",
            Self::ContentEncoding => "property:content_encoding",
        }
    }

    fn parse(name: &str) -> Result<Self, String> {
        if let Some(property) = Self::ALL.into_iter().find(|property| property.name() == name) {
            return Ok(property);
        }
        let known = Self::ALL.map(Self::name);
        Err(match nearest(name, known) {
            Some(meant) => format!("did you mean \"property:{meant}\"?"),
            None => format!("the properties are {}", known.join(", ")),
        })
    }
}

/// A JSON Pointer (RFC 6901): the path to a value within JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer {
    text: String,
    tokens: Vec<String>,
}

impl JsonPointer {
    /// Maximum number of names and indices in a pointer: the limit of the JSON parser for nested arrays and objects.
    const TOKENS_LIMIT: usize = 127;

    /// Parses a pointer that is not empty. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let tokens =
            text.strip_prefix('/')?.split('/').map(unescaped).collect::<Option<Vec<_>>>()?;
        (tokens.len() <= Self::TOKENS_LIMIT).then(|| Self { text: text.to_owned(), tokens })
    }

    /// Returns the names and indices on the way to the value.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }
}

/// Replaces the escapes of a part of a pointer: `~1` is `/`, and `~0` is `~`. Returns `None` for any other `~`.
fn unescaped(part: &str) -> Option<String> {
    let mut text = String::with_capacity(part.len());
    let mut characters = part.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            character => character,
        });
    }
    Some(text)
}

/// A place of the key of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// A place that contains the whole key.
    Place(Place),
    /// A text with one or more places, each of which contains a part of the key. Between two places, there is always a
    /// text, the separator. A separator never begins with an ASCII letter, a digit or `%`. In the values, `%` and the
    /// first characters of the separators are percent-encoded, so that different values never result in the same key.
    Composite(Vec<KeyPart>),
    /// No place: all events of the stream have the key `*`.
    Stream,
}

/// A part of a composite key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    /// A text that is the same in every key.
    Text(String),
    /// A place that contains the part.
    Place(Place),
}

/// The places of the key. Ordain uses the first place that is present and not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLocation(pub Vec<KeyPlace>);

/// A place of the id of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdPlace {
    /// A place that contains the id.
    Place(Place),
    /// No place: the id is a digest of key, type and data.
    Content,
    /// No place: each delivery gets an id of its own.
    Unique,
}

/// The places of the id. Ordain uses the first place that is present and not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdLocation(pub Vec<IdPlace>);

/// The places of a sequence, type or time. Ordain uses the first place that is present and not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueLocation(pub Vec<Place>);

impl From<Place> for KeyLocation {
    fn from(place: Place) -> Self {
        Self(vec![KeyPlace::Place(place)])
    }
}

impl KeyLocation {
    /// Returns the place if the location is a single place that contains the whole key.
    pub fn single(&self) -> Option<&Place> {
        match &self.0[..] {
            [KeyPlace::Place(place)] => Some(place),
            _ => None,
        }
    }

    /// Returns the name of the header if the location is a single header that contains the whole key.
    pub fn single_header(&self) -> Option<&str> {
        match self.single()? {
            Place::Header(name) => Some(name),
            _ => None,
        }
    }

    /// Returns whether the key is in the routing key, and nowhere else.
    pub fn is_routing_key(&self) -> bool {
        self.single() == Some(&Place::RoutingKey)
    }

    /// Returns all places of the location.
    pub(super) fn places(&self) -> Vec<&Place> {
        let mut places = Vec::new();
        for place in &self.0 {
            match place {
                KeyPlace::Place(place) => places.push(place),
                KeyPlace::Composite(parts) => {
                    for part in parts {
                        if let KeyPart::Place(place) = part {
                            places.push(place);
                        }
                    }
                }
                KeyPlace::Stream => {}
            }
        }
        places
    }
}

impl ValueLocation {
    fn is_in_every_form(&self) -> bool {
        self.0.iter().all(Place::is_in_every_form)
    }
}

impl IdLocation {
    /// Returns all places of the location.
    pub(super) fn places(&self) -> Vec<&Place> {
        let mut places = Vec::new();
        for id_place in &self.0 {
            if let IdPlace::Place(place) = id_place {
                places.push(place);
            }
        }
        places
    }
}

/// The places of the values of a source's events. If a location is `None`, the value is in its default place, which
/// depends on the form of the event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventLocations {
    /// The places of the key.
    pub key: Option<KeyLocation>,
    /// The places of the id.
    pub id: Option<IdLocation>,
    /// The places of the sequence.
    pub sequence: Option<ValueLocation>,
    /// The places of the type.
    pub kind: Option<ValueLocation>,
    /// The places of the time.
    pub time: Option<ValueLocation>,
}

impl EventLocations {
    /// The default places of all values.
    pub const DEFAULT: Self = Self { key: None, id: None, sequence: None, kind: None, time: None };

    /// Returns whether all values are in their default places.
    pub fn is_default(&self) -> bool {
        *self == Self::DEFAULT
    }

    /// Returns whether the stream reads each value from the place into which Ordain writes the value when it publishes
    /// an event to the stream. The key is in its default place or in a single header, and all other values are in their
    /// default places.
    pub fn has_only_written_places(&self) -> bool {
        let Self { key, id, sequence, kind, time } = self;
        key.as_ref().is_none_or(|key| key.single_header().is_some())
            && id.is_none()
            && sequence.is_none()
            && kind.is_none()
            && time.is_none()
    }

    /// Returns the locations whose places exist in every form of an event. All other locations become the default.
    pub(super) fn in_every_form(&self) -> Self {
        let exist = |places: &[&Place]| places.iter().all(|place| place.is_in_every_form());
        Self {
            key: self.key.clone().filter(|key| exist(&key.places())),
            id: self.id.clone().filter(|id| exist(&id.places())),
            sequence: self.sequence.clone().filter(ValueLocation::is_in_every_form),
            kind: self.kind.clone().filter(ValueLocation::is_in_every_form),
            time: self.time.clone().filter(ValueLocation::is_in_every_form),
        }
    }
}

impl SettingValue for KeyLocation {
    const FORM: &'static str = "\"routing-key\", \"header:NAME\", \"property:NAME\", \"attribute:NAME\" or \
                                \"data:/POINTER\", a text with such places in braces, \"*\", or an array of these";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let is_last = |place: &KeyPlace| *place == KeyPlace::Stream;
        read_places(reader, node, Self::FORM, parse_key_place, is_last).map(Self)
    }
}

impl SettingValue for IdLocation {
    const FORM: &'static str = "\"routing-key\", \"header:NAME\", \"property:NAME\", \"attribute:NAME\", \
                                \"data:/POINTER\", \"content\" or \"none\", or an array of these";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        let is_last = |place: &IdPlace| !matches!(place, IdPlace::Place(_));
        read_places(reader, node, Self::FORM, parse_id_place, is_last).map(Self)
    }
}

impl SettingValue for ValueLocation {
    const FORM: &'static str = "\"routing-key\", \"header:NAME\", \"property:NAME\", \"attribute:NAME\" or \
                                \"data:/POINTER\", or an array of these";

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        read_places(reader, node, Self::FORM, parse_place, |_| false).map(Self)
    }
}

/// Reads one place, or an array of places. `is_last` returns whether a place is present in every event. Ordain would
/// never use the places after such a place, so these places are an error.
fn read_places<T>(
    reader: &mut ConfigReader<'_>,
    node: &SettingNode<'_>,
    form: &str,
    parse: impl Fn(&str) -> Result<T, String>,
    is_last: impl Fn(&T) -> bool,
) -> Option<Vec<T>> {
    if !matches!(node.value, DeValue::Array(_)) {
        return read_place(reader, node, form, &parse).map(|place| vec![place]);
    }
    let elements = reader.elements(node, form)?;
    if elements.is_empty() || elements.len() > PLACES_LIMIT {
        let message = format!("must have 1 to {PLACES_LIMIT} places, found {}", elements.len());
        reader.report(node.line, &node.name, message);
        return None;
    }
    let found: Vec<_> =
        elements.iter().map(|element| read_place(reader, element, form, &parse)).collect();
    let places = found.into_iter().collect::<Option<Vec<T>>>()?;
    if let Some(index) = places.iter().position(is_last)
        && index + 1 < places.len()
    {
        let shown = describe(elements[index].value);
        let message = format!(
            "{shown} is present in every event: write it last, or remove the places after it"
        );
        reader.report(elements[index].line, &elements[index].name, message);
        return None;
    }
    Some(places)
}

fn read_place<T>(
    reader: &mut ConfigReader<'_>,
    node: &SettingNode<'_>,
    form: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    let text = reader.text(node, form)?;
    match parse(&text) {
        Ok(place) => Some(place),
        Err(hint) => {
            let hint = if hint.is_empty() { hint } else { format!("; {hint}") };
            let found = describe(node.value);
            reader.report(node.line, &node.name, format!("expected {form}, found {found}{hint}"));
            None
        }
    }
}

/// Parses a place. The text of an error is a hint; empty if there is no hint.
pub(super) fn parse_place(text: &str) -> Result<Place, String> {
    const KINDS: [&str; 4] = ["header", "property", "attribute", "data"];
    if text == "routing-key" {
        return Ok(Place::RoutingKey);
    }
    let Some((kind, name)) = text.split_once(':') else {
        return Err(closest(text, &["routing-key"]));
    };
    let named = || {
        let form = <AmqpName as Scalar>::FORM;
        AmqpName::parse(name).map_err(|_| format!("the name must be {form}"))
    };
    match kind {
        "header" => Ok(Place::Header(named()?.0)),
        "attribute" if name.contains(|c: char| c.is_ascii_uppercase()) => Err(format!(
            "the names of attributes are lower case: did you mean \"attribute:{}\"?",
            name.to_ascii_lowercase()
        )),
        "attribute" => Ok(Place::Attribute(named()?.0)),
        "property" => MessageProperty::parse(name).map(Place::Property),
        "data" => JsonPointer::parse(name).map(Place::Data).ok_or_else(|| pointer_hint(name)),
        _ => Err(nearest(kind, KINDS)
            .map_or_else(String::new, |meant| format!("did you mean \"{meant}:{name}\"?"))),
    }
}

/// Returns the hint for a text that is no JSON Pointer.
fn pointer_hint(text: &str) -> String {
    if !text.is_empty() && !text.contains(['/', '~']) {
        return format!("did you mean \"data:/{text}\"?");
    }
    "write the path to the value as in RFC 6901, such as \"data:/order/id\", with ~1 for each / and ~0 for each ~ in a \
     name"
        .to_owned()
}

fn parse_key_place(text: &str) -> Result<KeyPlace, String> {
    if text == "*" {
        return Ok(KeyPlace::Stream);
    }
    if !text.contains(['{', '}']) {
        return parse_place(text).map(KeyPlace::Place);
    }
    let mut parts: Vec<KeyPart> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (fixed, after) = match rest.find(['{', '}']) {
            Some(start) => rest.split_at(start),
            None => (rest, ""),
        };
        if !fixed.is_empty() {
            parts.push(KeyPart::Text(fixed.to_owned()));
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((place, after)) = inside else {
            return Err(BRACES_HINT.to_owned());
        };
        check_separator(&parts)?;
        let place = parse_place(place).map_err(|hint| match (&hint[..], &parts[..]) {
            // The text is a valid name of a place, so the braces are probably a part of this name.
            ("", [KeyPart::Text(text)]) if parse_place(text).is_ok() => BRACES_HINT.to_owned(),
            ("", _) => format!("{{{place}}} names no place"),
            (hint, _) => format!("{{{place}}}: {hint}"),
        })?;
        parts.push(KeyPart::Place(place));
        rest = after;
    }
    if parts.iter().filter(|part| matches!(part, KeyPart::Place(_))).count() > PLACES_LIMIT {
        return Err(format!("a key can combine at most {PLACES_LIMIT} places"));
    }
    Ok(KeyPlace::Composite(parts))
}

/// Checks that another place can follow the parts of a composite key. [`KeyPlace::Composite`] states the reason.
fn check_separator(parts: &[KeyPart]) -> Result<(), String> {
    let is_separator = match parts {
        [] | [KeyPart::Text(_)] => true,
        [.., KeyPart::Text(text)] => {
            !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '%')
        }
        [.., KeyPart::Place(_)] => false,
    };
    if is_separator {
        return Ok(());
    }
    Err("two places need a separator between them, as `/` in \"{header:tenant}/{data:/order}\"; the separator must not \
         begin with a letter, a digit or `%`: otherwise different values could result in the same key"
        .to_owned())
}

/// Parses a place of an id, as [`parse_place`] does.
pub(super) fn parse_id_place(text: &str) -> Result<IdPlace, String> {
    match text {
        "content" => Ok(IdPlace::Content),
        "none" => Ok(IdPlace::Unique),
        text => parse_place(text).map(IdPlace::Place).map_err(|hint| match &hint[..] {
            "" => closest(text, &["content", "none"]),
            _ => hint,
        }),
    }
}

/// Returns the hint for a text that is similar to a known text; empty if the text is not similar to any of them.
fn closest(text: &str, known: &[&str]) -> String {
    nearest(text, known.iter().copied())
        .map_or_else(String::new, |meant| format!("did you mean \"{meant}\"?"))
}
