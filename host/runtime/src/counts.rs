//! Counts everything in a file that the compiler works on. A file that no compiler writes is rejected before
//! it is compiled.
//!
//! The limits are at least four times the counts of the largest plugins known: a Python interpreter as a
//! component of 40 modules (13,000 functions, one of 427 kB), a JavaScript engine (20,000 functions, 483
//! locals), a Go command (43,000 data segments). They reject files that are crafted to be hard to compile.
//! The limits of the compiling process bound its time and memory.

use wasmparser::Payload;

use crate::error::{Count, LoadError};

impl Count {
    const ALL: usize = Self::Locals as usize + 1;

    /// Returns the maximum number allowed.
    const fn limit(self) -> u64 {
        match self {
            Self::Modules | Self::Memories => 1_000,
            Self::Types | Self::Imports | Self::Elements | Self::Instances => 50_000,
            Self::Globals | Self::Exports => 100_000,
            Self::Functions | Self::Data => 200_000,
            Self::Body => 2 << 20,
            Self::Locals => 10_000,
        }
    }
}

/// The counts of the part of a file read so far.
#[derive(Default)]
pub(crate) struct Counts([u64; Count::ALL]);

impl Counts {
    /// Counts one part of the file.
    pub(crate) fn add(&mut self, payload: &Payload<'_>) -> Result<(), LoadError> {
        let (what, count) = match payload {
            Payload::Version { .. } => (Count::Modules, 1),
            Payload::TypeSection(section) => (Count::Types, section.count()),
            Payload::CoreTypeSection(section) => (Count::Types, section.count()),
            Payload::ComponentTypeSection(section) => (Count::Types, section.count()),
            Payload::ImportSection(section) => (Count::Imports, section.count()),
            Payload::ComponentImportSection(section) => (Count::Imports, section.count()),
            Payload::FunctionSection(section) => (Count::Functions, section.count()),
            Payload::TableSection(section) => (Count::Memories, section.count()),
            Payload::MemorySection(section) => (Count::Memories, section.count()),
            Payload::GlobalSection(section) => (Count::Globals, section.count()),
            Payload::TagSection(section) => (Count::Globals, section.count()),
            Payload::ExportSection(section) => (Count::Exports, section.count()),
            Payload::ComponentExportSection(section) => (Count::Exports, section.count()),
            Payload::ElementSection(section) => (Count::Elements, section.count()),
            Payload::DataSection(section) => (Count::Data, section.count()),
            Payload::InstanceSection(section) => (Count::Instances, section.count()),
            Payload::ComponentInstanceSection(section) => (Count::Instances, section.count()),
            Payload::ComponentAliasSection(section) => (Count::Instances, section.count()),
            Payload::ComponentCanonicalSection(section) => (Count::Instances, section.count()),
            Payload::CodeSectionEntry(body) => {
                within(Count::Body, body.range().len() as u64)?;
                let mut locals = 0;
                for group in body.get_locals_reader()? {
                    locals += u64::from(group?.0);
                }
                return within(Count::Locals, locals);
            }
            _ => return Ok(()),
        };
        let sum = &mut self.0[what as usize];
        *sum += u64::from(count);
        within(what, *sum)
    }
}

fn within(what: Count, found: u64) -> Result<(), LoadError> {
    if found > what.limit() {
        return Err(LoadError::Excessive {
            what,
            found,
            limit: what.limit(),
        });
    }
    Ok(())
}
