//! What the environment says about export: the standard `OTEL_*` variables.
//!
//! The OpenTelemetry crates read most of them by themselves. Read here is what decides whether anything is
//! exported at all, and what the crates leave to the program: certificates, and which protocol to speak when
//! the environment does not say.

use std::path::PathBuf;

use operator_host_telemetry::metrics::losses::Signal;

/// How to speak to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP with protobuf bodies.
    Http,
}

/// Where one signal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// As the environment gives it, for the log.
    pub endpoint: String,
    /// How to speak there.
    pub protocol: Protocol,
    /// Certificate authorities to trust besides the system's.
    pub certificate: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Reads where a signal goes; `None`: nowhere, since no endpoint is named or export is switched off.
///
/// `variable` is the environment, as [`std::env::var`] gives it.
pub fn read(signal: Signal, variable: impl Fn(&str) -> Option<String>) -> Option<Export> {
    let get = |name: &str| {
        let value = variable(name).map(|value| value.trim().to_owned());
        value.filter(|value| !value.is_empty())
    };
    let of_signal = signal.as_str().to_ascii_uppercase();
    let either = |name: &str| {
        let general = || get(&format!("OTEL_EXPORTER_OTLP_{name}"));
        get(&format!("OTEL_EXPORTER_OTLP_{of_signal}_{name}")).or_else(general)
    };
    if get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let exporter = get(&format!("OTEL_{of_signal}_EXPORTER")).map(|value| value.to_ascii_lowercase());
    // Most clusters collect standard error already: logs are exported only when the environment asks for it.
    if exporter.as_deref() == Some("none") || exporter.is_none() && signal == Signal::Logs {
        return None;
    }
    let endpoint = either("ENDPOINT")?;
    let protocol = match either("PROTOCOL").as_deref() {
        Some("grpc") => Protocol::Grpc,
        Some(_) => Protocol::Http,
        // The standard's default is HTTP; a collector listens for gRPC on the port registered for it, and
        // that port stands for gRPC.
        None if port(&endpoint) == Some(4317) => Protocol::Grpc,
        None => Protocol::Http,
    };
    let client = either("CLIENT_CERTIFICATE").zip(either("CLIENT_KEY"));
    Some(Export {
        endpoint,
        protocol,
        certificate: either("CERTIFICATE").map(PathBuf::from),
        client: client.map(|(certificate, key)| (certificate.into(), key.into())),
    })
}

fn port(endpoint: &str) -> Option<u16> {
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = authority.split('/').next()?;
    authority.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");

    fn read_from(signal: Signal, variables: &[(&str, &str)]) -> Option<Export> {
        read(signal, |name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_exported_without_an_endpoint_or_when_it_is_off_and_logs_on_request_only() {
        let of_metrics = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://a:4318");
        for (signal, variables, is_exported) in [
            (Signal::Traces, &[] as &[_], false),
            (Signal::Traces, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], false),
            (Signal::Traces, &[of_metrics], false),
            (Signal::Traces, &[ENDPOINT], true),
            (Signal::Traces, &[ENDPOINT, ("OTEL_SDK_DISABLED", "true")], false),
            (
                Signal::Traces,
                &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
                false,
            ),
            (
                Signal::Traces,
                &[ENDPOINT, ("OTEL_METRICS_EXPORTER", "none")],
                true,
            ),
            (Signal::Logs, &[ENDPOINT], false),
            (Signal::Logs, &[ENDPOINT, ("OTEL_LOGS_EXPORTER", "none")], false),
            (Signal::Logs, &[ENDPOINT, ("OTEL_LOGS_EXPORTER", "otlp")], true),
        ] {
            let export = read_from(signal, variables);
            assert_eq!(export.is_some(), is_exported, "{variables:?}");
        }
    }

    #[test]
    fn the_protocol_follows_the_variable_and_else_the_port() {
        let of = |endpoint: &str, more: &[(&str, &str)]| {
            let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
            read_from(Signal::Traces, &[&[endpoint], more].concat())
                .unwrap()
                .protocol
        };
        assert_eq!(of("http://a:4318", &[]), Protocol::Http);
        assert_eq!(of("http://a:4317", &[]), Protocol::Grpc);
        assert_eq!(of("http://a:4317/", &[]), Protocol::Grpc);
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        assert_eq!(of("http://a:4317", &[http]), Protocol::Http);
        let grpc = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        assert_eq!(of("http://a:1", &[http, grpc]), Protocol::Grpc);
    }

    #[test]
    fn a_variable_of_the_signal_goes_before_the_general_one() {
        let variables = [
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:4318"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.crt"),
        ];
        let export = read_from(Signal::Traces, &variables).unwrap();
        assert_eq!(
            (export.endpoint.as_str(), export.certificate),
            ("http://b:4318", Some("/ca.crt".into()))
        );
    }
}
