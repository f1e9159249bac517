//! Counts everything in a file that the compiler works on. A file that no compiler writes is rejected before
//! it is compiled.
//!
//! The limits are at least four times the counts of the largest plugins known: a Python interpreter as a
//! component of 40 modules (13,000 functions, one of 427 kB), a JavaScript engine (20,000 functions, 483
//! locals), a Go command (43,000 data segments). They reject files that are crafted to be hard to compile.
//! The limits of the compiling process bound its time and memory.

use std::collections::BTreeMap;

use wasmparser::Payload;

use crate::error::{LoadError, Part};

/// What is counted, over all modules in a file, and the maximum number allowed.
type Limit = (&'static str, u64);

/// Core modules, and components in components.
const MODULES: Limit = ("modules", 1_000);
const TYPES: Limit = ("types", 50_000);
const IMPORTS: Limit = ("imports", 50_000);
const FUNCTIONS: Limit = ("functions", 200_000);
const MEMORIES: Limit = ("tables and memories", 1_000);
/// And tags.
const GLOBALS: Limit = ("globals", 100_000);
const EXPORTS: Limit = ("exports", 100_000);
const ELEMENTS: Limit = ("element segments", 50_000);
const DATA: Limit = ("data segments", 200_000);
const INSTANCES: Limit = ("instances, aliases and canonical functions", 50_000);
const BODY: Limit = ("bytes in one function", 2 << 20);
const LOCALS: Limit = ("local variables in one function", 10_000);

/// The counts of the part of a file read so far.
#[derive(Default)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// Counts one part of the file.
    pub(crate) fn add(&mut self, payload: &Payload<'_>) -> Result<(), LoadError> {
        let (what, count) = match payload {
            Payload::Version { .. } => (MODULES, 1),
            Payload::TypeSection(section) => (TYPES, section.count()),
            Payload::CoreTypeSection(section) => (TYPES, section.count()),
            Payload::ComponentTypeSection(section) => (TYPES, section.count()),
            Payload::ImportSection(section) => (IMPORTS, section.count()),
            Payload::ComponentImportSection(section) => (IMPORTS, section.count()),
            Payload::FunctionSection(section) => (FUNCTIONS, section.count()),
            Payload::TableSection(section) => (MEMORIES, section.count()),
            Payload::MemorySection(section) => (MEMORIES, section.count()),
            Payload::GlobalSection(section) => (GLOBALS, section.count()),
            Payload::TagSection(section) => (GLOBALS, section.count()),
            Payload::ExportSection(section) => (EXPORTS, section.count()),
            Payload::ComponentExportSection(section) => (EXPORTS, section.count()),
            Payload::ElementSection(section) => (ELEMENTS, section.count()),
            Payload::DataSection(section) => (DATA, section.count()),
            Payload::InstanceSection(section) => (INSTANCES, section.count()),
            Payload::ComponentInstanceSection(section) => (INSTANCES, section.count()),
            Payload::ComponentAliasSection(section) => (INSTANCES, section.count()),
            Payload::ComponentCanonicalSection(section) => (INSTANCES, section.count()),
            Payload::CodeSectionEntry(body) => {
                within(BODY, body.range().len() as u64)?;
                let mut locals = 0;
                for group in body.get_locals_reader()? {
                    locals += u64::from(group?.0);
                }
                return within(LOCALS, locals);
            }
            _ => return Ok(()),
        };
        let sum = self.0.entry(what.0).or_default();
        *sum += u64::from(count);
        within(what, *sum)
    }
}

fn within((what, limit): Limit, found: u64) -> Result<(), LoadError> {
    if found > limit {
        let message = format!(
            "the plugin has {found} {what}; the limit is {limit}: no compiler for `wasm32-wasip1` writes so many"
        );
        return Err(LoadError::new(Part::Size, message));
    }
    Ok(())
}
