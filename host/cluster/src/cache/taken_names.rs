//! The taken names of one namespace, of which there may be very many.
//!
//! All names are in one buffer: an allocation for each would take as much memory again as the name.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::text::Taken;

/// Unused bytes that are tolerated in any buffer.
const SLACK: usize = 1024;

/// A map from names to [`Taken`].
#[derive(Default)]
pub(super) struct TakenNames {
    table: HashTable<(Place, Taken)>,
    hasher: RandomState,
    buffer: String,
    /// Bytes in the buffer that are no name any more.
    unused: usize,
}

/// Where a name is in the buffer: 40 bits for its start, and 24 for its length.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    const LENGTH: u32 = 24;

    /// The API server has no objects whose names do not fit: it stores no more than some gigabytes.
    const fn new(start: usize, length: usize) -> Self {
        Self((start as u64) << Self::LENGTH | length as u64)
    }

    const fn length(self) -> usize {
        (self.0 & ((1 << Self::LENGTH) - 1)) as usize
    }

    fn of(self, buffer: &str) -> &str {
        let start = (self.0 >> Self::LENGTH) as usize;
        &buffer[start..start + self.length()]
    }
}

impl TakenNames {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Taken> {
        let hash = self.hasher.hash_one(name);
        let (_, taken) = self
            .table
            .find(hash, |(place, _)| place.of(&self.buffer) == name)?;
        Some(taken)
    }

    pub(super) fn insert(&mut self, name: &str, taken: Taken) {
        let Self {
            table,
            hasher,
            buffer,
            ..
        } = self;
        let entry = table.entry(
            hasher.hash_one(name),
            |(place, _)| place.of(buffer) == name,
            |(place, _)| hasher.hash_one(place.of(buffer)),
        );
        match entry {
            Entry::Occupied(mut known) => known.get_mut().1 = taken,
            Entry::Vacant(free) => {
                free.insert((Place::new(buffer.len(), name.len()), taken));
                buffer.push_str(name);
            }
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Taken> {
        let hash = self.hasher.hash_one(name);
        let found = self
            .table
            .find_entry(hash, |(place, _)| place.of(&self.buffer) == name);
        let ((place, taken), _) = found.ok()?.remove();
        self.unused += place.length();
        if self.unused > SLACK + self.buffer.len() / 4 {
            self.compact();
        }
        Some(taken)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Taken)> {
        let entries = self.table.iter();
        entries.map(|(place, taken)| (place.of(&self.buffer), taken))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Taken> {
        self.table.iter_mut().map(|(_, taken)| taken)
    }

    /// Copies the names into a buffer without unused bytes, and shrinks the table.
    fn compact(&mut self) {
        let mut buffer = String::with_capacity(self.buffer.len() - self.unused);
        for (place, _) in &mut self.table {
            let start = buffer.len();
            buffer.push_str(place.of(&self.buffer));
            *place = Place::new(start, place.length());
        }
        (self.buffer, self.unused) = (buffer, 0);
        let hasher = |(place, _): &(Place, Taken)| self.hasher.hash_one(place.of(&self.buffer));
        self.table.shrink_to(self.table.len() * 2, hasher);
    }

    /// Returns the bytes of the table and of the buffer.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.table.allocation_size() + self.buffer.capacity()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::DynamicObject;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn taken(version: u64) -> Taken {
        let pod: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "7f1b5a6e-8d0c-4f6e-9f1c-000000000042", "resourceVersion": version.to_string()},
        }))
        .unwrap();
        Taken::of(&pod, None).unwrap()
    }

    proptest! {
        /// Names of many lengths come and go, some of them prefixes of others.
        #[test]
        fn it_behaves_as_a_map(steps in prop::collection::vec((any::<bool>(), 0..60_usize, 1..100_u64), 0..400)) {
            let (mut names, mut model) = (TakenNames::default(), BTreeMap::new());
            for (is_insert, number, version) in steps {
                let name = "ä".repeat(number);
                if is_insert {
                    names.insert(&name, taken(version));
                    model.insert(name, taken(version));
                } else {
                    prop_assert!(names.remove(&name) == model.remove(&name));
                }
                prop_assert!(names.unused <= SLACK + names.buffer.len() / 4);
            }
            prop_assert_eq!(names.is_empty(), model.is_empty());
            prop_assert_eq!(names.len(), model.len());
            for number in 0..60 {
                let name = "ä".repeat(number);
                prop_assert!(names.get(&name) == model.get(&name));
            }
            let all: BTreeMap<String, Taken> =
                names.iter().map(|(name, taken)| (name.to_owned(), taken.clone())).collect();
            prop_assert!(all == model);
        }
    }

    #[test]
    fn names_that_come_and_go_take_no_more_memory() {
        let mut names = TakenNames::default();
        let mut first = 0;
        for round in 0..50 {
            for number in 0..1000 {
                names.insert(&format!("pod-{round:02}-{number}"), taken(1));
            }
            if round == 0 {
                first = names.bytes();
            }
            assert!(names.bytes() <= first * 2, "{} after {first}", names.bytes());
            for number in 0..1000 {
                names.remove(&format!("pod-{round:02}-{number}"));
            }
        }
        assert!(names.is_empty());
    }
}
