//! A system outside of the cluster, in which some children of puppets are, and the processes that carry them out.
//!
//! In a storm, the system fails at random, others change it, and the processes are killed. In the end it must contain exactly
//! what the Externals say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use control_plane::{Component, Output};
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::draw::Draw;
use crate::files::NAMESPACE;

/// One leads, and the other takes over when it is killed.
const REPLICAS: [&str; 2] = ["egress-a", "egress-b"];
/// How long an answer takes that comes too late.
const LATE: Duration = Duration::from_millis(1500);

/// See the module.
pub(crate) struct Outside {
    processes: Mutex<Vec<Component>>,
    system: Arc<System>,
    program: PathBuf,
    kubeconfig: PathBuf,
    folder: PathBuf,
}

#[derive(Default)]
struct System {
    resources: Mutex<BTreeMap<String, Value>>,
    /// What decides about each request in a storm.
    storm: Mutex<Option<Draw>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outside {
    /// Starts the system. The processes start when they are first tended.
    pub(crate) async fn start(program: &Path, kubeconfig: PathBuf, folder: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("a port")?;
        let port = listener.local_addr().context("a port")?.port();
        let system = Arc::<System>::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&system));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let file = folder.join("endpoints.yaml");
        let text = format!(
            "leadership: single\n\
             lease: {{namespace: {NAMESPACE}, duration: 3s, renewDeadline: 2s, retryPeriod: 500ms}}\n\
             endpoints:\n- {{name: outside, url: 'http://127.0.0.1:{port}', allowPlain: true, allowAddresses: [127.0.0.1], \
             methods: [PUT, DELETE], namespaces: ['round-*'], timeout: 900ms, qps: 200}}\n"
        );
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        Ok(Self {
            processes: Mutex::default(),
            system,
            program: program.to_owned(),
            kubeconfig,
            folder: folder.to_owned(),
        })
    }

    /// Returns the log of the processes.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("egress.log")
    }

    /// Starts the processes that have ended.
    pub(crate) fn tend(&self) -> anyhow::Result<()> {
        let mut processes = lock(&self.processes);
        for (index, name) in REPLICAS.into_iter().enumerate() {
            if processes
                .get_mut(index)
                .is_some_and(|process| process.exited().is_none())
            {
                continue;
            }
            let file = self.folder.join("endpoints.yaml").display().to_string();
            let environment = [
                ("KUBECONFIG", self.kubeconfig.as_path()),
                ("HOSTNAME", Path::new(name)),
                ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
            ];
            let arguments = ["egress", "--endpoints", &file].map(str::to_owned);
            let output = Output::File(self.log());
            let process = Component::spawn("egress", &self.program, &arguments, &environment, output)?;
            match processes.get_mut(index) {
                Some(ended) => *ended = process,
                None => processes.push(process),
            }
        }
        Ok(())
    }

    /// Fails at random and kills processes, until it is over.
    pub(crate) async fn storm(&self, draw: &Draw, over: &AtomicBool) {
        *lock(&self.system.storm) = Some(draw.fork(1));
        let mut draw = draw.fork(2);
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(draw.millis(200..2000)).await;
            let index = draw.below(REPLICAS.len());
            lock(&self.processes).get_mut(index).map(Component::kill);
        }
        *lock(&self.system.storm) = None;
    }

    /// Returns where the system differs from what the Externals say.
    pub(crate) fn fault(&self, externals: &[DynamicObject]) -> Option<String> {
        let wanted = externals.iter().filter_map(|external| {
            let set = &external.data["spec"]["set"];
            Some((set["path"].as_str()?.to_owned(), set["body"].clone()))
        });
        let wanted: BTreeMap<_, _> = wanted.collect();
        let there = lock(&self.system.resources);
        (*there != wanted)
            .then(|| format!("outside of the cluster is {there:?}, and the Externals say {wanted:?}"))
    }
}

async fn answer(State(system): State<Arc<System>>, method: Method, uri: Uri, body: String) -> Response {
    let (chance, drift) = match &mut *lock(&system.storm) {
        Some(draw) => (draw.below(100), draw.percent(5)),
        None => (100, false),
    };
    // Not carried out.
    if chance < 15 {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let path = uri.path().to_owned();
    let answer = {
        let mut resources = lock(&system.resources);
        if drift {
            resources.pop_first();
        }
        match method {
            Method::GET => match resources.get(&path) {
                Some(found) => found.to_string().into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            },
            Method::DELETE => {
                resources.remove(&path);
                StatusCode::NO_CONTENT.into_response()
            }
            _ => {
                resources.insert(path, serde_json::from_str(&body).unwrap_or_default());
                StatusCode::CREATED.into_response()
            }
        }
    };
    match chance {
        15..25 => StatusCode::BAD_GATEWAY.into_response(),
        25..30 => {
            tokio::time::sleep(LATE).await;
            answer
        }
        _ => answer,
    }
}
