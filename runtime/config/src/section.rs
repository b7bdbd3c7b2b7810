//! Describes the configuration. A table of the file is a [`section!`], which states each setting once, with meaning,
//! form, bounds, default and the reason for the default. The macro derives the struct, the reader, the checks and the
//! printed reference from the section.

/// Defines a struct for a table of the file. A setting has the form
///
/// ```text
/// /// Meaning of the setting.
/// name: Type [low to high] = default, because "the reason of the default";
/// ```
///
/// with bounds and default in the syntax of the file. A setting is required if it has no default and its type is not an
/// `Option`. If the name of the setting is a keyword of Rust, the field has another name, as in `kind as "type": Type`.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $(
                $(#[doc = $meaning:literal])+
                $field:ident $(as $renamed:literal)? : $type:ty
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

        impl $crate::reader::SettingValue for $name {
            const FORM: &'static str = "a table";
            const ROWS: &'static [$crate::reader::ReferenceRow] = &[$(
                $crate::reader::ReferenceRow {
                    name: $crate::section::setting_name!($field $($renamed)?),
                    field: stringify!($field),
                    meaning: concat!($($meaning, "\n"),+),
                    form: <$type as $crate::reader::SettingValue>::FORM,
                    bounds: $crate::section::maybe!(
                        $((stringify!($low), stringify!($high)))?
                    ),
                    default: $crate::section::maybe!($(stringify!($default))?),
                    because: $crate::section::maybe!($($why)?),
                    optional: <$type as $crate::reader::SettingValue>::OPTIONAL,
                    rows: <$type as $crate::reader::SettingValue>::ROWS,
                },
            )*];

            fn read(
                reader: &mut $crate::reader::ConfigReader<'_>,
                node: &$crate::reader::SettingNode<'_>,
            ) -> Option<Self> {
                let table = reader.table(node, Self::ROWS)?;
                let mut rows = Self::ROWS.iter();
                // Reads all fields before an invalid field ends the function, so that the reader reports the errors of
                // all fields.
                $(let $field = reader.field::<$type>(&table, rows.next()?);)*
                Some(Self { $($field: $field?),* })
            }
        }
    };
}

/// Defines an enum of tables that differ by their `kind`.
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
            /// Returns the value of `kind` in the file.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind,)+ }
            }
        }

        impl $crate::reader::SettingValue for $name {
            const FORM: &'static str = "a table with a `kind`";
            const ROWS: &'static [$crate::reader::ReferenceRow] = &[$(
                $crate::reader::ReferenceRow {
                    name: concat!("kind = \"", $kind, "\""),
                    field: $kind,
                    meaning: concat!($($meaning, "\n"),+),
                    form: "a table",
                    bounds: None,
                    default: None,
                    because: None,
                    optional: true,
                    rows: <$section as $crate::reader::SettingValue>::ROWS,
                },
            )+];

            fn read(
                reader: &mut $crate::reader::ConfigReader<'_>,
                node: &$crate::reader::SettingNode<'_>,
            ) -> Option<Self> {
                match reader.kind(node, &[$($kind),+])? {
                    $($kind => reader.read_kind_table::<$section>(node).map(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

/// Expands to an `Option` with an optional part of a macro's input.
macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Expands to the name of a setting: the literal after the name of the field, or the name of the field itself.
macro_rules! setting_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $renamed:literal) => {
        $renamed
    };
}

pub(super) use {kinds, maybe, section, setting_name};
