// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copier's main loop, which polls the rings of its streams while there is work, and for a moment after. Then the
//! copier sleeps until it is woken. All streams of one device share one stream of the driver, so that one batch can
//! hold the first copy of each ring. A batch takes much less time than the same copies one by one.

use super::ring::CopyRing;
use super::wire::{Answer, HELLO, REQUEST_BYTES, Request, RequestKind, encode_answer};
use crate::error::{Error, Result, errno};
use crate::hmem::{self, DeviceId, Dir, Iface, Import, Offer, Site, Stream, StreamCopy};
use crate::sys::{process, socket, time};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

/// Time for which the loop polls after the last work.
const SPIN_NS: u64 = 1_000_000;
/// Turns of the loop between two looks at the socket.
const TURNS_PER_SOCKET_POLL: u32 = 8;
/// Longest time since the last look at the socket at which copies may still be started.
const SOCKET_POLL_NS: u64 = 100_000;

/// The driver's stream of one device.
struct DriverQueue {
    site: Site,
    order: Box<dyn Stream>,
    /// Copies given to the driver: the driver stream's number of the copy, and the number of the stream that posted the
    /// copy.
    in_flight: VecDeque<(u64, u64)>,
    batch: Vec<StreamCopy>,
    /// The streams of the copies in `batch`.
    owners: Vec<u64>,
    /// The driver's error, if the stream failed.
    failure: Option<Error>,
}

/// A stream of the owner: `taken` of its copies were given to the driver, and `done` of them are done.
struct ServedStream {
    ring: CopyRing,
    site: Site,
    taken: u64,
    done: u64,
    failed: Option<Error>,
}

/// A mapping to be unmapped, and the number of the last copy of each stream that may use it.
struct PendingUnmap {
    import: Import,
    awaited: Vec<(u64, u64)>,
}

struct Server {
    socket: OwnedFd,
    wake_fd: OwnedFd,
    /// A pidfd of the process that is served.
    owner: Option<OwnedFd>,
    queues: Vec<DriverQueue>,
    streams: HashMap<u64, ServedStream>,
    maps: HashMap<u64, Import>,
    pending_unmaps: Vec<PendingUnmap>,
    /// First and last byte of each mapping, sorted.
    ranges: Vec<(u64, u64)>,
    next: u64,
}

/// Result of one turn of the loop.
#[derive(PartialEq, Eq)]
enum Activity {
    /// Copies were given to the driver.
    Started,
    /// No copy was given to the driver, but some are in flight.
    Waiting,
    Idle,
}

/// Serves the process at the other end of `socket` until that process ends.
pub fn serve(socket: OwnedFd) -> Result<()> {
    let Some((wake_fd, owner)) = accept_hello(&socket)? else { return Ok(()) };
    let mut server = Server {
        socket,
        wake_fd,
        owner,
        queues: Vec::new(),
        streams: HashMap::new(),
        maps: HashMap::new(),
        pending_unmaps: Vec::new(),
        ranges: Vec::new(),
        next: 1,
    };
    let (mut turns, mut last, mut last_look) = (0u32, time::now_ns(), 0);
    loop {
        let now = time::now_ns();
        turns = turns.wrapping_add(1);
        // The socket is read first: the process may have ended long ago while this one was stopped, and then no copy
        // may start.
        if turns % TURNS_PER_SOCKET_POLL == 0 || now - last_look > SOCKET_POLL_NS {
            last_look = now;
            if !server.answer_requests()? {
                return Ok(());
            }
        }
        let turn = server.turn();
        match turn {
            Activity::Idle if turns % TURNS_PER_SOCKET_POLL == 0 && now - last > SPIN_NS => {
                server.sleep();
                last = time::now_ns();
            }
            Activity::Idle => {}
            _ => last = now,
        }
        // If more threads poll than there are CPUs, this thread has to wait for the others anyway, so it yields to
        // them.
        if turn != Activity::Started {
            std::thread::yield_now();
        }
    }
}

/// Receives the first packet, which names the library's build and carries the eventfd and the owner's pidfd.
fn accept_hello(socket: &OwnedFd) -> Result<Option<(OwnedFd, Option<OwnedFd>)>> {
    let mut packet = [0; 256];
    loop {
        match socket::recv(socket.as_fd(), &mut packet)? {
            socket::Received::Nothing => socket::wait_readable(socket, -1),
            socket::Received::Closed => return Ok(None),
            socket::Received::Packet { len, fds, .. } => {
                let same = packet.get(..len) == Some(HELLO.as_bytes());
                let mut fds = fds.into_iter();
                let answer = match fds.next() {
                    Some(wake_fd) if same => Ok((wake_fd, fds.next())),
                    _ => Err(Error::new(errno::EPROTO, format!("this program is {HELLO:?}, but the library has another version"))),
                };
                let answer_ok = answer.as_ref().map(|_| Answer { number: process::pid() as u64, ..Answer::default() });
                // The owner watches this pidfd to learn of the copier's end. Old kernels have none.
                let own = process::open(process::pid()).ok();
                let fds: Vec<_> = own.iter().map(AsFd::as_fd).collect();
                socket::send(socket.as_fd(), &encode_answer(&answer_ok.map_err(Error::clone)), &fds)?;
                return answer.map(Some);
            }
        }
    }
}

fn device_number(iface: Iface, id: &DeviceId) -> Result<u32> {
    let found = hmem::get(iface)?.devices().iter().position(|f| f.id == *id);
    found.map(|d| d as u32).ok_or_else(|| Error::new(errno::ENODEV, format!("{}: gdrfab-copier does not see this device", iface.name())))
}

impl Server {
    /// Gives posted copies to the driver, and reports completed ones.
    fn turn(&mut self) -> Activity {
        let mut turn = Activity::Idle;
        for (number, served) in &mut self.streams {
            let posted = served.ring.posted();
            if posted == served.taken || served.failed.is_some() || served.ring.is_closing() {
                continue;
            }
            let Some(queue) = self.queues.iter_mut().find(|l| l.site == served.site) else { continue };
            // One copy of each stream only: the copies of a batch take effect in any order.
            let (to, from, len) = served.ring.copy(served.taken + 1);
            turn = Activity::Started;
            if len > 0 && !(within(&self.ranges, to, len) && within(&self.ranges, from, len)) {
                let words = format!("a copy of {len} bytes from {from:#x} to {to:#x} reaches beyond the mapped memory");
                served.fail(Error::new(errno::EFAULT, words));
                continue;
            }
            queue.batch.push(StreamCopy { dir: Dir::Within, to, from, len: len as usize });
            served.taken += 1;
            queue.owners.push(*number);
        }
        for queue in &mut self.queues {
            if !queue.owners.is_empty() {
                // SAFETY: both sides of each copy lie in mappings, which are unmapped only after the copies that use
                // them.
                match unsafe { queue.order.post_all(&queue.batch) } {
                    Ok(ticket) => queue.in_flight.extend(queue.owners.drain(..).map(|number| (ticket, number))),
                    Err(e) => queue.failure = Some(e),
                }
                queue.batch.clear();
            }
            if queue.in_flight.is_empty() || queue.failure.is_some() {
                continue;
            }
            if turn == Activity::Idle {
                turn = Activity::Waiting;
            }
            match queue.order.done() {
                Ok(done) => {
                    while let Some((ticket, number)) = queue.in_flight.front().copied()
                        && ticket <= done
                    {
                        if let Some(served) = self.streams.get_mut(&number) {
                            served.one_done();
                        }
                        queue.in_flight.pop_front();
                    }
                }
                Err(e) => queue.failure = Some(e),
            }
        }
        self.fail_dead_queues();
        self.streams.retain(|_, served| {
            let over = served.taken == served.done && served.ring.is_closing();
            if over {
                served.ring.set_closed();
            }
            !over
        });
        if !self.pending_unmaps.is_empty() {
            let streams = &self.streams;
            let before = self.pending_unmaps.len();
            self.pending_unmaps.retain(|l| l.awaited.iter().any(|(number, upto)| streams.get(number).is_some_and(|s| !s.is_past(*upto))));
            if self.pending_unmaps.len() < before {
                self.sort_ranges();
            }
        }
        turn
    }

    /// Fails every stream of a device whose driver stream failed: their copies in flight are lost.
    fn fail_dead_queues(&mut self) {
        while let Some(at) = self.queues.iter().position(|queue| queue.failure.is_some()) {
            let DriverQueue { site, order, failure, .. } = self.queues.swap_remove(at);
            // Dropping the driver's stream waits for its copies. Only then may the streams be reported as failed.
            drop(order);
            for served in self.streams.values_mut().filter(|s| s.site == site) {
                served.taken = served.done;
                served.fail(failure.clone().unwrap_or(Error::fixed(errno::EIO, "the driver failed to order the copies")));
            }
        }
    }

    /// Answers all requests that have arrived. False: the owner has ended or closed the socket.
    fn answer_requests(&mut self) -> Result<bool> {
        let mut packet = [0; REQUEST_BYTES];
        loop {
            match socket::recv(self.socket.as_fd(), &mut packet)? {
                socket::Received::Nothing => return Ok(!self.owner.as_ref().is_some_and(process::ended)),
                socket::Received::Closed => return Ok(false),
                socket::Received::Packet { len, fds, .. } => {
                    let asked: Result<Request> = packet
                        .get(..len)
                        .ok_or(Error::fixed(errno::EPROTO, "a request to gdrfab-copier is too long"))
                        .and_then(Request::decode);
                    let awaited = !asked.as_ref().is_ok_and(|request| request.what == RequestKind::Unmap);
                    let answer = asked.and_then(|request| self.answer(&request, fds.into_iter().next()));
                    // The owner may have ended meanwhile.
                    if awaited && socket::send(self.socket.as_fd(), &encode_answer(&answer), &[]).is_err() {
                        return Ok(false);
                    }
                }
            }
        }
    }

    fn answer(&mut self, request: &Request, fd: Option<OwnedFd>) -> Result<Answer> {
        match request.what {
            RequestKind::Open => {
                self.open(Site { iface: request.iface, device: device_number(request.iface, &request.device)? }).map(|()| Answer::default())
            }
            RequestKind::Map => self.map(request, fd),
            RequestKind::Unmap => {
                let awaited = self.streams.iter().map(|(number, s)| (*number, s.ring.posted())).collect();
                // The mapping stays in `ranges` until the copies that were posted before are over.
                self.pending_unmaps.extend(self.maps.remove(&request.number).map(|import| PendingUnmap { import, awaited }));
                Ok(Answer::default())
            }
            RequestKind::Stream => {
                let site = Site { iface: request.iface, device: device_number(request.iface, &request.device)? };
                self.open(site)?;
                let fd = fd.ok_or(Error::fixed(errno::EPROTO, "a stream request to gdrfab-copier lacks its shared page"))?;
                let ring = CopyRing::attach(fd.as_fd())?;
                self.streams.insert(request.number, ServedStream { ring, site, taken: 0, done: 0, failed: None });
                Ok(Answer::default())
            }
            RequestKind::Failure => {
                let why = self.streams.get(&request.number).and_then(|s| s.failed.clone());
                Ok(why.map_or_else(Answer::default, |e| Answer { errno: e.errno, words: e.words.to_string(), ..Answer::default() }))
            }
        }
    }

    fn open(&mut self, site: Site) -> Result<()> {
        if !self.queues.iter().any(|l| l.site == site) {
            let order = hmem::get(site.iface)?.stream(site.device)?;
            self.queues.push(DriverQueue { site, order, in_flight: VecDeque::new(), batch: Vec::new(), owners: Vec::new(), failure: None });
        }
        Ok(())
    }

    fn map(&mut self, request: &Request, fd: Option<OwnedFd>) -> Result<Answer> {
        let up = hmem::get(request.iface)?;
        let copying_device = request.copying_device.map(|id| device_number(request.iface, &id)).transpose()?;
        let offer =
            Offer { how: request.how, device: request.device, handle: request.handle, fd: fd.as_ref().map(AsFd::as_fd), len: request.len };
        let import = up.import(&offer, copying_device)?;
        let device = up.devices().get(import.device as usize).map(|f| f.id).unwrap_or_default();
        let answer = Answer { number: self.next, base: import.base, len: import.len, device, ..Answer::default() };
        self.next += 1;
        self.maps.insert(answer.number, import);
        self.sort_ranges();
        Ok(answer)
    }

    fn sort_ranges(&mut self) {
        let all = self.maps.values().chain(self.pending_unmaps.iter().map(|l| &l.import));
        self.ranges = all.map(|i| (i.base, i.base.saturating_add(i.len.saturating_sub(1)))).collect();
        self.ranges.sort_unstable();
    }

    /// Sleeps until there is a copy to make or a request to answer.
    fn sleep(&mut self) {
        self.streams.values().for_each(|s| s.ring.set_asleep(true));
        if self.streams.values().all(|s| !s.ring.is_closing() && (s.failed.is_some() || s.ring.posted() == s.taken)) {
            socket::wait_any(&[self.socket.as_fd(), self.wake_fd.as_fd(), self.owner.as_ref().map_or(self.wake_fd.as_fd(), AsFd::as_fd)]);
        }
        self.streams.values().for_each(|s| s.ring.set_asleep(false));
        let _ = rustix::io::read(&self.wake_fd, &mut [0u8; 8]);
    }
}

impl ServedStream {
    /// Records the failure. The owner is told only when none of the stream's copies is in flight.
    fn fail(&mut self, e: Error) {
        let e = self.failed.get_or_insert(e);
        if self.taken == self.done {
            self.ring.fail(e.errno);
        }
    }

    fn one_done(&mut self) {
        self.done += 1;
        self.ring.set_done(self.done);
        if let Some(e) = self.failed.clone() {
            self.fail(e);
        }
    }

    /// True if the copies up to number `upto` are over, or will never be made.
    fn is_past(&self, upto: u64) -> bool {
        self.done >= upto || (self.failed.is_some() && self.taken == self.done)
    }
}

/// True if `[at, at+len)` lies in one mapping.
fn within(ranges: &[(u64, u64)], at: u64, len: u64) -> bool {
    let i = ranges.partition_point(|(first, _)| *first <= at);
    let Some(end) = at.checked_add(len - 1) else { return false };
    i > 0 && ranges.get(i - 1).is_some_and(|(_, last)| end <= *last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_in_what_is_mapped() {
        let ranges = [(100, 199), (300, 399)];
        for (at, len, inside) in [(100, 100, true), (100, 101, false), (199, 1, true), (200, 1, false), (300, 50, true), (99, 2, false)] {
            assert_eq!(within(&ranges, at, len), inside, "{at} {len}");
        }
        assert!(!within(&ranges, u64::MAX, 2));
        assert!(!within(&[], 0, 1));
    }
}
