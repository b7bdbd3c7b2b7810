//! Walks through all runs of small fleets of instances. `docs/internals/protocol.md` describes these fleets.

use ordain_model::{Fleet, SharingFault, check_faults, walk};

// Each fleet below lists some of these properties. The runs of the fleet must show exactly the listed properties. A
// fleet whose runs do not show them is too small to test anything.
const SHARED_BY_ALL: &str = "all instances share all partitions";
const TWO_BELIEVE: &str = "two instances believe that they have a partition";
const WAITS_FOR_CHANNEL: &str = "an instance waits until another instance's channel is closed";

// The properties that the faults must break. Without a fault, they must always hold.
const MEMBER_KEEPS: &str = "no member loses a partition";
const NEWEST_FENCES: &str = "only the holder of the newest lease fences other instances";
const OWN_RELEASES: &str = "no instance releases the lease of another instance";
const ONE_COMMITS: &str = "only one instance at a time may commit";
const ALL_SHARED: &str = "a fleet at rest shares all partitions";
const COMES_TO_REST: &str = "the fleet comes to rest";

fn joins() -> Fleet {
    Fleet { instances: 3, partitions: 2, ..Fleet::default() }
}

fn leaves() -> Fleet {
    Fleet { instances: 2, partitions: 2, shutdowns: 1, disconnects: 1, ..Fleet::default() }
}

fn dies() -> Fleet {
    Fleet { instances: 2, partitions: 2, kills: 1, ..Fleet::default() }
}

fn is_silent() -> Fleet {
    Fleet { instances: 2, partitions: 2, late_heartbeats: 1, ..Fleet::default() }
}

fn is_silent_twice() -> Fleet {
    Fleet { instances: 2, partitions: 1, late_heartbeats: 2, ..Fleet::default() }
}

fn is_cut_off() -> Fleet {
    Fleet { instances: 2, partitions: 2, cut_offs: 1, ..Fleet::default() }
}

fn all_at_once() -> Fleet {
    Fleet {
        instances: 2,
        partitions: 1,
        late_heartbeats: 1,
        kills: 1,
        shutdowns: 1,
        cut_offs: 1,
        ..joins()
    }
}

fn goes_back() -> Fleet {
    Fleet { instances: 2, partitions: 2, rollbacks: 1, ..Fleet::default() }
}

fn goes_back_and_is_silent() -> Fleet {
    Fleet { instances: 2, partitions: 1, late_heartbeats: 1, rollbacks: 1, ..Fleet::default() }
}

/// A fleet with its name, and all properties that its runs show.
type Case = (&'static str, fn() -> Fleet, &'static [&'static str]);

const CASES: &[Case] = &[
    ("joins", joins, &[SHARED_BY_ALL]),
    ("leaves", leaves, &[SHARED_BY_ALL]),
    ("dies", dies, &[SHARED_BY_ALL, WAITS_FOR_CHANNEL]),
    ("is_silent", is_silent, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("is_silent_twice", is_silent_twice, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("is_cut_off", is_cut_off, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("all_at_once", all_at_once, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("goes_back", goes_back, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    (
        "goes_back_and_is_silent",
        goes_back_and_is_silent,
        &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL],
    ),
];

/// A fault, a fleet, and the property that the fault breaks in the runs of this fleet.
type FaultCase = (SharingFault, fn() -> Fleet, &'static str);

const FAULTS: &[FaultCase] = &[
    (SharingFault::LeaseTaken, joins, MEMBER_KEEPS),
    (SharingFault::LeaseToNonMember, is_silent_twice, COMES_TO_REST),
    (SharingFault::ReleaseWithoutEpoch, is_silent_twice, OWN_RELEASES),
    (SharingFault::ClaimWithoutLease, is_silent, NEWEST_FENCES),
    (SharingFault::EpochClaimedTwice, goes_back, ONE_COMMITS),
    (SharingFault::ChannelsKept, is_cut_off, ALL_SHARED),
    (SharingFault::NonMemberKeepsLease, dies, ALL_SHARED),
    (SharingFault::ReleaseWithoutClose, joins, ALL_SHARED),
    (SharingFault::LostLeaseKept, goes_back, ALL_SHARED),
    (SharingFault::UnknownLeaseKept, goes_back, ALL_SHARED),
];

#[test]
fn no_run_of_a_fleet_breaks_a_rule() {
    for (name, fleet, expected) in CASES {
        walk(name, &fleet(), expected);
    }
}

#[test]
fn every_fault_of_sharing_is_found() {
    let cases = FAULTS.iter().map(|(fault, fleet, property)| {
        (*fault, Fleet { fault: Some(*fault), ..fleet() }, *property)
    });
    check_faults(&SharingFault::ALL, cases);
}
