// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports of an endpoint about itself: counts of its operations, and the path that its operations take.

use crate::error::{Code, Error, errno};
use crate::mr::Paths;
use std::net::IpAddr;

/// Operations and bytes that took one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    pub ops: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// RMA operations, by `Paths::index`.
    pub by_path: [PathStats; Paths::MAX],
    pub bytes_helped: u64,
    pub sends: u64,
    pub recvs: u64,
    pub errors: u64,
    pub unexpected: u64,
    pub rails_lost: u64,
    /// Counts of the domain, which `add` therefore leaves alone.
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_evictions: u64,
}

impl Stats {
    /// The counts of one path.
    #[inline]
    pub fn of(&self, path: Paths) -> PathStats {
        self.by_path[path.index()]
    }

    #[inline]
    pub fn of_mut(&mut self, path: Paths) -> &mut PathStats {
        &mut self.by_path[path.index()]
    }

    #[inline]
    pub fn moved(&mut self, path: Paths, bytes: usize) {
        let counts = self.of_mut(path);
        counts.ops += 1;
        counts.bytes += bytes as u64;
    }

    /// Adds the counts of another endpoint.
    pub fn add(&mut self, other: &Stats) {
        for (sum, more) in self.by_path.iter_mut().zip(&other.by_path) {
            sum.ops += more.ops;
            sum.bytes += more.bytes;
        }
        self.bytes_helped += other.bytes_helped;
        self.sends += other.sends;
        self.recvs += other.recvs;
        self.errors += other.errors;
        self.unexpected += other.unexpected;
        self.rails_lost += other.rails_lost;
    }

    /// Corrects the counts in advance for an operation that will be counted as one by `nic`, but goes by `path`.
    #[cold]
    pub fn not_by_nic(&mut self, path: Paths, bytes: usize) {
        self.moved(path, bytes);
        let nic = self.of_mut(Paths::NIC);
        nic.ops = nic.ops.wrapping_sub(1);
        nic.bytes = nic.bytes.wrapping_sub(bytes as u64);
    }
}

/// For each path to a region, the reason why it cannot be taken; `None`: it can.
#[derive(Debug, Clone)]
pub struct Refusals {
    pub direct: Option<Error>,
    pub ipc: Option<Error>,
    pub nic: Option<Error>,
    pub dmabuf: Option<Error>,
    pub peer_mem: Option<Error>,
    pub cma: Option<Error>,
    pub socket: Option<Error>,
    pub staged: Option<Error>,
}

impl Refusals {
    /// Refuses every path for the same reason.
    pub fn refused(why: &'static str) -> Refusals {
        let no = || Some(Error::coded(errno::EOPNOTSUPP, Code::Path, why));
        Refusals { direct: no(), ipc: no(), nic: no(), dmabuf: no(), peer_mem: no(), cma: no(), socket: no(), staged: no() }
    }

    /// The paths with their refusals, fastest first.
    pub fn each(&self) -> [(Paths, &Option<Error>); 8] {
        [
            (Paths::DIRECT, &self.direct),
            (Paths::IPC, &self.ipc),
            (Paths::NIC, &self.nic),
            (Paths::DMABUF, &self.dmabuf),
            (Paths::PEER_MEM, &self.peer_mem),
            (Paths::CMA, &self.cma),
            (Paths::SOCKET, &self.socket),
            (Paths::STAGED, &self.staged),
        ]
    }

    /// The paths that can be taken.
    pub fn possible(&self) -> Paths {
        self.each().iter().filter(|(_, no)| no.is_none()).fold(Paths::empty(), |sum, (p, _)| sum | *p)
    }

    /// One line for each path: chosen, possible, or the reason why not.
    pub fn lines(&self, chosen: Paths) -> String {
        let line = |(path, refusal): (Paths, &Option<Error>)| match refusal {
            Some(e) => format!("  {}: no: {e}\n", path.words()),
            None if path == chosen => format!("  {}: chosen\n", path.words()),
            None => format!("  {}: possible\n", path.words()),
        };
        self.each().map(line).concat()
    }
}

/// The state of one rail of a connection.
pub struct RailReport {
    pub up: bool,
    pub losses: u64,
    /// Bytes sent and received.
    pub bytes: (u64, u64),
    /// The addresses of this side and of the peer.
    pub ends: Option<(IpAddr, IpAddr)>,
}

pub fn no_rail() -> Error {
    Error::fixed(errno::ENOENT, "rail: the connection has no rail of this number")
}

/// The key with which a program asks for the path of its messages, which need no region.
pub const MESSAGES: u64 = 0;

/// The path of short messages.
#[derive(Clone, Copy)]
pub struct Short {
    pub path: Paths,
    /// The length of the longest short message.
    pub most: usize,
    pub how: &'static str,
}

/// The path that an endpoint would take to a region or for a message, and the reasons against the others.
pub struct PathReport {
    pub path: Paths,
    /// The paths that are possible and permitted.
    pub paths: Paths,
    pub offered: Paths,
    pub refusals: Refusals,
    /// For messages, if short ones take another path than long ones.
    pub short: Option<Short>,
    pub text: String,
}

impl PathReport {
    /// The report for messages. `to` names the peer, `how` the means by which messages travel that are not short, and `more`
    /// has further lines.
    pub fn of_messages(to: &str, short: Option<Short>, how: &str, refusals: Refusals, more: &str) -> PathReport {
        let (paths, path) = (refusals.possible(), refusals.possible().best());
        let text = format!("messages to {to}: {}, {how}\n{}{more}", path.words(), refusals.lines(path));
        PathReport { path, paths, offered: paths, refusals, short, text }
    }

    pub fn words(&self) -> String {
        match &self.short {
            None => self.text.clone(),
            Some(Short { path, most, how }) => format!("{}  of up to {most} bytes: {}, {how}\n", self.text, path.words()),
        }
    }
}
