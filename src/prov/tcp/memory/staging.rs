// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends and receives device memory through pinned host buffers (slots), whose device copies run beside the network
//! transfer. Nothing here waits for the device, except when a body is given up. A caller that needs the end of a copy
//! asks again in its next turn of progress.

use super::mr::Inside;
use crate::error::{Code, Error, Result, errno};
use crate::hmem::{self, Dir, Pinned, Site, Stream, StreamCopy};
use crate::prov::op::{Iov, Pieces};
use crate::prov::tcp::wire::frame::PART;
use crate::sys::mem::{self, Mapping, Protection};
use crate::sys::time::now_ns;
use std::collections::VecDeque;
use std::os::fd::AsFd;

/// Number of slots of a staging lane.
const COUNT: u8 = 4;
/// Bytes of a slot. Slots are large, because to start a copy costs as much time as to send some 100 KiB over a socket.
const BYTES: usize = 4 * PART as usize;
/// Most copies that one request posts to a device stream, for a slot that holds many blocks.
const COPIES: usize = 4096;
/// If the copies of a body that was given up take longer than this, their lane is dropped.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A device stream for one direction of a connection, with the host memory that its copies use.
pub struct StagingLane {
    pub site: Site,
    /// The stream is declared before `memory`, so that it is dropped first: dropping the stream waits for its copies.
    stream: Box<dyn Stream>,
    _pin: Option<Pinned>,
    /// The host memory of all slots.
    memory: Mapping,
    /// Kernels on the device can access the slots.
    reached: bool,
    /// Numbers of the free slots.
    free: Vec<u8>,
    /// The ticket up to which all copies were done when the device was last asked.
    done: u64,
    /// Distinguishes this lane from earlier lanes of the same device, whose slots and tickets have no meaning in this lane.
    number: u64,
}

impl StagingLane {
    fn new(site: Site, number: u64) -> Result<StagingLane> {
        let up = hmem::get(site.iface)?;
        let len = BYTES * usize::from(COUNT);
        let file = mem::memfd("gdrfab-slots", len)?;
        let memory = Mapping::new(file.as_fd(), 0, len, Protection::ReadWrite)?;
        let pin = up.pin(memory.as_ptr() as u64, len as u64);
        let pin = pin.map_err(|e| crate::log!(Info, "staging buffers for {site} could not be pinned, so its copies are slower: {e}")).ok();
        let reached = pin.is_some() && up.reaches(site.device, memory.as_ptr() as u64, len as u64);
        let free = (0..COUNT).rev().collect();
        Ok(StagingLane { site, stream: up.stream(site.device)?, _pin: pin, memory, reached, free, done: 0, number })
    }

    /// The memory of a slot.
    fn slot(&self, slot: u8) -> Iov {
        // SAFETY: the mapping holds all slots, and the lane outlives the calls that use their bytes.
        unsafe { Iov::new(self.memory.as_ptr() as usize + usize::from(slot) * BYTES, BYTES) }
    }

    /// Asks the device for the ticket up to which all copies are done.
    fn poll(&mut self) -> Result<u64> {
        self.done = self.stream.done().map_err(|e| Error::coded(e.errno, Code::Fault, format!("the device's copy failed: {}", e.words)))?;
        Ok(self.done)
    }

    /// Posts copies between slot `slot` and `len` bytes of the device's pieces, which begin at byte `skip`; returns the
    /// ticket of the last copy. Many blocks go as one request where the device can reach the slot and the blocks
    /// itself.
    ///
    /// # Safety
    /// The pieces stay valid until the copies are done.
    unsafe fn post(&mut self, dir: Dir, slot: u8, memory: &mut DeviceMemory, skip: u64, len: usize) -> Result<u64> {
        let DeviceMemory { site, pieces, reach, .. } = memory;
        let mut at = self.slot(slot).addr() as u64;
        let mut parts = pieces.parts(skip as usize, len).peekable();
        let mut ticket = 0;
        let mut some: Vec<StreamCopy> = Vec::new();
        while parts.peek().is_some() {
            some.clear();
            let mut reached = self.reached;
            for part in parts.by_ref().take(COPIES) {
                let (addr, len) = (part.addr() as u64, part.len());
                let (to, from) = if dir == Dir::ToDevice { (addr, at) } else { (at, addr) };
                at += len as u64;
                reached = reached && reach.holds(*site, addr, len as u64);
                some.push(StreamCopy { dir, to, from, len });
            }
            let posted = match some[..] {
                // SAFETY: the slot is long enough, and the caller of `post` keeps the device's pieces until the copies are done.
                [c] => unsafe { self.stream.post(dir, c.to, c.from, c.len) },
                // SAFETY: the slot is long enough, and the caller of `post` keeps the device's pieces until the copies are done.
                _ => unsafe { self.stream.post_list(&some, reached, 0) },
            };
            ticket = posted.map_err(|e| Error::coded(e.errno, Code::Fault, e.words))?;
        }
        Ok(ticket)
    }
}

/// Finds out whether the device's kernels can access the memory of one operation, and remembers the answer. The answer
/// cannot change while the operation holds the memory.
#[derive(Default)]
struct DeviceReach {
    /// Bounds of the last allocation that the device's kernels can access.
    known: (u64, u64),
    /// Part of the memory cannot be accessed by the device's kernels, so the device is not asked again.
    refused: bool,
}

impl DeviceReach {
    /// True if the device's kernels can access these bytes.
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

/// The staging lanes of one direction of a connection, one for each device, each made when first needed. A lane that
/// failed is dropped with its stream.
#[derive(Default)]
pub struct StagingLanes {
    /// Number of lanes made so far.
    all: Vec<StagingLane>,
    made: u64,
}

impl StagingLanes {
    /// The lane of the device `site`, which is made if it does not exist.
    pub fn of(&mut self, site: Site) -> Result<&mut StagingLane> {
        let at = match self.all.iter().position(|l| l.site == site) {
            Some(at) => at,
            None => {
                self.made += 1;
                self.all.push(StagingLane::new(site, self.made)?);
                self.all.len() - 1
            }
        };
        self.all.get_mut(at).ok_or(Error::fixed(errno::EIO, "internal error: unknown staging lane"))
    }

    /// Drops the lane of a device. Dropping its stream waits for the copies.
    fn give_up(&mut self, site: Site) {
        self.all.retain(|l| l.site != site);
    }

    /// True if the lane that had this number still exists.
    fn has(&self, site: Site, number: u64) -> bool {
        self.all.iter().any(|l| l.site == site && l.number == number)
    }

    /// Makes later copies wait for the work that the caller's device stream `stream` holds now.
    pub fn after(&mut self, site: Site, stream: u64) -> Result<()> {
        if stream == 0 { Ok(()) } else { self.of(site)?.stream.after(stream) }
    }
}

/// Device memory of one operation.
pub struct DeviceMemory {
    pub site: Site,
    pub pieces: Pieces,
    /// Guards that keep the regions of a peer's operation from closing.
    _inside: Vec<Inside>,
    reach: DeviceReach,
}

impl DeviceMemory {
    pub fn new(site: Site, pieces: Pieces, inside: Vec<Inside>) -> DeviceMemory {
        DeviceMemory { site, pieces, _inside: inside, reach: DeviceReach::default() }
    }
}

/// A copy that was posted and is not known to be done, or whose slot is still in use.
struct CopyInFlight {
    slot: u8,
    ticket: u64,
    /// Offset in the body of the slot's first byte.
    first: u64,
    len: u64,
}

/// Bytes of one copy for a body of `len`. A short body is cut so that copies and network overlap, a long body so that
/// copies are few.
fn chunk(len: u64) -> u64 {
    (len / u64::from(COUNT)).next_multiple_of(PART).clamp(PART, BYTES as u64)
}

/// A body that is sent from a device.
pub struct DeviceSource {
    memory: DeviceMemory,
    len: u64,
    chunk: u64,
    /// Number of the body's bytes whose copies were posted.
    posted: u64,
    flights: VecDeque<CopyInFlight>,
    /// Number of the lane whose slots hold `flights`.
    lane: u64,
}

impl DeviceSource {
    pub fn new(memory: DeviceMemory, len: u64) -> DeviceSource {
        DeviceSource { memory, len, chunk: chunk(len), posted: 0, flights: VecDeque::new(), lane: 0 }
    }

    /// True if this body's lane was dropped because of another body, and this body's copies with it.
    fn is_orphan(&self, lanes: &StagingLanes) -> bool {
        !self.flights.is_empty() && !lanes.has(self.memory.site, self.lane)
    }

    /// Posts copies into free slots; true: all copies of this body are posted, so the next body may begin.
    pub fn pump(&mut self, lanes: &mut StagingLanes) -> Result<bool> {
        if self.is_orphan(lanes) {
            self.flights.clear();
            return Err(Error::coded(errno::EIO, Code::Fault, "the device's copies were abandoned after another operation's copy failed"));
        }
        let outcome = self.try_pump(lanes);
        if outcome.is_err() {
            self.flights.clear();
            lanes.give_up(self.memory.site);
        }
        outcome
    }

    fn try_pump(&mut self, lanes: &mut StagingLanes) -> Result<bool> {
        let lane = lanes.of(self.memory.site)?;
        self.lane = lane.number;
        while self.posted < self.len {
            let Some(slot) = lane.free.pop() else { break };
            let len = (self.len - self.posted).min(self.chunk);
            // SAFETY: `DeviceMemory` holds the regions of a peer's operation; the caller of the C API keeps local memory until the
            // operation completes.
            match unsafe { lane.post(Dir::FromDevice, slot, &mut self.memory, self.posted, len as usize) } {
                Ok(ticket) => self.flights.push_back(CopyInFlight { slot, ticket, first: self.posted, len }),
                Err(e) => {
                    lane.free.push(slot);
                    return Err(e);
                }
            }
            self.posted += len;
        }
        // Copies end in the order in which they were posted, so the device is asked only while the oldest copy is not done.
        if self.flights.front().is_some_and(|f| f.ticket > lane.done) {
            lane.poll()?;
        }
        Ok(self.posted == self.len)
    }

    /// The bytes of the body from byte `at` to the end of its slot, if their copy is done.
    pub fn find(&self, lanes: &mut StagingLanes, at: u64) -> Option<Iov> {
        if self.is_orphan(lanes) {
            return None;
        }
        let lane = lanes.of(self.memory.site).ok()?;
        let flight = self.flights.iter().find(|f| at >= f.first && at - f.first < f.len && f.ticket <= lane.done)?;
        let skip = at - flight.first;
        Some(lane.slot(flight.slot).part(skip as usize, (flight.len - skip) as usize))
    }

    /// Frees the slots of the bytes before `at`, which are on the wire.
    pub fn release(&mut self, lanes: &mut StagingLanes, at: u64) {
        if self.is_orphan(lanes) {
            return;
        }
        let Ok(lane) = lanes.of(self.memory.site) else { return };
        while let Some(flight) = self.flights.front().filter(|f| f.first + f.len <= at) {
            lane.free.push(flight.slot);
            self.flights.pop_front();
        }
    }

    /// Gives the body up: posts no further copy, and waits for the copies in flight, which are a few slots long.
    pub fn end(&mut self, lanes: &mut StagingLanes) {
        if self.is_orphan(lanes) {
            return self.flights.clear();
        }
        let until = now_ns() + PATIENCE_NS;
        loop {
            let Ok(lane) = lanes.of(self.memory.site) else { return };
            let quiet = match lane.poll() {
                Ok(done) => self.flights.iter().all(|f| f.ticket <= done),
                Err(_) => false,
            };
            if quiet {
                lane.free.extend(self.flights.drain(..).map(|f| f.slot));
                return;
            }
            if now_ns() > until || lane.poll().is_err() {
                // Dropping the lane's stream waits for its copies.
                self.flights.clear();
                return lanes.give_up(self.memory.site);
            }
            std::thread::yield_now();
        }
    }
}

/// A body that is received into a device.
pub struct DeviceSink {
    memory: DeviceMemory,
    chunk: u64,
    /// The slot that is being filled, and the offset in the body of the slot's first byte.
    filling: Option<(u8, u64)>,
    flights: VecDeque<CopyInFlight>,
}

impl DeviceSink {
    pub fn new(memory: DeviceMemory, len: u64) -> DeviceSink {
        DeviceSink { memory, chunk: chunk(len), filling: None, flights: VecDeque::new() }
    }

    /// The room in a slot for byte `at` of the body and the bytes behind it; `None`: no slot is free.
    pub fn find(&mut self, lanes: &mut StagingLanes, at: u64) -> Result<Option<Iov>> {
        if self.filling.is_none() {
            // The device is asked only if no slot is free, because to ask it is a call of the driver.
            if lanes.of(self.memory.site)?.free.is_empty() {
                self.retire(lanes)?;
            }
            let Some(slot) = lanes.of(self.memory.site)?.free.pop() else { return Ok(None) };
            self.filling = Some((slot, at - at % self.chunk));
        }
        let Some((slot, first)) = self.filling else { return Ok(None) };
        let lane = lanes.of(self.memory.site)?;
        let skip = at - first;
        Ok(Some(lane.slot(slot).part(skip as usize, (self.chunk - skip) as usize)))
    }

    /// Notes that the bytes before `at` are in the slot, and posts the slot's copy if the slot is full. `end`: the body
    /// ends at `at`.
    pub fn filled(&mut self, lanes: &mut StagingLanes, at: u64, end: bool) -> Result<()> {
        let Some((slot, first)) = self.filling else { return Ok(()) };
        if at - first < self.chunk && !end {
            return Ok(());
        }
        self.filling = None;
        let lane = lanes.of(self.memory.site)?;
        // SAFETY: `DeviceMemory` holds the regions of a peer's operation; the caller of the C API keeps local memory until the
        // operation completes.
        match unsafe { lane.post(Dir::ToDevice, slot, &mut self.memory, first, (at - first) as usize) } {
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

    /// Asks the device for its progress, and frees the slots whose copies are done.
    fn retire(&mut self, lanes: &mut StagingLanes) -> Result<()> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let lane = lanes.of(self.memory.site)?;
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

    /// Drops the lane after an error.
    fn fail(&mut self, lanes: &mut StagingLanes) {
        self.filling = None;
        self.flights.clear();
        lanes.give_up(self.memory.site);
    }

    /// True if all received bytes are in the device's memory.
    pub fn settled(&mut self, lanes: &mut StagingLanes) -> Result<bool> {
        self.retire(lanes)?;
        Ok(self.flights.is_empty())
    }

    /// Gives the body up: discards the slot that is being filled, and waits for the copies in flight.
    pub fn end(&mut self, lanes: &mut StagingLanes) {
        if let Some((slot, _)) = self.filling.take()
            && let Ok(lane) = lanes.of(self.memory.site)
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

    /// A stream whose copies never end.
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

    fn device_source(bytes: &[u8]) -> DeviceSource {
        // SAFETY: no byte is copied.
        let pieces = Pieces::One(unsafe { Iov::of(bytes) });
        DeviceSource::new(DeviceMemory::new(SITE, pieces, Vec::new()), bytes.len() as u64)
    }

    #[test]
    fn a_body_whose_lane_another_gave_up_is_not_sent_from_the_next_one() {
        let bytes = [0; 100];
        let mut lanes = StagingLanes { all: vec![lane(1, 0)], made: 1 };
        let (mut first, mut second) = (device_source(&bytes), device_source(&bytes));
        assert!(first.pump(&mut lanes).unwrap() && second.pump(&mut lanes).unwrap());
        second.end(&mut lanes);
        assert!(lanes.all.is_empty());
        // In the new lane, the first body's ticket would count as done, and its slot holds bytes of another body.
        lanes.all.push(lane(2, 1));
        assert!(first.find(&mut lanes, 0).is_none());
        first.release(&mut lanes, 100);
        assert_eq!(lanes.all[0].free.len(), usize::from(COUNT));
        assert_eq!(first.pump(&mut lanes).unwrap_err().errno, errno::EIO);
        // The error is reported once; a body that begins afterwards uses the new lane.
        let mut third = device_source(&bytes);
        assert!(third.pump(&mut lanes).unwrap());
        assert_eq!(third.lane, 2);
    }
}
