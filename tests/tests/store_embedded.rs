//! The embedded store: the conformance suite, and what only it can go through.

mod store_embedded {
    mod damage;
    mod full;
    mod opening;
    mod support;

    use support::Rig;

    ordain_tests::conformance_suite!(Rig::open());
}
