//! Runs reconciles, edits by others, and a delayed watch in random order, and checks that every unseen change
//! causes a reconcile and that own writes cause none. The watch may deliver what a write has changed before the
//! write's response arrives, and may skip all but the last state, as a list does.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use operator_host_contract::Kind;
use operator_host_core::object::{ChildRef, NamespacedName, version};

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A user changes the parent's spec.
    EditParent,
    /// A user changes a label of the parent, which its generation does not count.
    LabelParent,
    /// Somebody changes the child.
    EditChild,
    /// The watch delivers the next change.
    Deliver,
    /// The host lists the parent instead.
    List,
    StartReconcile,
    WriteChild,
    /// The API server executes a write of the parent.
    WriteParent,
    /// The API server executes a write of the parent that changes nothing.
    WriteNothing,
    /// Its response arrives.
    Answer,
    EndReconcile,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => Just(Op::EditParent),
        1 => Just(Op::LabelParent),
        1 => Just(Op::EditChild),
        4 => Just(Op::Deliver),
        2 => Just(Op::StartReconcile),
        2 => Just(Op::WriteChild),
        1 => Just(Op::List),
        2 => Just(Op::WriteParent),
        1 => Just(Op::WriteNothing),
        2 => Just(Op::Answer),
        2 => Just(Op::EndReconcile),
    ]
}

/// A pending watch event.
enum Event {
    Parent(Box<DynamicObject>),
    Child(u128),
}

struct World {
    version: u128,
    /// The version at which the parent was last changed.
    parent_version: u128,
    spec: u32,
    label: u32,
    status: u32,
    /// The version at which somebody else last changed the child.
    foreign: u128,
    events: VecDeque<Event>,
    // The host's knowledge.
    parent: DynamicObject,
    child: u128,
    memory: ParentMemory,
    pending: Vec<Trigger>,
    running: bool,
    /// Number of writes of the parent by this reconcile: its finalizers and its status.
    parent_writes: usize,
    /// The response that has not arrived yet.
    answer: Option<DynamicObject>,
    passes: usize,
    /// The input of the last reconcile.
    seen: DynamicObject,
    /// What the current write of the parent is based on.
    as_seen: DynamicObject,
    seen_child: u128,
}

impl World {
    fn new() -> Self {
        Self {
            version: 1,
            parent_version: 1,
            spec: 0,
            label: 0,
            status: 0,
            foreign: 0,
            events: VecDeque::new(),
            parent: parent(1, 0, 0, 0),
            child: 0,
            memory: ParentMemory::default(),
            pending: vec![Trigger::Resync],
            running: false,
            parent_writes: 0,
            answer: None,
            passes: 0,
            seen: parent(0, 0, 0, 0),
            as_seen: parent(0, 0, 0, 0),
            seen_child: 0,
        }
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::EditParent => {
                self.spec += 1;
                self.change_parent();
            }
            Op::LabelParent => {
                self.label += 1;
                self.change_parent();
            }
            Op::EditChild => {
                self.version += 1;
                self.foreign = self.version;
                self.events.push_back(Event::Child(self.version));
            }
            Op::Deliver => self.deliver(),
            Op::StartReconcile if !self.running && !self.pending.is_empty() => {
                (self.running, self.parent_writes) = (true, 0);
                self.pending.clear();
                self.passes += 1;
                self.seen = self.parent.clone();
                self.seen_child = self.child;
            }
            Op::WriteChild if self.running => {
                self.version += 1;
                let written = &mut self.memory.own_writes.children;
                written.insert(child().identity(), self.version);
                // The result is stored in the cache, and the plugin is called with it in the same reconcile.
                (self.child, self.seen_child) = (self.version, self.version);
                self.events.push_back(Event::Child(self.version));
            }
            Op::WriteParent if self.running && self.answer.is_none() && self.parent_writes < 2 => {
                self.parent_writes += 1;
                self.status += 1;
                self.begin_write();
                self.change_parent();
                self.answer = Some(self.served());
            }
            Op::WriteNothing if self.running && self.answer.is_none() => {
                self.begin_write();
                self.answer = Some(self.served());
            }
            Op::Answer => {
                if let Some(answer) = self.answer.take() {
                    self.memory.wrote_parent(&self.as_seen, None, &answer);
                    self.learn(answer);
                }
            }
            Op::List => self.list(),
            Op::EndReconcile if self.running && self.answer.is_none() => {
                self.running = false;
                let own = std::mem::take(&mut self.memory.own_writes);
                self.pending.retain(|reason| !own.explain(reason));
            }
            _ => {}
        }
    }

    fn change_parent(&mut self) {
        self.version += 1;
        self.parent_version = self.version;
        self.events.push_back(Event::Parent(Box::new(self.served())));
    }

    /// Notes what a write is based on: the parent as now known, and the generation that the reconcile has seen.
    fn begin_write(&mut self) {
        self.as_seen = self.parent.clone();
        self.as_seen.metadata.generation = self.seen.metadata.generation;
    }

    fn deliver(&mut self) {
        match self.events.pop_front() {
            None => {}
            Some(Event::Parent(object)) => self.learn(*object),
            // The cache has the same state, or a newer one.
            Some(Event::Child(at)) if at <= self.child => {}
            Some(Event::Child(at)) => {
                self.child = at;
                self.enqueue(Trigger::Child {
                    child: child(),
                    version: Some(at),
                });
            }
        }
    }

    /// Delivers the current parent, and nothing of what was before.
    fn list(&mut self) {
        self.events.retain(|event| matches!(event, Event::Child(_)));
        self.learn(self.served());
    }

    /// Stores a state of the parent, unless the same or a newer one is known, and notifies the controller.
    fn learn(&mut self, object: DynamicObject) {
        let at = version(&object);
        if at > version(&self.parent) {
            self.parent = object;
            self.enqueue(Trigger::Parent { version: at });
        }
    }

    fn enqueue(&mut self, reason: Trigger) {
        if !self.memory.own_writes.explain(&reason) {
            self.pending.push(reason);
        }
    }

    /// Returns the parent as the server has it.
    fn served(&self) -> DynamicObject {
        parent(self.parent_version, self.spec, self.label, self.status)
    }

    fn settle(&mut self) {
        while self.running || !self.events.is_empty() || !self.pending.is_empty() {
            for op in [Op::Answer, Op::Deliver, Op::StartReconcile, Op::EndReconcile] {
                self.act(op);
            }
        }
    }
}

fn parent(version: u128, spec: u32, label: u32, status: u32) -> DynamicObject {
    let object = json!({
        "apiVersion": "v1", "kind": "Shop", "metadata": {
            "name": "a", "generation": spec, "resourceVersion": version.to_string(), "labels": { "l": label.to_string() },
        },
        "spec": spec, "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn child() -> ChildRef {
    ChildRef::new(Kind::new("v1", "Pod"), NamespacedName::parse("a-0"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_unseen_change_causes_a_reconcile(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            world.act(op);
        }
        world.settle();
        prop_assert_eq!(&world.seen.data["spec"], &json!(world.spec));
        prop_assert_eq!(&world.seen.metadata.labels, &world.served().metadata.labels);
        prop_assert!(world.seen_child >= world.foreign, "{} < {}", world.seen_child, world.foreign);
    }

    #[test]
    fn own_writes_cause_no_reconcile(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            if !matches!(op, Op::EditParent | Op::LabelParent | Op::EditChild) {
                world.act(op);
            }
        }
        world.settle();
        prop_assert_eq!(world.passes, 1);
    }
}
