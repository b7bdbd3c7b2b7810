//! Which version of its handler is to execute the events of a stream: worked out by each instance from
//! what all of them offer, and decided by the store, which takes one answer.
//!
//! The highest version that anybody offers is the one, as soon as it is offered. It stays while anybody
//! offers it. Back goes whoever has seen its file go, or starts anew without it: one that has died may
//! come back with it, and states that it has written may be unreadable for an older one.

use ordain_core::Decided;

use crate::instance::Offer;

/// What one instance knows of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    /// What was decided last.
    pub(super) decided: Option<&'a Decided>,
    /// What is here.
    pub(super) mine: &'a Offer,
    /// What the others have.
    pub(super) others: &'a [Offer],
    /// Whether this instance may go back from what was decided, if nobody else offers it.
    pub(super) may_go_back: bool,
    /// The highest generation that was ever seen: a store that went back in time has a lower one.
    pub(super) newest: u64,
}

/// What is to be decided, if anything is.
pub(super) fn decide(known: &Known<'_>) -> Option<Decided> {
    let Known { decided, mine, others, may_go_back, newest } = *known;
    let last = decided.map_or(0, |it| it.generation);
    let generation = newest.max(last) + 1;
    if generation >= Decided::END {
        // Nobody gets there by deciding.
        return None;
    }
    let next = |offer: &Offer| Decided {
        generation,
        version: offer.version.as_str().into(),
        digest: offer.digest,
    };
    let Some(decided) = decided else { return Some(next(mine)) };
    let is_decided = |it: &Offer| *it.version == *decided.version && it.digest == decided.digest;
    let (name, _) = split(&decided.version);
    let of_mine = |it: &&Offer| split(&it.version).0 == split(&mine.version).0;
    if split(&mine.version).0 == name && rank(&mine.version) > rank(&decided.version) {
        return Some(next(mine));
    }
    let is_offered = is_decided(mine) || others.iter().any(is_decided);
    // The stream has another handler now.
    let is_other = split(&mine.version).0 != name;
    if !is_offered && (may_go_back || is_other) {
        let all = others.iter().filter(of_mine).chain([mine]);
        return all.max_by_key(|it| (rank(&it.version), it.digest)).map(next);
    }
    let again = || Offer { version: decided.version.to_string(), digest: decided.digest };
    (last < newest).then(|| next(&again()))
}

/// The handler's name and its version, if its file has one.
fn split(version: &str) -> (&str, Option<&str>) {
    match version.split_once('@') {
        Some((name, semver)) => (name, Some(semver)),
        None => (version.split_once('+').map_or(version, |(name, _)| name), None),
    }
}

/// One without a version is the lowest.
fn rank(version: &str) -> Option<semver::Version> {
    semver::Version::parse(split(version).1?).ok()
}

#[cfg(test)]
mod tests {
    use ordain_core::Digest;

    use super::*;

    fn offer(version: &str) -> Offer {
        Offer { version: version.to_owned(), digest: Digest([version.len() as u8; 32]) }
    }

    fn decided(generation: u64, version: &str) -> Decided {
        let Offer { version, digest } = offer(version);
        Decided { generation, version: version.into(), digest }
    }

    /// What is decided: of the last decision, by one that has a version, beside others, which may go
    /// back or not.
    fn answer(last: &str, mine: &str, others: &[&str], may_go_back: bool) -> Option<String> {
        let others: Vec<Offer> = others.iter().map(|it| offer(it)).collect();
        let (last, mine) = (decided(4, last), offer(mine));
        let known =
            Known { decided: Some(&last), mine: &mine, others: &others, may_go_back, newest: 4 };
        decide(&known).map(|it| {
            assert_eq!(it.generation, 5);
            it.version.to_string()
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
        let (last, mine) = (decided(4, "a@1.0.0"), offer("a@1.0.0"));
        let known =
            Known { decided: Some(&last), mine: &mine, others: &[], may_go_back: false, newest: 9 };
        assert_eq!(decide(&known), Some(decided(10, "a@1.0.0")));
        let known = Known { decided: None, ..known };
        assert_eq!(decide(&known), Some(decided(10, "a@1.0.0")));
    }
}
