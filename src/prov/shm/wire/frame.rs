// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets of the control socket, which are few and rare: introductions, requests for memory files, wake packets,
//! goodbyes. All packets come from another process, so each part is bounded before use.

use crate::error::{Code, Error, Result, errno};
use crate::sys::socket::{self, MAX_FDS, Received};
use crate::sys::{discard, process};
use std::os::fd::AsFd;

/// The version of the whole shm protocol: packets, segment and region table.
pub const VERSION: u32 = 6;
/// Longest packet.
pub const MAX: usize = 1024;
/// Longest private data.
pub const DATA_MAX: usize = 256;
/// Longest endpoint name.
pub const NAME_MAX: usize = 100;

/// The first word of every packet.
const TAG: u32 = 0x6764_7266;

/// Receives the peer's next packet. A packet that is longer than `buf`, that carries more than `MAX_FDS` descriptors,
/// or that carries a descriptor of an unknown kind is an error. Closing a descriptor of an unknown kind can take long,
/// so `sys::discard` closes it on another thread.
pub fn recv(socket: &impl AsFd, buf: &mut [u8]) -> Result<Received> {
    let (received, cut) = socket::recv_any(socket.as_fd(), buf)?;
    let Received::Packet { len, fds, lacking } = received else { return Ok(received) };
    let known = fds.iter().all(process::is_kernel_file);
    if known && !cut && fds.len() <= MAX_FDS {
        return Ok(Received::Packet { len, fds, lacking });
    }
    if known {
        return Err(socket::too_long());
    }
    discard::discard(fds);
    Err(Error::fixed(errno::EPROTO, "the peer sent a descriptor that is neither a memory file, a dma-buf nor a pidfd"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Introduces the dialing endpoint to a listener; carries the endpoint's segment and region table.
    Hello = 1,
    /// The accepting endpoint's answer; carries that endpoint's segment and region table.
    Accept = 2,
    /// The listener's program rejects the request; carries the program's private data.
    Reject = 3,
    /// Wakes a thread of the peer that sleeps on the socket.
    Wake = 4,
    /// Asks for the memory file `id`.
    FileAsk = 5,
    /// Brings a memory file, or says that there is none.
    FileBring = 6,
    /// The sender's endpoint ends.
    Bye = 7,
    /// The dialer's domain knows the link: from now on the listener may reach the dialer's regions.
    Ready = 8,
    /// The library refuses the connection on the listener's behalf, without asking the program.
    Refuse = 9,
}

/// The reason for a `Refuse`: the listener has no room now, or never accepts this caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RefusalReason {
    Requests = 1,
    Descriptors = 2,
    User = 3,
    Version = 4,
}

impl RefusalReason {
    /// The caller's error for this reason.
    pub fn error(self) -> Error {
        let (errno, code, words) = match self {
            RefusalReason::Requests => {
                (errno::ECONNREFUSED, Code::Busy, "the listener has too many unanswered connection requests; try again later")
            }
            RefusalReason::Descriptors => (
                errno::ECONNREFUSED,
                Code::Busy,
                "the listener's process has no free descriptor (RLIMIT_NOFILE; its event queue reports that)",
            ),
            RefusalReason::User => {
                (errno::EACCES, Code::None, "the listener does not admit this process's user (see GDRFAB_SHM_USERS on its side)")
            }
            RefusalReason::Version => (errno::EPROTONOSUPPORT, Code::PeerBroke, "the listener speaks another version of the shm protocol"),
        };
        Error::coded(errno, code, words)
    }
}

/// An endpoint's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intro {
    pub host: u32,
    pub ring_lines: u32,
    /// True if the sender has registered for membarrier, so that the peer's barriers work on the sender.
    pub fences_remote: bool,
    /// The address of the sender's guard page.
    pub guard_addr: u64,
    /// The random word at `guard_addr`. The peer reads the word by cross-memory attach to find out if the path cma is
    /// possible.
    pub guard_word: u64,
    /// True if a hello is meant for an endpoint that listens under its own name; false: for a passive endpoint.
    pub by_name: bool,
    pub name: String,
    pub data: Vec<u8>,
}

/// A packet of the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Hello(Intro),
    Accept(Intro),
    Reject(Vec<u8>),
    Wake,
    FileAsk(u64),
    FileBring { id: u64, size: u64, found: bool },
    Bye,
    Ready,
    Refuse(RefusalReason),
}

/// Writes a packet.
struct Out(Vec<u8>);

impl Out {
    fn new(kind: Kind) -> Out {
        let mut out = Out(Vec::with_capacity(64));
        out.u32(TAG);
        out.u32(kind as u32);
        out
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn bytes(&mut self, v: &[u8]) {
        self.u32(v.len() as u32);
        self.0.extend_from_slice(v);
    }
}

/// Reads a packet of the peer; every function returns `None` beyond the packet's end.
struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    fn bytes(&mut self, max: usize) -> Option<&'a [u8]> {
        let n = self.u32()? as usize;
        if n > max { None } else { self.take(n) }
    }
}

fn put_intro(out: &mut Out, intro: &Intro) {
    out.u32(VERSION);
    out.u32(intro.host);
    out.u32(intro.ring_lines);
    out.u32(u32::from(intro.fences_remote));
    out.u64(intro.guard_addr);
    out.u64(intro.guard_word);
    out.u32(u32::from(intro.by_name));
    out.bytes(intro.name.as_bytes());
    out.bytes(&intro.data);
}

fn get_intro(from: &mut In<'_>) -> Option<Result<Intro>> {
    let version = from.u32()?;
    if version != VERSION {
        return Some(Err(Error::new(
            errno::EPROTONOSUPPORT,
            format!("the peer speaks version {version} of the shm protocol, this library version {VERSION}"),
        )));
    }
    let intro = Intro {
        host: from.u32()?,
        ring_lines: from.u32()?,
        fences_remote: from.u32()? == 1,
        guard_addr: from.u64()?,
        guard_word: from.u64()?,
        by_name: from.u32()? == 1,
        name: String::from_utf8(from.bytes(NAME_MAX)?.to_vec()).ok()?,
        data: from.bytes(DATA_MAX)?.to_vec(),
    };
    Some(Ok(intro))
}

/// A wake packet.
pub fn wake() -> [u8; 8] {
    let mut packet = [0; 8];
    packet[..4].copy_from_slice(&TAG.to_le_bytes());
    packet[4..].copy_from_slice(&(Kind::Wake as u32).to_le_bytes());
    packet
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Frame::Hello(intro) | Frame::Accept(intro) => {
                let mut out = Out::new(if matches!(self, Frame::Hello(_)) { Kind::Hello } else { Kind::Accept });
                put_intro(&mut out, intro);
                out.0
            }
            Frame::Reject(data) => {
                let mut out = Out::new(Kind::Reject);
                out.bytes(data);
                out.0
            }
            Frame::Wake => wake().to_vec(),
            Frame::FileAsk(id) => {
                let mut out = Out::new(Kind::FileAsk);
                out.u64(*id);
                out.0
            }
            Frame::FileBring { id, size, found } => {
                let mut out = Out::new(Kind::FileBring);
                out.u64(*id);
                out.u64(*size);
                out.u32(u32::from(*found));
                out.0
            }
            Frame::Bye => Out::new(Kind::Bye).0,
            Frame::Ready => Out::new(Kind::Ready).0,
            Frame::Refuse(why) => {
                let mut out = Out::new(Kind::Refuse);
                out.u32(*why as u32);
                out.0
            }
        }
    }

    pub fn decode(packet: &[u8]) -> Result<Frame> {
        match Frame::parse(packet) {
            Some(frame) => frame,
            None => Err(Error::new(errno::EPROTO, format!("an invalid packet of {} bytes on the control socket", packet.len()))),
        }
    }

    fn parse(packet: &[u8]) -> Option<Result<Frame>> {
        let mut from = In(packet);
        if from.u32()? != TAG {
            return None;
        }
        let frame = match from.u32()? {
            1 => match get_intro(&mut from)? {
                Ok(intro) => Frame::Hello(intro),
                Err(e) => return Some(Err(e)),
            },
            2 => match get_intro(&mut from)? {
                Ok(intro) => Frame::Accept(intro),
                Err(e) => return Some(Err(e)),
            },
            3 => Frame::Reject(from.bytes(DATA_MAX)?.to_vec()),
            4 => Frame::Wake,
            5 => Frame::FileAsk(from.u64()?),
            6 => Frame::FileBring { id: from.u64()?, size: from.u64()?, found: from.u32()? == 1 },
            7 => Frame::Bye,
            8 => Frame::Ready,
            9 => Frame::Refuse(match from.u32()? {
                1 => RefusalReason::Requests,
                2 => RefusalReason::Descriptors,
                3 => RefusalReason::User,
                4 => RefusalReason::Version,
                _ => return None,
            }),
            _ => return None,
        };
        from.0.is_empty().then_some(Ok(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Frame> {
        let intro = Intro {
            host: 1,
            ring_lines: 2048,
            fences_remote: true,
            guard_addr: 5,
            guard_word: 6,
            by_name: true,
            name: "e-1".into(),
            data: vec![1, 2, 3],
        };
        vec![
            Frame::Hello(intro.clone()),
            Frame::Accept(Intro { by_name: false, data: vec![], ..intro }),
            Frame::Reject(vec![9; DATA_MAX]),
            Frame::Wake,
            Frame::FileAsk(7),
            Frame::FileBring { id: 1, size: 2, found: true },
            Frame::Bye,
            Frame::Ready,
            Frame::Refuse(RefusalReason::Requests),
            Frame::Refuse(RefusalReason::Descriptors),
            Frame::Refuse(RefusalReason::User),
            Frame::Refuse(RefusalReason::Version),
        ]
    }

    #[test]
    fn every_frame_survives_the_wire_and_no_prefix_of_it_does() {
        for frame in samples() {
            let packet = frame.encode();
            assert!(packet.len() <= MAX);
            assert_eq!(Frame::decode(&packet).unwrap(), frame);
            for cut in 0..packet.len() {
                assert!(Frame::decode(&packet[..cut]).is_err(), "{frame:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn random_packets_are_errors_not_panics() {
        let (mut seed, all) = (7u64, samples());
        for round in 0..20_000 {
            let mut packet = all[round % all.len()].encode();
            for _ in 0..1 + round % 5 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (seed >> 33) as usize % packet.len();
                packet[at] = (seed >> 20) as u8;
            }
            let _ = Frame::decode(&packet);
        }
    }
}
