//! How much a file has of everything that the compiler works on. What no compiler writes is refused before it is compiled.
//!
//! The limits are at least four times what the largest plugins known have: a Python interpreter as a component of 40 modules
//! (13,000 functions, one of 427 kB), a JavaScript engine (20,000 functions, 483 locals), a Go command (43,000 data
//! segments). They keep out what is made to be hard; how long compiling may take in the end, and in how much memory, is the
//! compiling process's limit.

use wasmparser::Payload;

use crate::error::{Count, LoadError};

impl Count {
    const ALL: usize = Self::Locals as usize + 1;

    /// How many there may be.
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

/// The counts of a file, so far.
#[derive(Default)]
pub(crate) struct Counts([u64; Count::ALL]);

impl Counts {
    /// Adds one part of the file.
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
