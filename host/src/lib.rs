//! operator-host
