// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both sides from one command: a server in a process of its own, with a name of its own, which ends with the run.

use crate::args::Options;
use crate::bounds::cost;
use gdrfab::error::{Error, Result, errno};
use gdrfab::sys::process;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct LocalServer {
    child: Child,
    pub address: String,
}

/// The CPUs of client and server: as asked, or the first two that this process may use.
pub fn choose_cpus(asked: &[usize]) -> Vec<usize> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).take(2).collect()
}

impl LocalServer {
    pub fn start(o: &Options, cpus: &[usize]) -> Result<LocalServer> {
        let failed = |e: std::io::Error| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("starting a server: {e}"));
        let mut raw = [0u8; 8];
        process::random(&mut raw)?;
        let name = format!("gdrfab-perf.{}.{:016x}", process::pid(), u64::from_ne_bytes(raw));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args([o.test.name(), "--parent", &process::pid().to_string()]);
        match (&o.name, o.choice.network(o.name.as_deref()).is_some()) {
            (Some(place), true) if o.drive.addresses => command.args(["--name", place]),
            _ if o.drive.addresses => &mut command,
            (Some(place), true) => command.args(["--name", place, "--port", "0"]),
            (None, true) => command.args(["--port", "0"]),
            (_, false) => command.args(["--name", &name]),
        };
        // The only client of that server is this command.
        command.args(["--max-memory", &cost(&o.plan(false)).to_string(), "--max-time", "86400"]);
        if let Some(cpu) = cpus.last() {
            command.args(["--cpus", &cpu.to_string()]);
        }
        if let Some(provider) = &o.choice.provider {
            command.args(["--provider", provider]);
        }
        if let Some(device) = &o.choice.device {
            command.args(["--device", device]);
        }
        if o.drive.addresses {
            command.args(["--connect", "addresses", "--control-port", "0"]);
        }
        if o.drive.inline == Some(0) {
            command.args(["--inline", "0"]);
        }
        if let Some(index) = o.drive.gid_index {
            command.args(["--gid-index", &index.to_string()]);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut address = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut address).map_err(failed)?;
        }
        let server = LocalServer { child, address: address.trim().to_string() };
        if server.address.is_empty() {
            return Err(Error::fixed(errno::ECHILD, "the server ended before it listened"));
        }
        Ok(server)
    }

    /// Waits for the server to end by itself, for a limited time.
    pub fn finish(mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(Error::new(errno::ECHILD, format!("the server failed: {status}"))),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(Error::new(errno::ECHILD, format!("waiting for the server: {e}"))),
            }
        }
        Err(Error::fixed(errno::ETIMEDOUT, "the server did not end by itself"))
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // Both calls fail if the server has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
