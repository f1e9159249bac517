//! Externals: `operator-host egress` with servers that behave, and with one that does not.

mod hostile;
mod lifecycle;
mod powerdns;
mod rabbitmq;
mod replicas;
mod rights;
mod secrets;
mod server;
mod tls;
