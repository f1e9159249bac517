//! Runs reconciles, edits by others, and a delayed watch in random order, and checks that every unseen change
//! causes a reconcile and that own writes cause none.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::object::version;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A user changes the parent's spec.
    EditParent,
    /// Somebody changes the child.
    EditChild,
    /// The watch delivers the next change.
    Deliver,
    StartPass,
    WriteChild,
    WriteStatus,
    EndPass,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => Just(Op::EditParent),
        1 => Just(Op::EditChild),
        4 => Just(Op::Deliver),
        2 => Just(Op::StartPass),
        2 => Just(Op::WriteChild),
        2 => Just(Op::WriteStatus),
        2 => Just(Op::EndPass),
    ]
}

/// A pending watch event.
enum Event {
    Parent(Box<DynamicObject>),
    Child(u128),
}

struct World {
    version: u128,
    spec: u32,
    status: u32,
    /// The version at which somebody else last changed the child.
    foreign: u128,
    events: VecDeque<Event>,
    // The host's knowledge.
    parent: DynamicObject,
    child: u128,
    memory: Memory,
    marks: Vec<ReconcileReason>,
    running: bool,
    /// A reconcile writes the status once.
    /// Its finalizers and its status.
    parent_writes: usize,
    passes: usize,
    /// The input of the last reconcile.
    seen_spec: Option<u32>,
    seen_child: u128,
}

impl World {
    fn new() -> Self {
        Self {
            version: 1,
            spec: 0,
            status: 0,
            foreign: 0,
            events: VecDeque::new(),
            parent: parent(1, 0, 0),
            child: 0,
            memory: Memory::default(),
            marks: vec![ReconcileReason::Resync],
            running: false,
            parent_writes: 0,
            passes: 0,
            seen_spec: None,
            seen_child: 0,
        }
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::EditParent => {
                self.version += 1;
                self.spec += 1;
                self.events.push_back(Event::Parent(Box::new(self.served())));
            }
            Op::EditChild => {
                self.version += 1;
                self.foreign = self.version;
                self.events.push_back(Event::Child(self.version));
            }
            Op::Deliver => self.deliver(),
            Op::StartPass if !self.running && !self.marks.is_empty() => {
                (self.running, self.parent_writes) = (true, 0);
                self.marks.clear();
                self.passes += 1;
                self.seen_spec = self.parent.data["spec"]
                    .as_u64()
                    .and_then(|spec| spec.try_into().ok());
                self.seen_child = self.child;
            }
            Op::WriteChild if self.running => {
                self.version += 1;
                self.memory.written.insert(child().identity(), self.version);
                // The result is stored in the cache, and the plugin is called with it in the same reconcile.
                (self.child, self.seen_child) = (self.version, self.version);
                self.events.push_back(Event::Child(self.version));
            }
            Op::WriteStatus if self.running && self.parent_writes < 2 => {
                self.parent_writes += 1;
                self.version += 1;
                self.status += 1;
                let answer = self.served();
                let echo = is_same_but_for_own_writes(&self.parent, &answer);
                self.memory.wrote_parent(version(&answer).filter(|_| echo));
                self.events.push_back(Event::Parent(Box::new(answer.clone())));
                self.parent = answer;
            }
            Op::EndPass if self.running => {
                self.running = false;
                let memory = &self.memory;
                self.marks.retain(|trigger| !memory.is_echo(trigger));
            }
            _ => {}
        }
    }

    fn deliver(&mut self) {
        let trigger = match self.events.pop_front() {
            None => return,
            Some(Event::Parent(object)) => {
                let at = version(&object);
                // Never replace a newer version by an older one.
                if at > version(&self.parent) {
                    self.parent = *object;
                }
                ReconcileReason::Parent { version: at }
            }
            Some(Event::Child(at)) => {
                self.child = self.child.max(at);
                ReconcileReason::Child {
                    child: child(),
                    version: Some(at),
                }
            }
        };
        // During a reconcile its writes are not known yet.
        if self.running || !self.memory.is_echo(&trigger) {
            self.marks.push(trigger);
        }
    }

    /// Returns the parent as the server has it.
    fn served(&self) -> DynamicObject {
        parent(self.version, self.spec, self.status)
    }

    fn calm_down(&mut self) {
        while self.running || !self.events.is_empty() || !self.marks.is_empty() {
            for op in [Op::Deliver, Op::StartPass, Op::EndPass] {
                self.act(op);
            }
        }
    }
}

fn parent(version: u128, spec: u32, status: u32) -> DynamicObject {
    let object = json!({
        "apiVersion": "v1", "kind": "Shop", "metadata": { "name": "a", "resourceVersion": version.to_string() },
        "spec": spec, "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn child() -> ChildRef {
    let kind = Kind {
        api_version: "v1".into(),
        kind: "Pod".into(),
    };
    let name = NamespacedName {
        namespace: None,
        name: "a-0".into(),
    };
    ChildRef { kind, name }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_no_pass_has_seen_makes_one(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            world.act(op);
        }
        world.calm_down();
        prop_assert_eq!(world.seen_spec, Some(world.spec));
        prop_assert!(world.seen_child >= world.foreign, "{} < {}", world.seen_child, world.foreign);
    }

    #[test]
    fn the_echo_of_own_writes_makes_no_pass(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            if !matches!(op, Op::EditParent | Op::EditChild) {
                world.act(op);
            }
        }
        world.calm_down();
        prop_assert_eq!(world.passes, 1);
    }
}
