//! What a Controller costs beside the same entry of the configuration file, measured in one run.

use futures::StreamExt as _;

use super::*;
use crate::support::measure::{self, MB};

/// The number of controllers whose memory is compared.
const MANY: usize = 100;
/// How long their plugins may take to compile.
const READY: Duration = Duration::from_secs(600);

#[tokio::test]
async fn from_one_apply_to_the_first_child_takes_at_most_a_second_more_than_an_entry_of_the_file() {
    let world = World::new("controllers-first").await;
    let scenario = &world;
    let plugins = crate::support::plugin("echo");
    let plugins = format!("plugins: {}\n", plugins.parent().unwrap().display());
    scenario.file("config.yaml", format!("{plugins}{CEILINGS}controllers: []\n"));
    let host = scenario.start_with(&scenario.folder.path().join("config.yaml"), &[]);
    host.until_log("configuration applied").await;
    // Only the operators are missing. Their plugins are in the compiled cache.
    scenario.apply(&crate::samples::echo::echo(1)).await;
    let child = config_map("a-child", "x");
    scenario.wants("a", &[child]).await;
    let mut pods = measure::follow(scenario, "v1/Pod").await;
    let mut maps = measure::follow(scenario, CONFIG_MAP).await;

    let start = Instant::now();
    let entry = format!(
        "{plugins}{CEILINGS}controllers:\n{}",
        crate::samples::echo::CONTROLLER
    );
    scenario.file("config.yaml", entry);
    let of_file = pods.recv().await.unwrap().0.duration_since(start);

    let start = Instant::now();
    world.put(&crate::support::puppet::variant(0)).await;
    world.controller("puppet", json!({})).await;
    let of_object = loop {
        let (at, map) = maps.recv().await.unwrap();
        if map.metadata.name.as_deref() == Some("a-child") {
            break at.duration_since(start);
        }
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (file, object) = (ms(of_file), ms(of_object));
    measure::report(
        "controllers-first",
        &format!(
            "from one apply of a Controller and its ConfigMap to the first child: {object:.0} ms, from an entry of the file: {file:.0} ms"
        ),
    );
    assert!(
        object < 2.0 * file + 1000.0,
        "{object} ms, {file} ms with the file"
    );
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Returns the anonymous memory of a host once all controllers run and it does not fall any more.
async fn idle(host: &Host) -> f64 {
    let start = Instant::now();
    while host.log().matches("\"controller started\"").count() < MANY {
        assert!(start.elapsed() < READY, "not all controllers run");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // It gives memory back some seconds after a burst.
    let mut least = measure::anonymous(host);
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(15) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = measure::anonymous(host);
        if now < least {
            (least, since) = (now, Instant::now());
        }
    }
    least as f64
}

#[tokio::test]
async fn a_hundred_controllers_cost_little_more_memory_than_a_hundred_entries() {
    let world = World::new("controllers-memory").await;
    let scenario = &world;
    let echo = std::fs::read(crate::support::plugin("echo")).unwrap();
    let crd = program(&["crd", crate::support::plugin("echo").to_str().unwrap()]).prints();
    let own = "my-operator.dev";
    let group = |number: usize| format!("my-operator.{number:03}");
    let folder = scenario.folder.path().join("plugins");
    std::fs::create_dir(&folder).unwrap();
    let copy = |number: usize| {
        // Texts of the same length.
        let mut copy = echo.clone();
        let places = echo.windows(own.len()).enumerate();
        for (place, _) in places.filter(|(_, text)| *text == own.as_bytes()) {
            copy[place..place + own.len()].copy_from_slice(group(number).as_bytes());
        }
        // A custom section of 262,144 bytes, so that a host that kept the contents would have far more than varies.
        copy.extend([0, 0x80, 0x80, 0x10, 1, b'v']);
        copy.resize(copy.len() + 262_142, 0);
        copy
    };
    let mut entries = String::new();
    let mut definitions = Vec::new();
    for number in 0..MANY {
        std::fs::write(folder.join(format!("echo-{number}.wasm")), copy(number)).unwrap();
        definitions.push(crd.replace(own, &group(number)));
        entries.push_str(&format!(
            "- {{name: echo-{number}, parent: {{apiVersion: {}/v1, kind: Echo}}, plugin: echo-{number}.wasm, \
             children: [{{apiVersion: v1, kind: Pod}}]}}\n",
            group(number)
        ));
    }
    crate::support::install(
        &scenario.client,
        scenario.folder.path(),
        &definitions.join("\n---\n"),
    )
    .await;
    let cache = scenario.folder.path().join("shared-cache");
    let start = |name: &str, text: String| {
        let folder = scenario.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let config = scenario.file(&format!("{name}.yaml"), text);
        let arguments = ["--cache-dir", cache.to_str().unwrap()];
        let log = [("OPERATOR_HOST_LOG", "info")];
        Host::start(&config, scenario.kubeconfig(), &arguments, &log, &folder)
    };
    let file = format!("plugins: {}\ncontrollers:\n{entries}", folder.display());
    // The first one compiles.
    let mut of_file = 0.0;
    for name in ["compiling", "file"] {
        let host = start(name, file.clone());
        of_file = idle(&host).await;
        assert_eq!(host.stop().await.code(), Some(0));
    }
    let apply = |number: usize| {
        let world = &world;
        let plugin = copy(number);
        async move {
            let name = format!("echo-{number}-plugin");
            world.put_as(&name, "echo.wasm", &plugin).await;
            let spec = json!({
                "parent": {"apiVersion": format!("{}/v1", group(number)), "kind": "Echo"},
                "plugin": {"configMap": {"name": name, "key": "echo.wasm"}},
                "children": [{"apiVersion": "v1", "kind": "Pod"}],
                "backoff": {"initial": "1s"},
            });
            // A name that the file has used would have to be released first.
            world.controller(&format!("object-{number}"), spec).await;
        }
    };
    futures::stream::iter(0..MANY)
        .map(apply)
        .buffer_unordered(8)
        .collect::<()>()
        .await;
    let ceilings = "ceilings:\n- parents: [{apiGroups: ['my-operator.*'], kinds: [Echo]}]\n  \
                    children: [{apiGroups: [''], kinds: [Pod]}]\ncontrollers: []\n";
    let host = start("objects", ceilings.to_owned());
    let of_objects = idle(&host).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let each = (of_objects - of_file) / MANY as f64 / 1e3;
    measure::report(
        "controllers-memory",
        &format!(
            "{MANY} controllers: {:.1} MB as entries of the file, {:.1} MB as Controllers with ConfigMaps, {each:.1} KB more each",
            of_file / MB,
            of_objects / MB
        ),
    );
    // The measurement itself varies by some megabytes. What a ConfigMap contains would be 370 KB each.
    assert!(
        each < 100.0,
        "{each:.1} KB more each: {of_file} and {of_objects} bytes"
    );
}
