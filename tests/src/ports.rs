//! Ports for servers that are started again at the same address. The system chooses a port from those that it also
//! gives to outgoing connections. So while a server on such a port is down, any client's connection may occupy it.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, bail};

/// All ports are below those of outgoing connections, which begin at 32768 (`net.ipv4.ip_local_port_range`).
const FIRST: u16 = 15_000;
const PORTS: u16 = 17_000;
const TRIES: usize = 1000;
const LOCKS: &str = "/tmp/kindred-test-ports";

/// A port of this machine. No other test gets it until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _locked: File,
}

impl Port {
    /// Finds a port at which no server listens.
    ///
    /// # Errors
    /// If there is none among `TRIES` candidates.
    pub fn free() -> anyhow::Result<Self> {
        let locks = PathBuf::from(LOCKS);
        fs::create_dir_all(&locks).with_context(|| format!("making {}", locks.display()))?;
        for _ in 0..TRIES {
            if let Some(port) = Self::take(&locks, next())? {
                return Ok(port);
            }
        }
        bail!("no free port among {PORTS} from {FIRST} on after {TRIES} tries")
    }

    /// Finds so many consecutive ports.
    ///
    /// # Errors
    /// As [`Port::free`].
    pub fn consecutive(count: u16) -> anyhow::Result<Vec<Self>> {
        let locks = PathBuf::from(LOCKS);
        for _ in 0..TRIES {
            let first = Self::free()?;
            let mut ports = vec![first];
            while ports.len() < usize::from(count)
                && let Some(port) = Self::take(&locks, ports[ports.len() - 1].number + 1)?
            {
                ports.push(port);
            }
            if ports.len() == usize::from(count) {
                return Ok(ports);
            }
        }
        bail!("no {count} consecutive free ports after {TRIES} tries")
    }

    /// This port, if no server listens there and no other test has it.
    fn take(locks: &Path, number: u16) -> anyhow::Result<Option<Self>> {
        let lock = locks.join(number.to_string());
        let file = File::create(&lock).with_context(|| format!("making {}", lock.display()))?;
        let free = file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok();
        Ok(free.then_some(Self { number, _locked: file }))
    }

    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The next candidate. Each process begins at another one.
fn next() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let nth = process::id().wrapping_mul(101).wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
    FIRST + u16::try_from(nth % u32::from(PORTS)).expect("less than PORTS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_not_to_connections() {
        let mut ports: Vec<Port> = (0..50).map(|_| Port::free().unwrap()).collect();
        let several = Port::consecutive(3).unwrap();
        assert!(several.windows(2).all(|two| two[1].number == two[0].number + 1), "{several:?}");
        ports.extend(several);
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
        let connections = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = connections.split_whitespace().next().unwrap().parse().unwrap();
        assert!(numbers.iter().all(|number| *number < first), "{numbers:?}, connections have {connections}");
    }
}
