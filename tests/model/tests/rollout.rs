//! Walks through all runs of instances that decide on rollouts over a store that goes back in time.
//! `docs/internals/protocol.md` describes the scopes.

use ordain_model::{NUMBER_REPEATED, RolloutBroken, RolloutFault, RolloutScope, breaks, walk};

fn goes_back() -> RolloutScope {
    RolloutScope { instances: 2, builds: 2, changes: 1, rewinds: 1, ..RolloutScope::default() }
}

fn is_killed() -> RolloutScope {
    RolloutScope { changes: 0, kills: 1, ..goes_back() }
}

fn goes_back_twice() -> RolloutScope {
    RolloutScope { changes: 0, rewinds: 2, ..goes_back() }
}

/// A fault, a scope, and the rule that the fault breaks in the runs of this scope.
type Break = (RolloutFault, fn() -> RolloutScope, RolloutBroken);

const FAULTS: &[Break] = &[
    (RolloutFault::NumberIsForgotten, goes_back, RolloutBroken::Stuck),
    (RolloutFault::BuildIsKept, goes_back, RolloutBroken::Disagree),
    (RolloutFault::ReplacedByNumber, goes_back, RolloutBroken::Overwritten),
    (RolloutFault::KeyHasNumberOnly, goes_back, RolloutBroken::TwoBuilds),
];

#[test]
fn rollouts() {
    walk("goes_back", &goes_back(), &[NUMBER_REPEATED]);
    walk("is_killed", &is_killed(), &[NUMBER_REPEATED]);
    walk("goes_back_twice", &goes_back_twice(), &[NUMBER_REPEATED]);
}

#[test]
fn every_fault_of_a_rollout_is_found() {
    assert_eq!(FAULTS.len(), RolloutFault::ALL.len());
    for (fault, scope, broken) in FAULTS {
        breaks(fault, &RolloutScope { fault: Some(*fault), ..scope() }, broken.rule());
    }
}
