//! Walks through all runs of small fleets of instances. `docs/internals/protocol.md` describes these fleets.

use ordain_model::{Fleet, SharingFault, breaks, walk};

// Properties that the runs of a fleet must show. A fleet without them would be too small to test anything.
const BY_ALL: &str = "all instances share all partitions";
const BOTH: &str = "two instances believe that they have a partition";
const BEHIND: &str = "an instance waits behind another's channel";

// The properties that the faults must break.
const HEARD: &str = "no member loses a partition";
const FENCES: &str = "only the holder of the newest lease fences others";
const GIVES: &str = "no instance releases the lease of another";
const SHARED: &str = "a fleet at rest shares all partitions";
const RESTS: &str = "the fleet comes to rest";

fn joins() -> Fleet {
    Fleet { instances: 3, partitions: 2, ..Fleet::default() }
}

fn leaves() -> Fleet {
    Fleet { instances: 2, partitions: 2, leaves: 1, disconnects: 1, ..Fleet::default() }
}

fn dies() -> Fleet {
    Fleet { instances: 2, partitions: 2, kills: 1, ..Fleet::default() }
}

fn is_silent() -> Fleet {
    Fleet { instances: 2, partitions: 2, silences: 1, ..Fleet::default() }
}

fn is_silent_twice() -> Fleet {
    Fleet { instances: 2, partitions: 1, silences: 2, ..Fleet::default() }
}

fn is_cut_off() -> Fleet {
    Fleet { instances: 2, partitions: 2, cuts: 1, ..Fleet::default() }
}

fn all_at_once() -> Fleet {
    Fleet { instances: 2, partitions: 1, silences: 1, kills: 1, leaves: 1, cuts: 1, ..joins() }
}

fn goes_back() -> Fleet {
    Fleet { instances: 2, partitions: 2, rewinds: 1, ..Fleet::default() }
}

fn goes_back_and_is_silent() -> Fleet {
    Fleet { instances: 2, partitions: 1, silences: 1, rewinds: 1, ..Fleet::default() }
}

/// A fleet, and all properties that its runs show.
type Case = (&'static str, fn() -> Fleet, &'static [&'static str]);

const CASES: &[Case] = &[
    ("joins", joins, &[BY_ALL]),
    ("leaves", leaves, &[BY_ALL]),
    ("dies", dies, &[BY_ALL, BEHIND]),
    ("is_silent", is_silent, &[BY_ALL, BOTH, BEHIND]),
    ("is_silent_twice", is_silent_twice, &[BY_ALL, BOTH, BEHIND]),
    ("is_cut_off", is_cut_off, &[BY_ALL, BOTH, BEHIND]),
    ("all_at_once", all_at_once, &[BY_ALL, BOTH, BEHIND]),
    ("goes_back", goes_back, &[BY_ALL, BOTH, BEHIND]),
    ("goes_back_and_is_silent", goes_back_and_is_silent, &[BY_ALL, BOTH, BEHIND]),
];

/// A fault, a fleet, and the property that the fault breaks in the runs of this fleet.
type Break = (SharingFault, fn() -> Fleet, &'static str);

const FAULTS: &[Break] = &[
    (SharingFault::LeaseTaken, joins, HEARD),
    (SharingFault::LeaseToSilent, is_silent_twice, RESTS),
    (SharingFault::ReleaseWithoutEpoch, is_silent_twice, GIVES),
    (SharingFault::ClaimWithoutLease, is_silent, FENCES),
    (SharingFault::ChannelsKept, is_cut_off, SHARED),
    (SharingFault::ForgottenHolds, dies, SHARED),
    (SharingFault::ReleaseWithoutClose, joins, SHARED),
    (SharingFault::LostLeaseKept, goes_back, SHARED),
    (SharingFault::UnknownLeaseKept, goes_back, SHARED),
];

#[test]
fn fleets() {
    for (name, fleet, expected) in CASES {
        walk(name, &fleet(), expected);
    }
}

#[test]
fn every_fault_of_sharing_is_found() {
    for (fault, fleet, property) in FAULTS {
        breaks(fault, &Fleet { fault: Some(*fault), ..fleet() }, property);
    }
}
