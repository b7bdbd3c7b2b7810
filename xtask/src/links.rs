//! `cargo xtask links`: checks the links in every tracked Markdown page.
//!
//! A relative link or image must lead to a file that git tracks, or to a folder that contains such a file. If the link
//! has an anchor, the linked page must have a heading or an `<a id="…">` for the anchor. The command checks no link
//! with a scheme (`https:`), because the command must never use the network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use percent_encoding::percent_decode_str;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::setup::{announce, root};

/// The tracked files of a repository, and the links and anchors of its Markdown pages. All paths are relative to the
/// root.
struct Tree {
    files: BTreeSet<String>,
    pages: BTreeMap<String, Page>,
}

/// A Markdown page: its links, and the anchors (of headings, and of `<a id="…">`) to which links may lead.
struct Page {
    links: Vec<Link>,
    anchors: BTreeSet<String>,
}

/// A link or an image, as the page writes it.
struct Link {
    line: usize,
    target: String,
}

/// A link whose target does not exist.
struct BrokenLink<'a> {
    page: &'a str,
    link: &'a Link,
    reason: String,
}

impl fmt::Display for BrokenLink<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, link, reason } = self;
        write!(out, "{page}:{}: the link `{}` {reason}", link.line, link.target)
    }
}

pub(crate) fn links() -> Result<()> {
    announce("links between Markdown pages");
    let tree = Tree::read(root())?;
    let broken = tree.broken_links();
    for link in &broken {
        println!("{link}");
    }
    let count = tree.relative_links().count();
    ensure!(broken.is_empty(), "{} of {count} links are broken", broken.len());
    announce(&format!("checked {count} links in {} pages", tree.pages.len()));
    Ok(())
}

impl Tree {
    /// Reads the names of the files that git tracks below a root, and the content of the Markdown pages.
    fn read(root: &Path) -> Result<Self> {
        let mut git = Command::new("git");
        let listed = git.current_dir(root).args(["ls-files", "-z"]).output();
        let listed = listed.context("cannot start git, which lists the pages")?;
        let complaint = String::from_utf8_lossy(&listed.stderr);
        ensure!(listed.status.success(), "`git ls-files` failed: {}", complaint.trim());
        let names = String::from_utf8(listed.stdout).context("a file's name is not UTF-8")?;
        // Git still lists a file whose removal is not committed. A link must not lead to such a file.
        let files = names.split_terminator('\0').filter(|name| root.join(name).exists());
        let files: BTreeSet<String> = files.map(str::to_owned).collect();
        let mut pages = BTreeMap::new();
        for name in files.iter().filter(|name| is_markdown(name)) {
            let text = std::fs::read_to_string(root.join(name)).with_context(|| name.clone())?;
            pages.insert(name.clone(), Page::parse(&text));
        }
        Ok(Self { files, pages })
    }

    /// Returns every link without a scheme, with the path of its page.
    fn relative_links(&self) -> impl Iterator<Item = (&str, &Link)> {
        let links = self
            .pages
            .iter()
            .flat_map(|(name, page)| page.links.iter().map(move |link| (name.as_str(), link)));
        links.filter(|(_, link)| !has_scheme(&link.target))
    }

    fn broken_links(&self) -> Vec<BrokenLink<'_>> {
        let broken = self.relative_links().filter_map(|(page, link)| {
            let reason = self.check(page, &link.target).err()?;
            Some(BrokenLink { page, link, reason })
        });
        broken.collect()
    }

    /// Checks one link of a page. The error completes a sentence that begins with the link, such as "leads to `a.md`,
    /// which git does not track".
    fn check(&self, page: &str, target: &str) -> Result<(), String> {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = percent_decode_str(path).decode_utf8_lossy();
        if path.starts_with('/') {
            return Err("starts with a slash; write it relative to its page".to_owned());
        }
        let file = if path.is_empty() { page.to_owned() } else { resolve(page, &path)? };
        if !self.files.contains(&file) && !self.is_folder(&file) {
            return Err(format!("leads to `{file}`, which git does not track"));
        }
        if anchor.is_empty() {
            return Ok(());
        }
        let anchor = percent_decode_str(anchor).decode_utf8_lossy();
        let Some(page) = self.pages.get(&file) else {
            return Err(format!("has an anchor, but `{file}` is not a Markdown page"));
        };
        if !page.anchors.contains(&*anchor) {
            return Err(format!("leads to a heading that `{file}` does not have"));
        }
        Ok(())
    }

    /// Returns whether a path is a folder with tracked files.
    fn is_folder(&self, path: &str) -> bool {
        let inside = if path.is_empty() { String::new() } else { format!("{path}/") };
        self.files.range(inside.clone()..).next().is_some_and(|file| file.starts_with(&inside))
    }
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self { links: Vec::new(), anchors: BTreeSet::new() };
        // The text of the current heading; `None` outside a heading.
        let mut heading: Option<String> = None;
        let options = Options::ENABLE_TABLES | Options::ENABLE_GFM;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.add_anchor(&slug(&heading.take().unwrap_or_default()));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = 1 + text[..range.start].matches('\n').count();
                    page.links.push(Link { line, target: dest_url.into_string() });
                }
                Event::Html(tag) | Event::InlineHtml(tag) => {
                    page.anchors.extend(explicit_anchor(&tag).map(str::to_owned));
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor of a heading. If a page has several equal headings, the first gets the plain anchor, and the
    /// others get a number, as on GitHub.
    fn add_anchor(&mut self, slug: &str) {
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let mut candidates = std::iter::once(slug.to_owned()).chain(numbered);
        if let Some(anchor) = candidates.find(|anchor| !self.anchors.contains(anchor)) {
            self.anchors.insert(anchor);
        }
    }
}

/// Returns the anchor of a heading's text, by GitHub's rules: the text in lower case, with hyphens in place of spaces.
/// The anchor keeps only letters, digits, hyphens and underscores.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Returns the anchor that a tag `<a id="anchor">` sets.
fn explicit_anchor(tag: &str) -> Option<&str> {
    tag.trim().strip_prefix("<a id=\"")?.split('"').next()
}

/// Resolves a relative path from the folder of a page. Returns an error if the path leaves the repository.
fn resolve(page: &str, path: &str) -> Result<String, String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/').filter(|part| !["", "."].contains(part)) {
        if part != ".." {
            parts.push(part);
        } else if parts.pop().is_none() {
            return Err("leaves the repository".to_owned());
        }
    }
    Ok(parts.join("/"))
}

fn is_markdown(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "md")
}

/// Returns whether a link is absolute: it starts with `scheme:` or `//`.
fn has_scheme(target: &str) -> bool {
    let scheme = target.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+.-".contains(letter));
    is_scheme || target.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the errors for a repository with the given pages and the file `docs/run.yaml`.
    fn errors_of(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: BTreeMap<String, Page> =
            pages.iter().map(|(name, text)| ((*name).to_owned(), Page::parse(text))).collect();
        let mut files: BTreeSet<String> = pages.keys().cloned().collect();
        files.insert("docs/run.yaml".to_owned());
        let tree = Tree { files, pages };
        tree.broken_links().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn slug_follows_the_rules_of_github() {
        for (heading, expected) in [
            ("From nothing", "from-nothing"),
            ("`ordain publish`: all events", "ordain-publish-all-events"),
            ("A file that can't be used?", "a-file-that-cant-be-used"),
            ("I1 Order, and more", "i1-order-and-more"),
            ("Cost & speed", "cost--speed"),
            ("max_width in µs", "max_width-in-µs"),
        ] {
            let page = Page::parse(&format!("# {heading}\n"));
            assert_eq!(page.anchors.into_iter().collect::<Vec<_>>(), [expected], "{heading}");
        }
    }

    #[test]
    fn repeated_heading_gets_a_number() {
        let page = Page::parse("# Limits\n\ntext\n\n## Limits\n\nLimits\n---\n");
        assert_eq!(
            page.anchors.into_iter().collect::<Vec<_>>(),
            ["limits", "limits-1", "limits-2"]
        );
    }

    #[test]
    fn explicit_anchor_is_found() {
        let page = Page::parse("# A\n\n- <a id=\"here\"></a>text\n");
        assert_eq!(page.anchors.into_iter().collect::<Vec<_>>(), ["a", "here"]);
    }

    #[test]
    fn valid_links_are_accepted() {
        let readme = "# Start\n\n[a](docs/a.md) [b](docs/a.md#two-words) [c](#start) [d](docs/) \
                      [e](https://example.org/none) <mailto:a@example.org>\n\n```\n[f](none.md)\n```\n";
        let page = "# A\n\n## Two *words*\n\n[back](../README.md#start), ![picture](run.yaml), \
                    [by name][here]\n\n[here]: ./run.yaml\n";
        assert_eq!(errors_of(&[("README.md", readme), ("docs/a.md", page)]), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_reported_with_their_lines() {
        let page = "# A\n\n[one](b.md)\n![two](b.svg)\n\n| table |\n|---|\n| [three](#b) |\n\n\
                    [four](../../a.md), [five](run.yaml#a) and [six](/docs/run.yaml)\n";
        let expected = [
            "docs/a.md:3: the link `b.md` leads to `docs/b.md`, which git does not track",
            "docs/a.md:4: the link `b.svg` leads to `docs/b.svg`, which git does not track",
            "docs/a.md:8: the link `#b` leads to a heading that `docs/a.md` does not have",
            "docs/a.md:10: the link `../../a.md` leaves the repository",
            "docs/a.md:10: the link `run.yaml#a` has an anchor, but `docs/run.yaml` is not a Markdown page",
            "docs/a.md:10: the link `/docs/run.yaml` starts with a slash; write it relative to its page",
        ];
        assert_eq!(errors_of(&[("docs/a.md", page)]), expected);
    }
}
