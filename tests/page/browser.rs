//! A headless Chromium, driven through chromedriver by the W3C's WebDriver protocol: a few requests with JSON.

use crate::support::prelude::*;
use control_plane::{Component, Output};
use kube::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};

/// The keys that WebDriver has a code for.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";

/// A browser with one window, which ends when this is dropped.
pub struct Browser {
    client: Client,
    session: String,
    driver: Component,
    /// The browser, which does not end with its driver.
    process: Option<Pid>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.driver.kill();
        if let Some(process) = self.process {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

impl Browser {
    /// Starts one, with its files in a folder.
    pub async fn start(folder: &Path) -> Self {
        let log = folder.join("chromedriver.log");
        let program = ["/usr/bin/chromedriver", "/usr/lib/chromium/chromedriver"];
        let program = program.iter().map(Path::new).find(|path| path.exists());
        let program = program.expect("chromedriver: tests/prerequisites.sh installs it");
        let arguments = ["--port=0".to_owned()];
        let driver = Component::spawn(
            "chromedriver",
            program,
            &arguments,
            &[],
            Output::File(log.clone()),
        )
        .expect("chromedriver starts");
        let port = eventually("the port of chromedriver", async || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let port = text
                .split_once("started successfully on port ")
                .map(|(_, port)| port);
            let digits = port.map(|port| port.chars().take_while(char::is_ascii_digit).collect::<String>());
            digits.ok_or(text)
        })
        .await;
        let address = format!("http://127.0.0.1:{port}").parse().unwrap();
        let profile = folder.join("browser");
        // The sandbox of the browser needs rights that a container may lack. The pages are ours.
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--window-size=1200,900".to_owned(),
            format!("--user-data-dir={}", profile.display()),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let mut browser = Self {
            client: Client::try_from(Config::new(address)).expect("a client"),
            session: String::new(),
            driver,
            process: None,
        };
        let answer = browser.send("/session", capabilities).await;
        browser.session = answer["sessionId"].as_str().expect("a session").to_owned();
        let process = answer["capabilities"]["goog:processID"].as_i64();
        browser.process = process.and_then(|process| Pid::from_raw(process.try_into().ok()?));
        assert!(browser.process.is_some(), "{answer}");
        browser
    }

    /// Opens an address, and waits until its files are loaded.
    pub async fn open(&self, address: &str) {
        self.command("url", json!({ "url": address })).await;
    }

    /// Returns the number of elements that a selector matches.
    pub async fn count(&self, selector: &str) -> Value {
        let script = format!("return document.querySelectorAll('{selector}').length");
        self.run(&script).await
    }

    /// Runs a script, and returns what it returns.
    pub async fn run(&self, script: &str) -> Value {
        self.command("execute/sync", json!({ "script": script, "args": [] }))
            .await
    }

    /// Waits until the page shows a text.
    pub async fn shows(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes('{text}')"))
            .await;
    }

    /// Waits until an expression is true.
    pub async fn until(&self, expression: &str) {
        eventually(expression, async || {
            match self.run(&format!("return Boolean({expression})")).await {
                Value::Bool(true) => Ok(()),
                _ => Err(format!(
                    "{}\nand reports {}",
                    self.text().await,
                    self.complaints().await
                )),
            }
        })
        .await;
    }

    /// Returns the text of the page, as a user sees it.
    pub async fn text(&self) -> String {
        let text = self.run("return document.body.innerText").await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Returns the errors and warnings in the browser's console.
    pub async fn complaints(&self) -> Value {
        self.command("se/log", json!({ "type": "browser" })).await
    }

    /// Presses and releases a key.
    pub async fn press(&self, key: &str) {
        let actions = ["keyDown", "keyUp"].map(|type_| json!({ "type": type_, "value": key }));
        let keys = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.command("actions", keys).await;
    }

    /// Presses the tabulator until an element has the focus.
    pub async fn tab_to(&self, expression: &str) {
        for _ in 0..40 {
            self.press(TAB).await;
            let script = format!("return document.activeElement === ({expression})");
            if self.run(&script).await == true {
                return;
            }
        }
        panic!("the keyboard does not reach {expression}: {}", self.text().await);
    }

    /// Sets the size of the window in pixels, also to a size below the least one of a real window.
    pub async fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.command(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        )
        .await;
    }

    async fn command(&self, command: &str, body: Value) -> Value {
        let path = format!("/session/{}/{command}", self.session);
        self.send(&path, body).await
    }

    async fn send(&self, path: &str, body: Value) -> Value {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap();
        let answer = tokio::time::timeout(LIMIT, self.client.request::<Value>(request)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path} was not answered"));
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))["value"].take()
    }
}
