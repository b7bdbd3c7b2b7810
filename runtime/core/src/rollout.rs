//! The choice of the handler version that executes the events of a stream. The result is a rollout: a numbered record
//! that names the version. Each instance (process) offers the highest version in its folder, and computes the next
//! rollout from the offers of all instances. If several instances send a rollout to the store, the store accepts one of
//! these rollouts.
//!
//! The instances choose the highest offered version as soon as an instance offers this version. The chosen version
//! stays while at least one instance offers it and no instance offers a higher version. When no instance offers the
//! chosen version any more, an instance may choose an older version in only two cases. In the first case, this instance
//! offered the chosen version and has lost the file of this version. In the second case, no other instance offered the
//! chosen version when this instance started. In both cases, the instance keeps the chosen version as long as a
//! temporary fault of its machine is the only reason why the instance cannot use this version. These rules have two
//! reasons: a crashed instance may return with the file, and an older version may be unable to read states that the
//! newer version has written. The rules do not apply if the store went back in time and lost the newest rollout, or if
//! the stream now has another handler.

use crate::{Build, Rollout, split_version};

/// The rollout and the builds of a stream, as one instance sees them.
#[derive(Debug, Clone, Copy)]
pub struct RolloutView<'a> {
    /// The stream's present rollout in the store; `None` if the stream has none.
    pub current: Option<&'a Rollout>,
    /// The build that this instance offers.
    pub own_build: &'a Build,
    /// The builds that the other instances offer.
    pub other_builds: &'a [Build],
    /// `true` if this instance may replace the present rollout by a rollout of an older version. Even then, this
    /// instance replaces the present rollout only if no instance offers the build of that rollout.
    pub may_revert: bool,
    /// The highest rollout number that this instance knows. If the store went back in time (lost its newest writes),
    /// the rollout in the store has a lower number.
    pub newest_number: u64,
}

/// The facts that one instance remembers about the rollouts of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RolloutMemory {
    newest_number: u64,
    /// The rollout that this instance may replace with a rollout of a lower version. The value is the newest rollout
    /// whose build this instance offered. Until such a rollout exists, the value is the rollout that this instance
    /// found at its start. Exception: `None` if, at that start, another instance offered the build of the found
    /// rollout, and this build had a higher version than the build of this instance.
    revertible: Option<Rollout>,
    has_begun: bool,
}

impl RolloutMemory {
    /// Returns the highest rollout number that the instance knows.
    pub fn newest_number(&self) -> u64 {
        self.newest_number
    }

    /// Records that a rollout with this number exists or has existed.
    pub fn require(&mut self, number: u64) {
        self.newest_number = self.newest_number.max(number);
    }

    /// Returns whether the instance may execute events under `rollout`, the rollout that the store has. If not, the
    /// store went back in time, and a rollout with a higher number follows.
    pub fn is_newest(&self, rollout: &Rollout) -> bool {
        rollout.number == self.newest_number
    }

    /// Returns the next rollout, or `None` if the present rollout, `current`, stays. `may_become_usable` is `true` if a
    /// temporary fault of this machine is the only reason why the instance cannot use the version of the present
    /// rollout. In this case, the stream must not return to a lower version.
    pub fn next(
        &mut self,
        current: Option<&Rollout>,
        own_build: &Build,
        other_builds: &[Build],
        may_become_usable: bool,
    ) -> Option<Rollout> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let is_own = current.is_some_and(|current| *own_build == current.build);
        // Another instance may run a higher version when this instance starts. When that other instance stops, this
        // instance must not switch the stream to its own, lower version.
        let stands_alone = current.is_none_or(|current| {
            let is_higher =
                split_version(&current.build.version).1 > split_version(&own_build.version).1;
            !(is_higher && other_builds.contains(&current.build))
        });
        if is_own || (is_first && stands_alone) {
            self.revertible = current.cloned();
        }
        self.require(current.map_or(0, |current| current.number));
        next_rollout(&RolloutView {
            current,
            own_build,
            other_builds,
            may_revert: self.revertible.as_ref() == current && !may_become_usable,
            newest_number: self.newest_number,
        })
    }
}

/// Returns the next rollout, or `None` if the present rollout stays.
pub fn next_rollout(view: &RolloutView<'_>) -> Option<Rollout> {
    let RolloutView { current, own_build, other_builds, may_revert, newest_number } = *view;
    let last = current.map_or(0, |current| current.number);
    let number = newest_number.max(last) + 1;
    if number >= Rollout::NUMBER_END {
        // No stream can reach this number, so the number comes from a damaged record.
        return None;
    }
    let next = |build: &Build| Rollout { number, build: build.clone() };
    let (own_name, own_semver) = split_version(&own_build.version);
    let highest = || {
        let has_own_name = |build: &&Build| split_version(&build.version).0 == own_name;
        let rank = |build: &&Build| (split_version(&build.version).1, build.digest);
        let same_name = other_builds.iter().filter(has_own_name);
        same_name.chain([own_build]).max_by_key(rank).map(next)
    };
    let Some(current) = current else { return highest() };
    let (name, semver) = split_version(&current.build.version);
    if own_name == name && own_semver > semver {
        return Some(next(own_build));
    }
    let is_offered = *own_build == current.build || other_builds.contains(&current.build);
    // The stream has another handler now.
    let is_other = own_name != name;
    // The store went back in time: it has lost a rollout that was newer than the stored rollout.
    let is_lost = last < newest_number;
    if !is_offered && (may_revert || is_other || is_lost) {
        return highest();
    }
    is_lost.then(|| next(&current.build))
}

#[cfg(test)]
mod tests {
    use crate::FileDigest;

    use super::*;

    fn build(version: &str) -> Build {
        Build { version: version.into(), digest: FileDigest([version.len() as u8; 32]) }
    }

    fn decided(number: u64, version: &str) -> Rollout {
        Rollout { number, build: build(version) }
    }

    /// Returns the version of the next rollout, from the view of one instance. This instance offers `mine`, the other
    /// instances offer `others`, and the present rollout has the version `last`.
    fn answer(last: &str, mine: &str, others: &[&str], may_revert: bool) -> Option<String> {
        let others: Vec<Build> = others.iter().map(|version| build(version)).collect();
        let last = decided(4, last);
        let mine = build(mine);
        let known = RolloutView {
            current: Some(&last),
            own_build: &mine,
            other_builds: &others,
            may_revert,
            newest_number: 4,
        };
        next_rollout(&known).map(|next| {
            assert_eq!(next.number, 5);
            next.build.version.to_string()
        })
    }

    #[test]
    fn highest_version_wins_and_stays_while_offered() {
        let up = Some("a@2.0.0".to_owned());
        assert_eq!(answer("a@1.0.0", "a@2.0.0", &["a@1.0.0"], false), up);
        assert_eq!(answer("a@1.10.0", "a@1.9.0", &["a@1.10.0"], true), None);
        assert_eq!(answer("a+abc", "a@2.0.0", &[], false), up);
        assert_eq!(answer("a@2.0.0", "a@2.0.0", &["a@1.0.0"], false), None);
        // The instance with the higher version makes the rollout.
        assert_eq!(answer("a@1.0.0", "a@1.0.0", &["a@2.0.0"], false), None);
    }

    #[test]
    fn only_permitted_instance_rolls_back() {
        let back = Some("a@1.0.0".to_owned());
        assert_eq!(answer("a@2.0.0", "a@1.0.0", &["a@1.0.0"], false), None);
        assert_eq!(answer("a@2.0.0", "a@1.0.0", &["a@1.0.0"], true), back);
        assert_eq!(answer("a@2.0.0", "a@1.0.0", &["a@2.0.0"], true), None);
        assert_eq!(answer("a@3.0.0", "a@1.0.0", &["a@2.0.0"], true), Some("a@2.0.0".to_owned()));
    }

    #[test]
    fn unversioned_build_stays_until_no_instance_offers_it() {
        assert_eq!(answer("a+one", "a+other", &["a+one"], true), None);
        assert_eq!(answer("a+one", "a+other", &["a+other"], true), Some("a+other".to_owned()));
        assert_eq!(answer("a@1.0.0", "a+other", &[], true), Some("a+other".to_owned()));
    }

    #[test]
    fn another_handler_waits_until_the_first_is_not_offered() {
        assert_eq!(answer("a@1.0.0", "b@9.0.0", &["a@1.0.0"], true), None);
        assert_eq!(answer("a@1.0.0", "b@9.0.0", &["b@1.0.0"], false), Some("b@9.0.0".to_owned()));
    }

    #[test]
    fn decision_is_repeated_after_the_store_went_back() {
        let last = decided(4, "a@1.0.0");
        let mine = build("a@1.0.0");
        let known = RolloutView {
            current: Some(&last),
            own_build: &mine,
            other_builds: &[],
            may_revert: false,
            newest_number: 9,
        };
        assert_eq!(next_rollout(&known), Some(decided(10, "a@1.0.0")));
        let known = RolloutView { current: None, ..known };
        assert_eq!(next_rollout(&known), Some(decided(10, "a@1.0.0")));
        // In the two cases below, no instance offers the build of the stored rollout any more.
        let left = decided(4, "a+left");
        let known =
            RolloutView { current: Some(&left), other_builds: &[build("a@2.0.0")], ..known };
        assert_eq!(next_rollout(&known), Some(decided(10, "a@1.0.0")), "a semver ranks above none");
        let left = decided(4, "a@3.0.0");
        let mine = build("a+mine");
        let known = RolloutView { current: Some(&left), own_build: &mine, ..known };
        assert_eq!(next_rollout(&known), Some(decided(10, "a@2.0.0")));
    }
}
