// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The transport of the peer's bytes: one socket, or several rails. For rails the bytes are cut into segments, which are sent out of order,
//! repeated, or malformed.

use super::input::Input;
use super::memory::has_secret;
use gdrfab::prov::tcp::wire::segment::{SEGMENT, SEGMENT_HEAD, SegmentHead, SegmentKind, WINDOW};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// Bytes that may wait to be sent or to be sent again: more would make an input slow and find nothing new.
const WAITING_MAX: usize = 2 << 20;
/// Rails, which come and go.
const RAILS: usize = 3;

#[derive(Default)]
struct Link {
    socket: Option<UnixStream>,
    waiting: Vec<u8>,
    sent: usize,
    /// Incoming data of a rail: a head as far as it has arrived, and body bytes still to skip.
    head: Vec<u8>,
    skip: usize,
}

/// The stream that rails carry.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Segments so far: start, length, and the rail that last carried each. `end`: the end of the last one.
    cuts: Vec<(usize, usize, usize)>,
    end: usize,
    /// Bytes of the next segment, and its rail.
    size: usize,
    on: usize,
    /// Bytes received in the other direction.
    taken: u64,
    generation: u32,
}

pub struct Links {
    links: Vec<Link>,
    stream: Option<Stream>,
}

impl Links {
    pub fn one(socket: UnixStream) -> Links {
        Links { links: vec![Link { socket: Some(socket), ..Link::default() }], stream: None }
    }

    /// Makes the single link the first of several rails.
    pub fn become_rails(&mut self) {
        self.links.resize_with(RAILS, Link::default);
        self.stream = Some(Stream { size: SEGMENT, generation: 1, ..Stream::default() });
    }

    pub fn are_rails(&self) -> bool {
        self.stream.is_some()
    }

    /// Memory of the fuzzer's own, in bytes.
    pub fn weight(&self) -> usize {
        let stream = self.stream.as_ref().map_or(0, |s| s.bytes.capacity() + 24 * s.cuts.capacity());
        self.links.iter().map(|l| l.waiting.capacity()).sum::<usize>() + stream
    }

    fn waiting(&mut self) -> &mut Vec<u8> {
        match &mut self.stream {
            Some(stream) => &mut stream.bytes,
            None => &mut self.links[0].waiting,
        }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        let waiting = self.waiting();
        if waiting.len() + bytes.len() <= WAITING_MAX {
            waiting.extend_from_slice(bytes);
        }
    }

    pub fn fill(&mut self, n: usize) {
        let waiting = self.waiting();
        if waiting.len() + n <= WAITING_MAX {
            waiting.resize(waiting.len() + n, 0);
        }
    }

    /// Sends one turn's bytes; `chunk`: at most this many, 0: all.
    pub fn push(&mut self, chunk: usize) {
        self.cut();
        for link in &mut self.links {
            let Some(socket) = &mut link.socket else { continue };
            let rest = &link.waiting[link.sent..];
            let n = if chunk == 0 { rest.len() } else { rest.len().min(chunk) };
            // A full or dead socket accepts nothing.
            link.sent += socket.write(&rest[..n]).unwrap_or(0);
            if link.sent == link.waiting.len() {
                link.waiting.clear();
                link.sent = 0;
            }
        }
    }

    /// Cuts queued bytes into segments, one rail after the other.
    fn cut(&mut self) {
        while let Some(s) = &mut self.stream
            && s.end < s.bytes.len()
        {
            let rest = s.bytes.len() - s.end;
            let (from, len) = (s.end, s.size.max(1 + rest / 64).min(SEGMENT).min(rest));
            s.end += len;
            let up = |i: &usize| self.links[*i].socket.is_some();
            let on = (s.on + 1..=s.on + RAILS).map(|i| i % RAILS).find(up).unwrap_or(0);
            s.on = on;
            s.cuts.push((from, len, on));
            self.segment(on, from, len);
        }
    }

    fn segment(&mut self, on: usize, from: usize, len: usize) {
        let Some(s) = &self.stream else { return };
        let waiting = &mut self.links[on].waiting;
        if waiting.len() + len <= 2 * WAITING_MAX {
            waiting.extend_from_slice(&SegmentHead { word: SegmentKind::Data { from: from as u64, len }, taken: s.taken }.encode());
            waiting.extend_from_slice(&s.bytes[from..from + len]);
        }
    }

    /// Sends a malformed or impossible segment, or a message of the rails.
    fn lie(&mut self, input: &mut Input<'_>, on: usize) {
        let Some(s) = &self.stream else { return };
        let end = s.end as u64;
        let from = match input.below(8) {
            0 => end,
            1 => end.saturating_sub(input.number()),
            2..5 => end.wrapping_add(input.number()),
            5 => end.wrapping_add(WINDOW).wrapping_sub(input.number()),
            6 => end.wrapping_add(1 + input.size() as u64),
            _ => input.number(),
        };
        let len = input.size();
        let taken = match input.below(4) {
            0..2 => s.taken,
            2 => s.taken.wrapping_sub(input.number()),
            _ => s.taken.wrapping_add(input.number()),
        };
        let word = match input.below(6) {
            0 => SegmentKind::Data { from, len: 0 },
            1 => SegmentKind::Down { rail: input.below(16), generation: 1 + u32::from(input.byte()) % 8 },
            _ => SegmentKind::Data { from, len },
        };
        let has_bytes = matches!(word, SegmentKind::Data { len, .. } if len > 0) && input.byte() < 250;
        let waiting = &mut self.links[on].waiting;
        if waiting.len() + len <= 2 * WAITING_MAX {
            waiting.extend_from_slice(&SegmentHead { word, taken }.encode());
            waiting.resize(waiting.len() + if has_bytes { len } else { 0 }, 0);
        }
    }

    /// Does something that only rails have: loses one, or brings one up. `join` takes the other end of a new rail.
    pub fn vary(&mut self, input: &mut Input<'_>, join: impl FnOnce(usize, u32, UnixStream)) {
        let on = input.below(RAILS);
        let Some(s) = &mut self.stream else { return };
        match input.below(8) {
            0 => s.size = input.size(),
            1 => {
                let n = s.cuts.len();
                if let Some(cut) = s.cuts.get_mut(n.wrapping_sub(1 + input.below(16))) {
                    cut.2 = on;
                    let (from, len, _) = *cut;
                    self.segment(on, from, len);
                }
            }
            2 => self.links[on].socket = None,
            3 => self.links[on].socket.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Write))),
            4..6 => {
                let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
                ours.set_nonblocking(true).expect("a socket that does not block");
                s.generation += 1;
                let generation = s.generation;
                self.links[on] = Link { socket: Some(ours), ..Link::default() };
                join(on, generation, theirs);
                // Segments that the rail's old connection carried may be lost with it: they are sent again, or not.
                let again: Vec<_> = self.stream.iter().flat_map(|s| &s.cuts).filter(|(_, _, rail)| *rail == on).copied().collect();
                let known = if input.flag() { again.len() } else { 0 };
                again[known..].iter().for_each(|(from, len, on)| self.segment(*on, *from, *len));
            }
            _ => self.lie(input, on),
        }
    }

    /// Reads up to `most` bytes, checks for data that must never be sent, and returns the number of bytes.
    pub fn pull(&mut self, most: usize) -> usize {
        let (mut buf, mut all) = ([0u8; 16 << 10], 0);
        for link in &mut self.links {
            while all < most
                && let Some(socket) = &mut link.socket
                && let Ok(n) = socket.read(&mut buf)
                && n > 0
            {
                assert!(!has_secret(&buf[..n]), "memory was sent that the peer may not read");
                all += n;
                if let Some(stream) = &mut self.stream {
                    stream.taken = stream.taken.max(link.hear(&buf[..n]));
                }
            }
        }
        all
    }

    pub fn end(&mut self, half: bool) {
        for link in &mut self.links {
            match &link.socket {
                Some(socket) if half => drop(socket.shutdown(Shutdown::Write)),
                _ => link.socket = None,
            }
        }
    }
}

impl Link {
    /// Returns the end of the last segment that began in these bytes.
    fn hear(&mut self, mut bytes: &[u8]) -> u64 {
        let mut end = 0;
        while !bytes.is_empty() {
            let over = self.skip.min(bytes.len());
            (self.skip, bytes) = (self.skip - over, &bytes[over..]);
            let n = (SEGMENT_HEAD - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if let Some(head) = self.head.first_chunk() {
                if let SegmentKind::Data { from, len } = SegmentHead::decode(head).expect("the library sends segments as they are").word {
                    self.skip = len;
                    end = if len > 0 { from + len as u64 } else { end };
                }
                self.head.clear();
            }
        }
        end
    }
}
