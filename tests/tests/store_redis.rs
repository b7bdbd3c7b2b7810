//! The store in Redis: the conformance suite on one server and on a Cluster.

mod store_redis {
    mod support;

    mod alone {
        use super::support::Rig;

        ordain_tests::conformance_suite!(Rig::alone().await);
    }

    mod cluster {
        use super::support::Rig;

        ordain_tests::conformance_suite!(Rig::cluster().await);
    }
}
