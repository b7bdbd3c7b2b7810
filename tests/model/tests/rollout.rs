//! Walks through all runs of instances that decide on rollouts over a store that goes back in time (loses its newest
//! writes). `docs/internals/protocol.md` describes the scopes.

use ordain_model::{
    NUMBER_REPEATED, RolloutFault, RolloutScope, RolloutViolation, check_faults, walk,
};

fn goes_back() -> RolloutScope {
    RolloutScope { instances: 2, builds: 2, changes: 1, rollbacks: 1, ..RolloutScope::default() }
}

fn is_killed() -> RolloutScope {
    RolloutScope { changes: 0, kills: 1, ..goes_back() }
}

fn goes_back_twice() -> RolloutScope {
    RolloutScope { changes: 0, rollbacks: 2, ..goes_back() }
}

type FaultCase = (RolloutFault, fn() -> RolloutScope, RolloutViolation);

const FAULTS: &[FaultCase] = &[
    (RolloutFault::NumberIsForgotten, goes_back, RolloutViolation::Stuck),
    (RolloutFault::BuildIsKept, goes_back, RolloutViolation::Disagreement),
    (RolloutFault::ReplacedByNumber, goes_back, RolloutViolation::Overwritten),
    (RolloutFault::OwnBuildWins, goes_back, RolloutViolation::EndlessChanges),
    (RolloutFault::KeyHasNumberOnly, goes_back, RolloutViolation::TwoBuilds),
];

#[test]
fn no_run_of_rollouts_breaks_a_rule() {
    walk("goes_back", &goes_back(), &[NUMBER_REPEATED]);
    walk("is_killed", &is_killed(), &[NUMBER_REPEATED]);
    walk("goes_back_twice", &goes_back_twice(), &[NUMBER_REPEATED]);
}

#[test]
fn every_fault_of_a_rollout_is_found() {
    let cases = FAULTS.iter().map(|(fault, scope, broken)| {
        (*fault, RolloutScope { fault: Some(*fault), ..scope() }, broken.rule())
    });
    check_faults(&RolloutFault::ALL, cases);
}
