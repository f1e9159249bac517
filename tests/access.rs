//! Permissions: of the host, of its controllers, and of the tenants that share it.

pub mod going;
pub mod impersonation;
pub mod permissions;
pub mod rights;
pub mod tenancy;
