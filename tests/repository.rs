//! Checks of the repository itself: pages, generated files and what a release consists of.

pub mod crates;
pub mod crds;
pub mod figures;
pub mod release;
pub mod sbom;
pub mod threat_model;
pub mod troubleshooting;
