// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Further streams of a connection, for long bodies. Both sides agree on the streams when they connect, or later. The
//! dialer then dials the streams when the first long body comes, and sends STREAMS. From then on both sides use the
//! streams. If the streams cannot be set up, the first stream carries everything.
//!
//! If the number of streams is left to the library, `stream::tuner` decides whether further streams help, before they
//! are dialed and while they are used.

use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::bind::Options;
use crate::prov::tcp::conn::{Conn, StreamsState};
use crate::prov::tcp::handshake::acceptor::{HandshakeAcceptor, Request};
use crate::prov::tcp::handshake::dial::{Dial, Dialed};
use crate::prov::tcp::handshake::exchange::Link;
use crate::prov::tcp::handshake::socket_options::tune;
use crate::prov::tcp::secure::auth::Key;
use crate::prov::tcp::secure::sealed::SealedOut;
use crate::prov::tcp::state::State;
use crate::prov::tcp::stream::gather::Gather;
use crate::prov::tcp::stream::scatter::Scatter;
use crate::prov::tcp::stream::tuner::StreamTuner;
use crate::prov::tcp::wire::address::Address;
use crate::prov::tcp::wire::frame::{Header, Kind, STRIPED_MIN, protocol_error};
use crate::prov::tcp::wire::hello::{LATER_SINCE, Purpose, Terms};
use crate::sys::epoll::Poller;
use crate::sys::health::Tally;
use crate::sys::{process, tcp, time};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// Least time between two looks at the streams, which change rarely.
const LOOK_NS: u64 = 1_000_000;
/// Most unsent bytes that the kernel holds for a further stream. Bytes in one socket's buffer cannot go over another stream.
const UNSENT: i32 = 128 << 10;
/// Number of streams that the library asks for if neither an option nor a variable gives a number.
const AUTOMATIC: u32 = 4;

/// Number of streams that this side wants. True: only after the tuner has found that further streams would help.
pub fn wanted(options: &Options) -> (u32, bool) {
    match options.tcp_streams.unwrap_or(config::get().tcp.streams) {
        0 => (AUTOMATIC, true),
        1 => (0, false),
        n => (n, false),
    }
}

/// A listener's answer to a dialer that wants further streams.
pub enum StreamsOffer {
    None,
    /// Up to this many, as soon as the tuner of one side finds that further streams would help.
    Later(u32),
    /// This many, at the port of the acceptor; the dialer must name the token.
    Now(u32, u64, Box<HandshakeAcceptor>),
}

/// Decides on the answer to the dialer's wish, and listens if further streams may be dialed now.
pub fn offer(request: &Request, options: &Options) -> StreamsOffer {
    let ((count, later), terms) = (wanted(options), request.terms());
    let count = count.min(terms.streams);
    let Some(at) = request.called_at().filter(|_| count > 0) else { return StreamsOffer::None };
    if later || terms.later {
        let may = request.version() >= LATER_SINCE && !is_here(at.ip(), request.peer().ip());
        return if may { StreamsOffer::Later(count) } else { StreamsOffer::None };
    }
    match listen_for_streams(at, request.key()) {
        Ok((token, acceptor)) => StreamsOffer::Now(count, token, Box::new(acceptor)),
        Err(e) => {
            crate::log!(Info, "no additional streams: cannot listen for them: {e}");
            StreamsOffer::None
        }
    }
}

/// Listens for further streams. Returns the token that the dialer must name.
fn listen_for_streams(mut at: SocketAddr, key: Option<Key>) -> Result<(u64, HandshakeAcceptor)> {
    at.set_port(0);
    let mut raw = [0; 8];
    process::random(&mut raw)?;
    let token = u64::from_le_bytes(raw).max(1);
    Ok((token, HandshakeAcceptor::listen(at, Purpose::Stream, token, key)?))
}

/// True if both ends are on this host, so that no network lies between them.
fn is_here(own: IpAddr, peer: IpAddr) -> bool {
    own == peer || peer.is_loopback()
}

impl StreamsOffer {
    /// Writes the offer into the terms of ANSWER.
    pub fn write_to(&self, terms: &mut Terms) {
        match self {
            StreamsOffer::None => {}
            StreamsOffer::Later(count) => (terms.streams, terms.later) = (*count, true),
            StreamsOffer::Now(count, token, acceptor) => (terms.streams, terms.door) = (*count, (acceptor.local().port(), *token)),
        }
    }
}

impl State {
    /// Keeps the offer, after ANSWER with the offer was sent: the connection's state awaits what was offered.
    pub fn keep_offer(&mut self, offer: StreamsOffer) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        match offer {
            StreamsOffer::None => {}
            StreamsOffer::Later(count) => conn.start_tuning(count),
            StreamsOffer::Now(count, _, acceptor) => {
                conn.streams_state = StreamsState::Awaiting { count, links: Vec::new(), until: u64::MAX };
                self.acceptor = Some(*acceptor);
            }
        }
    }
}

/// The time at which the dialer of further streams must have connected, counted from now.
fn greeting_deadline() -> u64 {
    time::now_ns() + config::get().debug.tcp_greeting_ms.saturating_mul(1_000_000)
}

impl Conn {
    /// Acts on the listener's answer about further streams.
    pub fn agree(&mut self, terms: &Terms, options: &Options) {
        match terms.streams {
            0 if wanted(options).0 > 0 && terms.rails.is_empty() && !self.is_near() => {
                self.streams_state = StreamsState::Refused(Box::new(Error::fixed(errno::EOPNOTSUPP, "the peer uses none")));
            }
            0 => {}
            count if terms.later => self.start_tuning(count),
            count => self.may_dial(count, terms.door),
        }
    }

    /// Lets the dialer dial further streams once a long body comes.
    fn may_dial(&mut self, count: u32, (port, token): (u16, u64)) {
        if let Ok(mut at) = tcp::peer(self.socket()) {
            at.set_port(port);
            self.streams_state = StreamsState::MayDial { at, token, count };
        }
    }

    /// True if both ends of the connection are on this host.
    fn is_near(&self) -> bool {
        let ends = (tcp::local(self.socket()), tcp::peer(self.socket()));
        matches!(ends, (Ok(own), Ok(peer)) if is_here(own.ip(), peer.ip()))
    }

    /// Lets the tuner watch the connection, so that it can ask for up to `count` further streams.
    fn start_tuning(&mut self, count: u32) {
        self.tuner = Some(Box::new(StreamTuner::new()));
        self.streams_state = match self.is_near() {
            false => StreamsState::OnDemand(count),
            // The socket's other end is on this host, so more sockets do not help. If the other end is a relay, the
            // peer sees a network and may still ask for streams.
            true => StreamsState::Refused(Box::new(Error::fixed(errno::EOPNOTSUPP, "the peer is on this host"))),
        };
    }

    /// Ends the search for further streams of this connection; `why` is for reports.
    fn refuse_more(&mut self, why: Error) {
        crate::log!(Info, "no additional streams to {}: {why}", self.peer);
        self.streams_state = StreamsState::Refused(Box::new(why));
    }

    /// The kernel's counters, summed over all sockets of the connection.
    fn tally(&self) -> Option<Tally> {
        let mut sum = Tally::of(self.socket())?;
        if let Some(streams) = &self.rx.streams {
            streams.each(false, |_, fd, _| {
                let of = Tally::of(fd).unwrap_or_default();
                sum.acked += of.acked;
                sum.queued += of.queued;
            });
        }
        Some(sum)
    }

    /// A line of text about the streams, for people; empty if there is nothing to say.
    pub fn streams_lines(&self) -> String {
        let why = self.tuner.as_ref().map_or(String::new(), |tuner| tuner.words());
        let count = self.rx.streams.as_ref().map_or(0, |streams| streams.count());
        match &self.streams_state {
            StreamsState::None | StreamsState::MayDial { .. } => String::new(),
            StreamsState::Refused(e) => format!("  no additional streams: {e}\n"),
            StreamsState::Open if why.is_empty() => {
                format!("  transfers of 256 KiB and more of host memory use {count} additional streams\n")
            }
            StreamsState::Open if self.tuner.as_ref().is_some_and(|tuner| tuner.uses()) => {
                format!("  transfers of 256 KiB and more of host memory use {count} additional streams: {why}\n")
            }
            StreamsState::Open => format!("  {count} additional streams are not used now: {why}\n"),
            _ if why.is_empty() => String::new(),
            _ => format!("  {why}\n"),
        }
    }

    /// Takes the links of all streams. Both directions may use the streams from now on.
    fn open_streams(&mut self, links: Vec<Link>) -> Result<()> {
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        for Link { socket, seal, room, .. } in links {
            if let Err(e) = tune(socket.as_fd()).and_then(|()| tcp::set_unsent(socket.as_fd(), UNSENT)) {
                crate::log!(Info, "an additional stream: {e}");
            }
            let fd = Arc::new(socket);
            let (out, incoming) = seal.map_or((None, None), |seal| (Some(seal.out), Some(seal.incoming)));
            ins.push((fd.clone(), incoming));
            outs.push((fd, out.map(|half| SealedOut::new(half, room)).transpose()?));
        }
        self.rx.streams = Some(Box::new(Gather::new(ins)));
        self.tx.streams = Some(Box::new(Scatter::new(outs)));
        if let Some(tuner) = &mut self.tuner {
            tuner.open();
            crate::log!(Info, "additional streams to {}: {}", self.peer, tuner.words());
        }
        self.streams_state = StreamsState::Open;
        Ok(())
    }

    /// Watches the sockets of the streams that have not ended.
    pub fn watch_streams(&self, poller: &Poller) -> Result<()> {
        let Some(streams) = &self.rx.streams else { return Ok(()) };
        let scattering = self.tx.is_scattering();
        let mut result = Ok(());
        streams.each(self.rx.is_gathering(), |index, fd, read| {
            let write = scattering && self.tx.streams.as_ref().is_some_and(|streams| streams.is_blocked(index));
            if result.is_ok() && !streams.is_over() {
                result = poller.watch_for(fd, read, write);
            } else if read || write {
                // A hung-up socket would wake the thread again and again, so it is not watched; the streams are
                // examined often instead (`streams_nap_ns`).
                poller.remove(fd);
            }
        });
        result
    }

    /// Undoes `watch_streams`.
    pub fn forget_streams(&self, poller: &Poller) {
        if let Some(streams) = &self.rx.streams {
            streams.each(false, |_, fd, _| poller.remove(fd));
        }
    }

    /// A value that changes when other sockets, or other events of them, are to be watched.
    pub fn watched_streams(&self) -> u64 {
        let Some(streams) = &self.rx.streams else { return 0 };
        let scattering = self.tx.is_scattering();
        let mut sum = u64::from(streams.is_over());
        streams.each(self.rx.is_gathering(), |index, fd, read| {
            let write = scattering && self.tx.streams.as_ref().is_some_and(|streams| streams.is_blocked(index));
            sum = sum.rotate_left(7) ^ (fd.as_raw_fd() as u64) << 2 ^ u64::from(read) << 1 ^ u64::from(write);
        });
        sum
    }

    /// The time that a thread may sleep before `look_at_streams` is due.
    pub fn streams_nap_ns(&self) -> u64 {
        let looked_at = matches!(self.streams_state, StreamsState::Dialing { .. })
            || (self.wants_more && matches!(self.streams_state, StreamsState::MayDial { .. }));
        match &self.rx.streams {
            Some(streams) if streams.is_over() || (self.end_reason.is_some() && self.rx.is_gathering()) => 5 * LOOK_NS,
            _ if looked_at => LOOK_NS,
            // If the dialer does not come, the listening socket has to be closed in time.
            _ if matches!(self.streams_state, StreamsState::Awaiting { until, .. } if until != u64::MAX) => 100 * LOOK_NS,
            _ => u64::MAX,
        }
    }

    /// Prepares a body for sending: cuts it into stripes, if it is long enough and further streams are in use.
    pub fn body(&mut self, mut body: crate::prov::tcp::stream::body::Body) -> crate::prov::tcp::stream::body::Body {
        if body.len >= STRIPED_MIN {
            self.wants_more = true;
            let uses = self.tuner.as_mut().is_none_or(|tuner| {
                if Scatter::takes(&body) {
                    tuner.note_body();
                }
                tuner.uses()
            });
            if let Some(streams) = self.tx.streams.as_mut().filter(|_| uses) {
                streams.cut_up(&mut body);
            }
        }
        body
    }
}

impl State {
    /// Advances the setting up of further streams, and finds streams that have ended.
    #[cold]
    pub fn look_at_streams(&mut self, now: u64) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if now.wrapping_sub(conn.looked) < LOOK_NS {
            return;
        }
        conn.looked = now;
        match &mut conn.streams_state {
            StreamsState::None | StreamsState::Refused(_) | StreamsState::OnDemand(_) | StreamsState::Asked(_) => {}
            StreamsState::Open => {
                if let Some(Err(e)) = conn.rx.streams.as_mut().map(|streams| streams.check(now)) {
                    conn.end_reason.get_or_insert(e);
                }
            }
            StreamsState::MayDial { at, token, count } if conn.wants_more => {
                let (to, token, count) = (Address::of(*at, None), *token, *count);
                let from = tcp::local(conn.socket()).map(|at| SocketAddr::new(at.ip(), 0)).ok();
                let dial = |_| Dial::new(&to, from, Purpose::Stream, token, Terms::default(), conn.key.clone());
                match (0..count).map(dial).collect() {
                    Ok(dials) => conn.streams_state = StreamsState::Dialing { dials, links: Vec::new(), until: greeting_deadline() },
                    Err(e) => self.give_up_streams(e),
                }
            }
            StreamsState::MayDial { .. } => {}
            StreamsState::Dialing { dials, links, until } => match advance_dials(dials, links, now > *until) {
                Ok(false) => {}
                Ok(true) => {
                    let links = std::mem::take(links);
                    let count = links.len() as u64;
                    match conn.open_streams(links) {
                        Ok(()) => {
                            conn.put(Header::new(Kind::Streams, 0, count));
                            self.flush();
                        }
                        Err(e) => self.give_up_streams(e),
                    }
                }
                Err(e) => self.give_up_streams(e),
            },
            // The dialer has not connected in time. If all streams are connected, STREAMS is here or on its way.
            StreamsState::Awaiting { count, links, until } if now > *until && (links.len() as u32) < *count => {
                conn.refuse_more(Error::fixed(errno::ETIMEDOUT, "the peer did not connect them in time"));
                self.acceptor = None;
            }
            StreamsState::Awaiting { count, links, .. } => {
                let requests = self.acceptor.as_mut().map_or(Vec::new(), HandshakeAcceptor::poll);
                // Streams whose dialer has hung up are removed.
                let fds: Vec<_> = links.iter().map(|link| link.socket.as_fd()).collect();
                let mut hung = tcp::hung_up(&fds).into_iter();
                links.retain(|_| !hung.next().unwrap_or(false));
                for request in requests {
                    // A request beyond the agreed number is dropped, which rejects it.
                    if (links.len() as u32) < *count {
                        match request.accept(Terms::default()) {
                            Ok(link) => links.push(link),
                            Err(e) => crate::log!(Info, "an additional stream: {e}"),
                        }
                    }
                }
            }
        }
    }

    /// Gives up the dialing of streams. DOOR tells the listener, so that it does not wait for the streams.
    fn give_up_streams(&mut self, why: Error) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        conn.refuse_more(why);
        if conn.tuner.is_some() {
            conn.put_words(Kind::Door, 0, 0, &[0, 0]);
            self.flush();
        }
    }

    /// Lets the tuner look at the connection, and asks for further streams once the tuner finds that they would help.
    #[cold]
    pub fn tune_streams(&mut self, now: u64) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if matches!(conn.streams_state, StreamsState::Refused(_)) || !conn.tuner.as_ref().is_some_and(|tuner| tuner.is_due(now)) {
            return;
        }
        let (Some(sum), Some(tuner)) = (conn.tally(), &mut conn.tuner) else { return };
        if !tuner.look(now, &sum, conn.tx.is_in_stripes(), conn.tx.blocked) {
            return;
        }
        let StreamsState::OnDemand(count) = conn.streams_state else { return };
        crate::log!(Info, "requesting additional streams to {}: {}", conn.peer, tuner.words());
        let peer = tcp::peer(conn.socket()).map(|at| at.ip());
        if peer.is_ok_and(|ip| tcp::interfaces().is_ok_and(|all| all.iter().any(|i| i.ip == ip))) {
            conn.refuse_more(Error::fixed(errno::EOPNOTSUPP, "the peer is on this host"));
        } else if conn.is_dialer {
            conn.streams_state = StreamsState::Asked(count);
            conn.put_words(Kind::Door, 0, count.into(), &[0, 0]);
        } else {
            return self.invite(count);
        }
        self.flush();
    }

    /// The listener's side: listens for streams, at most once in the life of a connection, and sends DOOR with port and token.
    pub fn invite(&mut self, count: u32) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        let opened = tcp::local(conn.socket()).and_then(|at| listen_for_streams(at, conn.key.clone()));
        let (count, port, token) = match opened {
            Ok((token, acceptor)) => {
                conn.streams_state =
                    StreamsState::Awaiting { count, links: Vec::new(), until: greeting_deadline() + greeting_deadline() - time::now_ns() };
                let port = acceptor.local().port();
                self.acceptor = Some(acceptor);
                (count, port, token)
            }
            Err(e) => {
                conn.refuse_more(e);
                (0, 0, 0)
            }
        };
        conn.put_words(Kind::Door, 0, count.into(), &[port.into(), token]);
        self.flush();
        if self.sleepers > 0 {
            // The sleeping threads do not watch the new listening socket yet.
            self.bind.wake_sleepers();
        }
    }

    /// Handles DOOR. The dialer's DOOR asks for a port, or (count 0) says that the dialer has given up. The listener's DOOR
    /// has port and token, or (count 0) is a refusal.
    pub fn on_door(&mut self, count: u64, port: u64, token: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        if conn.tuner.is_none() {
            return Err(protocol_error("a request for additional streams, which were not negotiated"));
        }
        if !conn.is_dialer {
            match conn.streams_state {
                StreamsState::OnDemand(most) if (1..=u64::from(most)).contains(&count) => self.invite(count as u32),
                StreamsState::Awaiting { .. } if count == 0 => {
                    conn.refuse_more(Error::fixed(errno::ECONNREFUSED, "the peer could not connect them"));
                    self.acceptor = None;
                }
                // The dialer's request was answered already, or the frames of the two sides crossed.
                _ => {}
            }
            return Ok(());
        }
        let most = match conn.streams_state {
            StreamsState::OnDemand(most) | StreamsState::Asked(most) => most,
            // This side wants no streams. The listener closes its port when nobody has dialed in time.
            StreamsState::Refused(_) => return Ok(()),
            _ => return Err(protocol_error("a second answer to a request for additional streams")),
        };
        match (count, u16::try_from(port)) {
            (0, _) => conn.refuse_more(Error::fixed(errno::ECONNREFUSED, "the peer could not open a port for them")),
            (1.., Ok(port @ 1..)) if count <= u64::from(most) => {
                conn.may_dial(count as u32, (port, token));
                conn.wants_more = true;
            }
            _ => return Err(protocol_error("an invalid number of additional streams, or an invalid port for them")),
        }
        Ok(())
    }

    /// Handles STREAMS: the dialer has connected all streams.
    pub fn on_streams(&mut self, count: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        match std::mem::replace(&mut conn.streams_state, StreamsState::None) {
            StreamsState::Awaiting { links, .. } if count > 0 && count == links.len() as u64 => conn.open_streams(links)?,
            _ => return Err(protocol_error("a wrong number of additional streams")),
        }
        self.acceptor = None;
        Ok(())
    }
}

/// Advances dials. True: the listener has accepted all of them.
fn advance_dials(dials: &mut Vec<Dial>, links: &mut Vec<Link>, late: bool) -> Result<bool> {
    for mut dial in std::mem::take(dials) {
        match dial.advance()? {
            Dialed::Waiting => dials.push(dial),
            Dialed::Accepted { link, .. } => links.push(link),
            Dialed::Rejected(_) => return Err(Error::fixed(errno::ECONNREFUSED, "the peer accepts no more of them")),
        }
    }
    match late && !dials.is_empty() {
        true => Err(Error::fixed(errno::ETIMEDOUT, "the peer did not accept them in time")),
        false => Ok(dials.is_empty()),
    }
}
