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

fn join() -> Fleet {
    Fleet { instances: 3, partitions: 2, ..Fleet::default() }
}

fn shutdown() -> Fleet {
    Fleet { instances: 2, partitions: 2, shutdowns: 1, disconnects: 1, ..Fleet::default() }
}

fn kill() -> Fleet {
    Fleet { instances: 2, partitions: 2, kills: 1, ..Fleet::default() }
}

fn late_heartbeat() -> Fleet {
    Fleet { instances: 2, partitions: 2, late_heartbeats: 1, ..Fleet::default() }
}

fn two_late_heartbeats() -> Fleet {
    Fleet { instances: 2, partitions: 1, late_heartbeats: 2, ..Fleet::default() }
}

fn cut_off() -> Fleet {
    Fleet { instances: 2, partitions: 2, cut_offs: 1, ..Fleet::default() }
}

fn all_faults() -> Fleet {
    Fleet {
        instances: 2,
        partitions: 1,
        late_heartbeats: 1,
        kills: 1,
        shutdowns: 1,
        cut_offs: 1,
        ..join()
    }
}

fn rollback() -> Fleet {
    Fleet { instances: 2, partitions: 2, rollbacks: 1, ..Fleet::default() }
}

fn rollback_and_late_heartbeat() -> Fleet {
    Fleet { instances: 2, partitions: 1, late_heartbeats: 1, rollbacks: 1, ..Fleet::default() }
}

/// A fleet with its name, and all properties that its runs show.
type Case = (&'static str, fn() -> Fleet, &'static [&'static str]);

const CASES: &[Case] = &[
    ("join", join, &[SHARED_BY_ALL]),
    ("shutdown", shutdown, &[SHARED_BY_ALL]),
    ("kill", kill, &[SHARED_BY_ALL, WAITS_FOR_CHANNEL]),
    ("late_heartbeat", late_heartbeat, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("two_late_heartbeats", two_late_heartbeats, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("cut_off", cut_off, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("all_faults", all_faults, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    ("rollback", rollback, &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL]),
    (
        "rollback_and_late_heartbeat",
        rollback_and_late_heartbeat,
        &[SHARED_BY_ALL, TWO_BELIEVE, WAITS_FOR_CHANNEL],
    ),
];

type FaultCase = (SharingFault, fn() -> Fleet, &'static str);

const FAULTS: &[FaultCase] = &[
    (SharingFault::LeaseTaken, join, MEMBER_KEEPS),
    (SharingFault::LeaseToNonMember, two_late_heartbeats, COMES_TO_REST),
    (SharingFault::ReleaseWithoutEpoch, two_late_heartbeats, OWN_RELEASES),
    (SharingFault::ClaimWithoutLease, late_heartbeat, NEWEST_FENCES),
    (SharingFault::EpochClaimedTwice, rollback, ONE_COMMITS),
    (SharingFault::ChannelsKept, cut_off, ALL_SHARED),
    (SharingFault::NonMemberKeepsLease, kill, ALL_SHARED),
    (SharingFault::ReleaseWithoutClose, join, ALL_SHARED),
    (SharingFault::LostLeaseKept, rollback, ALL_SHARED),
    (SharingFault::UnknownLeaseKept, rollback, ALL_SHARED),
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
