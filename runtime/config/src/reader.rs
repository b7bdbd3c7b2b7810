//! Walks the parsed file: returns tables and fields, records every problem with its line, and continues. This module
//! reads any [`SettingValue`] and must not depend on the meaning of a setting.

use std::borrow::Cow;
use std::path::Path;

use ordain_util::expand::{EnvLookup, ExpandError, expand};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{ConfigProblem, SettingLines};
use super::suggest::nearest;

/// The field that selects the kind of a table, if the table has several kinds.
const KIND_FIELD: &str = "kind";

/// The reader of one file, with the problems and the lines of settings that it has found so far.
pub(super) struct ConfigReader<'a> {
    /// Byte offsets at which the second and all later lines begin.
    line_starts: Vec<usize>,
    env: EnvLookup<'a>,
    /// The folder at which relative paths start.
    pub(super) base: &'a Path,
    pub(super) problems: Vec<ConfigProblem>,
    pub(super) lines: SettingLines,
    /// Lines that are not valid TOML. A setting that seems missing or misplaced may be on such a line. If there are
    /// such lines, the reader therefore reports no missing and no unknown settings, and still checks the values on the
    /// other lines.
    invalid_lines: Vec<usize>,
}

/// A value, with its full name and its position in the file.
#[derive(Clone)]
pub(super) struct SettingNode<'n> {
    pub(super) name: String,
    /// The key of the value in the surrounding table; empty for the whole file and for elements of an array.
    pub(super) key: &'n str,
    pub(super) line: usize,
    pub(super) value: &'n DeValue<'n>,
    /// True if the value is in the file. Otherwise the value is a default or a bound, which has no line in the file.
    in_file: bool,
    /// True if `kind` is a known field of this table.
    has_kind: bool,
}

impl<'n> SettingNode<'n> {
    fn new(name: String, line: usize, value: &'n DeValue<'n>, in_file: bool) -> Self {
        Self { name, key: "", line, value, in_file, has_kind: false }
    }
}

/// A table of the file or of a default.
pub(super) struct TableNode<'n> {
    node: SettingNode<'n>,
    entries: &'n DeTable<'n>,
}

/// The documentation of one setting.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceRow {
    /// Name of the setting within its table. For a kind of a table: the text `kind = "NAME"`.
    pub name: &'static str,
    /// Name of the field that contains the setting. For a kind of a table: the name of the kind.
    pub field: &'static str,
    /// The description of the setting: its doc comment in the table of `section!`.
    pub meaning: &'static str,
    /// Description of a valid value.
    pub form: &'static str,
    /// The lowest and the highest value, as the file would contain them.
    pub bounds: Option<(&'static str, &'static str)>,
    /// The default, as the file would contain it. `None` if the setting has no default; `optional` is then `true` if
    /// the file may leave out the setting.
    pub default: Option<&'static str>,
    /// The reason for the default, or for the lack of a default.
    pub because: Option<&'static str>,
    /// True if the file may leave out the setting although the setting has no default.
    pub optional: bool,
    /// The settings inside, if the setting is a table.
    pub rows: &'static [ReferenceRow],
}

/// A value that a file can contain.
pub(super) trait SettingValue: Sized {
    /// Description of a valid value, for example `a table`.
    const FORM: &'static str;
    /// The settings inside, if the value is a table.
    const ROWS: &'static [ReferenceRow] = &[];
    /// True if the file may leave out a setting of this type that has no default.
    const OPTIONAL: bool = false;

    /// Reads the value. If the value is invalid, records at least one problem and returns `None`.
    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self>;

    /// Returns the value of a setting that the file leaves out and that has no default; `None` if the setting is
    /// required.
    fn absent() -> Option<Self> {
        None
    }

    /// Returns a placeholder for an invalid or missing value, so that the reader still checks the other settings.
    /// `None` if the type has no placeholder.
    fn placeholder() -> Option<Self> {
        None
    }

    /// Returns whether the value is between the bounds, both included.
    fn within(&self, _low: &Self, _high: &Self) -> bool {
        true
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const FORM: &'static str = T::FORM;
    const ROWS: &'static [ReferenceRow] = T::ROWS;
    const OPTIONAL: bool = true;

    fn read(reader: &mut ConfigReader<'_>, node: &SettingNode<'_>) -> Option<Self> {
        T::read(reader, node).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn within(&self, low: &Self, high: &Self) -> bool {
        match (self, low, high) {
            (Some(value), Some(low), Some(high)) => value.within(low, high),
            _ => true,
        }
    }
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(text: &str, base: &'a Path, env: EnvLookup<'a>) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let problems = Vec::new();
        let lines = SettingLines::default();
        Self { line_starts: breaks, env, base, problems, lines, invalid_lines: Vec::new() }
    }

    /// Parses the text of the whole file, and reads all settings in it.
    pub(super) fn document<T: SettingValue>(&mut self, text: &str) -> Option<T> {
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let line = error.span().map_or(0, |span| self.line_of(span.start));
            self.report(line, "", format!("not valid TOML: {}", error.message()));
            self.invalid_lines.push(line);
        }
        let value = DeValue::Table(root.into_inner());
        T::read(self, &SettingNode::new(String::new(), 1, &value, true))
    }

    /// Returns whether the whole file is valid TOML.
    pub(super) fn is_valid_toml(&self) -> bool {
        self.invalid_lines.is_empty()
    }

    /// Records a problem. Ignores a problem on a line that is not valid TOML, because the reader has already recorded a
    /// problem for that line.
    pub(super) fn report(&mut self, line: usize, setting: &str, message: impl Into<String>) {
        let message = message.into();
        self.record(ConfigProblem {
            line,
            setting: setting.to_owned(),
            message,
            is_temporary: false,
        });
    }

    fn record(&mut self, problem: ConfigProblem) {
        if !self.invalid_lines.contains(&problem.line) {
            self.problems.push(problem);
        }
    }

    /// Records that a value does not have the expected form.
    pub(super) fn report_wrong_form(&mut self, node: &SettingNode<'_>, form: &str) {
        let found = describe(node.value);
        self.report(node.line, &node.name, format!("expected {form}, found {found}"));
    }

    fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) + 1
    }

    /// Returns the table at a node, and records a problem for each unknown field.
    pub(super) fn table<'n>(
        &mut self,
        node: &SettingNode<'n>,
        known: &[ReferenceRow],
    ) -> Option<TableNode<'n>> {
        let table = self.any_table(node)?;
        let kind = node.has_kind.then_some(KIND_FIELD);
        let names: Vec<&str> = kind.into_iter().chain(known.iter().map(|row| row.name)).collect();
        for child in self.children(&table) {
            if !names.contains(&child.key) && self.is_valid_toml() {
                self.report_unknown(child.line, &node.name, child.key, &names);
            }
        }
        Some(table)
    }

    fn report_unknown(&mut self, line: usize, table: &str, name: &str, known: &[&str]) {
        let hint = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        self.report(line, table, format!("unknown setting `{name}`; {hint}"));
    }

    /// Returns the table at a node. All field names are allowed.
    pub(super) fn any_table<'n>(&mut self, node: &SettingNode<'n>) -> Option<TableNode<'n>> {
        let DeValue::Table(entries) = node.value else {
            self.report_wrong_form(node, "a table");
            return None;
        };
        Some(TableNode { node: node.clone(), entries })
    }

    /// Returns the fields of a table in the order of the file.
    pub(super) fn children<'n>(&mut self, table: &TableNode<'n>) -> Vec<SettingNode<'n>> {
        table.entries.iter().map(|(name, value)| self.child(table, name, value)).collect()
    }

    fn child<'n>(
        &mut self,
        table: &TableNode<'n>,
        name: &'n Spanned<Cow<'n, str>>,
        value: &'n Spanned<DeValue<'n>>,
    ) -> SettingNode<'n> {
        let parent = &table.node;
        let dot = if parent.name.is_empty() { "" } else { "." };
        let full = format!("{}{dot}{}", parent.name, name.get_ref());
        let line = if parent.in_file { self.line_of(name.span().start) } else { parent.line };
        if parent.in_file {
            self.lines.insert(&full, line);
        }
        SettingNode {
            key: name.get_ref(),
            ..SettingNode::new(full, line, value.get_ref(), parent.in_file)
        }
    }

    /// Returns the elements of an array. If the value is no array, records a problem that describes the valid values by
    /// the text `form`, and returns `None`.
    pub(super) fn elements<'n>(
        &mut self,
        node: &SettingNode<'n>,
        form: &str,
    ) -> Option<Vec<SettingNode<'n>>> {
        let DeValue::Array(elements) = node.value else {
            self.report_wrong_form(node, form);
            return None;
        };
        let element = |(index, value): (usize, &'n Spanned<DeValue<'n>>)| {
            let name = format!("{}[{index}]", node.name);
            let line = if node.in_file { self.line_of(value.span().start) } else { node.line };
            SettingNode::new(name, line, value.get_ref(), node.in_file)
        };
        Some(elements.iter().enumerate().map(element).collect())
    }

    /// Reads one field of a table, and checks its value against its bounds. If the field is missing or invalid, returns
    /// its default. If the field has no default, returns the value of an absent setting. If the type has no such value
    /// either, returns a placeholder; `None` if the type has no placeholder.
    pub(super) fn field<T: SettingValue>(
        &mut self,
        table: &TableNode<'_>,
        row: &ReferenceRow,
    ) -> Option<T> {
        let entry = table.entries.iter().find(|(name, _)| name.get_ref().as_ref() == row.name);
        let Some((name, value)) = entry else {
            return self.missing_field(table, row);
        };
        let node = self.child(table, name, value);
        if let Some(value) = T::read(self, &node)
            && self.check_bounds(&node, row, &value)
        {
            return Some(value);
        }
        // The problem is already recorded. A default or a placeholder replaces the invalid value, so that the reader
        // still checks the settings that depend on this setting.
        match row.default {
            Some(default) => self.read_literal(&node, default),
            None => T::absent().or_else(T::placeholder),
        }
    }

    fn missing_field<T: SettingValue>(
        &mut self,
        table: &TableNode<'_>,
        row: &ReferenceRow,
    ) -> Option<T> {
        if let Some(default) = row.default {
            return self.read_literal(&table.node, default);
        }
        let absent = T::absent();
        if absent.is_none() {
            if self.is_valid_toml() {
                let message = format!("`{}` is missing: set it to {}", row.name, row.form);
                self.report(table.node.line, &table.node.name, message);
            }
            return T::placeholder();
        }
        absent
    }

    fn check_bounds<T: SettingValue>(
        &mut self,
        node: &SettingNode<'_>,
        row: &ReferenceRow,
        value: &T,
    ) -> bool {
        let Some((low, high)) = row.bounds else { return true };
        let (Some(lowest), Some(highest)) =
            (self.read_literal(node, low), self.read_literal(node, high))
        else {
            return false;
        };
        let inside = value.within(&lowest, &highest);
        if !inside {
            let found = describe(node.value);
            let message = format!("must be between {low} and {high}, found {found}");
            self.report(node.line, &node.name, message);
        }
        inside
    }

    /// Reads a default or a bound from a `section!` table. The table states defaults and bounds in the syntax of the
    /// file.
    fn read_literal<T: SettingValue>(&mut self, at: &SettingNode<'_>, text: &str) -> Option<T> {
        let value = DeValue::parse(text).ok()?;
        T::read(self, &SettingNode::new(at.name.clone(), at.line, value.get_ref(), false))
    }

    /// Returns the `kind` of a table that has several kinds.
    pub(super) fn kind(
        &mut self,
        node: &SettingNode<'_>,
        known: &[&'static str],
    ) -> Option<&'static str> {
        let table = self.any_table(node)?;
        let form = format!("one of \"{}\"", known.join("\", \""));
        let children = self.children(&table);
        let Some(kind) = children.iter().find(|child| child.key == KIND_FIELD) else {
            if self.is_valid_toml() {
                let message = format!("`{KIND_FIELD}` is missing: set it to {form}");
                self.report(node.line, &node.name, message);
            }
            return None;
        };
        let text = self.text(kind, &form)?.into_owned();
        let found = known.iter().find(|name| **name == text).copied();
        if found.is_none() {
            let hint = nearest(&text, known.iter().copied())
                .map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
            let message = format!("expected {form}, found {text:?}{hint}");
            self.report(kind.line, &kind.name, message);
        }
        found
    }

    /// Reads the fields of a table whose `kind` has been read. The field `kind` then counts as known.
    pub(super) fn read_kind_table<T: SettingValue>(&mut self, node: &SettingNode<'_>) -> Option<T> {
        T::read(self, &SettingNode { has_kind: true, ..node.clone() })
    }

    /// Returns a text with its variables replaced.
    pub(super) fn text<'n>(&mut self, node: &SettingNode<'n>, form: &str) -> Option<Cow<'n, str>> {
        let DeValue::String(text) = node.value else {
            self.report_wrong_form(node, form);
            return None;
        };
        Some(self.expand_variables(node, text)?.0)
    }

    /// Replaces the variables of a text. The returned flag is `true` if the text contained variables.
    pub(super) fn expand_variables<'n>(
        &mut self,
        node: &SettingNode<'_>,
        text: &'n str,
    ) -> Option<(Cow<'n, str>, bool)> {
        match expand(text, self.env) {
            Ok(expanded) => Some(expanded),
            Err(error) => {
                self.record(ConfigProblem {
                    line: node.line,
                    setting: node.name.clone(),
                    message: error.to_string(),
                    is_temporary: matches!(error, ExpandError::Unreadable(_)),
                });
                None
            }
        }
    }
}

/// Length limit, in characters, of a text that an error shows.
const SHOWN_TEXT_LIMIT: usize = 60;

/// Describes a value for an error. The description contains a short text, a number or a switch as written. It contains
/// only the kind of every other value, such as "a long text" or "a table".
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.chars().count() > SHOWN_TEXT_LIMIT => {
            "a long text".to_owned()
        }
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
