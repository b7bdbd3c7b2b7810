//! How the configuration is described: a table of the file is a [`section!`], which states each
//! setting once, with its meaning, form, bounds, default and the reason of the default. The
//! struct, the reader, the checks and the reference for people all come from there.

use super::reader::{Node, Reader};

/// One setting as documented.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name within its table.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What is right, in words.
    pub form: &'static str,
    /// The lowest and the highest value, as they would stand in the file.
    pub bounds: Option<(&'static str, &'static str)>,
    /// The default, as it would stand in the file; `None`: see `optional`.
    pub default: Option<&'static str>,
    /// Why the default, or the lack of one, is what it is.
    pub because: Option<&'static str>,
    /// Without a default: whether it may be left out.
    pub optional: bool,
    /// The settings inside, where it is a table.
    pub rows: &'static [Row],
}

/// Something that can stand in the file.
pub(super) trait Setting: Sized {
    /// What is right, in words: `a duration ("200ms", "5s", …)`.
    const FORM: &'static str;
    /// The settings inside, where it is a table.
    const ROWS: &'static [Row] = &[];
    /// Whether it may be left out although it has no default.
    const OPTIONAL: bool = false;

    /// Reads it. `None`: at least one problem has been noted.
    fn read(reader: &mut Reader<'_>, node: &Node<'_>) -> Option<Self>;

    /// The value of one that is left out and has no default.
    fn absent() -> Option<Self> {
        None
    }

    /// Takes the place of one that could not be read, so that the rest is checked all the same.
    fn stand_in() -> Option<Self> {
        None
    }

    /// Whether it lies between the two, both included.
    fn within(&self, _low: &Self, _high: &Self) -> bool {
        true
    }
}

impl<T: Setting> Setting for Option<T> {
    const FORM: &'static str = T::FORM;
    const ROWS: &'static [Row] = T::ROWS;
    const OPTIONAL: bool = true;

    fn read(reader: &mut Reader<'_>, node: &Node<'_>) -> Option<Self> {
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

/// Makes a struct that is a table of the file. Each setting is written
///
/// ```text
/// /// What it means.
/// name: Type [low to high] = default, because "the reason of the default";
/// ```
///
/// with bounds, default and reason as they would stand in the file. Without a default it must be
/// given, unless its type is an `Option`.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $(
                $(#[doc = $meaning:literal])+
                $field:ident : $type:ty
                    $([$low:literal to $high:literal])?
                    $(= $default:tt)?
                    $(, because $why:literal)? ;
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(
                $(#[doc = $meaning])+
                $(#[doc = concat!("\n\nFrom `", stringify!($low), "` to `", stringify!($high), "`.")])?
                $(#[doc = concat!("\n\nDefault `", stringify!($default), "`.")])?
                $(#[doc = concat!("\n\nReason: ", $why, ".")])?
                pub $field: $type,
            )*
        }

        impl $crate::section::Setting for $name {
            const FORM: &'static str = "a table";
            const ROWS: &'static [$crate::section::Row] = &[$(
                $crate::section::Row {
                    name: stringify!($field),
                    meaning: concat!($($meaning, "\n"),+),
                    form: <$type as $crate::section::Setting>::FORM,
                    bounds: $crate::section::maybe!(
                        $((stringify!($low), stringify!($high)))?
                    ),
                    default: $crate::section::maybe!($(stringify!($default))?),
                    because: $crate::section::maybe!($($why)?),
                    optional: <$type as $crate::section::Setting>::OPTIONAL,
                    rows: <$type as $crate::section::Setting>::ROWS,
                },
            )*];

            fn read(
                reader: &mut $crate::reader::Reader<'_>,
                node: &$crate::reader::Node<'_>,
            ) -> Option<Self> {
                let table = reader.table(node, Self::ROWS)?;
                let mut rows = Self::ROWS.iter();
                // All are read before the first one that failed ends it.
                $(let $field = reader.field::<$type>(&table, rows.next()?);)*
                Some(Self { $($field: $field?),* })
            }
        }
    };
}

/// Makes an enum of tables that are told apart by their `kind`.
macro_rules! kinds {
    (
        $(#[doc = $about:literal])+
        pub enum $name:ident {
            $($(#[doc = $meaning:literal])+ $kind:literal => $variant:ident($section:ty),)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $($(#[doc = $meaning])+ $variant($section),)+
        }

        impl $name {
            /// The `kind` by which the file names it.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind,)+ }
            }
        }

        impl $crate::section::Setting for $name {
            const FORM: &'static str = "a table with a `kind`";
            const ROWS: &'static [$crate::section::Row] = &[$(
                $crate::section::Row {
                    name: concat!("kind = \"", $kind, "\""),
                    meaning: concat!($($meaning, "\n"),+),
                    form: "a table",
                    bounds: None,
                    default: None,
                    because: None,
                    optional: true,
                    rows: <$section as $crate::section::Setting>::ROWS,
                },
            )+];

            fn read(
                reader: &mut $crate::reader::Reader<'_>,
                node: &$crate::reader::Node<'_>,
            ) -> Option<Self> {
                match reader.kind(node, &[$($kind),+])? {
                    $($kind => reader.inside::<$section>(node).map(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

/// An optional part of a macro's input as an `Option`.
macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

pub(super) use {kinds, maybe, section};
