// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Device memory on its way to and from the socket: pinned slots, with the device's copies beside the wire. Nothing here waits for the device; who has to, looks again in the next turn.

use super::mr::Inside;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Copy, Dir, Pinned, Site, Stream};
use crate::prov::op::{Iov, Pieces};
use crate::prov::tcp::wire::frame::PART;
use crate::sys::mem::{self, Mapping, Protection};
use crate::sys::time::now_ns;
use std::collections::VecDeque;
use std::os::fd::AsFd;

/// Slots of a lane.
const COUNT: u8 = 4;
/// Bytes of a slot: starting a copy costs as much as moving some 100 KiB through a socket.
const BYTES: usize = 4 * PART as usize;
/// Copies that a stream is given at once, where a slot holds many blocks.
const COPIES: usize = 4096;
/// How long a few copies may take before their whole stream is given up.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A device's copies in one direction, and the host memory that they go through.
pub struct StagingLane {
    pub site: Site,
    /// Before the memory: its end waits for what it still copies.
    stream: Box<dyn Stream>,
    _pin: Option<Pinned>,
    memory: Mapping,
    /// A program on the device can touch the slots.
    reached: bool,
    free: Vec<u8>,
    done: u64,
    /// Tells it from one that was made after it was given up: slots and tickets begin anew.
    number: u64,
}

impl StagingLane {
    fn new(site: Site, number: u64) -> Result<StagingLane> {
        let up = hmem::get(site.iface)?;
        let len = BYTES * usize::from(COUNT);
        let file = mem::memfd("gdrfab-slots", len)?;
        let memory = Mapping::new(file.as_fd(), 0, len, Protection::ReadWrite)?;
        let pin = up.pin(memory.as_ptr() as u64, len as u64);
        let pin = pin.map_err(|e| crate::log!(Info, "slots for {site} stay unpinned, so its copies are slower: {e}")).ok();
        let reached = pin.is_some() && up.reaches(site.device, memory.as_ptr() as u64, len as u64);
        let free = (0..COUNT).rev().collect();
        Ok(StagingLane { site, stream: up.stream(site.device)?, _pin: pin, memory, reached, free, done: 0, number })
    }

    fn slot(&self, slot: u8) -> Iov {
        // SAFETY: the mapping holds every slot. A lane outlasts the call that a slot's bytes are given to.
        unsafe { Iov::new(self.memory.as_ptr() as usize + usize::from(slot) * BYTES, BYTES) }
    }

    /// Looks how far the copies are.
    fn poll(&mut self) -> Result<u64> {
        self.done = self.stream.done().map_err(|e| Error::coded(e.errno, Code::Fault, format!("the device's copy failed: {}", e.words)))?;
        Ok(self.done)
    }

    /// Posts copies between a slot and `len` bytes from byte `skip` of the device's pieces: of many blocks at once, where the
    /// device reaches them by itself.
    ///
    /// # Safety
    /// The pieces stay what they are until the copies are done.
    unsafe fn post(&mut self, dir: Dir, slot: u8, place: &mut DeviceMemory, skip: u64, len: usize) -> Result<u64> {
        let DeviceMemory { site, pieces, reach, .. } = place;
        let mut at = self.slot(slot).addr() as u64;
        let mut parts = pieces.parts(skip as usize, len).peekable();
        let mut ticket = 0;
        let mut some: Vec<Copy> = Vec::new();
        while parts.peek().is_some() {
            some.clear();
            let mut reached = self.reached;
            for part in parts.by_ref().take(COPIES) {
                let (addr, len) = (part.addr() as u64, part.len());
                let (to, from) = if dir == Dir::ToDevice { (addr, at) } else { (at, addr) };
                at += len as u64;
                reached = reached && reach.holds(*site, addr, len as u64);
                some.push(Copy { dir, to, from, len });
            }
            let posted = match some[..] {
                // SAFETY: the slot holds the run; who calls `post` keeps the device's pieces until the copies are done.
                [c] => unsafe { self.stream.post(dir, c.to, c.from, c.len) },
                // SAFETY: as above.
                _ => unsafe { self.stream.post_list(&some, reached, 0) },
            };
            ticket = posted.map_err(|e| Error::coded(e.errno, Code::Fault, e.words))?;
        }
        Ok(ticket)
    }
}

/// What a program on the device is known to touch of one operation's memory, which stays what it is meanwhile.
#[derive(Default)]
struct DeviceReach {
    /// First byte and end of the allocation that was asked for last.
    known: (u64, u64),
    refused: bool,
}

impl DeviceReach {
    fn holds(&mut self, site: Site, addr: u64, len: u64) -> bool {
        let inside = |(first, end): (u64, u64)| addr >= first && addr.checked_add(len).is_some_and(|last| last <= end);
        if !self.refused && !inside(self.known) {
            let asked = hmem::get(site.iface).ok().and_then(|up| {
                let of = up.detect(addr).ok()??;
                up.reaches(site.device, of.base, of.len).then_some((of.base, of.end()))
            });
            self.known = asked.unwrap_or_default();
            self.refused = !inside(self.known);
        }
        !self.refused
    }
}

/// The lanes of a connection's direction, made when first needed. One that failed is dropped with its stream.
#[derive(Default)]
pub struct StagingLanes {
    all: Vec<StagingLane>,
    made: u64,
}

impl StagingLanes {
    pub fn of(&mut self, site: Site) -> Result<&mut StagingLane> {
        let at = match self.all.iter().position(|l| l.site == site) {
            Some(at) => at,
            None => {
                self.made += 1;
                self.all.push(StagingLane::new(site, self.made)?);
                self.all.len() - 1
            }
        };
        self.all.get_mut(at).ok_or(Error::fixed(errno::EIO, "no lane"))
    }

    fn give_up(&mut self, site: Site) {
        self.all.retain(|l| l.site != site);
    }

    /// Whether the lane of this number is still there.
    fn has(&self, site: Site, number: u64) -> bool {
        self.all.iter().any(|l| l.site == site && l.number == number)
    }

    /// Copies to come begin behind what the caller's stream holds now.
    pub fn after(&mut self, site: Site, stream: u64) -> Result<()> {
        if stream == 0 { Ok(()) } else { self.of(site)?.stream.after(stream) }
    }
}

/// Memory of a device: pieces, and for how long they are known to stay.
pub struct DeviceMemory {
    pub site: Site,
    pub pieces: Pieces,
    /// Regions that they lie in, of peers' operations.
    _inside: Vec<Inside>,
    reach: DeviceReach,
}

impl DeviceMemory {
    pub fn new(site: Site, pieces: Pieces, inside: Vec<Inside>) -> DeviceMemory {
        DeviceMemory { site, pieces, _inside: inside, reach: DeviceReach::default() }
    }
}

struct CopyInFlight {
    slot: u8,
    ticket: u64,
    /// Byte of the body that the slot begins with.
    first: u64,
    len: u64,
}

/// Bytes of a copy: short bodies are cut so that copies and wire overlap, long ones so that copies are few.
fn chunk(len: u64) -> u64 {
    (len / u64::from(COUNT)).next_multiple_of(PART).clamp(PART, BYTES as u64)
}

/// A body that comes out of a device.
pub struct DeviceSource {
    place: DeviceMemory,
    len: u64,
    chunk: u64,
    posted: u64,
    flights: VecDeque<CopyInFlight>,
    /// Number of the lane that they are in.
    lane: u64,
}

impl DeviceSource {
    pub fn new(place: DeviceMemory, len: u64) -> DeviceSource {
        DeviceSource { place, len, chunk: chunk(len), posted: 0, flights: VecDeque::new(), lane: 0 }
    }

    /// Whether another body has given up the lane that this one's copies are in.
    fn is_orphan(&self, lanes: &StagingLanes) -> bool {
        !self.flights.is_empty() && !lanes.has(self.place.site, self.lane)
    }

    /// Keeps the slots filling; true once every copy is posted, so that the next body may begin.
    pub fn pump(&mut self, lanes: &mut StagingLanes) -> Result<bool> {
        if self.is_orphan(lanes) {
            self.flights.clear();
            return Err(Error::coded(errno::EIO, Code::Fault, "the device's copies were given up with another operation's"));
        }
        let outcome = self.try_pump(lanes);
        if outcome.is_err() {
            self.flights.clear();
            lanes.give_up(self.place.site);
        }
        outcome
    }

    fn try_pump(&mut self, lanes: &mut StagingLanes) -> Result<bool> {
        let lane = lanes.of(self.place.site)?;
        self.lane = lane.number;
        while self.posted < self.len {
            let Some(slot) = lane.free.pop() else { break };
            let len = (self.len - self.posted).min(self.chunk);
            // SAFETY: `DeviceMemory` holds the regions of a peer's operation open; the pieces of this side's own were promised to the C API
            // until it completes.
            match unsafe { lane.post(Dir::FromDevice, slot, &mut self.place, self.posted, len as usize) } {
                Ok(ticket) => self.flights.push_back(CopyInFlight { slot, ticket, first: self.posted, len }),
                Err(e) => {
                    lane.free.push(slot);
                    return Err(e);
                }
            }
            self.posted += len;
        }
        // Copies end in the order in which they go out, so the next one is enough to know.
        if self.flights.front().is_some_and(|f| f.ticket > lane.done) {
            lane.poll()?;
        }
        Ok(self.posted == self.len)
    }

    /// What lies in a slot from byte `at` of the body on, if its copy is done.
    pub fn find(&self, lanes: &mut StagingLanes, at: u64) -> Option<Iov> {
        if self.is_orphan(lanes) {
            return None;
        }
        let lane = lanes.of(self.place.site).ok()?;
        let flight = self.flights.iter().find(|f| at >= f.first && at - f.first < f.len && f.ticket <= lane.done)?;
        let skip = at - flight.first;
        Some(lane.slot(flight.slot).part(skip as usize, (flight.len - skip) as usize))
    }

    /// Bytes before `at` are on the wire.
    pub fn release(&mut self, lanes: &mut StagingLanes, at: u64) {
        if self.is_orphan(lanes) {
            return;
        }
        let Ok(lane) = lanes.of(self.place.site) else { return };
        while let Some(flight) = self.flights.front().filter(|f| f.first + f.len <= at) {
            lane.free.push(flight.slot);
            self.flights.pop_front();
        }
    }

    /// Takes no more from the device, and waits for what it copies now: a few parts.
    pub fn end(&mut self, lanes: &mut StagingLanes) {
        if self.is_orphan(lanes) {
            return self.flights.clear();
        }
        let until = now_ns() + PATIENCE_NS;
        loop {
            let Ok(lane) = lanes.of(self.place.site) else { return };
            let quiet = match lane.poll() {
                Ok(done) => self.flights.iter().all(|f| f.ticket <= done),
                Err(_) => false,
            };
            if quiet {
                lane.free.extend(self.flights.drain(..).map(|f| f.slot));
                return;
            }
            if now_ns() > until || lane.poll().is_err() {
                // The end of its stream waits for all that it holds.
                self.flights.clear();
                return lanes.give_up(self.place.site);
            }
            std::thread::yield_now();
        }
    }
}

/// A body that goes into a device.
pub struct DeviceSink {
    place: DeviceMemory,
    chunk: u64,
    /// The slot that is being filled, and the byte of the body that it begins with.
    filling: Option<(u8, u64)>,
    flights: VecDeque<CopyInFlight>,
}

impl DeviceSink {
    pub fn new(place: DeviceMemory, len: u64) -> DeviceSink {
        DeviceSink { place, chunk: chunk(len), filling: None, flights: VecDeque::new() }
    }

    /// The room in a slot from byte `at` on; `None`: no slot is free yet.
    pub fn find(&mut self, lanes: &mut StagingLanes, at: u64) -> Result<Option<Iov>> {
        if self.filling.is_none() {
            // Asking costs a call of the driver: only where slots run out.
            if lanes.of(self.place.site)?.free.is_empty() {
                self.retire(lanes)?;
            }
            let Some(slot) = lanes.of(self.place.site)?.free.pop() else { return Ok(None) };
            self.filling = Some((slot, at - at % self.chunk));
        }
        let Some((slot, first)) = self.filling else { return Ok(None) };
        let lane = lanes.of(self.place.site)?;
        let skip = at - first;
        Ok(Some(lane.slot(slot).part(skip as usize, (self.chunk - skip) as usize)))
    }

    /// Bytes before `at` are in the slot; `end`: they are the body's last.
    pub fn filled(&mut self, lanes: &mut StagingLanes, at: u64, end: bool) -> Result<()> {
        let Some((slot, first)) = self.filling else { return Ok(()) };
        if at - first < self.chunk && !end {
            return Ok(());
        }
        self.filling = None;
        let lane = lanes.of(self.place.site)?;
        // SAFETY: as in `DeviceSource::try_pump`: regions are held by `DeviceMemory`, other pieces by who posted the operation.
        match unsafe { lane.post(Dir::ToDevice, slot, &mut self.place, first, (at - first) as usize) } {
            Ok(ticket) => {
                self.flights.push_back(CopyInFlight { slot, ticket, first, len: at - first });
                Ok(())
            }
            Err(e) => {
                self.fail(lanes);
                Err(e)
            }
        }
    }

    /// Takes back slots whose copies are done.
    fn retire(&mut self, lanes: &mut StagingLanes) -> Result<()> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let lane = lanes.of(self.place.site)?;
        let done = match lane.poll() {
            Ok(done) => done,
            Err(e) => {
                self.fail(lanes);
                return Err(e);
            }
        };
        while let Some(flight) = self.flights.front().filter(|f| f.ticket <= done) {
            lane.free.push(flight.slot);
            self.flights.pop_front();
        }
        Ok(())
    }

    fn fail(&mut self, lanes: &mut StagingLanes) {
        self.filling = None;
        self.flights.clear();
        lanes.give_up(self.place.site);
    }

    /// Whether all that came is in the device's memory.
    pub fn settled(&mut self, lanes: &mut StagingLanes) -> Result<bool> {
        self.retire(lanes)?;
        Ok(self.flights.is_empty())
    }

    /// Leaves out what is in the slot being filled, and waits for the copies that run.
    pub fn end(&mut self, lanes: &mut StagingLanes) {
        if let Some((slot, _)) = self.filling.take()
            && let Ok(lane) = lanes.of(self.place.site)
        {
            lane.free.push(slot);
        }
        let until = now_ns() + PATIENCE_NS;
        while matches!(self.settled(lanes), Ok(false)) {
            if now_ns() > until {
                return self.fail(lanes);
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hmem::Iface;

    /// Copies that do not end.
    struct Stuck(u64);

    impl Stream for Stuck {
        unsafe fn post(&mut self, _: Dir, _: u64, _: u64, _: usize) -> Result<u64> {
            self.0 += 1;
            Ok(self.0)
        }

        fn done(&mut self) -> Result<u64> {
            Ok(0)
        }

        fn after(&mut self, _: u64) -> Result<()> {
            Ok(())
        }
    }

    const SITE: Site = Site { iface: Iface::Cuda, device: 0 };

    fn lane(number: u64, done: u64) -> StagingLane {
        let len = BYTES * usize::from(COUNT);
        let file = mem::memfd("gdrfab-slots", len).unwrap();
        let memory = Mapping::new(file.as_fd(), 0, len, Protection::ReadWrite).unwrap();
        StagingLane {
            site: SITE,
            stream: Box::new(Stuck(done)),
            _pin: None,
            memory,
            reached: false,
            free: (0..COUNT).rev().collect(),
            done,
            number,
        }
    }

    fn loading(bytes: &[u8]) -> DeviceSource {
        // SAFETY: nothing is copied.
        let pieces = Pieces::One(unsafe { Iov::of(bytes) });
        DeviceSource::new(DeviceMemory::new(SITE, pieces, Vec::new()), bytes.len() as u64)
    }

    #[test]
    fn a_body_whose_lane_another_gave_up_is_not_sent_from_the_next_one() {
        let bytes = [0; 100];
        let mut lanes = StagingLanes { all: vec![lane(1, 0)], made: 1 };
        let (mut first, mut second) = (loading(&bytes), loading(&bytes));
        assert!(first.pump(&mut lanes).unwrap() && second.pump(&mut lanes).unwrap());
        second.end(&mut lanes);
        assert!(lanes.all.is_empty());
        // In it the first one's ticket is done, and its slot another's.
        lanes.all.push(lane(2, 1));
        assert!(first.find(&mut lanes, 0).is_none());
        first.release(&mut lanes, 100);
        assert_eq!(lanes.all[0].free.len(), usize::from(COUNT));
        assert_eq!(first.pump(&mut lanes).unwrap_err().errno, errno::EIO);
        // It is told once; a body that begins then has the new lane.
        let mut third = loading(&bytes);
        assert!(third.pump(&mut lanes).unwrap());
        assert_eq!(third.lane, 2);
    }
}
