//! Computes which replica leads which controller when several replicas share them. Every replica runs this
//! computation on the contents of the Leases. Replicas that see the same state decide the same. When they see
//! different states, a Lease can still be taken only once, and the next iteration corrects the difference.

use std::collections::{BTreeMap, BTreeSet};

/// A replica that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The leases that it could hold: those of its warm controllers.
    pub able: BTreeSet<String>,
    /// The leases that it holds.
    pub held: BTreeSet<String>,
}

/// The replicas by identity.
pub type Members = BTreeMap<String, Member>;

/// Returns the free leases that this replica should take: each is assigned to the replica with the fewest
/// leases among those that could hold it, and in case of a tie to the first by identity.
#[must_use]
pub fn allotted(members: &Members, free: &BTreeSet<String>, me: &str) -> BTreeSet<String> {
    let mut load: BTreeMap<&str, usize> = members
        .iter()
        .map(|(identity, member)| (identity.as_str(), member.held.len()))
        .collect();
    let mut mine = BTreeSet::new();
    for lease in free {
        let able = members.iter().filter(|(_, member)| member.able.contains(lease));
        let Some((taker, _)) = able.min_by_key(|(identity, _)| (load[identity.as_str()], *identity)) else {
            continue;
        };
        if let Some(load) = load.get_mut(taker.as_str()) {
            *load += 1;
        }
        if taker == me {
            mine.insert(lease.clone());
        }
    }
    mine
}

/// Returns the lease that this replica should release, so that no replica holds two more than another that
/// could hold it. Among all leases that could be released, it is the first one of the replica with the most,
/// so that one moves at a time.
#[must_use]
pub fn surplus(members: &Members, me: &str) -> Option<String> {
    let mut holders: Vec<_> = members.iter().collect();
    holders.sort_by_key(|(identity, member)| (std::cmp::Reverse(member.held.len()), *identity));
    for (identity, holder) in holders {
        let movable = holder.held.iter().find(|lease| {
            members
                .values()
                .any(|other| other.able.contains(*lease) && other.held.len() + 2 <= holder.held.len())
        });
        if let Some(lease) = movable {
            return (identity == me).then(|| lease.clone());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(leases: &[&str]) -> BTreeSet<String> {
        leases.iter().map(ToString::to_string).collect()
    }

    fn members(of: &[(&str, &[&str])], able: &[&str]) -> Members {
        let member = |held: &[&str]| Member {
            able: set(able),
            held: set(held),
        };
        of.iter()
            .map(|(identity, held)| ((*identity).to_owned(), member(held)))
            .collect()
    }

    /// Lets every replica act on the same view repeatedly until nothing changes.
    fn settle(members: &mut Members, all: &[&str]) -> usize {
        for round in 0..100 {
            let held: BTreeSet<String> = members.values().flat_map(|m| m.held.clone()).collect();
            let free: BTreeSet<String> = set(all).difference(&held).cloned().collect();
            let view = members.clone();
            let mut moved = false;
            for (identity, member) in members.iter_mut() {
                let taken = allotted(&view, &free, identity);
                moved |= !taken.is_empty();
                member.held.extend(taken);
                if let Some(lease) = surplus(&view, identity).filter(|_| free.is_empty()) {
                    member.held.remove(&lease);
                    moved = true;
                }
            }
            if !moved {
                return round;
            }
        }
        panic!("it never settles: {members:?}");
    }

    fn loads(members: &Members) -> Vec<usize> {
        members.values().map(|member| member.held.len()).collect()
    }

    #[test]
    fn what_is_free_is_dealt_out_evenly_and_each_lease_once() {
        let all = ["a", "b", "c", "d", "e"];
        let mut three = members(&[("x", &[]), ("y", &[]), ("z", &[])], &all);
        assert_eq!(settle(&mut three, &all), 1, "in one round");
        assert_eq!(loads(&three), [2, 2, 1]);
        let mut one = members(&[("x", &[])], &all);
        settle(&mut one, &all);
        assert_eq!(loads(&one), [5]);
    }

    #[test]
    fn a_replica_that_comes_gets_its_share_and_of_one_that_goes_each_gets_some() {
        let all = ["a", "b", "c", "d"];
        let mut members = members(&[("x", &all), ("y", &[]), ("z", &[])], &all);
        settle(&mut members, &all);
        let mut now = loads(&members);
        now.sort_unstable();
        assert_eq!(now, [1, 1, 2]);
        members.remove("x");
        settle(&mut members, &all);
        assert_eq!(loads(&members), [2, 2]);
    }

    #[test]
    fn a_lease_goes_only_to_who_could_hold_it_and_is_not_passed_to_and_fro() {
        // `y` runs an older configuration, without `new`.
        let mut members = members(
            &[("x", &["a", "new", "newer"]), ("y", &[])],
            &["a", "new", "newer"],
        );
        members.get_mut("y").unwrap().able = set(&["a"]);
        settle(&mut members, &["a", "new", "newer"]);
        assert_eq!(members["x"].held, set(&["new", "newer"]));
        assert_eq!(members["y"].held, set(&["a"]));
        members.get_mut("y").unwrap().able.clear();
        members.get_mut("y").unwrap().held.clear();
        settle(&mut members, &["a", "new", "newer"]);
        assert_eq!(loads(&members), [3, 0]);
    }
}
