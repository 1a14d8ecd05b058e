// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Further streams of a connection, for long bodies: agreed on when it begins, called for by the dialer once there is a
//! body that is long enough, and used from its word on that all of them are there. Where they cannot be had, the first
//! stream carries everything.

use super::address::Address;
use super::conn::{Conn, More};
use super::dial::{Dial, Dialed};
use super::frame::{Header, Kind, STRIPED_MIN, broken};
use super::gather::Gather;
use super::greeter::{Greeter, Request};
use super::hello::{Purpose, Terms};
use super::scatter::Scatter;
use super::sealed::SealedOut;
use super::shake::Link;
use super::state::State;
use super::tune::tune;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::bind::Options;
use crate::sys::epoll::Poller;
use crate::sys::{process, tcp};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// Time between two looks at sockets that have mostly nothing to say.
const LOOK_NS: u64 = 1_000_000;
/// Bytes that such a stream takes ahead of what it can send: what it has, no other can carry.
const UNSENT: i32 = 128 << 10;

/// How many this side would use.
pub fn wanted(options: &Options) -> u32 {
    match options.tcp_streams.unwrap_or(config::get().tcp.streams) {
        1 => 0,
        n => n,
    }
}

/// A door for the streams of who asks to connect; none where one side wants none, or it cannot be had.
pub fn door(request: &Request, options: &Options) -> Option<(u32, u64, Greeter)> {
    let count = request.terms().streams.min(wanted(options));
    let mut at = request.called_at().filter(|_| count > 0)?;
    at.set_port(0);
    let open = || {
        let mut raw = [0; 8];
        process::random(&mut raw)?;
        let token = u64::from_le_bytes(raw).max(1);
        Ok((count, token, Greeter::listen(at, Purpose::Stream, token, request.key())?))
    };
    open().map_err(|e: Error| crate::log!(Info, "no further streams: {e}")).ok()
}

impl More {
    /// What a dialer may do by what the listener has answered.
    pub fn of(terms: &Terms, conn: &Conn) -> More {
        let (port, token) = terms.door;
        match tcp::peer(conn.socket()) {
            Ok(mut at) if terms.streams > 0 => {
                at.set_port(port);
                More::Could { at, token, count: terms.streams }
            }
            _ => More::None,
        }
    }
}

impl Conn {
    /// The streams are there: from now on both sides may use them.
    fn open_streams(&mut self, links: Vec<Link>) -> Result<()> {
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        for Link { socket, seal, room, .. } in links {
            if let Err(e) = tune(socket.as_fd()).and_then(|()| tcp::set_unsent(socket.as_fd(), UNSENT)) {
                crate::log!(Info, "a further stream: {e}");
            }
            let fd = Arc::new(socket);
            let (out, come) = seal.map_or((None, None), |seal| (Some(seal.out), Some(seal.come)));
            ins.push((fd.clone(), come));
            outs.push((fd, out.map(|half| SealedOut::new(half, room)).transpose()?));
        }
        self.rx.streams = Some(Box::new(Gather::new(ins)));
        self.tx.streams = Some(Box::new(Scatter::new(outs)));
        self.more = More::Open;
        Ok(())
    }

    /// Watches them; a stream that is over has nothing more to tell.
    pub fn watch_streams(&self, poller: &Poller) -> Result<()> {
        let Some(streams) = &self.rx.streams else { return Ok(()) };
        let scattering = self.tx.is_scattering();
        let mut result = Ok(());
        streams.each(self.rx.is_gathering(), |index, fd, read| {
            let write = scattering && self.tx.streams.as_ref().is_some_and(|streams| streams.is_blocked(index));
            if result.is_ok() && !streams.is_over() {
                result = poller.watch_for(fd, read, write);
            } else if read || write {
                // Hung up, which would wake at once: looked at often instead.
                poller.remove(fd);
            }
        });
        result
    }

    pub fn forget_streams(&self, poller: &Poller) {
        if let Some(streams) = &self.rx.streams {
            streams.each(false, |_, fd, _| poller.remove(fd));
        }
    }

    /// Changes when there is something else to watch.
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

    /// How long a sleeper may sleep before they want to be looked at.
    pub fn streams_nap_ns(&self) -> u64 {
        let looked_at = matches!(self.more, More::Calling { .. }) || (self.wants_more && matches!(self.more, More::Could { .. }));
        match &self.rx.streams {
            Some(streams) if streams.is_over() || (self.dying.is_some() && self.rx.is_gathering()) => 5 * LOOK_NS,
            _ if looked_at => LOOK_NS,
            _ => u64::MAX,
        }
    }

    /// A body that goes out: in stripes if it is long enough and there are streams.
    pub fn body(&mut self, mut body: super::body::Body) -> super::body::Body {
        if body.len >= STRIPED_MIN {
            self.wants_more = true;
            if let Some(streams) = &mut self.tx.streams {
                streams.cut_up(&mut body);
            }
        }
        body
    }
}

impl State {
    /// Moves on what has to do with further streams.
    #[cold]
    pub fn look_at_streams(&mut self, now: u64) {
        let Some(conn) = self.conn.as_deref_mut() else { return };
        if now.wrapping_sub(conn.looked) < LOOK_NS {
            return;
        }
        conn.looked = now;
        match &mut conn.more {
            More::None => {}
            More::Open => {
                if let Some(Err(e)) = conn.rx.streams.as_mut().map(|streams| streams.check(now)) {
                    conn.dying.get_or_insert(e);
                }
            }
            More::Could { at, token, count } if conn.wants_more => {
                let (to, token, count) = (Address::of(*at, None), *token, *count);
                let from = tcp::local(conn.socket()).map(|at| SocketAddr::new(at.ip(), 0)).ok();
                let dial = |_| Dial::new(&to, from, Purpose::Stream, token, Terms::default(), conn.key.clone());
                let until = now + config::get().tcp.greeting_ms.saturating_mul(1_000_000);
                conn.more = match (0..count).map(dial).collect() {
                    Ok(dials) => More::Calling { dials, links: Vec::new(), until },
                    Err(e) => {
                        crate::log!(Info, "no further streams: {e}");
                        More::None
                    }
                };
            }
            More::Could { .. } => {}
            More::Calling { dials, links, until } => match call(dials, links, now > *until) {
                Ok(false) => {}
                Ok(true) => {
                    let links = std::mem::take(links);
                    let count = links.len() as u64;
                    match conn.open_streams(links) {
                        Ok(()) => {
                            conn.put(Header::new(Kind::Streams, 0, count));
                            self.flush();
                        }
                        Err(e) => {
                            crate::log!(Info, "no further streams: {e}");
                            conn.more = More::None;
                        }
                    }
                }
                Err(e) => {
                    crate::log!(Info, "no further streams: {e}");
                    conn.more = More::None;
                }
            },
            More::Awaits { count, links } => {
                let requests = self.greeter.as_mut().map_or(Vec::new(), Greeter::poll);
                // Attempts that the dialer has given up.
                let fds: Vec<_> = links.iter().map(|link| link.socket.as_fd()).collect();
                let mut hung = tcp::hung_up(&fds).into_iter();
                links.retain(|_| !hung.next().unwrap_or(false));
                for request in requests {
                    // One too many is turned down by being dropped.
                    if (links.len() as u32) < *count {
                        match request.accept(Terms::default()) {
                            Ok(link) => links.push(link),
                            Err(e) => crate::log!(Info, "a further stream: {e}"),
                        }
                    }
                }
            }
        }
    }

    /// The dialer says that all streams are there.
    pub fn on_streams(&mut self, count: u64) -> Result<()> {
        let Some(conn) = self.conn.as_deref_mut() else { return Ok(()) };
        match std::mem::replace(&mut conn.more, More::None) {
            More::Awaits { links, .. } if count > 0 && count == links.len() as u64 => conn.open_streams(links)?,
            _ => return Err(broken("word of streams that there are not")),
        }
        self.greeter = None;
        Ok(())
    }
}

/// Moves calls on; true: all were answered.
fn call(dials: &mut Vec<Dial>, links: &mut Vec<Link>, late: bool) -> Result<bool> {
    for mut dial in std::mem::take(dials) {
        match dial.advance()? {
            Dialed::Waiting => dials.push(dial),
            Dialed::Accepted { link, .. } => links.push(link),
            Dialed::Rejected(_) => return Err(Error::fixed(errno::ECONNREFUSED, "the peer takes no more of them")),
        }
    }
    match late && !dials.is_empty() {
        true => Err(Error::fixed(errno::ETIMEDOUT, "the peer did not take them in time")),
        false => Ok(dials.is_empty()),
    }
}
