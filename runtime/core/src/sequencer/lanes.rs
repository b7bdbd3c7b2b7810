//! The table of all lanes (in-memory queues of the active keys) of a partition. The table finds lanes by index and by
//! key, and keeps two lists of lanes, each with the least recently used lane first.

use std::ops::{Index, IndexMut};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use slab::Slab;
use std::hash::BuildHasher;

use super::lane::Lane;

#[derive(Debug)]
pub(super) struct LaneTable {
    slab: Slab<Lane>,
    /// The list links of each lane, by index. The links are separate from the lanes, because a list operation also
    /// touches the links of the neighbouring lanes. If the links were in the lanes, the operation would load these
    /// whole lanes into the cache of the processor.
    links: Vec<ListLink>,
    by_key: HashTable<u32>,
    hasher: FixedState,
    ends: [ListEnds; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneList {
    /// Lanes whose content is durable. These lanes may leave memory.
    Evictable = 0,
    /// Lanes that hold events which cannot run now, and that can spill these events (move them into the store). A lane
    /// that has spilled its events may leave memory.
    Blocked = 1,
}

const NO_LINK: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct ListEnds {
    first: u32,
    last: u32,
    count: usize,
}

/// The position of a lane in its list, and data for lookups that do not touch the lane.
#[derive(Debug, Clone, Copy)]
struct ListLink {
    hash: u64,
    list: Option<LaneList>,
    before: u32,
    after: u32,
}

impl Default for ListLink {
    fn default() -> Self {
        Self { hash: 0, list: None, before: NO_LINK, after: NO_LINK }
    }
}

impl LaneTable {
    pub(super) fn new() -> Self {
        let ends = ListEnds { first: NO_LINK, last: NO_LINK, count: 0 };
        Self {
            slab: Slab::new(),
            links: Vec::new(),
            by_key: HashTable::new(),
            hasher: FixedState::default(),
            ends: [ends; 2],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Lane> {
        self.slab.get(index as usize)
    }

    pub(super) fn find(&self, key: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.by_key.find(hash, |&index| *self.slab[index as usize].key == *key).copied()
    }

    pub(super) fn insert(&mut self, lane: Lane) -> u32 {
        let hash = self.hasher.hash_one(&*lane.key);
        let index = self.slab.insert(lane) as u32;
        if index as usize == self.links.len() {
            self.links.push(ListLink::default());
        }
        let links = &mut self.links;
        links[index as usize].hash = hash;
        self.by_key.insert_unique(hash, index, |&other| links[other as usize].hash);
        index
    }

    pub(super) fn remove(&mut self, index: u32) -> Lane {
        self.move_to(index, None);
        let lane = self.slab.remove(index as usize);
        let hash = self.links[index as usize].hash;
        if let Ok(entry) = self.by_key.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
        lane
    }

    pub(super) fn indices(&self) -> Vec<u32> {
        self.slab.iter().map(|(index, _)| index as u32).collect()
    }

    pub(super) fn count(&self, list: LaneList) -> usize {
        self.ends[list as usize].count
    }

    pub(super) fn first(&self, list: LaneList) -> Option<u32> {
        let first = self.ends[list as usize].first;
        (first != NO_LINK).then_some(first)
    }

    /// Moves the lane to the end of a list, as the most recently used lane. With `None`, removes the lane from its
    /// list.
    pub(super) fn move_to(&mut self, index: u32, list: Option<LaneList>) {
        let old_link = self.links[index as usize];
        let stays = old_link.list == list;
        if stays && list.is_none_or(|list| self.ends[list as usize].last == index) {
            return;
        }
        if let Some(old) = old_link.list {
            let ends = &mut self.ends[old as usize];
            ends.count -= 1;
            match old_link.before {
                NO_LINK => ends.first = old_link.after,
                before => self.links[before as usize].after = old_link.after,
            }
            let ends = &mut self.ends[old as usize];
            match old_link.after {
                NO_LINK => ends.last = old_link.before,
                after => self.links[after as usize].before = old_link.before,
            }
        }
        let mut new_link = ListLink { hash: old_link.hash, ..ListLink::default() };
        if let Some(new) = list {
            let ends = &mut self.ends[new as usize];
            ends.count += 1;
            new_link = ListLink { list, before: ends.last, ..new_link };
            match std::mem::replace(&mut ends.last, index) {
                NO_LINK => ends.first = index,
                before => self.links[before as usize].after = index,
            }
        }
        self.links[index as usize] = new_link;
    }
}

impl Index<u32> for LaneTable {
    type Output = Lane;

    fn index(&self, index: u32) -> &Lane {
        &self.slab[index as usize]
    }
}

impl IndexMut<u32> for LaneTable {
    fn index_mut(&mut self, index: u32) -> &mut Lane {
        &mut self.slab[index as usize]
    }
}
