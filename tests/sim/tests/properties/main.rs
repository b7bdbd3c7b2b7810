//! Sends arbitrary inputs, even impossible inputs, to a sequencer. The sequencer must not panic, and its requests must
//! stay within its limits.

mod driver;
mod generate;

use proptest::collection::vec;
use proptest::prelude::*;

use driver::Driver;
use generate::{settings, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_inputs_cause_no_panic_and_break_no_limit(settings in settings(), steps in vec(step(), 0..120)) {
        let mut driver = Driver::new(settings);
        for step in steps {
            driver.step(step);
        }
        driver.drain();
    }
}
