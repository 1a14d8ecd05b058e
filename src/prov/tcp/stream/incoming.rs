// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A body that is being received: the memory into which its bytes go (`BodySink`), and the action at its end (`BodyEnd`).

use super::stripes::ReceivedStripes;
use crate::error::{Code, Error, Result, errno};
use crate::prov::atomic::Atomic;
use crate::prov::op::{Iov, Pieces};
use crate::prov::tcp::memory::mr::Region;
use crate::prov::tcp::memory::source::RegionRuns;
use crate::prov::tcp::memory::staging::{DeviceSink, StagingLanes};
use crate::prov::tcp::recv::Recv;
use crate::prov::tcp::wire::frame::{Header, WirePosition, wire_len, wire_position};
use std::sync::Arc;

/// If the pieces are shorter than this on average, the bytes are read into the buffer and copied, because one call
/// takes only so many pieces.
const PIECE_MIN: u64 = 512;
/// If less than this is left of a part, the bytes go through the buffer and not straight into their regions.
const DIRECT_MIN: u64 = 4 << 10;

/// The memory into which a body is received.
pub enum BodySink {
    /// Memory of a local operation, and its room; bytes beyond the room are discarded.
    Pieces(Pieces, u64),
    /// Regions of this side, which the peer named.
    Regions(RegionRuns),
    /// Memory of a device, and its room; bytes beyond the room are discarded.
    Device(DeviceSink, u64),
    /// A message that no receive has matched, an atomic's operands, or the blocks of a list.
    Buffer(Vec<u8>),
    /// None: all bytes are discarded.
    Nothing,
}

/// An atomic operation of the peer.
pub struct AtomicRequest {
    pub what: Atomic,
    pub addr: u64,
    pub key: u64,
    /// The header's `paths`.
    pub paths: u8,
    /// The peer waits for the acknowledgement.
    pub prompt: bool,
}

/// The action at the end of a body.
pub enum BodyEnd {
    /// A WRITE: its remote data, the regions into which it went (their counters count the WRITE), and whether the peer
    /// waits for the acknowledgement.
    Write { data: Option<u64>, regions: Box<[Arc<Region>]>, prompt: bool },
    /// The body is the operands of this atomic operation.
    Atomic(AtomicRequest),
    /// The body is the list of blocks of a WRITE or READ with this header and remote data.
    List(Header, Option<u64>),
    /// The answer to the oldest READ.
    Answer,
    /// A message of `len` bytes for this receive (`None`: it was cancelled); its number, if the sender wants a confirmation.
    Message { recv: Option<Recv>, len: u64, data: Option<u64>, number: Option<u64> },
    /// A message that no receive has matched yet.
    Unexpected { data: Option<u64>, number: Option<u64> },
}

/// A body that is being received.
pub struct Incoming {
    pub sink: BodySink,
    pub at_end: BodyEnd,
    pub len: u64,
    in_parts: bool,
    /// The body's stripes, if the body comes over further streams.
    pub stripes: Option<Box<ReceivedStripes>>,
    /// Number of the body's wire bytes that have come over the first stream, status words included.
    at: u64,
    /// The status word that is being received.
    word: [u8; 8],
    /// The reason for which some bytes did not reach their memory, as this side found.
    pub failed: Option<Error>,
    /// The status with which the sender gave the body up; 0: it did not.
    pub status: u64,
}

impl Incoming {
    pub fn new(sink: BodySink, at_end: BodyEnd, len: u64, in_parts: bool) -> Incoming {
        Incoming { sink, at_end, len, in_parts, stripes: None, at: 0, word: [0; 8], failed: None, status: 0 }
    }

    /// True if all bytes of the body have come, or the sender has given the body up.
    pub fn all_came(&self) -> bool {
        if let Some(stripes) = &self.stripes {
            return stripes.all_came();
        }
        self.at >= wire_len(self.len, self.in_parts)
    }

    /// Ends the writing into the sink's memory; bytes that still come are discarded.
    pub fn divert(&mut self, lanes: &mut StagingLanes, why: Error) {
        if let BodySink::Device(device_sink, _) = &mut self.sink {
            device_sink.end(lanes);
        }
        self.sink = BodySink::Nothing;
        self.failed.get_or_insert(why);
    }

    /// True if all bytes that came have reached their memory. For a device's memory this takes until its copies are done.
    pub fn settled(&mut self, lanes: &mut StagingLanes) -> bool {
        let BodySink::Device(device_sink, _) = &mut self.sink else { return true };
        match device_sink.settled(lanes) {
            Ok(settled) => settled,
            Err(e) => {
                self.divert(lanes, e);
                true
            }
        }
    }

    /// Takes bytes of the body from the buffer; returns their number.
    pub fn take(&mut self, bytes: &[u8], lanes: &mut StagingLanes) -> usize {
        if self.stripes.is_some() {
            return 0;
        }
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let n = match wire_position(self.at, self.len, self.in_parts) {
                WirePosition::End => break,
                WirePosition::Word(k) => {
                    let n = rest.len().min(8 - usize::from(k));
                    self.word[usize::from(k)..usize::from(k) + n].copy_from_slice(&rest[..n]);
                    if usize::from(k) + n == 8 {
                        self.read_word();
                    }
                    n
                }
                WirePosition::Byte(at, run) => {
                    let n = self.place(at, &rest[..rest.len().min(run as usize)], lanes);
                    if n == 0 {
                        break;
                    }
                    self.after(at + n as u64, lanes);
                    n
                }
            };
            self.at += n as u64;
            taken += n;
        }
        taken
    }

    /// Handles a status word, which stands in front of a part or behind the last: 0, or the status with which the
    /// sender gave the body up.
    fn read_word(&mut self) {
        self.status = u64::from_le_bytes(self.word);
        if self.status != 0 {
            // The body ends here. The caller adds the word's last bytes to `at` afterwards, so `at` leaves them out.
            let end = wire_len(self.len, true);
            let begun = match wire_position(self.at, self.len, true) {
                WirePosition::Word(k) => 8 - u64::from(k),
                _ => 0,
            };
            self.at = end - begun;
        }
    }

    /// Notes that the bytes before `at` are in place. For a device's memory, `in place` means in the slot.
    pub fn after(&mut self, at: u64, lanes: &mut StagingLanes) {
        if let BodySink::Device(device_sink, room) = &mut self.sink
            && let Err(e) = device_sink.filled(lanes, at.min(*room), at >= *room)
        {
            self.divert(lanes, e);
        }
    }

    /// Copies `bytes`, which begin at byte `at` of the body, to their memory. Returns the number of bytes that went; 0:
    /// no slot of the device is free.
    pub fn place(&mut self, at: u64, bytes: &[u8], lanes: &mut StagingLanes) -> usize {
        let all = bytes.len();
        match &mut self.sink {
            BodySink::Nothing => all,
            BodySink::Buffer(buffer) => {
                buffer.extend_from_slice(bytes);
                all
            }
            BodySink::Pieces(pieces, room) => {
                scatter(pieces, at, &bytes[..all.min(room.saturating_sub(at) as usize)]);
                all
            }
            BodySink::Regions(runs) => {
                if let Err(e) = store(runs, at, bytes) {
                    self.divert(lanes, e);
                }
                all
            }
            BodySink::Device(_, room) if at >= *room => all,
            BodySink::Device(device_sink, room) => match device_sink.find(lanes, at) {
                Ok(None) => 0,
                Ok(Some(slot)) => {
                    let n = all.min(slot.len()).min((*room - at) as usize);
                    slot.put(&bytes[..n]);
                    n
                }
                Err(e) => {
                    self.divert(lanes, e);
                    all
                }
            },
        }
    }

    /// Pieces of memory for the next bytes, within one part, for a scattered read. Returns the number of pieces and of
    /// bytes; (0, 0): the bytes have to go through the buffer.
    pub fn direct(&mut self, into: &mut [Iov], lanes: &mut StagingLanes) -> (usize, u64) {
        match wire_position(self.at, self.len, self.in_parts) {
            WirePosition::Byte(at, run) if self.stripes.is_none() => self.direct_at(at, run, into, lanes),
            _ => (0, 0),
        }
    }

    /// As `direct`, for up to `run` bytes that begin at byte `at`.
    pub fn direct_at(&mut self, at: u64, run: u64, into: &mut [Iov], lanes: &mut StagingLanes) -> (usize, u64) {
        let (mut count, mut bytes, most) = (0, 0u64, into.len());
        let mut add = |part: Iov| {
            if let Some(place) = into.get_mut(count) {
                *place = part;
                count += 1;
                bytes += part.len() as u64;
            }
        };
        match &mut self.sink {
            BodySink::Pieces(pieces, room) => {
                let run = room.saturating_sub(at).min(run);
                pieces.parts(at as usize, run as usize).take(most).for_each(add);
                return if is_worth_it(count, bytes, most) { (count, bytes) } else { (0, 0) };
            }
            BodySink::Regions(runs) if run >= DIRECT_MIN => {
                for (r, from, n) in runs.walk(at as usize, run as usize).take(most) {
                    r.region.parts(r.skip + from as u64, n as u64).for_each(&mut add);
                }
                return if is_worth_it(count, bytes, most) { (count, bytes) } else { (0, 0) };
            }
            BodySink::Device(device_sink, room) if at < *room => match device_sink.find(lanes, at) {
                Ok(Some(slot)) => add(slot.part(0, run.min(*room - at) as usize)),
                Ok(None) => {}
                Err(e) => self.divert(lanes, e),
            },
            _ => {}
        }
        (count, bytes)
    }

    /// Advances by `n` bytes that the kernel put into place.
    pub fn came(&mut self, n: u64, lanes: &mut StagingLanes) {
        if let WirePosition::Byte(at, _) = wire_position(self.at, self.len, self.in_parts)
            && self.stripes.is_none()
        {
            self.at += n;
            self.after(at + n, lanes);
        }
    }

    /// True if bytes can be taken now. False: all slots of the device are in use.
    pub fn is_ready(&mut self, lanes: &mut StagingLanes) -> bool {
        match wire_position(self.at, self.len, self.in_parts) {
            WirePosition::Byte(at, _) if self.stripes.is_none() => self.is_ready_at(at, lanes),
            _ => true,
        }
    }

    /// As `is_ready`, for byte `at`.
    pub fn is_ready_at(&mut self, at: u64, lanes: &mut StagingLanes) -> bool {
        match &mut self.sink {
            BodySink::Device(device_sink, room) if at < *room => match device_sink.find(lanes, at) {
                Ok(place) => place.is_some(),
                Err(e) => {
                    self.divert(lanes, e);
                    true
                }
            },
            _ => true,
        }
    }
}

impl Incoming {
    /// Enters the regions that the kernel is about to write, so that they cannot close meanwhile; returns the number of
    /// entered regions. If a region is closed already, the body is diverted.
    pub fn enter(&mut self, lanes: &mut StagingLanes) -> usize {
        let BodySink::Regions(runs) = &self.sink else { return 0 };
        let (mut entered, mut shut) = (0, None);
        for region in runs.regions() {
            match enter(region) {
                Ok(()) => entered += 1,
                Err(e) => {
                    shut = Some(e);
                    break;
                }
            }
        }
        let Some(why) = shut else { return entered };
        self.exit(entered);
        self.divert(lanes, why);
        0
    }

    /// Undoes `enter`.
    pub fn exit(&self, entered: usize) {
        if let BodySink::Regions(runs) = &self.sink {
            runs.regions().take(entered).for_each(|region| exit(region));
        }
    }
}

/// True if `count` of at most `most` pieces, with `bytes` in all, are worth a scattered read.
fn is_worth_it(count: usize, bytes: u64, most: usize) -> bool {
    count < most || bytes >= most as u64 * PIECE_MIN
}

/// Copies `bytes`, which begin at byte `at` of the message or answer, into pieces of host memory.
pub fn scatter(pieces: &Pieces, at: u64, bytes: &[u8]) {
    let mut done = 0;
    for part in pieces.parts(at as usize, bytes.len()) {
        part.put(&bytes[done..done + part.len()]);
        done += part.len();
    }
}

/// Enters a region that is about to be written.
fn enter(region: &Region) -> std::result::Result<(), Error> {
    let shut = |code| Error::coded(errno::EKEYREJECTED, code, "the region that the peer writes is closed");
    region.enter().map_err(shut)?;
    region.begin_cpu(true).map_err(|e| {
        region.leave();
        Error::coded(e.errno, Code::Fault, e.words)
    })
}

/// Undoes `enter` for one region.
fn exit(region: &Region) {
    if let Err(e) = region.end_cpu(true) {
        crate::log!(Warn, "{e}");
    }
    region.leave();
}

/// Copies `bytes`, which begin at byte `at` of the body, into regions. Each region is entered while its bytes are written.
fn store(runs: &RegionRuns, at: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    for (run, from, n) in runs.walk(at as usize, bytes.len()) {
        enter(&run.region)?;
        let wrote = run.region.write(run.skip + from as u64, &bytes[done..done + n]);
        done += n;
        exit(&run.region);
        wrote?;
    }
    Ok(())
}
