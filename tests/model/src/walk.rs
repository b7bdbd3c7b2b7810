//! Walks through all runs of a model, or plays one of them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// A model for which the checker can walk through all runs.
pub trait CheckedModel:
    Model<State: Value + Hash, Action: Value> + Clone + Send + Sync + 'static
{
}

impl<M> CheckedModel for M where
    M: Model<State: Value + Hash, Action: Value> + Clone + Send + Sync + 'static
{
}

/// The requirements for the states and steps of a model.
pub trait Value: Clone + Debug + PartialEq + Send + Sync {}

impl<T: Clone + Debug + PartialEq + Send + Sync> Value for T {}

/// Walks through all runs of a model. Panics if the found properties differ from the `expected` properties. A property
/// that must always hold is found if a run breaks the property. Any other property is found if a run shows the
/// property.
pub fn walk<M: CheckedModel>(name: &str, model: &M, expected: &[&'static str]) {
    let start = Instant::now();
    let checker = model.clone().checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    let steps = checker.max_depth() - 1;
    println!("{name}: {states} states, the last after {steps} steps, {:.1?}", start.elapsed());
    let mut found: Vec<_> = checker.discoveries().into_keys().collect();
    let mut expected = expected.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    for unexpected in found.iter().filter(|found| !expected.contains(found)) {
        println!("{unexpected}: {:?}", shortest(model, unexpected));
    }
    assert_eq!(found, expected, "in {name}");
}

/// Checks `cases`: each case consists of a fault, a model with this fault, and a property. Panics if no run of the
/// model breaks the property. Also panics if `cases` leaves out a fault of `all`, or a property that must always hold.
/// Without a fault that breaks a property, nothing shows that this property can fail.
pub fn check_faults<F: Debug + PartialEq, M: CheckedModel>(
    all: &[F],
    cases: impl IntoIterator<Item = (F, M, &'static str)>,
) {
    let cases: Vec<_> = cases.into_iter().collect();
    let untested: Vec<&F> =
        all.iter().filter(|fault| cases.iter().all(|(tested, ..)| tested != *fault)).collect();
    assert!(untested.is_empty(), "these faults are not tested: {untested:?}");
    let properties = cases.iter().flat_map(|(_, model, _)| model.properties());
    let unbroken: BTreeSet<_> = properties
        .filter(|property| property.expectation != Expectation::Sometimes)
        .map(|property| property.name)
        .filter(|name| cases.iter().all(|(.., broken)| broken != name))
        .collect();
    assert!(unbroken.is_empty(), "no fault breaks these properties: {unbroken:?}");
    for (fault, model, property) in &cases {
        let path = shortest(model, property);
        let path = path.unwrap_or_else(|| panic!("{fault:?} does not break {property:?}"));
        println!("{fault:?}: not {property:?} after {} steps: {path:?}", path.len());
    }
}

/// Returns the shortest run that shows a property. For a property that must always hold, returns the shortest run that
/// breaks the property. Returns `None` if no such run exists. The first run that the checker finds need not be the
/// shortest. The function therefore repeats the search, each time only among shorter runs, until the checker finds no
/// run.
fn shortest<M: CheckedModel>(model: &M, property: &'static str) -> Option<Vec<M::Action>> {
    let mut found: Option<Vec<M::Action>> = None;
    loop {
        let wanted = HasDiscoveries::AnyOf([property].into());
        let mut checker = model.clone().checker().finish_when(wanted);
        if let Some(path) = &found {
            checker = checker.target_max_depth(path.len() + 1);
        }
        match checker.spawn_bfs().join().discovery(property) {
            Some(path) => found = Some(path.into_actions()),
            None => return found,
        }
    }
}

/// A run of a model.
#[derive(Debug)]
pub struct PlayedRun<A> {
    /// The steps of the run.
    pub steps: Vec<A>,
    /// The names of the [`Expectation::Sometimes`] properties that the run shows.
    pub reached: BTreeSet<&'static str>,
    /// The property that the run breaks; `None` if the run breaks no property.
    pub broken: Option<&'static str>,
}

/// Plays one run of a model. Before each step, `choose` receives the possible steps, and returns the index of the step
/// to perform. The run ends when it breaks a property, when no step is possible, or after `step_limit` steps.
pub fn play<M: CheckedModel>(
    model: &M,
    step_limit: usize,
    mut choose: impl FnMut(&[M::Action]) -> usize,
) -> PlayedRun<M::Action> {
    let (sometimes, always): (Vec<_>, Vec<_>) = model
        .properties()
        .into_iter()
        .partition(|property| property.expectation == Expectation::Sometimes);
    let mut played = PlayedRun { steps: Vec::new(), reached: BTreeSet::new(), broken: None };
    let mut states = model.init_states();
    let mut actions = Vec::new();
    while let Some(mut state) = states.pop() {
        let reached = sometimes.iter().filter(|property| (property.condition)(model, &state));
        played.reached.extend(reached.map(|property| property.name));
        let broken = always.iter().find(|property| !(property.condition)(model, &state));
        played.broken = broken.map(|property| property.name);
        actions.clear();
        model.actions(&state, &mut actions);
        if played.broken.is_some() || actions.is_empty() || played.steps.len() == step_limit {
            break;
        }
        let action = actions.swap_remove(choose(&actions));
        played.steps.push(action.clone());
        // A step that changes nothing has no next state.
        if let Some(next) = model.next_state(&state, action) {
            state = next;
        }
        states.push(state);
    }
    played
}
