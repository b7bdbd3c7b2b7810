//! The templates in the program.

include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The template of one language.
pub(crate) struct Template {
    pub(crate) language: &'static str,
    /// The files of a new project. The names and the contents contain the placeholders.
    pub(crate) files: &'static [TemplateFile],
    /// The files of the project's copy of the SDK.
    pub(crate) sdk: &'static [TemplateFile],
}

/// A file, with its path relative to the folder of the project.
pub(crate) struct TemplateFile {
    pub(crate) path: &'static str,
    pub(crate) content: &'static [u8],
}

/// Returns the languages that have a template.
pub fn languages() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|template| template.language)
}
