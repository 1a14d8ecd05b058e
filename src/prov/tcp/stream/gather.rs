// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receiving a long body over several streams. Stripes come in any order, and each goes to its place; a second copy of
//! a stripe is an error. Stripes of a body that the first stream has not announced yet stay in the kernel's buffers.

use super::incoming::{BodySink, Incoming};
use super::stripes::ReceivedStripes;
use crate::error::{Code, Error, Result, errno};
use crate::prov::op::Iov;
use crate::prov::tcp::memory::staging::StagingLanes;
use crate::prov::tcp::secure::seal::{CipherState, Window};
use crate::prov::tcp::secure::sealed;
use crate::prov::tcp::secure::sealed::SealedIn;
use crate::prov::tcp::wire::frame::{STRIPE, STRIPE_HEAD, protocol_error, word};
use crate::sys::stream::{self, Moved};
use crate::sys::time;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most pieces of memory of one call.
const PIECES: usize = 64;
/// Most times that each stream is read in one turn.
const ROUNDS: usize = 8;
/// After one socket of the connection has ended, the other sockets have this long to deliver bytes that were under way.
const GRACE_NS: u64 = 2_000_000_000;

/// The receiving end of one stream.
struct Stream {
    fd: Arc<OwnedFd>,
    seal: Option<Sealed>,
    /// The head of the stripe that comes next.
    head: [u8; STRIPE_HEAD],
    /// Number of the head's bytes that are here.
    have: usize,
    /// The stripe that is coming: its offset in the body, its length, and the number of its bytes that have come.
    stripe: Option<(u64, u64, u64)>,
    /// The stripe has to wait for earlier ones, or for its body to be announced.
    waits: bool,
    /// The stream has ended, or its peer has hung up.
    ended: bool,
}

/// The receiving end of a sealed stream: its records, and opened bytes that were not taken.
struct Sealed {
    opens: SealedIn,
    buf: Box<[u8]>,
    window: Window,
}

/// The receiving ends of the further streams.
pub struct Gather {
    streams: Box<[Stream]>,
    /// Number of the last body that was announced.
    number: u64,
    /// Room for bytes that are discarded, or copied to their memory afterwards.
    spare: Box<[u8]>,
    /// The time at which something last came.
    last: u64,
    /// The time at which a stream was first seen to have ended; 0: no stream has.
    over: u64,
}

impl Gather {
    pub fn new(streams: Vec<(Arc<OwnedFd>, Option<CipherState>)>) -> Gather {
        let sealed = |half| Sealed { opens: SealedIn::new(half), buf: sealed::buffer(), window: (0, 0) };
        let fresh = |(fd, half): (Arc<OwnedFd>, Option<CipherState>)| Stream {
            fd,
            seal: half.map(sealed),
            head: [0; STRIPE_HEAD],
            have: 0,
            stripe: None,
            waits: false,
            ended: false,
        };
        let streams = streams.into_iter().map(fresh).collect();
        Gather { streams, number: 0, spare: vec![0; STRIPE as usize].into(), last: 0, over: 0 }
    }

    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// Begins the body in stripes that the first stream has announced.
    pub fn announce(&mut self, len: u64) -> ReceivedStripes {
        self.number += 1;
        self.last = time::now_ns();
        self.streams.iter_mut().for_each(|s| s.waits = false);
        ReceivedStripes::new(self.number, len)
    }

    /// Calls `each` with every stream that has not ended, and whether it is to be read. `amid`: a body in stripes is coming.
    pub fn each(&self, amid: bool, mut each: impl FnMut(usize, BorrowedFd<'_>, bool)) {
        for (index, s) in self.streams.iter().enumerate().filter(|(_, s)| !s.ended) {
            each(index, s.fd.as_fd(), amid && !s.waits);
        }
    }

    /// Ends sending on all streams.
    pub fn finish(&self) {
        self.streams.iter().for_each(|s| stream::finish(s.fd.as_fd()));
    }

    /// Finds streams that the peer has closed. A closed stream ends the connection, but only after nothing has come for
    /// `GRACE_NS`, so that the first stream's last frames are handled before.
    pub fn check(&mut self, now: u64) -> Result<()> {
        let fds: Vec<BorrowedFd<'_>> = self.streams.iter().map(|s| s.fd.as_fd()).collect();
        let hung = crate::sys::tcp::hung_up(&fds);
        let Some(first) = hung.iter().position(|h| *h) else { return Ok(()) };
        if self.over == 0 {
            self.over = now;
        }
        if now - self.over.max(self.last) < GRACE_NS {
            return Ok(());
        }
        Err(lost(first, "the peer closed the stream or died"))
    }

    /// True if a stream was seen to have ended.
    pub fn is_over(&self) -> bool {
        self.over != 0
    }

    /// True if a sealed stream holds bytes that can be taken and that no socket announces.
    pub fn holds_more(&self) -> bool {
        let held = |s: &Sealed| s.window.0 < s.window.1 || s.opens.holds_record(&s.buf);
        self.streams.iter().any(|s| !s.waits && !s.ended && s.seal.as_ref().is_some_and(held))
    }

    /// True if a stream is open and something came within the last `GRACE_NS`, so that more may come.
    pub fn lives(&self) -> bool {
        self.streams.iter().any(|s| !s.ended) && time::now_ns() - self.last < GRACE_NS
    }

    /// Reads the body's stripes; true: something came.
    pub fn read(&mut self, body: &mut Incoming, lanes: &mut StagingLanes, short: usize) -> Result<bool> {
        let (mut any, mut moved) = (true, false);
        for _ in 0..ROUNDS {
            if !any || body.all_came() {
                break;
            }
            any = false;
            for (index, s) in self.streams.iter_mut().enumerate() {
                any |= s.read(index, body, &mut self.spare, lanes, short)?;
            }
            if any {
                moved = true;
                self.last = time::now_ns();
            }
        }
        if any {
            // The streams that had to wait may be able to go on now.
            self.streams.iter_mut().for_each(|s| s.waits = false);
        }
        Ok(moved)
    }
}

fn lost(index: usize, why: &str) -> Error {
    Error::coded(errno::ECONNRESET, Code::PeerGone, format!("the peer is gone: stream {} of the connection: {why}", index + 1))
}

impl Stream {
    /// Reads the stream by one call of the kernel; true: something came.
    fn read(&mut self, index: usize, body: &mut Incoming, spare: &mut [u8], lanes: &mut StagingLanes, short: usize) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if self.seal.is_some() {
            return self.read_sealed(index, body, lanes, short);
        }
        if self.have < STRIPE_HEAD {
            let most = STRIPE_HEAD.min(self.have.saturating_add(short));
            return match stream::receive(self.fd.as_fd(), &mut self.head[self.have..most]).map_err(|e| lost(index, &e.words))? {
                Moved::Bytes(n) => {
                    self.have += n;
                    Ok(true)
                }
                Moved::Ended if self.have > 0 => Err(lost(index, "it ended in the middle of a transfer")),
                Moved::Ended => {
                    self.ended = true;
                    Ok(false)
                }
                _ => Ok(false),
            };
        }
        let Some((begin, len, at)) = self.stripe(body)? else { return Ok(false) };
        self.read_stripe(index, body, (begin, len, at), spare, lanes, short)
    }

    /// As `read`, for a sealed stream: takes opened bytes, or opens the next record if there are none.
    fn read_sealed(&mut self, index: usize, body: &mut Incoming, lanes: &mut StagingLanes, short: usize) -> Result<bool> {
        let Some(Sealed { opens, buf, window }) = &mut self.seal else { return Ok(false) };
        if window.0 >= window.1 {
            let amid = self.have > 0 || self.stripe.is_some() || opens.is_amid();
            // A record that fails authentication has its own error.
            let lose = |e: Error| if e.code == Code::PeerBroke { e } else { lost(index, &e.words) };
            return match opens.read(self.fd.as_fd(), buf, window, short).map_err(lose)? {
                Moved::Bytes(_) => Ok(true),
                Moved::Ended if amid => Err(lost(index, "it ended in the middle of a transfer")),
                Moved::Ended => {
                    self.ended = true;
                    Ok(false)
                }
                _ => Ok(false),
            };
        }
        if self.have < STRIPE_HEAD {
            let n = (STRIPE_HEAD - self.have).min(window.1 - window.0);
            self.head[self.have..self.have + n].copy_from_slice(&buf[window.0..window.0 + n]);
            self.have += n;
            window.0 += n;
            return Ok(true);
        }
        let Some((begin, len, at)) = self.stripe(body)? else { return Ok(false) };
        let place = begin + at;
        if !body.is_ready_at(place, lanes) {
            return Ok(false);
        }
        let Some(Sealed { buf, window, .. }) = &mut self.seal else { return Ok(false) };
        let most = (window.1 - window.0).min((len - at) as usize);
        let n = body.place(place, &buf[window.0..window.0 + most], lanes);
        window.0 += n;
        body.after(place + n as u64, lanes);
        self.count(body, (begin, len, at), n as u64, 0);
        Ok(n > 0)
    }

    /// Counts `took` more bytes of the stripe. `head`: the number of bytes of the next stripe's head that came with these bytes.
    fn count(&mut self, body: &mut Incoming, (begin, len, at): (u64, u64, u64), took: u64, head: usize) {
        self.stripe = Some((begin, len, at + took));
        if at + took == len {
            self.stripe = None;
            self.have = head;
            if let Some(stripes) = &mut body.stripes {
                stripes.came += 1;
            }
        }
    }

    /// The stripe that is coming; `None`: the stripe has to wait.
    fn stripe(&mut self, body: &mut Incoming) -> Result<Option<(u64, u64, u64)>> {
        if self.stripe.is_some() {
            return Ok(self.stripe);
        }
        // A device's slots and a growing buffer are filled in order; other memory takes stripes in any order.
        let in_order = matches!(body.sink, BodySink::Device(..) | BodySink::Buffer(_));
        let Some(stripes) = &mut body.stripes else { return Ok(None) };
        let (number, index) = (word(&self.head, 0), word(&self.head, 1));
        if number < stripes.number {
            return Err(protocol_error("a stripe of a transfer that has ended"));
        }
        self.waits = number > stripes.number || !stripes.begin(index, in_order)?;
        if !self.waits {
            let begin = index * STRIPE;
            self.stripe = Some((begin, (body.len - begin).min(STRIPE), 0));
        }
        Ok(self.stripe)
    }

    /// Reads bytes of a stripe straight to their memory, or through `spare` where that memory takes no scattered read.
    fn read_stripe(
        &mut self,
        index: usize,
        body: &mut Incoming,
        (begin, len, at): (u64, u64, u64),
        spare: &mut [u8],
        lanes: &mut StagingLanes,
        short: usize,
    ) -> Result<bool> {
        let (place, run) = (begin + at, len - at);
        if !body.is_ready_at(place, lanes) {
            return Ok(false);
        }
        let entered = body.enter(lanes);
        let mut pieces = [Iov::EMPTY; PIECES];
        let (mut count, mut direct) = body.direct_at(place, run, &mut pieces[..PIECES - 2], lanes);
        let is_direct = direct > 0;
        if !is_direct {
            let fits = run.min(spare.len() as u64);
            // SAFETY: `spare` is borrowed mutably until the call is over.
            pieces[0] = unsafe { Iov::of_mut(&mut spare[..fits as usize]) };
            (count, direct) = (1, fits);
        }
        if direct > short as u64 {
            pieces[0] = pieces[0].part(0, short);
            (count, direct) = (1, pieces[0].len() as u64);
        } else if direct == run && short == usize::MAX {
            // SAFETY: `self.head` is not used elsewhere before the call is over. The next stripe's head mostly follows at once.
            pieces[count] = unsafe { Iov::of_mut(&mut self.head) };
            count += 1;
        }
        let moved = stream::receive_pieces(self.fd.as_fd(), &pieces[..count]);
        body.exit(entered);
        let n = match moved.map_err(|e| lost(index, &e.words))? {
            Moved::Bytes(n) => n as u64,
            Moved::Ended => return Err(lost(index, "it ended in the middle of a transfer")),
            Moved::Blocked => return Ok(false),
            Moved::Fault => {
                body.divert(
                    lanes,
                    Error::coded(
                        errno::EFAULT,
                        Code::Fault,
                        "the kernel cannot write the destination memory: it is not mapped, or not writable",
                    ),
                );
                return Ok(true);
            }
        };
        let took = n.min(direct);
        if !is_direct {
            body.place(place, &spare[..took as usize], lanes);
        }
        body.after(place + took, lanes);
        self.count(body, (begin, len, at), took, (n - took) as usize);
        Ok(true)
    }
}
