//! Notifies systemd of the node's state, through the socket in `NOTIFY_SOCKET`.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// The socket, if systemd asked for notifications.
#[derive(Debug, Default)]
pub struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Systemd {
    /// Reads systemd's variables; `process` is our process id.
    pub fn new(lookup: impl Fn(&str) -> Option<String>, process: u32) -> Self {
        let Some(name) = lookup("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let socket = match open(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, socket = name, "cannot notify systemd");
                None
            }
        };
        let number = |name| lookup(name)?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|asked| asked == u64::from(process));
        let watchdog = number("WATCHDOG_USEC").filter(|period| ours && *period > 0);
        Self {
            socket,
            watchdog: watchdog.map(Duration::from_micros),
        }
    }

    /// The interval of watchdog notifications.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends a state such as `READY=1`. Errors are ignored: there may be no listener.
    pub fn tell(&self, state: &str) {
        if let Some((socket, to)) = &self.socket
            && let Err(error) = socket.send_to_addr(state.as_bytes(), to)
        {
            tracing::debug!(%error, state, "notify systemd");
        }
    }
}

fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(Path::new(name))?,
    };
    let socket = UnixDatagram::unbound()?;
    // A full queue must not block.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_it_is_told_to_whoever_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let lookup = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(path.display().to_string()),
            "WATCHDOG_USEC" => Some("2000000".to_owned()),
            "WATCHDOG_PID" => Some("7".to_owned()),
            _ => None,
        };
        let systemd = Systemd::new(lookup, 7);
        systemd.tell("READY=1");
        let mut text = [0; 64];
        let length = listener.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
        assert_eq!(systemd.watchdog(), Some(Duration::from_secs(2)));
        // The watchdog of another process.
        assert_eq!(Systemd::new(lookup, 8).watchdog(), None);
        let unset = Systemd::new(|_| None, 7);
        unset.tell("READY=1");
        assert_eq!(unset.watchdog(), None);
    }
}
