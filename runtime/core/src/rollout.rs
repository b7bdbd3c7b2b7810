//! Which version of its handler is to execute the events of a stream: worked out by each instance from
//! what all of them offer, and decided by the store, which takes one answer.
//!
//! The highest version that anybody offers is the one, as soon as it is offered. It stays while anybody
//! offers it. Back goes whoever has seen its file go, or starts anew without it: one that has died may
//! come back with it, and states that it has written may be unreadable for an older one.

use crate::{Build, Decided, split_version};

/// What one instance knows of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// What was decided last.
    pub decided: Option<&'a Decided>,
    /// What is here.
    pub mine: &'a Build,
    /// What the others have.
    pub others: &'a [Build],
    /// Whether this instance may go back from what was decided, if nobody else offers it.
    pub may_go_back: bool,
    /// The highest generation that was ever seen: a store that went back in time has a lower one.
    pub newest: u64,
}

/// What is to be decided, if anything is.
pub fn decide(known: &Known<'_>) -> Option<Decided> {
    let Known { decided, mine, others, may_go_back, newest } = *known;
    let last = decided.map_or(0, |it| it.generation);
    let generation = newest.max(last) + 1;
    if generation >= Decided::END {
        // Nobody gets there by deciding.
        return None;
    }
    let next = |build: &Build| Decided { generation, build: build.clone() };
    let (my_name, my_semver) = split_version(&mine.version);
    let highest = || {
        let of_mine = others.iter().filter(|it| split_version(&it.version).0 == my_name);
        let rank = |it: &&Build| (split_version(&it.version).1, it.digest);
        of_mine.chain([mine]).max_by_key(rank).map(next)
    };
    let Some(decided) = decided else { return highest() };
    let (name, semver) = split_version(&decided.build.version);
    if my_name == name && my_semver > semver {
        return Some(next(mine));
    }
    let is_offered = *mine == decided.build || others.contains(&decided.build);
    // The stream has another handler now.
    let is_other = my_name != name;
    // The store went back in time, and what it has was left.
    let is_lost = last < newest;
    if !is_offered && (may_go_back || is_other || is_lost) {
        return highest();
    }
    is_lost.then(|| next(&decided.build))
}

#[cfg(test)]
mod tests {
    use crate::Digest;

    use super::*;

    fn build(version: &str) -> Build {
        Build { version: version.into(), digest: Digest([version.len() as u8; 32]) }
    }

    fn decided(generation: u64, version: &str) -> Decided {
        Decided { generation, build: build(version) }
    }

    /// What is decided: of the last decision, by one that has a version, beside others, which may go
    /// back or not.
    fn answer(last: &str, mine: &str, others: &[&str], may_go_back: bool) -> Option<String> {
        let others: Vec<Build> = others.iter().map(|it| build(it)).collect();
        let (last, mine) = (decided(4, last), build(mine));
        let known =
            Known { decided: Some(&last), mine: &mine, others: &others, may_go_back, newest: 4 };
        decide(&known).map(|it| {
            assert_eq!(it.generation, 5);
            it.build.version.to_string()
        })
    }

    #[test]
    fn the_highest_is_the_one_and_stays_while_it_is_offered() {
        let up = Some("a@2.0.0".to_owned());
        assert_eq!(answer("a@1.0.0", "a@2.0.0", &["a@1.0.0"], false), up);
        assert_eq!(answer("a@1.10.0", "a@1.9.0", &["a@1.10.0"], true), None);
        assert_eq!(answer("a+abc", "a@2.0.0", &[], false), up);
        assert_eq!(answer("a@2.0.0", "a@2.0.0", &["a@1.0.0"], false), None);
        // Another one says so itself.
        assert_eq!(answer("a@1.0.0", "a@1.0.0", &["a@2.0.0"], false), None);
    }

    #[test]
    fn back_goes_only_whoever_may() {
        let back = Some("a@1.0.0".to_owned());
        assert_eq!(answer("a@2.0.0", "a@1.0.0", &["a@1.0.0"], false), None);
        assert_eq!(answer("a@2.0.0", "a@1.0.0", &["a@1.0.0"], true), back);
        assert_eq!(answer("a@2.0.0", "a@1.0.0", &["a@2.0.0"], true), None);
        assert_eq!(answer("a@3.0.0", "a@1.0.0", &["a@2.0.0"], true), Some("a@2.0.0".to_owned()));
    }

    #[test]
    fn without_versions_the_first_stays_until_nobody_has_it() {
        assert_eq!(answer("a+one", "a+other", &["a+one"], true), None);
        assert_eq!(answer("a+one", "a+other", &["a+other"], true), Some("a+other".to_owned()));
        assert_eq!(answer("a@1.0.0", "a+other", &[], true), Some("a+other".to_owned()));
    }

    #[test]
    fn another_handler_waits_for_the_end_of_the_first() {
        assert_eq!(answer("a@1.0.0", "b@9.0.0", &["a@1.0.0"], true), None);
        assert_eq!(answer("a@1.0.0", "b@9.0.0", &["b@1.0.0"], false), Some("b@9.0.0".to_owned()));
    }

    #[test]
    fn a_store_that_went_back_is_told_again() {
        let (last, mine) = (decided(4, "a@1.0.0"), build("a@1.0.0"));
        let known =
            Known { decided: Some(&last), mine: &mine, others: &[], may_go_back: false, newest: 9 };
        assert_eq!(decide(&known), Some(decided(10, "a@1.0.0")));
        let known = Known { decided: None, ..known };
        assert_eq!(decide(&known), Some(decided(10, "a@1.0.0")));
        // What it has is nobody's any more.
        let left = decided(4, "a+left");
        let known = Known { decided: Some(&left), others: &[build("a@2.0.0")], ..known };
        assert_eq!(decide(&known), Some(decided(10, "a@1.0.0")), "which is higher");
        let (left, mine) = (decided(4, "a@3.0.0"), build("a+mine"));
        let known = Known { decided: Some(&left), mine: &mine, ..known };
        assert_eq!(decide(&known), Some(decided(10, "a@2.0.0")));
    }
}
