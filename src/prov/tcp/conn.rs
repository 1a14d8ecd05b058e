// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live connection: what this side has asked of the peer and not heard of yet, and what it owes the peer.

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

/// READs that may wait for their answers.
pub const READS: usize = 1024;
/// READs of lists among them.
pub const LIST_READS: usize = 4;
/// Ticks within which operations wait for company: some microseconds, as long as a call takes.
const BATCH_TICKS: u64 = 8_000;
/// Acknowledgements that are sent without being asked for.
const ACK_AFTER: u32 = 64;
/// Writes under way from which on the peer has enough to do: others wait for company.
const BUSY_WRITES: usize = 32;
/// Turns in which nothing came, after which they are sent.
const IDLE_TURNS: u8 = 2;
/// Bytes of answers that a peer may leave untaken.
const UNSENT_ANSWERS: usize = 8 << 20;

/// How far a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStatus {
    /// Its end has not been told.
    Pending,
    /// Its success was told when its bytes were out.
    Reported,
    /// Its end was told otherwise.
    Ended,
}

/// A WRITE that was not acknowledged yet.
pub struct WriteOp {
    pub end: Ending,
    pub at: RemoteAddr,
    pub status: WriteStatus,
    pub refused: Option<Box<Error>>,
}

/// A READ that was not answered yet.
pub struct ReadOp {
    pub end: Ending,
    pub at: RemoteAddr,
    pub pieces: Pieces,
    pub site: Site,
    /// Its end was told; what comes is left out.
    pub over: bool,
}

/// A message under a number: offered, or on its way and awaited at the other end.
pub struct SentOp {
    pub number: u64,
    pub end: Ending,
    pub ack: bool,
    /// What was offered, until it is taken.
    pub offered: Option<Offered>,
}

pub struct Offered {
    pub pieces: Pieces,
    pub site: Site,
    pub owned: Option<Box<[u8]>>,
    pub len: u64,
}

/// A receive that has asked for an offer's bytes.
pub struct Fetch {
    pub number: u64,
    /// None: it was given up meanwhile.
    pub recv: Option<Recv>,
    /// Bytes that were asked for, and that the message has.
    pub want: u64,
    pub len: u64,
    pub data: Option<u64>,
    pub ack: bool,
}

/// How a connection stands with further streams.
pub enum StreamsState {
    None,
    /// There are none, for this reason.
    Refused(Box<Error>),
    /// So many may be asked for, once they would help.
    OnDemand(u32),
    /// The dialer has asked the listener where to call.
    Asked(u32),
    /// The dialer may call for them.
    MayDial {
        at: SocketAddr,
        token: u64,
        count: u32,
    },
    Dialing {
        dials: Vec<Dial>,
        links: Vec<Link>,
        until: u64,
    },
    /// The listener waits for so many, in time.
    Awaiting {
        count: u32,
        links: Vec<Link>,
        until: u64,
    },
    Open,
}

/// What the kernel has said of the peer, which `keepalive` asks.
#[derive(Default)]
pub struct Keepalive {
    /// Of the first stream and the others.
    pub health: Vec<Health>,
    /// When the kernel is asked next.
    pub due: u64,
    /// In ticks, when it had nothing on its way; 0: it had something.
    pub clear: u64,
}

pub struct Conn {
    pub fd: OwnedFd,
    pub peer: String,
    pub tx: Tx,
    pub rx: Rx,
    /// Whether the version that both speak has them.
    pub has_atomics: bool,
    pub has_lists: bool,
    pub is_sealed: bool,
    /// Of a lane: among the domain's other lanes.
    pub member: Option<Member>,
    /// The dialer has said READY, or this side is the dialer.
    pub ready: bool,
    pub is_dialer: bool,
    /// It is over, as soon as what came before the end has been taken.
    pub dying: Option<Error>,

    pub sequence: u32,
    pub acked: u32,
    pub writes: VecDeque<WriteOp>,
    pub reads: VecDeque<ReadOp>,
    pub sends: VecDeque<SentOp>,
    next_number: u64,
    /// What the peer grants, what was used of it since the beginning, and what it gave back.
    window: u64,
    budget: u64,
    used: (u64, u64),
    pub freed: (u64, u64),

    pub done: u32,
    told: u32,
    pub prompt: bool,
    idle: u8,
    /// What this side grants; messages and bytes that came, that left the window, and that the peer was told of.
    own_window: u64,
    own_budget: u64,
    came: (u64, u64),
    matched: (u64, u64),
    matched_told: (u64, u64),
    pub fetches: VecDeque<Fetch>,
    pub answers: usize,
    /// Those of lists among them.
    pub list_answers: usize,
    /// Further streams; whether there was a body for them, and when they were last looked at.
    pub streams_state: StreamsState,
    pub wants_more: bool,
    pub looked: u64,
    /// Whether they would help, where that decides.
    pub tuner: Option<Box<StreamTuner>>,
    pub keepalive: Keepalive,
    /// What further connections with this peer begin with.
    pub key: Option<Key>,
    /// What keeps its rails, if it has several.
    pub connector: Option<Box<RailConnector>>,
    /// The region of the last operation: the next one is often in it too.
    pub region: Weak<Region>,
}

impl Conn {
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
            dying: None,
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
            told: 0,
            prompt: false,
            idle: 0,
            own_window: u64::from(ours.0),
            own_budget: u64::from(ours.1),
            came: (0, 0),
            matched: (0, 0),
            matched_told: (0, 0),
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

    /// Its rails, if it has several.
    pub fn rails(&self) -> Option<SharedRails> {
        match self.tx.write_transport.as_ref() {
            Some(WriteTransport::Rails(rails)) => Some(rails.clone()),
            _ => None,
        }
    }

    /// Whether the first stream is what there is no room in.
    pub fn waits_for_room(&self) -> bool {
        self.tx.blocked && (self.tx.is_passing() || !(self.tx.streams.is_some() && self.tx.is_scattering()))
    }

    /// Operations of this side that have not ended.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.writes.len() + self.reads.len() + self.sends.len() + self.tx.ends()
    }

    /// Whether an operation would wait for room in the socket although nobody comes back for it: its caller asks again.
    #[inline]
    pub fn keeps_back(&self, op_flags: u64) -> bool {
        self.tx.blocked & (op_flags & INJECT_FLAGS == INJECT_FLAGS)
    }

    /// Whether what waits gains by waiting for company: operations follow one another faster than calls can be made, or
    /// many are under way already.
    #[inline]
    pub fn may_batch(&self) -> bool {
        !self.tx.is_worth_a_call() && ticks().wrapping_sub(self.tx.last) < BATCH_TICKS
    }

    /// As `may_batch`, for what waits already when this side looks at its queues.
    #[inline]
    pub fn may_batch_in_turn(&self) -> bool {
        self.writes.len() >= BUSY_WRITES && self.may_batch()
    }

    /// Queues a frame's header, which carries what this side has carried out.
    #[inline]
    pub fn put(&mut self, mut header: Header) {
        header.done = self.done;
        self.told = self.done;
        self.prompt = false;
        self.tx.put_header(&header);
    }

    /// Queues an answer of `len` bytes that `bytes` adds; if they cannot be had, nothing.
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

    pub fn put_words(&mut self, kind: Kind, flags: u8, len: u64, words: &[u64]) {
        self.put(Header::new(kind, flags, len));
        words.iter().for_each(|w| self.tx.put_word(*w));
    }

    /// As `put`, with words behind it.
    #[inline]
    pub fn put_with<const N: usize>(&mut self, mut header: Header, words: &[u64; N]) {
        header.done = self.done;
        self.told = self.done;
        self.prompt = false;
        self.tx.put_head(&header, words);
    }

    /// Whether nothing waits here, to be sent, taken or ended.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.tx.is_empty() && !self.rx.is_amid() && self.dying.is_none()
    }

    /// Whether a message of `len` bytes need not be offered.
    #[inline]
    pub fn may_go_whole(&self, len: u64) -> bool {
        self.has_window() && self.used.1 - self.freed.1 + len <= self.budget
    }

    /// Whether an injected message would have to be offered, which its caller may not come back for, until the peer has taken
    /// others; one that no budget holds is offered all the same.
    pub fn waits_for_budget(&self, op_flags: u64, len: u64) -> bool {
        op_flags & INJECT_FLAGS == INJECT_FLAGS && len <= self.budget && !self.may_go_whole(len)
    }

    /// Whether the peer takes another message.
    #[inline]
    pub fn has_window(&self) -> bool {
        self.used.0 - self.freed.0 < self.window
    }

    /// Counts a message of `len` bytes: true if it may go whole, else it is to be offered.
    #[inline]
    pub fn admit(&mut self, len: u64) -> bool {
        let whole = self.may_go_whole(len);
        self.used.0 += 1;
        self.used.1 += if whole { len } else { 0 };
        whole
    }

    /// One that was admitted did not go after all.
    pub fn take_back(&mut self, len: u64, whole: bool) {
        self.used.0 -= 1;
        self.used.1 -= if whole { len } else { 0 };
    }

    pub fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The write of this sequence, if it has not been acknowledged.
    pub fn write(&mut self, sequence: u32) -> Option<&mut WriteOp> {
        self.writes.get_mut(sequence.wrapping_sub(self.acked).wrapping_sub(1) as usize)
    }

    /// Where the message of this number stands; `None`: its end was told otherwise. One that was never sent is an error.
    pub fn sent(&self, number: u64) -> Result<Option<usize>> {
        if number == 0 || number > self.next_number {
            return Err(protocol_error("the number of a message that was never sent"));
        }
        Ok(self.sends.iter().position(|s| s.number == number))
    }

    /// A message came, with bytes or as an offer.
    pub fn count_arrival(&mut self, bytes: u64) -> Result<()> {
        self.came.0 += 1;
        self.came.1 += bytes;
        if self.came.0 - self.matched_told.0 > self.own_window || self.came.1 - self.matched_told.1 > self.own_budget {
            return Err(protocol_error("more messages than it was granted"));
        }
        Ok(())
    }

    /// A message has left the window.
    pub fn count_match(&mut self, bytes: u64) {
        self.matched.0 += 1;
        self.matched.1 += bytes;
        let news = (self.matched.0 - self.matched_told.0, self.matched.1 - self.matched_told.1);
        if news.0 >= self.own_window.div_ceil(4) || (news.1 > 0 && news.1 >= self.own_budget / 4) {
            self.tell_matched();
        }
    }

    fn tell_matched(&mut self) {
        self.matched_told = self.matched;
        self.put_words(Kind::Matched, 0, 0, &[self.matched.0, self.matched.1]);
    }

    /// What the peer gave back.
    pub fn freed(&mut self, messages: u64, bytes: u64) -> Result<()> {
        if messages < self.freed.0 || bytes < self.freed.1 || messages > self.used.0 || bytes > self.used.1 {
            return Err(protocol_error("a report of messages that were never sent"));
        }
        self.freed = (messages, bytes);
        Ok(())
    }

    /// Queues what the peer waits for. `came`: something arrived in this turn; `now`: all of it, since this side may sleep.
    #[inline]
    pub fn send_acks(&mut self, came: bool, now: bool) {
        let owed = self.done.wrapping_sub(self.told);
        if owed == 0 && !now {
            return;
        }
        self.idle = if came { 0 } else { self.idle.saturating_add(1) };
        if owed > 0 && (self.prompt || now || owed >= ACK_AFTER || self.idle >= IDLE_TURNS) {
            self.put(Header::new(Kind::Nothing, 0, 0));
        }
        if now && self.matched != self.matched_told {
            self.tell_matched();
        }
    }

    /// Whether the peer is owed something that it may wait for.
    pub fn owes_ack(&self) -> bool {
        self.done != self.told
    }

    /// A peer that asks and does not take the answers cannot have our memory for it.
    pub fn check_unsent_answers(&self) -> Result<()> {
        if self.tx.waiting() > UNSENT_ANSWERS || self.answers > READS || self.list_answers > LIST_READS {
            return Err(protocol_error("more than it takes answers to"));
        }
        Ok(())
    }
}

type Ends = (OwnedFd, Option<WriteTransport>, Option<ReadTransport>);

/// What a connection reads and writes by. With rails its descriptor is that of them all, and `link` the first of them.
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
    Ok((link.socket, Some(write_transport), Some(ReadTransport::Sealed(Box::new(SealedIn::new(seal.come))))))
}

const _: () = assert!(UNSENT_ANSWERS > WHOLE_MAX as usize);
