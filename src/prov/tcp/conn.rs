// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection that is up: the operations that await the peer's answer, the message windows of both sides, and the
//! acknowledgements that the peer is still to be sent.

use super::pollset::Member;
use super::recv::Recv;
use super::refusal::RemoteAddr;
use crate::error::{Error, Result};
use crate::hmem::Site;
use crate::prov::bind::{Ending, INJECT_FLAGS};
use crate::prov::op::Pieces;
use crate::prov::tcp::handshake::dial::Dial;
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::memory::mr::Region;
use crate::prov::tcp::rail::connector::RailConnector;
use crate::prov::tcp::rail::transport::{ReadTransport, SharedRails, WriteTransport};
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::secure::sealed::{SealedIn, SealedOut};
use crate::prov::tcp::stream::rx::Rx;
use crate::prov::tcp::stream::tuner::StreamTuner;
use crate::prov::tcp::stream::tx::Tx;
use crate::prov::tcp::wire::frame::{Header, Kind, WHOLE_MAX, protocol_error};
use crate::prov::tcp::wire::hello::{ATOMICS_SINCE, LISTS_SINCE, Terms};
use crate::sys::health::Health;
use crate::sys::time::ticks;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Weak;

/// Most READs that may await their answers.
pub const READS: usize = 1024;
/// Most READs of lists that may await their answers; they count among the `READS`, too.
pub const LIST_READS: usize = 4;
/// A frame may wait for further frames if the last system call was less than this many CPU ticks ago: some microseconds, about as
/// long as the call takes.
const BATCH_TICKS: u64 = 8_000;
/// After this many of the peer's writes were carried out, an acknowledgement is sent at once.
const ACK_AFTER: u32 = 64;
/// While this many writes are unacknowledged, the peer has enough to do, so further writes may wait to leave together.
const BUSY_WRITES: usize = 32;
/// After this many turns without an arrival, a pending acknowledgement is sent.
const IDLE_TURNS: u8 = 2;
/// Most bytes of answers that may wait because the peer does not read its answers.
const UNSENT_ANSWERS: usize = 8 << 20;

/// The state of a write's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStatus {
    /// No completion has been reported.
    Pending,
    /// The write's success was reported when its bytes were out, before the peer's acknowledgement.
    Reported,
    /// The write's failure was reported, or the operation was cancelled.
    Ended,
}

/// A WRITE that the peer has not acknowledged.
pub struct WriteOp {
    pub end: Ending,
    /// The beginning of the operation in the peer's memory, for the words of an error.
    pub at: RemoteAddr,
    pub status: WriteStatus,
    /// The refusal that the peer has reported. The operation completes with this error when the peer acknowledges the WRITE.
    pub refused: Option<Box<Error>>,
}

/// A READ that the peer has not answered.
pub struct ReadOp {
    pub end: Ending,
    pub at: RemoteAddr,
    /// The local memory into which the answer goes.
    pub pieces: Pieces,
    pub site: Site,
    /// The operation was cancelled or timed out, so its answer is discarded.
    pub over: bool,
}

/// A message that the receiver still has to answer by its number: it was offered, or the receiver is to confirm it.
pub struct SentOp {
    pub number: u64,
    pub end: Ending,
    /// The receiver is to confirm the message by GOT, which completes the operation.
    pub ack: bool,
    /// The memory of an offered message, until the receiver asks for the bytes by TAKE.
    pub offered: Option<Offered>,
}

/// An offered message's memory, or a copy of its bytes (`owned`) if the call was injected.
pub struct Offered {
    pub pieces: Pieces,
    pub site: Site,
    pub owned: Option<Box<[u8]>>,
    pub len: u64,
}

/// A receive that awaits the bytes of an offer, which this side has asked for by TAKE.
pub struct Fetch {
    pub number: u64,
    /// `None`: the receive was cancelled or timed out.
    pub recv: Option<Recv>,
    /// Number of bytes that were asked for: the message's, as far as the receive has room.
    pub want: u64,
    /// Length of the message.
    pub len: u64,
    /// The message's remote data.
    pub data: Option<u64>,
    /// The sender wants a confirmation.
    pub ack: bool,
}

/// The state of a connection's further streams.
pub enum StreamsState {
    /// The sides have not agreed on further streams.
    None,
    /// There are no further streams, for this reason.
    Refused(Box<Error>),
    /// Up to this many streams may be asked for, once the tuner finds that further streams would help.
    OnDemand(u32),
    /// The dialer has sent DOOR, to ask for the port to dial.
    Asked(u32),
    /// The dialer knows the port, and dials when the first long body comes.
    MayDial { at: SocketAddr, token: u64, count: u32 },
    /// The dialer dials the streams, and gives up at `until`.
    Dialing { dials: Vec<Dial>, links: Vec<Link>, until: u64 },
    /// The listener waits until `until` for this many streams.
    Awaiting { count: u32, links: Vec<Link>, until: u64 },
    /// All streams are connected and may be used.
    Open,
}

/// The kernel's last reports on the peer; see `ops/keepalive.rs`.
#[derive(Default)]
pub struct Keepalive {
    /// The report of the first socket, then that of each further stream.
    pub health: Vec<Health>,
    /// The time of the next query, in ns.
    pub due: u64,
    /// The time, in ticks, of the last query, if everything that was sent was acknowledged then; 0: something was not.
    pub clear: u64,
}

/// A connection and everything that is outstanding on it. Guarded by the endpoint's lock.
pub struct Conn {
    pub fd: OwnedFd,
    pub peer: String,
    pub tx: Tx,
    pub rx: Rx,
    /// True if the connection's version has atomic operations.
    pub has_atomics: bool,
    /// True if the connection's version has lists.
    pub has_lists: bool,
    pub is_sealed: bool,
    /// For a lane: its membership in the domain's poll set.
    pub member: Option<Member>,
    /// The listener has received READY; at the dialer always true.
    pub ready: bool,
    pub is_dialer: bool,
    /// The reason for which the connection ends once everything that arrived before has been processed.
    pub end_reason: Option<Error>,

    /// Sequence of the last WRITE that was sent.
    pub sequence: u32,
    /// Sequence of the last WRITE that the peer has acknowledged.
    pub acked: u32,
    /// Operations that the peer has not acknowledged, in the order of their sequences.
    pub writes: VecDeque<WriteOp>,
    /// Operations that the peer has not answered, the oldest first.
    pub reads: VecDeque<ReadOp>,
    /// Messages that the receiver still has to answer by their numbers.
    pub sends: VecDeque<SentOp>,
    /// The last number that was given to a message.
    next_number: u64,
    /// Most messages that the peer lets this side send unmatched.
    window: u64,
    /// Most bytes of such messages.
    budget: u64,
    /// Messages, and bytes of whole messages, that were sent since the beginning.
    used: (u64, u64),
    /// The part of `used` that the peer has matched.
    pub freed: (u64, u64),

    /// Number of the peer's writes that were carried out.
    pub done: u32,
    /// The value of `done` in the last frame that was queued.
    acked_to_peer: u32,
    /// The peer waits for the acknowledgement.
    pub prompt: bool,
    /// Number of turns without an arrival.
    idle: u8,
    /// Most messages that this side lets the peer send unmatched.
    own_window: u64,
    /// Most bytes of such messages.
    own_budget: u64,
    /// Messages, and bytes of whole messages, that have arrived since the beginning.
    came: (u64, u64),
    /// The part of `came` that was matched with receives.
    matched: (u64, u64),
    /// The part of `matched` that the peer was told of.
    matched_reported: (u64, u64),
    /// Offers of the peer whose bytes this side has asked for.
    pub fetches: VecDeque<Fetch>,
    /// Number of bodies of answers that are queued in `tx`.
    pub answers: usize,
    /// Number of answers to READs of lists among `answers`.
    pub list_answers: usize,
    /// The state of the further streams.
    pub streams_state: StreamsState,
    /// Either side has begun a body that is long enough for further streams.
    pub wants_more: bool,
    /// The time at which the further streams were last examined.
    pub looked: u64,
    /// Decides whether further streams are used, where neither side has fixed their number.
    pub tuner: Option<Box<StreamTuner>>,
    pub keepalive: Keepalive,
    /// The key with which further connections to this peer are made.
    pub key: Option<Key>,
    /// Dials or accepts the rails, if the connection has several.
    pub connector: Option<Box<RailConnector>>,
    /// The region of the last operation. The next operation is often in the same region, which saves a lookup.
    pub region: Weak<Region>,
}

impl Conn {
    /// Makes the connection of a link. `ours`: the window and the budget that this side grants; `short`: the most bytes
    /// of one system call (fault injection); `rails`: the rails, none of them up, if the sides have agreed on rails.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        mut link: Link,
        member: Option<Member>,
        peer: String,
        theirs: &Terms,
        ours: (u32, u32),
        is_dialer: bool,
        short: Option<usize>,
        rails: Option<SharedRails>,
    ) -> Result<Conn> {
        let (version, is_sealed) = (link.version, link.seal.is_some());
        let key = link.key.take();
        let (fd, write_transport, read_transport) = ends_of(link, rails)?;
        Ok(Conn {
            fd,
            has_atomics: version >= ATOMICS_SINCE,
            has_lists: version >= LISTS_SINCE,
            is_sealed,
            peer,
            tx: Tx::new(short, write_transport),
            rx: Rx::new(short, read_transport),
            member,
            ready: is_dialer,
            is_dialer,
            end_reason: None,
            sequence: 0,
            acked: 0,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            sends: VecDeque::new(),
            next_number: 0,
            window: u64::from(theirs.window),
            budget: u64::from(theirs.budget),
            used: (0, 0),
            freed: (0, 0),
            done: 0,
            acked_to_peer: 0,
            prompt: false,
            idle: 0,
            own_window: u64::from(ours.0),
            own_budget: u64::from(ours.1),
            came: (0, 0),
            matched: (0, 0),
            matched_reported: (0, 0),
            fetches: VecDeque::new(),
            answers: 0,
            list_answers: 0,
            streams_state: StreamsState::None,
            wants_more: false,
            looked: 0,
            tuner: None,
            keepalive: Keepalive::default(),
            key,
            connector: None,
            region: Weak::new(),
        })
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The rails, if the connection has several.
    pub fn rails(&self) -> Option<SharedRails> {
        match self.tx.write_transport.as_ref() {
            Some(WriteTransport::Rails(rails)) => Some(rails.clone()),
            _ => None,
        }
    }

    /// True if sending waits for room in the first socket, and not in those of further streams.
    pub fn waits_for_room(&self) -> bool {
        self.tx.blocked && (self.tx.is_passing() || !(self.tx.streams.is_some() && self.tx.is_scattering()))
    }

    /// Number of operations of this side that have not completed.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.writes.len() + self.reads.len() + self.sends.len() + self.tx.ends()
    }

    /// True if an injected operation has to be refused for now, because the socket has no room. Nobody awaits the
    /// completion of such an operation, so no later call may come to send it.
    #[inline]
    pub fn keeps_back(&self, op_flags: u64) -> bool {
        self.tx.blocked & (op_flags & INJECT_FLAGS == INJECT_FLAGS)
    }

    /// True if queued frames may wait for further frames: they are too few for a system call of their own, and the last
    /// call was a moment ago.
    #[inline]
    pub fn may_batch(&self) -> bool {
        !self.tx.is_worth_a_call() && ticks().wrapping_sub(self.tx.last) < BATCH_TICKS
    }

    /// As `may_batch`, for a turn of progress, in which frames wait only while many writes are under way.
    #[inline]
    pub fn may_batch_in_turn(&self) -> bool {
        self.writes.len() >= BUSY_WRITES && self.may_batch()
    }

    /// Queues a frame's header, with the current acknowledgement in it.
    #[inline]
    pub fn put(&mut self, mut header: Header) {
        header.done = self.done;
        self.acked_to_peer = self.done;
        self.prompt = false;
        self.tx.put_header(&header);
    }

    /// Queues an answer of `len` bytes, which `bytes` appends. On an error nothing is queued.
    #[inline]
    pub fn answer<E>(&mut self, len: u64, bytes: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>) -> std::result::Result<(), E> {
        let before = self.tx.end();
        self.put(Header::new(Kind::Answered, 0, len));
        let added = self.tx.add(bytes);
        if added.is_err() {
            self.tx.take_back(before);
        }
        added
    }

    /// Queues a frame's header of `kind`, `flags` and `len`, followed by `words`.
    pub fn put_words(&mut self, kind: Kind, flags: u8, len: u64, words: &[u64]) {
        self.put(Header::new(kind, flags, len));
        words.iter().for_each(|w| self.tx.put_word(*w));
    }

    /// As `put`, followed by `words`.
    #[inline]
    pub fn put_with<const N: usize>(&mut self, mut header: Header, words: &[u64; N]) {
        header.done = self.done;
        self.acked_to_peer = self.done;
        self.prompt = false;
        self.tx.put_head(&header, words);
    }

    /// True if nothing waits to be sent, nothing that arrived is unhandled, and the connection is not ending.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.tx.is_empty() && !self.rx.is_amid() && self.end_reason.is_none()
    }

    /// True if a message of `len` bytes can be sent at once, without an offer.
    #[inline]
    pub fn may_go_whole(&self, len: u64) -> bool {
        self.has_window() && self.used.1 - self.freed.1 + len <= self.budget
    }

    /// True if an injected message has to be refused for now, because the peer's budget has no room for it until other messages are
    /// matched. A message longer than the whole budget is offered instead.
    pub fn waits_for_budget(&self, op_flags: u64, len: u64) -> bool {
        op_flags & INJECT_FLAGS == INJECT_FLAGS && len <= self.budget && !self.may_go_whole(len)
    }

    /// True if the peer's window has room for another message.
    #[inline]
    pub fn has_window(&self) -> bool {
        self.used.0 - self.freed.0 < self.window
    }

    /// Counts a message of `len` bytes against the window. True: the message is sent whole. False: the message is offered.
    #[inline]
    pub fn admit(&mut self, len: u64) -> bool {
        let whole = self.may_go_whole(len);
        self.used.0 += 1;
        self.used.1 += if whole { len } else { 0 };
        whole
    }

    /// Undoes `admit` for a message that could not be sent.
    pub fn take_back(&mut self, len: u64, whole: bool) {
        self.used.0 -= 1;
        self.used.1 -= if whole { len } else { 0 };
    }

    /// The number for the next message that the receiver is to answer.
    pub fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The write with this sequence number, if it has not been acknowledged.
    pub fn write(&mut self, sequence: u32) -> Option<&mut WriteOp> {
        self.writes.get_mut(sequence.wrapping_sub(self.acked).wrapping_sub(1) as usize)
    }

    /// Index in `sends` of the message with this number; `None`: the message has completed already. A number that was
    /// never given is an error.
    pub fn sent(&self, number: u64) -> Result<Option<usize>> {
        if number == 0 || number > self.next_number {
            return Err(protocol_error("the number of a message that this side never sent"));
        }
        Ok(self.sends.iter().position(|s| s.number == number))
    }

    /// Counts a message or an offer that arrived. Arrivals beyond the granted window or budget are an error.
    pub fn count_arrival(&mut self, bytes: u64) -> Result<()> {
        self.came.0 += 1;
        self.came.1 += bytes;
        if self.came.0 - self.matched_reported.0 > self.own_window || self.came.1 - self.matched_reported.1 > self.own_budget {
            return Err(protocol_error("more messages than this side's receive window allows"));
        }
        Ok(())
    }

    /// Counts a message that was matched with a receive. Tells the peer when a quarter of the window or of the budget
    /// has been matched.
    pub fn count_match(&mut self, bytes: u64) {
        self.matched.0 += 1;
        self.matched.1 += bytes;
        let news = (self.matched.0 - self.matched_reported.0, self.matched.1 - self.matched_reported.1);
        if news.0 >= self.own_window.div_ceil(4) || (news.1 > 0 && news.1 >= self.own_budget / 4) {
            self.report_matched();
        }
    }

    /// Tells the peer the totals of matched messages and bytes.
    fn report_matched(&mut self) {
        self.matched_reported = self.matched;
        self.put_words(Kind::Matched, 0, 0, &[self.matched.0, self.matched.1]);
    }

    /// Takes note that the peer has matched this many of this side's messages and bytes since the beginning.
    pub fn freed(&mut self, messages: u64, bytes: u64) -> Result<()> {
        if messages < self.freed.0 || bytes < self.freed.1 || messages > self.used.0 || bytes > self.used.1 {
            return Err(protocol_error("a count of matched messages that this side never sent"));
        }
        self.freed = (messages, bytes);
        Ok(())
    }

    /// Queues the acknowledgements that are due. `came`: something arrived in this turn; `now`: all acknowledgements
    /// are due, because this side may sleep.
    #[inline]
    pub fn send_acks(&mut self, came: bool, now: bool) {
        let owed = self.done.wrapping_sub(self.acked_to_peer);
        if owed == 0 && !now {
            return;
        }
        self.idle = if came { 0 } else { self.idle.saturating_add(1) };
        if owed > 0 && (self.prompt || now || owed >= ACK_AFTER || self.idle >= IDLE_TURNS) {
            self.put(Header::new(Kind::Nothing, 0, 0));
        }
        if now && self.matched != self.matched_reported {
            self.report_matched();
        }
    }

    /// True if the peer lacks the acknowledgement of writes that were carried out.
    pub fn owes_ack(&self) -> bool {
        self.done != self.acked_to_peer
    }

    /// Bounds the memory for answers. A peer that sends requests and does not read the answers breaks the protocol.
    pub fn check_unsent_answers(&self) -> Result<()> {
        if self.tx.waiting() > UNSENT_ANSWERS || self.answers > READS || self.list_answers > LIST_READS {
            return Err(protocol_error("requests without receiving the answers"));
        }
        Ok(())
    }
}

type Ends = (OwnedFd, Option<WriteTransport>, Option<ReadTransport>);

/// Splits a link into the connection's descriptor and transports. With rails, the descriptor is the epoll set of all
/// rails, and `link` becomes rail 0.
fn ends_of(link: Link, rails: Option<SharedRails>) -> Result<Ends> {
    if let Some(rails) = rails {
        let mut all = rails.lock();
        all.attach(0, 1, link)?;
        let fd = all.descriptor()?;
        drop(all);
        return Ok((fd, Some(WriteTransport::Rails(rails.clone())), Some(ReadTransport::Rails(rails))));
    }
    let Some(seal) = link.seal else { return Ok((link.socket, None, None)) };
    let write_transport = WriteTransport::Sealed(Box::new(SealedOut::new(seal.out, link.room)?));
    Ok((link.socket, Some(write_transport), Some(ReadTransport::Sealed(Box::new(SealedIn::new(seal.incoming))))))
}

const _: () = assert!(UNSENT_ANSWERS > WHOLE_MAX as usize);
