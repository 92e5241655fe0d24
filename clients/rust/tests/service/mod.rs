//! The service that tests use: the program that DAVENPORT names, or that is built with them.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use davenport_client::{Client, Method};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

pub const LONG: Duration = Duration::from_secs(60);

fn program() -> std::path::PathBuf {
    let built = || std::env::current_exe().unwrap().with_file_name("../davenport");
    std::env::var_os("DAVENPORT").map_or_else(built, Into::into)
}

/// A service with a store of its own.
pub struct Service {
    directory: std::path::PathBuf,
    #[allow(dead_code, reason = "not every test needs it")]
    pub port: u16,
    setting: &'static str,
    process: Child,
}

impl Service {
    pub async fn new(name: &str) -> Self {
        Self::with(name, "log.level=warn").await
    }

    /// With a setting.
    pub async fn with(name: &str, setting: &'static str) -> Self {
        let directory = std::env::temp_dir().join(format!("davenport-rust-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Self::launch(&directory, port, setting).await;
        Self { directory, port, setting, process }
    }

    async fn launch(directory: &std::path::Path, port: u16, setting: &str) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
        let mut process = Command::new(program())
            .args(["serve", "--admin", "root:s3cret", "--set", "log.level=warn", "--set", setting, "--listen"])
            .args([format!("127.0.0.1:{port}"), "--store".into(), format!("lmdb:{}/data", directory.display())])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let up = Client::new(&format!("http://127.0.0.1:{port}")).unwrap();
        let start = Instant::now();
        while up.ask::<Value>(Method::GET, &["_up"], &Value::Null).await.is_err() {
            assert!(process.try_wait().unwrap().is_none() && start.elapsed() < LONG, "the service does not start");
        }
        process
    }

    /// Kills it and starts it again, with its port and data.
    #[allow(dead_code, reason = "not every test does it")]
    pub async fn restart(&mut self) {
        self.kill();
        self.process = Self::launch(&self.directory, self.port, self.setting).await;
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn client(&self) -> Client {
        Client::new(&format!("http://root:s3cret@127.0.0.1:{}", self.port)).unwrap()
    }
}

/// A proxy in front of a service. While it hangs, connections stay open, but nothing is passed on.
#[allow(dead_code, reason = "not every test needs it")]
pub struct Proxy {
    pub port: u16,
    pub hangs: Arc<AtomicBool>,
    /// How many pieces of requests and answers it got.
    pub pieces: Arc<AtomicUsize>,
}

#[allow(dead_code, reason = "not every test needs it")]
impl Proxy {
    pub async fn new(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, hangs) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::default()));
        let pieces = Arc::new(AtomicUsize::default());
        let told = (Arc::clone(&hangs), Arc::clone(&pieces));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass_on(near_in, far_out, told.clone()));
                tokio::spawn(pass_on(far_in, near_out, told.clone()));
            }
        });
        Self { port, hangs, pieces }
    }
}

type Told = (Arc<AtomicBool>, Arc<AtomicUsize>);

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, (hangs, pieces): Told) {
    let mut piece = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        pieces.fetch_add(1, Ordering::Relaxed);
        if !hangs.load(Ordering::Relaxed) && to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
